"""Types of a partition's replicas: events, effects, and the rules that tests can switch off.

A handler changes the state in memory at once and returns effects. The shell carries out all effects, in their order,
before it reports the next event. With `flush.mode=group` or `flush.messages` a follower's shell fsyncs appended batches
before it sends the next fetch, which tells the leader that the follower has them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from msgspec import Struct

from sparklog.errors import SparklogError
from sparklog.format.epoch_checkpoint import EpochEntry
from sparklog.format.gaps import Gap
from sparklog.log.state.leader_epochs import UNDEFINED, EpochEnd, LeaderEpochs
from sparklog.replication.cluster_image import NO_EPOCH, PartitionImage


class ReplicaLog(Protocol):
    """Properties of the log that the rules read."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def durable_end_offset(self) -> int:
        """End of the records that this replica counts as durable: the log end, or the end of the fsynced records while
        `flush.mode=group` or `flush.messages` demand an fsync."""
        ...

    @property
    def high_watermark(self) -> int: ...
    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Ranges of offsets that a repair could not save, ascending."""
        ...

    @property
    def epochs(self) -> LeaderEpochs: ...


class ReplicaConfig(Struct, frozen=True):
    """Settings of the replicas."""

    lag_max_ms: int = 30_000
    """`replica.lag.time.max.ms`."""
    fetch_backoff_ms: int = 1_000
    """`replica.fetch.backoff.ms`."""
    proposal_retry_ms: int = 1_000
    """Time after which a proposal without an answer is repeated."""


@dataclass(frozen=True)
class Safeguards:
    """Protections of the rules. Only tests switch a protection off, to prove that they detect its loss."""

    maximal_isr: bool = True
    """The high watermark waits for committed and for proposed members (KIP-497)."""
    min_insync: bool = True
    """The high watermark does not rise while the committed ISR is below min.insync.replicas (KIP-966)."""
    epoch_start_before_join: bool = True
    """A follower joins the ISR only with all records below the start of the leader's epoch; all records below the high
    watermark are not enough."""
    divergence_check: bool = True
    """A follower gets no records if its last epoch ends at another offset than in the leader's log (KIP-595)."""
    has_inert_divergence: bool = True
    """A fetch of a diverging follower does not change the leader's FollowerProgress."""
    epoch_truncation: bool = True
    """A follower truncates where the epochs diverge, not at its high watermark, which lags (KIP-101, KAFKA-6361)."""
    stale_answer_drop: bool = True
    """An answer is dropped unless it belongs to the last fetch."""
    keeps_pending: bool = True
    """The members of a proposal count for the high watermark until its outcome is known."""
    latest_after_epoch_start: bool = True
    """The latest offset is not returned before the high watermark has reached the start of the epoch (KIP-207)."""


ALL_SAFEGUARDS = Safeguards()


# -- events at the leader


class FollowerFetch(Struct, frozen=True):
    """A follower's fetch from `fetch_offset`. The follower has all records below this offset except its `gaps`.
    `last_epoch` is the leader epoch of the follower's last record; UNDEFINED if the follower has no records."""

    token: Hashable
    replica_id: int
    broker_epoch: int
    leader_epoch: int
    fetch_offset: int
    last_epoch: int = UNDEFINED
    log_start_offset: int = 0
    gaps: tuple[Gap, ...] = ()


class LogGrowth(Struct, frozen=True):
    """The leader's log has grown, or an fsync has made more of its records durable."""


class WaitForReplicas(Struct, frozen=True):
    """A producer with acks=all waits until all records below `end_offset` are committed."""

    token: Hashable
    end_offset: int


class Tick(Struct, frozen=True):
    """A periodic event, at least twice per `replica.lag.time.max.ms`."""


class AlterOutcome(Enum):
    """Outcome of a proposal."""

    COMMITTED = "committed"
    INELIGIBLE = "ineligible"
    """The controller refused a member. A repetition would fail: the proposal names the member's broker epoch."""
    NOT_ATTEMPTED = "not attempted"
    """The proposal was not sent."""
    STALE = "stale"
    """The partition has changed since the proposal; a newer image will arrive."""
    UNKNOWN = "unknown"
    """There was no reply."""


class ProposalResult(Struct, frozen=True):
    """The controller's answer to the proposal for `partition_epoch`. `partition`: the new state if the proposal was
    committed."""

    partition_epoch: int
    outcome: AlterOutcome
    partition: PartitionImage | None = None


class NewImage(Struct, frozen=True):
    """A newer state of the partition. `eligible`: by broker id, the broker epochs of the brokers that are allowed to
    join the ISR, from the same image as `partition` (KAFKA-15221)."""

    partition: PartitionImage
    eligible: Mapping[int, int]
    min_insync: int


class Resignation(Struct, frozen=True):
    """Another broker leads, or this broker has lost its session. `leader` -1: the new leader is unknown."""

    leader: int = -1
    leader_epoch: int = NO_EPOCH


