"""Types of the controller: events, effects, and the rules that tests can switch off."""

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
    """Settings of the controller."""

    rebalance_interval_ms: int = 300_000
    """`leader.imbalance.check.interval.seconds`, in ms."""
    imbalance_percent: int = 10
    """`leader.imbalance.per.broker.percentage`."""
    rebalance: bool = True
    """`auto.leader.rebalance.enable`."""
    suspicion_ms: int = 10_000
    """Time in ms for which a suspicion lasts, unless the broker joins an ISR or its session ends before. In this time a
    further suspicion of the same broker changes nothing, so leaders move away from it once."""
    has_own_store: bool = False
    """True if the store is in the data directory of the cluster's only broker. Each partition then stays with this
    broker even if it lost data in a crash: no other broker could lead."""


@dataclass(frozen=True)
class Safeguards:
    """Protections of the rules. Only tests switch a protection off, to prove that they detect its loss."""

    proposal_epoch_check: bool = True
    """Only the leader of the current leader epoch is allowed to propose, and a proposal must name the current partition
    epoch (compare and set, KIP-497)."""
    member_epoch_check: bool = True
    """A broker joins an ISR only in the life, named by its broker epoch, in which it was in sync (KIP-841, KIP-903)."""
    unclean_restart_forgets: bool = True
    """A broker that can have lost records in a crash of its machine leaves ISR and ELR (KIP-966, KAFKA-15586, 18106,
    18635)."""
    eligible_leaders_only: bool = True
    """Without unclean election only members of ISR and ELR can lead."""
    suspicion_in_sync_only: bool = True
    """A suspicion moves leadership to members of the ISR only, because it does not prove that the leader is dead."""
    epoch_bump: bool = True
    """Every change of leader begins a new leader epoch."""


ALL_SAFEGUARDS = Safeguards()


# -- events


class ElectionResult(Struct, frozen=True):
    """This broker is the controller, newly elected or after a Reload. `image` is the stored image."""

    image: ClusterImage


class BrokersChanged(Struct, frozen=True):
    """The set of registered brokers has changed. `brokers` has all brokers that are registered now, by broker id."""

    brokers: Mapping[int, BrokerImage]


class CreateTopic(Struct, frozen=True):
    """Create a topic."""

    token: Hashable
    topic: TopicImage
    """The topic, without partitions."""
    partitions: int = 1
    replication_factor: int = 1
    assignment: Sequence[Sequence[int]] | None = None
    """The replicas of each partition; None to place them with `start` and `shift`."""
    start: int = 0
    shift: int = 0
    """`start` and `shift` are random numbers, see `placement.place`."""
    or_fewer: bool = False
    """True to accept fewer replicas if there are fewer brokers."""


class AddPartitions(Struct, frozen=True):
    """Add partitions to a topic. `partitions` is the new total; other fields as in CreateTopic."""

    token: Hashable
    topic: str
    partitions: int
    assignment: Sequence[Sequence[int]] | None = None
    start: int = 0
    shift: int = 0


class DeleteTopic(Struct, frozen=True):
    """Delete a topic. `topic_id`: the id that the topic must have; "" for any id. `required_configs`: settings
    that the topic must have."""

    token: Hashable
    topic: str
    topic_id: str = ""
    required_configs: Mapping[str, Value] = {}


class AlterConfig(Struct, frozen=True):
    """Change settings of a topic, or of the cluster if `topic` is None. A value of None removes the setting. The caller
    has checked the changes (`altered_topic`)."""

    token: Hashable
    topic: str | None
    changes: Mapping[str, Value | None]


class AlterSchema(Struct, frozen=True):
    """Add a schema, an Arrow IPC message, to a topic. The caller has checked it (`altered_schema`)."""

    token: Hashable
    topic: str
    schema_id: int
    schema: bytes


class AlterSecurity(Struct, frozen=True):
    """Change security records, all in one write."""

    token: Hashable
    changes: RecordChanges


class IsrChange(Struct, frozen=True):
    """A leader's proposal for one partition. `isr`: (broker id, broker epoch) of each member."""

    partition: TopicPartition
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    recovering: bool = False


