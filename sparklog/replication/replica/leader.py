"""The leader of one partition: a pure state machine.

| event | effects |
|---|---|
| `become` | BeginEpoch at the log end; the followers' caught-up time is now |
| FollowerFetch, refused | FetchRefused: the epochs do not fit, or the offset is out of range |
| FollowerFetch, diverging | FetchDiverging, without other effects: the epochs differ, or only one log has a gap |
| FollowerFetch, accepted | the follower's log end is noted; SetHighWatermark, Acknowledge, ProposeIsr, FetchAccepted |
| LogGrowth | SetHighWatermark, Acknowledge |
| WaitForReplicas | Acknowledge when the high watermark reaches the end offset; or Refuse |
| Tick | ProposeIsr (shrink); a proposal without an answer is sent again |
| ProposalResult | the proposal is committed, dropped (INELIGIBLE, NOT_ATTEMPTED), or stays pending |
| NewImage, same leader | the newer state is committed, a pending proposal is void; BeginEpoch after a re-election |
| NewImage, other leader; Resignation | Refuse for every waiter, with the new leader (KIP-951) |

Until the high watermark has reached the start of the epoch, `latest_offset` raises OFFSET_NOT_AVAILABLE (KIP-207).

The high watermark is the smallest log end in the *maximal* ISR: the committed members and the proposed ones. A leaving
member counts until the controller has confirmed its leaving, a joining member from the proposal on (KIP-497). The high
watermark never falls. It does not rise while the committed ISR is below min.insync.replicas (KIP-966), because a member
that leaves such an ISR stays an eligible leader.

At most one proposal is in progress. If its outcome is unknown, the leader repeats it. A newer partition epoch makes it
void, because the controller accepts a proposal only for the partition epoch that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from msgspec import Struct

from sparklog.errors import (
    FencedLeaderEpochError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    SparklogError,
    StaleBrokerEpochError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.gaps import gaps_within
from sparklog.log.state.leader_epochs import UNDEFINED, EpochEnd
from sparklog.replication.cluster_image import NO_EPOCH, PartitionImage
from sparklog.replication.replica.model import (
    ALL_SAFEGUARDS,
    Acknowledge,
    AlterOutcome,
    BeginEpoch,
    FetchAccepted,
    FetchDiverging,
    FetchRefused,
    FollowerFetch,
    LeaderEffect,
    LeaderEvent,
    LogGrowth,
    NewImage,
    ProposalResult,
    ProposeIsr,
    Refuse,
    ReplicaConfig,
    ReplicaLog,
    Resignation,
    Safeguards,
    SetHighWatermark,
    Tick,
    WaitForReplicas,
)

UNKNOWN_END = -1


class FollowerProgress(Struct):
    """The leader's knowledge of a follower. `log_end_offset` is UNKNOWN_END before the first fetch in this epoch."""

    caught_up_ms: int
    log_end_offset: int = UNKNOWN_END
    log_start_offset: int = 0
    broker_epoch: int = NO_EPOCH
    last_fetch_ms: int = 0
    leader_end_at_last_fetch: int = 0

    def on_fetch(self, fetch: FollowerFetch, leader_end: int, now_ms: int) -> None:
        """Record a fetch. A follower is caught up if it has all records, or has all records that existed at its
        previous fetch: under constant load no follower ever has all records."""
        if fetch.fetch_offset >= leader_end:
            self.caught_up_ms = now_ms
        elif fetch.fetch_offset >= self.leader_end_at_last_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        self.last_fetch_ms = now_ms
        self.leader_end_at_last_fetch = leader_end
        self.log_end_offset = fetch.fetch_offset
        self.log_start_offset = fetch.log_start_offset
        self.broker_epoch = fetch.broker_epoch


class _PendingProposal(Struct):
    proposal: ProposeIsr
    sent_ms: int

    @property
    def members(self) -> frozenset[int]:
        return frozenset(member for member, _ in self.proposal.isr)


