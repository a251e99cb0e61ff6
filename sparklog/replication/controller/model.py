"""The words of the controller: events, effects, and the rules that tests can switch off."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from msgspec import Struct

from sparklog.errors import SparklogError
from sparklog.replication.cluster_image import BrokerImage, ClusterDelta, ClusterImage, TopicImage, Version
from sparklog.security.records import RecordChanges
from sparklog.settings import Value
from sparklog.types import TopicPartition


class ControllerConfig(Struct, frozen=True):
    """Settings: `leader.imbalance.check.interval.seconds` in ms, `leader.imbalance.per.broker.percentage`,
    `auto.leader.rebalance.enable`."""

    rebalance_interval_ms: int = 300_000
    imbalance_percent: int = 10
    rebalance: bool = True
    has_own_store: bool = False
    """True if the store is in the data directory of the only broker. No other broker could be elected, and what the
    broker has lost is missed by itself: each partition stays with it."""


@dataclass(frozen=True)
class Safeguards:
    """Protections of the rules. Only tests switch one off, to prove that they notice it."""

    proposal_epoch_check: bool = True
    """Only the leader of the current leader epoch proposes, and its proposal counts only for the partition epoch that
    it is based on (compare and set, KIP-497)."""
    member_epoch_check: bool = True
    """A broker joins an ISR only while it is alive in the same life that was in sync (KIP-841, KIP-903)."""
    unclean_restart_forgets: bool = True
    """A broker whose machine crashed leaves ISR and ELR (KIP-966, KAFKA-15586, 18106, 18635)."""
    eligible_leaders_only: bool = True
    """Without unclean election only members of ISR and ELR lead."""
    epoch_bump: bool = True
    """Every change of leader has a leader epoch of its own."""


ALL_SAFEGUARDS = Safeguards()


# -- events


class ElectionResult(Struct, frozen=True):
    """The broker has become the controller, or has reloaded; `image` is the stored one."""

    image: ClusterImage


class BrokersChanged(Struct, frozen=True):
    """The set of registered brokers has changed; it has all present ones."""

    brokers: Mapping[int, BrokerImage]


class CreateTopic(Struct, frozen=True):
    """Create `topic`, which has no partitions yet. `assignment`: replicas per partition, or None to have them placed
    from `start` and `shift`, random numbers. `or_fewer`: True accepts fewer replicas if there are fewer brokers."""

    token: Hashable
    topic: TopicImage
    partitions: int = 1
    replication_factor: int = 1
    assignment: Sequence[Sequence[int]] | None = None
    start: int = 0
    shift: int = 0
    or_fewer: bool = False


class AddPartitions(Struct, frozen=True):
    """Add partitions to a topic. `partitions`: their new number."""

    token: Hashable
    topic: str
    partitions: int
    assignment: Sequence[Sequence[int]] | None = None
    start: int = 0
    shift: int = 0


class DeleteTopic(Struct, frozen=True):
    """Delete a topic. `topic_id`: delete only the topic with this id; "": any topic of this name."""

    token: Hashable
    topic: str
    topic_id: str = ""


class AlterConfig(Struct, frozen=True):
    """Change settings of a topic, or of the cluster if `topic` is None. The value None removes a setting. The caller
    has checked the change (`altered_topic`)."""

    token: Hashable
    topic: str | None
    changes: Mapping[str, Value | None]


class AlterSchema(Struct, frozen=True):
    """Add a schema to a topic, an Arrow IPC message. Checked by the caller (`altered_schema`)."""

    token: Hashable
    topic: str
    schema_id: int
    schema: bytes


class AlterSecurity(Struct, frozen=True):
    """Security records are changed together."""

    token: Hashable
    changes: RecordChanges


class IsrChange(Struct, frozen=True):
    """A leader's proposal for one partition; `isr`: (id, broker epoch)."""

    partition: TopicPartition
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    recovering: bool = False


class AlterPartition(Struct, frozen=True):
    """A leader's proposals. The answer is a tuple with a PartitionImage or a SparklogError for each."""

    token: Hashable
    broker_id: int
    broker_epoch: int
    changes: tuple[IsrChange, ...]


class ControlledShutdown(Struct, frozen=True):
    """A broker wants to stop. The answer is the number of partitions that the broker still leads; the broker asks again
    until it is 0."""

    token: Hashable
    broker_id: int
    broker_epoch: int


class DirectoryFailed(Struct, frozen=True):
    """A disk of the broker has failed, with all its partitions. The broker repeats the event for each new controller.
    The answer is the number of partitions without a leader now."""

    token: Hashable
    broker_id: int
    broker_epoch: int
    partitions: tuple[TopicPartition, ...]


class DirectoryFull(Struct, frozen=True):
    """A disk of the broker is full, or has room again: the partitions that are on it. Told again all the time while it
    is full. The answer is the number of partitions whose ISR the broker has left now."""

    token: Hashable
    broker_id: int
    broker_epoch: int
    partitions: tuple[TopicPartition, ...]
    is_full: bool


class ElectionKind(Enum):
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


class Elect(Struct, frozen=True):
    """Elect leaders of `partitions`; None: of all. The answer maps each one asked for to None or the error."""

    token: Hashable
    kind: ElectionKind
    partitions: tuple[TopicPartition, ...] | None = None


class Reassign(Struct, frozen=True):
    """New replicas per partition, None to cancel. The answer maps each to None or the error. `throttle_bytes`: see
    `ClusterImage.throttle_bytes`; -1: as it is."""

    token: Hashable
    targets: Mapping[TopicPartition, tuple[int, ...] | None]
    throttle_bytes: int = -1


class Cordon(Struct, frozen=True):
    """Cordon or uncordon a broker: a cordoned one gets no new replicas. The answer lists all cordoned brokers."""

    token: Hashable
    broker_id: int
    cordoned: bool


class WriteOutcome(Enum):
    OK = "ok"
    FENCED = "fenced"
    """There is another controller."""
    CONFLICT = "conflict"
    """The stored state differs from the image."""


class WriteResult(Struct, frozen=True):
    """Outcome of Write `tag`. An unknown outcome is resolved before this event."""

    tag: int
    outcome: WriteOutcome
    version: Version = Version()
    error: SparklogError | None = None
    """Error of a CONFLICT in which the store's disk has refused the write; the waiting requests get it."""


class SessionLost(Struct, frozen=True):
    """Another controller may have been elected."""


class Tick(Struct, frozen=True):
    """Time has passed."""


Request = (
    CreateTopic
    | AddPartitions
    | DeleteTopic
    | AlterConfig
    | AlterSchema
    | AlterSecurity
    | AlterPartition
    | ControlledShutdown
    | DirectoryFailed
    | DirectoryFull
    | Elect
    | Reassign
    | Cordon
)
Event = Request | ElectionResult | BrokersChanged | WriteResult | SessionLost | Tick


# -- effects


class Write(Struct, frozen=True):
    """Store `delta` in one fenced transaction; `after` is the image with it. Answered by WriteResult."""

    tag: int
    delta: ClusterDelta
    after: ClusterImage


class Answer(Struct, frozen=True):
    token: Hashable
    result: Any = None


class Refuse(Struct, frozen=True):
    token: Hashable
    error: SparklogError


class Publish(Struct, frozen=True):
    """Publish `delta`, which is stored, to all brokers."""

    delta: ClusterDelta
    image: ClusterImage


class Reload(Struct, frozen=True):
    """Read the image from the store again, and report it."""


class Resign(Struct, frozen=True):
    """Another broker is the controller. A later ElectionResult may make this broker the controller again."""


Effect = Write | Answer | Refuse | Publish | Reload | Resign
