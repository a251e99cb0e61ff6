"""The words of a partition's replicas: events, effects, and the rules that tests can switch off.

A handler changes the state in memory at once and returns effects. The shell carries them out in their order, each one
completely, before it reports the next event: with `flush.mode=group` an AppendReplica is on the disk when it is done,
or acks=all would not be durable.
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
    """Properties of the log that the rules read. `durable_end_offset`: end of the records that may be acknowledged;
    with `flush.mode=group` the end at the last fsync, else the log end. `gaps`: the offsets that a repair could not
    save, ascending."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def durable_end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def gaps(self) -> tuple[Gap, ...]: ...
    @property
    def epochs(self) -> LeaderEpochs: ...


class ReplicaConfig(Struct, frozen=True):
    """Settings, in milliseconds: `replica.lag.time.max.ms`, `replica.fetch.backoff.ms`, and when a proposal without an
    answer is made again."""

    lag_max_ms: int = 30_000
    fetch_backoff_ms: int = 1_000
    proposal_retry_ms: int = 1_000


@dataclass(frozen=True)
class Safeguards:
    """Protections of the rules. Only tests switch one off, to prove that they notice it."""

    maximal_isr: bool = True
    """The high watermark waits for committed and for proposed members (KIP-497)."""
    min_insync: bool = True
    """The high watermark stands still while the committed ISR is below min.insync.replicas (KIP-966)."""
    epoch_start_before_join: bool = True
    """A follower joins the ISR only with all records below the start of the leader's epoch, not only below the high
    watermark."""
    divergence_check: bool = True
    """A follower whose last epoch ends elsewhere at the leader gets no records (KIP-595)."""
    divergence_changes_nothing: bool = True
    """The fetch of a diverging follower gives no information about its log."""
    epoch_truncation: bool = True
    """A follower cuts where the epochs part, not at its high watermark, which lags (KIP-101, KAFKA-6361)."""
    stale_answer_drop: bool = True
    """An answer to a fetch that is not the last one sent is dropped."""
    pending_until_known: bool = True
    """A proposal whose outcome is not known keeps counting."""
    latest_after_epoch_start: bool = True
    """"Latest" is not answered before the high watermark has reached the epoch's start (KIP-207)."""


ALL_SAFEGUARDS = Safeguards()


# -- events at the leader


class FollowerFetch(Struct, frozen=True):
    """A follower's request for `fetch_offset`: it has all records below except those in its `gaps`. `last_epoch`: of
    its last record, -1 without any."""

    token: Hashable
    replica_id: int
    broker_epoch: int
    leader_epoch: int
    fetch_offset: int
    last_epoch: int = UNDEFINED
    log_start_offset: int = 0
    gaps: tuple[Gap, ...] = ()


class LogGrowth(Struct, frozen=True):
    """The leader's log has grown, or more of it is on the disk."""


class WaitForReplicas(Struct, frozen=True):
    """A producer with acks=all waits for everything below `end_offset`."""

    token: Hashable
    end_offset: int


class Tick(Struct, frozen=True):
    """Time has passed; twice per `replica.lag.time.max.ms` at least."""


class AlterOutcome(Enum):
    """Outcome of a proposal."""

    COMMITTED = "committed"
    INELIGIBLE = "ineligible"
    """Refused for a member's sake. It cannot succeed later either: a member is named with its broker epoch."""
    NOT_ATTEMPTED = "not attempted"
    """The proposal has never left this broker."""
    STALE = "stale"
    """The partition has changed; a newer image is on its way."""
    UNKNOWN = "unknown"
    """No answer."""


class AlterAnswered(Struct, frozen=True):
    """The controller's answer. `partition_epoch`: of the proposal's basis; `partition`: the new state if the proposal
    was committed."""

    partition_epoch: int
    outcome: AlterOutcome
    partition: PartitionImage | None = None


class ImageChanged(Struct, frozen=True):
    """A newer state of the partition. `eligible`: broker epochs of the brokers that may join the ISR, of the same image
    as `partition` (KAFKA-15221)."""

    partition: PartitionImage
    eligible: Mapping[int, int]
    min_insync: int


class Resignation(Struct, frozen=True):
    """Another broker leads, or this one has lost its session. `leader` -1: the new leader is unknown."""

    leader: int = -1
    leader_epoch: int = NO_EPOCH


LeaderEvent = FollowerFetch | LogGrowth | WaitForReplicas | Tick | AlterAnswered | ImageChanged | Resignation


# -- effects of the leader