class Leader:
    """The leader's state machine for one partition. `become` starts it."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: int,
        image: NewImage,
        log: ReplicaLog,
        now_ms: int,
        config: ReplicaConfig | None = None,
        safeguards: Safeguards = ALL_SAFEGUARDS,
        last_fetch_ms: Callable[[int], int] | None = None,
        proposed: ProposeIsr | None = None,
    ) -> None:
        """Begin to lead. `image`: the partition's state, with this broker as its leader. `last_fetch_ms`: returns the
        time of the last contact with a follower. None if a fetch never waits at the leader for new records (KIP-227),
        so that every contact is a fetch. `proposed`: this broker's earlier proposal in this leader epoch, if it has no
        answer yet. Raises ValueError."""
        if image.partition.leader != broker_id:
            raise ValueError(f"broker {broker_id} does not lead: {image.partition}")
        self._me = broker_id
        self._broker_epoch = broker_epoch
        self._log = log
        self._config = config if config is not None else ReplicaConfig()
        self._guards = safeguards
        self._committed = image.partition
        self._eligible: Mapping[int, int] = image.eligible
        self._min_insync = image.min_insync
        self._pending: _PendingProposal | None = None
        if proposed is not None and proposed.partition_epoch == image.partition.partition_epoch:
            self._pending = _PendingProposal(proposed, now_ms)  # the controller may have stored it
        self._waiters: dict[Hashable, int] = {}
        self._followers: dict[int, FollowerProgress] = {}
        self._last_fetch_ms = last_fetch_ms
        self._end_seen = log.log_end_offset
        self._high_watermark = log.high_watermark
        self.epoch_start_offset = log.log_end_offset
        self.has_resigned = False
        self._know_followers(now_ms)

    def become(self, now_ms: int) -> list[LeaderEffect]:
        """Begin the leader epoch. Called once, before any event."""
        effects: list[LeaderEffect] = [BeginEpoch(self._committed.leader_epoch, self.epoch_start_offset)]
        self._advance(now_ms, effects)
        self._propose_recovered(now_ms, effects)
        return effects

    # --- present state

    @property
    def broker_epoch(self) -> int:
        """Broker epoch of the registration in which this broker became the leader: another registration needs another
        Leader."""
        return self._broker_epoch

    @property
    def partition(self) -> PartitionImage:
        """The newest state of the partition that the controller has confirmed."""
        return self._committed

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def followers(self) -> Mapping[int, FollowerProgress]:
        return self._followers

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The committed members of the ISR, and the members of the proposal in progress."""
        committed = frozenset(self._committed.isr) | {self._me}
        if self._pending is None:
            return committed
        return committed | self._pending.members if self._guards.maximal_isr else self._pending.members

    @property
    def proposed(self) -> ProposeIsr | None:
        """The proposal in progress; None if there is none."""
        return None if self._pending is None else self._pending.proposal

    @property
    def low_watermark(self) -> int:
        """The smallest log start of the live replicas, for which delete-records waits (KIP-107)."""
        starts = [f.log_start_offset for r, f in self._followers.items() if r in self._eligible]
        return min([self._log.log_start_offset, *starts])

    @property
    def waits_for_time(self) -> bool:
        """True if a Tick can have effects. A partition whose replicas are all in sync, and have all records, needs no
        ticks."""
        end, isr = self._log.log_end_offset, self._committed.isr
        return (
            self._pending is not None
            or self._committed.recovering
            or self._high_watermark < end
            or any(r not in isr or progress.log_end_offset != end for r, progress in self._followers.items())
        )

    def latest_offset(self) -> int:
        """Return the end of the readable records. Raises OffsetNotAvailableError while this leader possibly knows a
        lower end than consumers have read at its predecessor."""
        if self._guards.latest_after_epoch_start and self._high_watermark < self.epoch_start_offset:
            raise OffsetNotAvailableError(
                f"the leader of epoch {self._committed.leader_epoch} has not yet committed the start of its epoch "
                f"({self.epoch_start_offset}), only {self._high_watermark}; try again"
            )
        return self._high_watermark

    def check_append(self) -> None:
        """Check that an append with acks=all is allowed. Raises NotEnoughReplicasError, NotLeaderError."""
        if self.has_resigned:
            raise NotLeaderError("this broker no longer leads the partition; read the metadata again")
        if len(self._committed.isr) < self._min_insync:
            raise NotEnoughReplicasError(
                f"{len(self._committed.isr)} replicas are in sync {self._committed.isr}, min.insync.replicas is "
                f"{self._min_insync}; bring replicas back, or lower it"
            )

    # --- events

    def handle(self, event: LeaderEvent, now_ms: int) -> list[LeaderEffect]:
        """Return the effects of `event`. After Resignation, the only effects are refusals."""
        effects: list[LeaderEffect] = []
        if self.has_resigned and not isinstance(event, FollowerFetch | WaitForReplicas):
            return effects
        match event:
            case FollowerFetch():
                self._on_fetch(event, now_ms, effects)
            case LogGrowth():
                self._leave_behind()
                self._advance(now_ms, effects)
            case WaitForReplicas(token, end_offset):
                self._wait(token, end_offset, effects)
            case Tick():
                self._on_tick(now_ms, effects)
            case ProposalResult():
                self._on_answer(event, now_ms, effects)
            case NewImage():
                self._on_image(event, now_ms, effects)
            case Resignation(leader, leader_epoch):
                self._resign(leader, leader_epoch, effects)
        return effects

    def _on_fetch(self, fetch: FollowerFetch, now_ms: int, effects: list[LeaderEffect]) -> None:
        log = self._log
        error = self._refusal(fetch)
        if error is None and not log.log_start_offset <= fetch.fetch_offset <= log.log_end_offset:
            error = OffsetOutOfRangeError(
                f"offset {fetch.fetch_offset} is out of range: the log has offsets {log.log_start_offset} to "
                f"{log.log_end_offset}"
            )
        diverging = None
        if self._guards.divergence_check and fetch.last_epoch != UNDEFINED and not _is_fence(error):
            end = log.epochs.end_offset_for(fetch.last_epoch, log.log_end_offset)
            if end.epoch != UNDEFINED and (end.epoch < fetch.last_epoch or end.end_offset < fetch.fetch_offset):
                diverging = end
        if diverging is None and error is None:
            diverging = self._other_gap(fetch)
        if diverging is not None:
            if not self._guards.has_inert_divergence and fetch.replica_id in self._followers:
                self._note(fetch, now_ms, effects)
            effects.append(FetchDiverging(fetch.token, diverging, self._high_watermark, log.log_start_offset))
            return
        if error is not None:
            effects.append(FetchRefused(fetch.token, error, log.log_start_offset, log.log_end_offset))
            return
        self._note(fetch, now_ms, effects)
        effects.append(FetchAccepted(fetch.token, log.log_end_offset, self._high_watermark, log.log_start_offset))

    def _other_gap(self, fetch: FollowerFetch) -> EpochEnd | None:
        """Return the start of the first gap that only one of the logs has, as the end of the follower's last epoch.
        Returns None if the logs have the same gaps."""
        if not fetch.gaps and not self._log.gaps:
            return None
        theirs = min([fetch.log_start_offset, *(first for first, _ in fetch.gaps)])  # lost, not deleted
        both = max(theirs, self._log.log_start_offset), fetch.fetch_offset
        differing = {*gaps_within(fetch.gaps, *both)} ^ {*gaps_within(self._log.gaps, *both)}
        return EpochEnd(max(fetch.last_epoch, 0), min(differing)[0]) if differing else None

    def _refusal(self, fetch: FollowerFetch) -> SparklogError | None:
        current = self._committed.leader_epoch
        if self.has_resigned:
            return NotLeaderError(f"this broker no longer leads in epoch {current}; read the metadata again")
        if fetch.leader_epoch < current:
            return FencedLeaderEpochError(
                f"leader epoch {fetch.leader_epoch} has ended, the current epoch is {current}"
            )
        if fetch.leader_epoch > current:
            return UnknownLeaderEpochError(
                f"leader epoch {fetch.leader_epoch} is newer than epoch {current} of this broker's metadata"
            )
        progress = self._followers.get(fetch.replica_id)
        if progress is None:
            return UnknownTopicOrPartitionError(
                f"broker {fetch.replica_id} is not a follower, the replicas are {self._committed.replicas}"
            )
        # A stopping broker is not eligible any more, but continues to fetch. A fetch with a later broker epoch counts
        # only once an image has confirmed that epoch: any fetch could claim one.
        expected = self._eligible.get(fetch.replica_id, progress.broker_epoch)
        if fetch.broker_epoch != expected or expected == NO_EPOCH:
            return StaleBrokerEpochError(
                f"broker {fetch.replica_id} has broker epoch {expected} in this broker's metadata, the fetch has "
                f"{fetch.broker_epoch}"
            )
        return None

    def _note(self, fetch: FollowerFetch, now_ms: int, effects: list[LeaderEffect]) -> None:
        self._followers[fetch.replica_id].on_fetch(fetch, self._log.log_end_offset, now_ms)
        self._expand(fetch.replica_id, now_ms, effects)
        self._advance(now_ms, effects)

    def _leave_behind(self) -> None:
        """Note the time at which followers begin to lag. A follower that had all records before this append was caught
        up until its last contact, however old its last fetch is."""
        before, self._end_seen = self._end_seen, self._log.log_end_offset
        if self._last_fetch_ms is None or before == self._end_seen:
            return
        for replica, progress in self._followers.items():
            if progress.log_end_offset == before:
                progress.caught_up_ms = max(progress.caught_up_ms, self._last_fetch_ms(replica))

    def _wait(self, token: Hashable, end_offset: int, effects: list[LeaderEffect]) -> None:
        if self.has_resigned:
            effects.append(Refuse(token, NotLeaderError("this broker no longer leads the partition")))
        else:
            self._waiters[token] = end_offset
            self._answer_waiters(effects)

    def _on_tick(self, now_ms: int, effects: list[LeaderEffect]) -> None:
        self._advance(now_ms, effects)
        if self._pending is not None:
            if now_ms - self._pending.sent_ms >= self._config.proposal_retry_ms:
                self._pending.sent_ms = now_ms
                effects.append(self._pending.proposal)
            return
        late = {r for r in self._committed.isr if r != self._me and self._lags(r, now_ms)}
        if late:
            self._propose([r for r in self._committed.isr if r not in late], now_ms, effects)
        else:
            self._propose_recovered(now_ms, effects)
            for replica in self._followers:
                self._expand(replica, now_ms, effects)

    def _on_answer(self, answer: ProposalResult, now_ms: int, effects: list[LeaderEffect]) -> None:
        after = answer.partition
        if after is not None:
            is_next_epoch = after.leader == self._me and after.leader_epoch > self._committed.leader_epoch
            if not is_next_epoch:  # the image begins that epoch; until then the proposal stays pending
                self._commit(after, now_ms, effects)
        elif self._pending is not None and answer.partition_epoch == self._pending.proposal.partition_epoch:
            is_abandoned = answer.outcome in (AlterOutcome.INELIGIBLE, AlterOutcome.NOT_ATTEMPTED)
            if is_abandoned or (answer.outcome is AlterOutcome.UNKNOWN and not self._guards.keeps_pending):
                self._pending = None
                self._advance(now_ms, effects)

    def _on_image(self, image: NewImage, now_ms: int, effects: list[LeaderEffect]) -> None:
        self._eligible = image.eligible
        self._min_insync = image.min_insync
        self._commit(image.partition, now_ms, effects)
        if not self.has_resigned:
            self._propose_recovered(now_ms, effects)

    def _resign(self, leader: int, leader_epoch: int, effects: list[LeaderEffect]) -> None:
        self.has_resigned = True
        self._pending = None
        error = NotLeaderError(
            f"broker {leader} leads in epoch {leader_epoch}" if leader >= 0 else "the partition has no leader now"
        )
        effects += [Refuse(token, error, leader, leader_epoch) for token in self._waiters]
        self._waiters.clear()

    # --- the ISR

    def _commit(self, partition: PartitionImage, now_ms: int, effects: list[LeaderEffect]) -> None:
        before = self._committed
        if partition.partition_epoch <= before.partition_epoch:
            return
        if partition.leader != self._me:
            self._resign(partition.leader, partition.leader_epoch, effects)
            return
        self._committed = partition
        self._pending = None
        if partition.leader_epoch > before.leader_epoch:
            self.epoch_start_offset = self._log.log_end_offset
            effects.append(BeginEpoch(partition.leader_epoch, self.epoch_start_offset))
            others_led = partition.leader_epoch > before.leader_epoch + 1  # they may have truncated the followers' logs
            for replica, progress in self._followers.items():
                progress.caught_up_ms = now_ms
                if others_led or replica in partition.adding:  # removed and added again, perhaps empty
                    progress.log_end_offset = UNKNOWN_END
        for replica in {*before.isr} - {*partition.isr, self._me}:  # it joins again when it fetches again
            if replica in self._followers:
                self._followers[replica].log_end_offset = UNKNOWN_END
        self._know_followers(now_ms)
        self._advance(now_ms, effects)

    def _know_followers(self, now_ms: int) -> None:
        self._followers = {
            r: self._followers.get(r) or FollowerProgress(now_ms) for r in self._committed.replicas if r != self._me
        }

    def _lags(self, replica: int, now_ms: int) -> bool:
        progress = self._followers[replica]
        return (
            progress.log_end_offset != self._log.log_end_offset
            and now_ms - progress.caught_up_ms > self._config.lag_max_ms
        )

    def _may_join(self, replica: int) -> bool:
        """Return True if the replica is allowed to join the ISR. Its broker epoch must be eligible. It must have all
        records that can be committed, and no deleted records, which readers would see again if the replica led.
        """
        progress = self._followers[replica]
        needed = self._high_watermark
        if self._guards.epoch_start_before_join:
            needed = max(needed, self.epoch_start_offset)
        is_this_life = self._eligible.get(replica) == progress.broker_epoch
        has_all = progress.log_end_offset >= needed and progress.log_start_offset >= self._log.log_start_offset
        return is_this_life and has_all and not self._committed.recovering

    def _expand(self, replica: int, now_ms: int, effects: list[LeaderEffect]) -> None:
        if self._pending is None and replica not in self._committed.isr and self._may_join(replica):
            self._propose([*self._committed.isr, replica], now_ms, effects)

    def _propose_recovered(self, now_ms: int, effects: list[LeaderEffect]) -> None:
        if self._committed.recovering and self._pending is None:
            self._propose(self._committed.isr, now_ms, effects)

    def _propose(self, members: list[int] | tuple[int, ...], now_ms: int, effects: list[LeaderEffect]) -> None:
        isr = tuple((m, self._broker_epoch if m == self._me else self._followers[m].broker_epoch) for m in members)
        proposal = ProposeIsr(self._committed.leader_epoch, self._committed.partition_epoch, isr)
        self._pending = _PendingProposal(proposal, now_ms)
        effects.append(proposal)
        if not self._guards.maximal_isr:
            self._advance(now_ms, effects)

    # --- the high watermark

    def _advance(self, now_ms: int, effects: list[LeaderEffect]) -> None:
        if self._guards.min_insync and len(self._committed.isr) < self._min_insync:
            return
        members = self.maximal_isr
        ends = [self._log.durable_end_offset]
        for replica, progress in self._followers.items():
            if replica in members or self._is_about_to_join(replica, progress, now_ms):
                ends.append(progress.log_end_offset)
        if min(ends) > self._high_watermark:
            self._high_watermark = min(ends)
            effects.append(SetHighWatermark(self._high_watermark))
            self._answer_waiters(effects)

    def _is_about_to_join(self, replica: int, progress: FollowerProgress, now_ms: int) -> bool:
        """Return True if the follower is close to joining the ISR, so that the high watermark waits for it. Under load
        the follower could otherwise never join. A follower that cannot join must not hold up the high watermark
        (KAFKA-15021)."""
        return (
            self._eligible.get(replica) == progress.broker_epoch
            and progress.log_end_offset >= self._high_watermark
            and now_ms - progress.caught_up_ms <= self._config.lag_max_ms
            and not self._committed.recovering
        )

    def _answer_waiters(self, effects: list[LeaderEffect]) -> None:
        done = [token for token, end in self._waiters.items() if end <= self._high_watermark]
        for token in done:
            del self._waiters[token]
            if self._guards.min_insync and len(self.maximal_isr) < self._min_insync:
                effects.append(
                    Refuse(
                        token,
                        NotEnoughReplicasAfterAppendError(
                            f"{len(self.maximal_isr)} replicas are in sync, min.insync.replicas is {self._min_insync}; "
                            f"the records are in the log and may be kept"
                        ),
                        self._me,
                        self._committed.leader_epoch,
                    )
                )
            else:
                effects.append(Acknowledge(token))


def _is_fence(error: SparklogError | None) -> bool:
    return error is not None and not isinstance(error, OffsetOutOfRangeError)