LeaderEvent = FollowerFetch | LogGrowth | WaitForReplicas | Tick | ProposalResult | NewImage | Resignation


# -- effects of the leader


class BeginEpoch(Struct, frozen=True):
    """Add a durable entry to the epoch cache: the epoch begins at the log end, even if it gets no records."""

    leader_epoch: int
    start_offset: int


class SetHighWatermark(Struct, frozen=True):
    """Set the high watermark: consumers can read the records below `offset`."""

    offset: int


class ProposeIsr(Struct, frozen=True):
    """Propose an ISR to the controller. `isr`: (broker id, broker epoch) of each member; the broker epoch is -1 for a
    member that has not fetched in this leader epoch. `recovering` False also confirms the leadership after an unclean
    election."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    recovering: bool = False


class FetchAccepted(Struct, frozen=True):
    """Return records from the fetch offset to `end_offset`, as many as fit, and the leader's offsets."""

    token: Hashable
    end_offset: int
    high_watermark: int
    log_start_offset: int


class FetchDiverging(Struct, frozen=True):
    """Return no records, because the logs differ. If the follower's last epoch does not reach the fetch offset in the
    leader's log, `end` is the largest epoch of the leader's log up to that epoch, with its end offset. If only one of
    the logs has a gap, `end.end_offset` is the start of the gap."""

    token: Hashable
    end: EpochEnd
    high_watermark: int
    log_start_offset: int


class FetchRefused(Struct, frozen=True):
    """Refuse a fetch. A follower that is out of range uses `log_start_offset` and `log_end_offset`."""

    token: Hashable
    error: SparklogError
    log_start_offset: int
    log_end_offset: int


class Acknowledge(Struct, frozen=True):
    """Answer the producer: all in-sync replicas have its records."""

    token: Hashable


class Refuse(Struct, frozen=True):
    """Answer the producer with `error`. `leader` and `leader_epoch` name the present leader (KIP-951)."""

    token: Hashable
    error: SparklogError
    leader: int = -1
    leader_epoch: int = NO_EPOCH


LeaderEffect = (
    BeginEpoch | SetHighWatermark | ProposeIsr | FetchAccepted | FetchDiverging | FetchRefused | Acknowledge | Refuse
)


# -- the follower


class Fetch(Struct, frozen=True):
    """Send a fetch to the leader, no earlier than `at_ms`. The answer has the same `number`. The shell adds
    `Follower.last_epoch()` and the log start when it sends the fetch. If a truncation has ended below `fetch_offset`,
    the shell fetches from the log end instead."""

    number: int
    leader: int
    leader_epoch: int
    fetch_offset: int
    at_ms: int = 0


class Batches(Struct, frozen=True):
    """Whole batches as the leader has stamped them; `data` is opaque to the rules.

    - `epochs`: leader epochs that begin in the batches, with their start offsets. Compaction can have removed the
      records at these offsets.
    - `log_start_offset`: start of the leader's log.
    - `segments`: start offsets of the leader's segments in the batches.
    - `gaps`: ranges of offsets between `base_offset` and `next_offset` that the leader's log has lost. With gaps,
      `data` can be empty."""

    base_offset: int
    next_offset: int
    data: object
    epochs: tuple[EpochEntry, ...] = ()
    log_start_offset: int = 0
    segments: tuple[int, ...] = ()
    gaps: tuple[Gap, ...] = ()


class FetchAnswer(Struct, frozen=True):
    """The answer to fetch `number`."""

    number: int
    leader_epoch: int
    high_watermark: int
    log_start_offset: int
    batches: Batches | None = None
    diverging: EpochEnd | None = None
    """An epoch and its end in the leader's log, at which this log must be truncated; the answer then has no batches."""
    copied_to: int = -1
    """Offset below which every replica has the records; -1 while a replica is out of sync."""


class FetchFailure(Struct, frozen=True):
    """Fetch `number` failed. The offsets are the leader's bounds if `error` is OffsetOutOfRangeError."""

    number: int
    error: SparklogError
    log_start_offset: int = 0
    log_end_offset: int = 0


class TruncateTo(Struct, frozen=True):
    """Truncate the log at `offset`, and the epoch cache even if the log ends at `offset` already (KAFKA-10706)."""

    offset: int


class RestartAt(Struct, frozen=True):
    """Empty the log; it then begins at `offset`."""

    offset: int


class AppendReplica(Struct, frozen=True):
    """Append the batches unchanged, after a check of their checksums."""

    batches: Batches


class SetLogStart(Struct, frozen=True):
    """Raise the log start to `offset`: the leader has deleted the records below."""

    offset: int


class RefreshMetadata(Struct, frozen=True):
    """Read a newer image, because the broker that was asked named another leader epoch or broker epoch, or does not
    lead."""


FollowerEvent = FetchAnswer | FetchFailure
FollowerEffect = Fetch | TruncateTo | RestartAt | AppendReplica | SetHighWatermark | SetLogStart | RefreshMetadata