class BeginEpoch(Struct, frozen=True):
    """The epoch begins at the log end, even if nothing is ever written in it: an entry in the epoch cache, durable."""

    leader_epoch: int
    start_offset: int


class SetHighWatermark(Struct, frozen=True):
    """Raise the high watermark: consumers may read the records below it."""

    offset: int


class ProposeIsr(Struct, frozen=True):
    """Asks the controller. `isr`: (id, broker epoch); the epoch is -1 for members that are in it already and have not
    been heard of. `recovering` False also says that an unclean election has been followed up."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    recovering: bool = False


class FetchAccepted(Struct, frozen=True):
    """Records from the asked offset up to `end_offset` (as many as fit), with the leader's marks."""

    token: Hashable
    end_offset: int
    high_watermark: int
    log_start_offset: int


class FetchDiverging(Struct, frozen=True):
    """No records: the follower's last epoch is `end.epoch` or younger here and ends at `end.end_offset`; or, with the
    follower's own last epoch, one of the two has a gap there that the other has not."""

    token: Hashable
    end: EpochEnd
    high_watermark: int
    log_start_offset: int


class FetchRefused(Struct, frozen=True):
    """A refused fetch. `log_start_offset` and `log_end_offset` help a follower that is out of range."""

    token: Hashable
    error: SparklogError
    log_start_offset: int
    log_end_offset: int


class Acknowledge(Struct, frozen=True):
    """All in-sync replicas have the records that the producer waits for."""

    token: Hashable


class Refuse(Struct, frozen=True):
    """Answer the producer with `error`; `leader` and `leader_epoch` name the present leader (KIP-951)."""

    token: Hashable
    error: SparklogError
    leader: int = -1
    leader_epoch: int = NO_EPOCH


LeaderEffect = (
    BeginEpoch | SetHighWatermark | ProposeIsr | FetchAccepted | FetchDiverging | FetchRefused | Acknowledge | Refuse
)


# -- the follower


class Fetch(Struct, frozen=True):
    """Asks the leader, not before `at_ms`. `number`: of the fetch, so that its answer is known. When it is sent, the
    last epoch is `Follower.last_epoch()`, the log start the log's. Behind a cut that ends below where it was to be,
    `fetch_offset` is the log end."""

    number: int
    leader: int
    leader_epoch: int
    fetch_offset: int
    at_ms: int = 0


class Batches(Struct, frozen=True):
    """Whole batches with the leader's stamps; `data` is the shell's. `epochs`: the leader epochs that begin in the
    batches, with their starts: compaction may have removed their first records. `log_start_offset`: start of the
    leader's log. `segments`: starts of its segments in the batches. `gaps`: offsets in this range that the leader's log
    lacks for good; they may be all there is, without `data`."""

    base_offset: int
    next_offset: int
    data: object
    epochs: tuple[EpochEntry, ...] = ()
    log_start_offset: int = 0
    segments: tuple[int, ...] = ()
    gaps: tuple[Gap, ...] = ()


class FetchAnswer(Struct, frozen=True):
    """The answer to fetch `number`. `diverging`: an epoch and its end in the leader's log, by which this log has to be
    cut; there are no batches then. `copied_to`: every replica has the records below; -1: a replica is out of sync."""

    number: int
    leader_epoch: int
    high_watermark: int
    log_start_offset: int
    batches: Batches | None = None
    diverging: EpochEnd | None = None
    copied_to: int = -1


class FetchFailure(Struct, frozen=True):
    """Fetch `number` failed. With OffsetOutOfRangeError the leader's bounds are set."""

    number: int
    error: SparklogError
    log_start_offset: int = 0
    log_end_offset: int = 0


class TruncateTo(Struct, frozen=True):
    """Cut the log at `offset`, and always the epoch cache, even if the log already ends there (KAFKA-10706)."""

    offset: int


class RestartAt(Struct, frozen=True):
    """The log is emptied and begins at `offset`."""

    offset: int


class AppendReplica(Struct, frozen=True):
    """Append the batches unchanged; only their checksums are checked."""

    batches: Batches


class SetLogStart(Struct, frozen=True):
    """The leader has deleted older records."""

    offset: int


class RefreshMetadata(Struct, frozen=True):
    """Read a newer image: the present one is older than the leader's."""


FollowerEvent = FetchAnswer | FetchFailure
FollowerEffect = Fetch | TruncateTo | RestartAt | AppendReplica | SetHighWatermark | SetLogStart | RefreshMetadata
