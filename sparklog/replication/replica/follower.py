"""A follower of one partition: a pure state machine that copies the leader's log.

| event | effects |
|---|---|
| `become` | Fetch from the log end with the last epoch; the log is not truncated before the leader's answer |
| FetchAnswer with batches | AppendReplica, SetHighWatermark (never beyond the own log end), SetLogStart, Fetch |
| FetchAnswer, diverging | TruncateTo or RestartAt, Fetch; several rounds after fast elections (KIP-279) |
| FetchAnswer to another fetch than the last | nothing |
| FetchFailure, out of range | TruncateTo the leader's end, or RestartAt its start; never fatal (KAFKA-7414) |
| FetchFailure, otherwise | RefreshMetadata if the epochs differ; Fetch after `replica.fetch.backoff.ms` |

A log is truncated where its epochs diverge from the leader's, never at the high watermark: a follower's high watermark
lags by one round, and records above it may be committed (KIP-101, KAFKA-6361). If the leader names an epoch that the
follower does not know, the follower truncates to the end of its largest smaller epoch and fetches again. With only one
round, records of two leaders could remain after fast successive elections (KIP-279). A truncation below the high
watermark, after an unclean election, also lowers the high watermark.

A gap is a range of offsets that a repair could not save. If only one of the two logs has a gap, the follower truncates
at its start. The leader finds that offset, because only the leader knows the gaps of both logs.
"""

from __future__ import annotations

from sparklog.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StaleBrokerEpochError,
    UnknownLeaderEpochError,
)
from sparklog.log.state.leader_epochs import UNDEFINED, EpochEnd
from sparklog.replication.cluster_image import NO_LEADER, PartitionImage
from sparklog.replication.replica.model import (
    ALL_SAFEGUARDS,
    AppendReplica,
    Fetch,
    FetchAnswer,
    FetchFailure,
    FollowerEffect,
    FollowerEvent,
    RefreshMetadata,
    ReplicaConfig,
    ReplicaLog,
    RestartAt,
    Safeguards,
    SetHighWatermark,
    SetLogStart,
    TruncateTo,
)

FIRST_BACKOFF_MS = 20
"""Time in ms until the next fetch after a refusal because of an older image, which is soon up to date. It doubles with
each further refusal, up to `replica.fetch.backoff.ms`."""


class Follower:
    """The follower's state machine for one leader epoch. A new leader epoch gets a new Follower."""

    def __init__(
        self,
        partition: PartitionImage,
        log: ReplicaLog,
        *,
        first_fetch: int = 0,
        config: ReplicaConfig | None = None,
        safeguards: Safeguards = ALL_SAFEGUARDS,
    ) -> None:
        """`first_fetch`: the largest number of an earlier fetch; larger numbers tell late answers to earlier fetches
        apart."""
        self._partition = partition
        self._log = log
        self._config = config if config is not None else ReplicaConfig()
        self._guards = safeguards
        self._number = first_fetch
        self._under_way: int | None = None
        self._end = log.log_end_offset
        self._refusals = 0
        """Number of fetches in a row that were refused because one of the two brokers has an older image."""
        self.copied_to = -1
        """Offset in the leader's last answer, below which every replica has the records; -1 while a replica is out of
        sync."""

    @property
    def partition(self) -> PartitionImage:
        return self._partition

    @property
    def last_fetch(self) -> int:
        """The largest number of a fetch so far: the `first_fetch` of the next Follower."""
        return self._number

    def become(self, now_ms: int) -> list[FollowerEffect]:
        """Begin to follow. Called once, before any event."""
        if self._partition.leader == NO_LEADER:
            return []
        effects: list[FollowerEffect] = []
        if not self._guards.epoch_truncation:
            self._end = min(self._end, self._log.high_watermark)
            effects.append(TruncateTo(self._end))
        return [*effects, self._fetch(now_ms)]

    def handle(self, event: FollowerEvent, now_ms: int) -> list[FollowerEffect]:
        """Return the effects of `event`."""
        if self._partition.leader == NO_LEADER or (self._guards.stale_answer_drop and event.number != self._under_way):
            return []
        match event:
            case FetchAnswer():
                if self._guards.stale_answer_drop and event.leader_epoch != self._partition.leader_epoch:
                    return []
                return self._on_answer(event, now_ms)
            case FetchFailure():
                return self._on_failure(event, now_ms)

    def _on_answer(self, answer: FetchAnswer, now_ms: int) -> list[FollowerEffect]:
        effects: list[FollowerEffect] = []
        self._end = self._log.log_end_offset
        self._refusals = 0
        self.copied_to = answer.copied_to
        if answer.diverging is not None:
            self._cut(self._cut_offset(answer.diverging), effects)
        elif answer.batches is not None:
            self._end = answer.batches.next_offset
            effects.append(AppendReplica(answer.batches))
        if answer.diverging is None:
            committed = max(self._log.high_watermark, min(answer.high_watermark, self._end))
            if committed > self._log.high_watermark:
                effects.append(SetHighWatermark(committed))
            start = min(answer.log_start_offset, committed)
            if start > self._log.log_start_offset:
                effects.append(SetLogStart(start))
        return [*effects, self._fetch(now_ms)]

    def _cut_offset(self, leader: EpochEnd) -> int:
        mine = self._log.epochs.end_offset_for(leader.epoch, self._end)
        if mine.epoch == UNDEFINED:
            return min(leader.end_offset, self._end)
        if mine.epoch == leader.epoch:
            return min(mine.end_offset, leader.end_offset, self._end)
        return min(mine.end_offset, self._end)

    def _cut(self, offset: int, effects: list[FollowerEffect]) -> None:
        self._end = offset
        if offset < self._log.log_start_offset:
            effects.append(RestartAt(offset))
        else:
            effects.append(TruncateTo(offset))
        if self._log.high_watermark > offset:  # only after an unclean election
            effects.append(SetHighWatermark(offset))

    def _on_failure(self, failure: FetchFailure, now_ms: int) -> list[FollowerEffect]:
        self._end = self._log.log_end_offset
        effects: list[FollowerEffect] = []
        if isinstance(failure.error, OffsetOutOfRangeError):
            if failure.log_end_offset < self._end:
                self._cut(failure.log_end_offset, effects)
            elif failure.log_start_offset > self._end:
                self._end = failure.log_start_offset
                effects += [RestartAt(self._end), SetHighWatermark(self._end)]
            return [*effects, self._fetch(now_ms)]
        backoff_ms = self._config.fetch_backoff_ms
        outdated = FencedLeaderEpochError, UnknownLeaderEpochError, NotLeaderError, StaleBrokerEpochError
        if isinstance(failure.error, outdated):
            effects.append(RefreshMetadata())
            backoff_ms = min(FIRST_BACKOFF_MS << min(self._refusals, 10), backoff_ms)
            self._refusals += 1
        return [*effects, self._fetch(now_ms + backoff_ms)]

    def _fetch(self, at_ms: int) -> Fetch:
        """Return a fetch from the log end after the earlier effects of the same event. The shell corrects the offset if
        a truncation ends lower, and adds the last epoch when it sends the fetch."""
        self._number += 1
        self._under_way = self._number
        return Fetch(self._number, self._partition.leader, self._partition.leader_epoch, self._end, at_ms)

    def last_epoch(self) -> int:
        """Return the last epoch of the own log, for a fetch that is sent now."""
        return self._log.epochs.latest if self._guards.epoch_truncation else UNDEFINED