class AlterPartition(Struct, frozen=True):
    """A leader's proposals. The Answer is a tuple with a PartitionImage or SparklogError for each proposal."""

    token: Hashable
    broker_id: int
    broker_epoch: int
    changes: tuple[IsrChange, ...]


class ControlledShutdown(Struct, frozen=True):
    """A broker wants to stop. The Answer is the number of partitions that the broker still leads; the broker repeats
    the request until the number is 0."""

    token: Hashable
    broker_id: int
    broker_epoch: int


class DirectoryFailed(Struct, frozen=True):
    """A disk of the broker has failed, with `partitions` on it. The broker repeats the request for each new controller.
    The Answer is the number of these partitions that have no leader now."""

    token: Hashable
    broker_id: int
    broker_epoch: int
    partitions: tuple[TopicPartition, ...]


class DirectoryFull(Struct, frozen=True):
    """A disk of the broker, with `partitions` on it, is full, or has room again. The broker repeats the request while
    the disk is full. The Answer is the number of partitions whose ISR the broker has left."""

    token: Hashable
    broker_id: int
    broker_epoch: int
    partitions: tuple[TopicPartition, ...]
    is_full: bool


class Suspect(Struct, frozen=True):
    """Brokers did not reach another broker: their connections to it were refused, or got no reply. The Answer is True
    if the broker is suspected now, False if there are too few observers.

    Leaderships of the suspected broker move to other members of the ISR. The broker stays registered.
    """

    token: Hashable
    broker_id: int
    broker_epoch: int
    observers: tuple[tuple[int, int], ...]
    """(broker id, broker epoch) of each broker that did not reach the suspected one."""


class ElectionKind(Enum):
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


class Elect(Struct, frozen=True):
    """Elect leaders of `partitions`; None for all partitions. The Answer maps each partition to None or its error."""

    token: Hashable
    kind: ElectionKind
    partitions: tuple[TopicPartition, ...] | None = None


class Reassign(Struct, frozen=True):
    """Assign new replicas to partitions; a target of None cancels the partition's reassignment. The Answer maps each
    partition to None or its error. `throttle_bytes`: see `ClusterImage.throttle_bytes`; 0 removes the limit, -1 keeps
    it."""

    token: Hashable
    targets: Mapping[TopicPartition, tuple[int, ...] | None]
    throttle_bytes: int = -1


class Cordon(Struct, frozen=True):
    """Cordon or uncordon a broker. No new replica is placed on a cordoned broker. The Answer is all cordoned
    brokers.
    """

    token: Hashable
    broker_id: int
    cordoned: bool


class WriteOutcome(Enum):
    OK = "ok"
    FENCED = "fenced"
    """Another controller was elected."""
    CONFLICT = "conflict"
    """The write failed although this broker is the controller: the stored state differs from the image, or the store's
    disk refused the write.
    """


class WriteResult(Struct, frozen=True):
    """The outcome of the Write with this `tag`. An unknown outcome is resolved before this event."""

    tag: int
    outcome: WriteOutcome
    version: Version = Version()
    error: SparklogError | None = None
    """Set in a CONFLICT if the store's disk refused the write. The waiting requests get this error."""


class SessionLost(Struct, frozen=True):
    """The session has ended or can have ended, so another controller can have been elected."""


class Tick(Struct, frozen=True):
    """A periodic event: the controller looks for partitions without a leader, for reassignments to complete, and for
    preferred leaders that do not lead."""


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
    | Suspect
    | Elect
    | Reassign
    | Cordon
)
Event = Request | ElectionResult | BrokersChanged | WriteResult | SessionLost | Tick


# -- effects


class Write(Struct, frozen=True):
    """Store `delta` in one fenced transaction. `after` is the stored image after `delta`. A WriteResult with this `tag`
    follows."""

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
    """Publish the stored `delta` to all brokers. `image` is the stored image after `delta`."""

    delta: ClusterDelta
    image: ClusterImage


class Reload(Struct, frozen=True):
    """Read the image from the store again, and report it with ElectionResult."""


class Resign(Struct, frozen=True):
    """This broker is no longer the controller, until a later ElectionResult makes it the controller again."""


Effect = Write | Answer | Refuse | Publish | Reload | Resign
