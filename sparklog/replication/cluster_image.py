"""The controller's decisions about the cluster: an immutable image with a version, and the deltas between images.

Every broker holds one image and pulls deltas. Only the controller creates new images, and only from durable writes. A
version is (controller epoch, zxid of the write). A broker drops an image or delta whose version is not above that of
its image, so that a delayed message cannot restore an old state.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from sparklog.security.records import RecordId
from sparklog.settings import Value
from sparklog.types import TopicPartition

K = TypeVar("K")
V = TypeVar("V")

NO_LEADER = -1
NO_EPOCH = -1
UNKNOWN_WRITES = -1
DELETED_MAX = 1_000
"""Largest number of deletions that an image keeps; the oldest are dropped. A broker that has missed a dropped deletion
puts the topic's files aside instead of deleting them."""
MIN_INSYNC_SETTING = "min.insync.replicas"
INTERNAL_REPLICAS, INTERNAL_MIN_INSYNC = 3, 2
"""Once all partitions of an internal topic have INTERNAL_REPLICAS replicas, its min.insync.replicas is set to
INTERNAL_MIN_INSYNC (Kafka's transaction.state.log.min.isr). Replies about groups and transactions then survive the loss
of one broker, even if the other brokers were away shortly before."""
UNCLEAN_SETTING = "unclean.leader.election.enable"
FLUSH_MODE_SETTING = "flush.mode"
THROTTLE_SETTING = "replication.throttled.rate"
"""Setting of the cluster, in bytes per second (KIP-73). A request to reassign partitions sets it, and the end of the
last reassignment removes it."""
CORDONED_SETTING = "cordoned.brokers"
"""Setting of the cluster: broker ids separated by commas. No new replica is placed on these brokers (KIP-1073)."""


class Version(NamedTuple):
    """Version of an image: the epoch of the controller that created the image, and the zxid of the write that stored
    the image. A later image has a greater version."""

    controller_epoch: int = NO_EPOCH
    zxid: int = NO_EPOCH


class BrokerImage(Struct, frozen=True):
    """A registered broker. `broker_epoch` is the czxid of the node of its registration (KIP-380), so every registration
    has a higher broker epoch.

    A *life* of the broker is one registration, named by its broker epoch.
    """

    broker_id: int
    broker_epoch: int
    rack: str | None = None
    endpoints: tuple[str, ...] = ()
    clean_epochs: tuple[int, ...] = ()
    """Earlier lives of which the broker still has all records. Each life since then has ended with a clean stop, a kill
    of the process on a running machine, or only the end of the session."""
    flushed_epochs: tuple[int, ...] = ()
    """Earlier lives of which the broker still has all records that were fsynced."""
    is_stopping: bool = False
    """True after the broker has asked for a controlled shutdown. The broker is not elected and joins no ISR."""
    last_written_epoch: int = NO_EPOCH
    """A life after which the broker has written nothing; NO_EPOCH if unknown."""
    is_suspected: bool = False
    """True if two other brokers did not reach the broker. Other in-sync replicas lead its partitions meanwhile. Only
    the end of its session proves that it is dead."""

    def vouches_for(self, life: int, epochs: tuple[int, ...]) -> bool:
        """Return True if the broker still has all data of `life`. `epochs` are the lives of which it has all data. A
        life after `last_written_epoch` wrote nothing, so it has all data if `last_written_epoch` is in `epochs`."""
        return life in epochs or (self.last_written_epoch in epochs and life > self.last_written_epoch)


class PartitionImage(Struct, frozen=True):
    """One partition. Every change raises `partition_epoch`. A change of the leader, or the removal of a replica, also
    raises `leader_epoch`."""

    replicas: tuple[int, ...]
    """The broker ids of the assigned replicas, the preferred leader first. During a reassignment these are the new
    replicas, then the old replicas."""
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    """Eligible leader replicas (KIP-966). They left the ISR while it was below min.insync.replicas, so that they have
    all committed records."""
    last_leader: int = NO_LEADER
    """The last leader of a partition that has no leader now."""
    recovering: bool = False
    """True until the leader of an unclean election has confirmed its role; the ISR does not grow meanwhile."""
    adding: tuple[int, ...] = ()
    """The replicas that a reassignment in progress adds."""
    removing: tuple[int, ...] = ()
    """The replicas that a reassignment in progress removes at its end."""

    @property
    def is_reassigned(self) -> bool:
        """True while a reassignment is in progress."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment in progress; without one, `replicas`."""
        return tuple(r for r in self.replicas if r not in self.removing)


class TopicImage(Struct, frozen=True):
    """A topic."""

    name: str
    topic_id: str
    partitions: tuple[PartitionImage, ...]
    kind: str = "envelope"
    key_columns: tuple[str, ...] = ()
    timestamp_column: str | None = None
    created_ms: int = 0
    configs: Mapping[str, Value] = field(default_factory=dict)
    """The settings of this topic itself, without inherited ones."""
    schemas: Mapping[int, bytes] = field(default_factory=dict)
    """Arrow IPC schema messages by schema id."""
    owner: str = ""
    """The user in whose quota the topic counts; "" for none."""
    request_id: str = ""
    """Id of the request that created the topic."""
    first_leader_epoch: int = 0
    """Leader epoch in which the partitions of the topic begin. It is above all leader epochs of deleted topics, so that
    readers and commits of an earlier topic of this name are recognised by their epochs (KIP-320)."""


class DeletedTopic(Struct, frozen=True):
    """An order to delete the files of a topic, named by its topic id. If an image only lacks a topic, brokers keep the
    topic's files, because the image can come from an older copy of the store."""

    name: str
    number: int
    """Number of the deletion; a later deletion has a higher number. The lowest numbers are dropped first."""
    leader_epoch: int = NO_EPOCH
    """The highest leader epoch of this topic and of all topics that were deleted before; NO_EPOCH if unknown."""


class ClusterDelta(Struct, frozen=True):
    """The changes from one image to the next. A value of None removes its key. `partitions` are applied after
    `topics`."""

    brokers: Mapping[int, BrokerImage | None] = field(default_factory=dict)
    known: Mapping[int, int] = field(default_factory=dict)
    topics: Mapping[str, TopicImage | None] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, PartitionImage] = field(default_factory=dict)
    configs: Mapping[str, Value | None] = field(default_factory=dict)
    security: Mapping[RecordId, bytes | None] = field(default_factory=dict)
    deleted: Mapping[str, DeletedTopic | None] = field(default_factory=dict)
    """Deletions by topic id."""

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)


class ClusterImage(Struct, frozen=True):
    """The cluster's metadata at one version."""

    version: Version = Version()
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    """The registered brokers by id."""
    known: Mapping[int, int] = field(default_factory=dict)
    """The last broker epoch of every broker that ever registered, by broker id."""
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    """The topics by name."""
    configs: Mapping[str, Value] = field(default_factory=dict)
    """Settings of the cluster, which topics inherit."""
    security: Mapping[RecordId, bytes] = field(default_factory=dict)
    """Users, ACLs, quotas and secrets (see `security.records`)."""
    deleted: Mapping[str, DeletedTopic] = field(default_factory=dict)
    """The newest DELETED_MAX deletions, by topic id."""
    writes: int = UNKNOWN_WRITES
    """Number of the controllers' writes: the version of the node `/controller_epoch`, which every write raises.
    UNKNOWN_WRITES if not known."""
    term: int = 0
    """Id of the ZooKeeper session in which the controller of this controller epoch was elected; 0 if not known."""
    generation: int = 0
    """Number of times that an operator has restored the cluster's metadata into an older store."""

    def apply(self, delta: ClusterDelta, version: Version) -> ClusterImage:
        """Return the image after `delta`, with `version`; this image itself if `version` is not newer. Raises KeyError
        for a partition of an unknown topic."""
        if version <= self.version:
            return self
        topics = _merge(self.topics, delta.topics)
        by_topic: dict[str, list[tuple[int, PartitionImage]]] = {}
        for tp, partition in delta.partitions.items():
            by_topic.setdefault(tp.topic, []).append((tp.partition, partition))
        for name, changed in by_topic.items():
            partitions = list(topics[name].partitions)
            for number, partition in changed:
                partitions[number] = partition
            topics[name] = replace(topics[name], partitions=tuple(partitions))
        return ClusterImage(
            version,
            MappingProxyType(_merge(self.brokers, delta.brokers)),
            MappingProxyType({**self.known, **delta.known}),
            MappingProxyType(topics),
            MappingProxyType(_merge(self.configs, delta.configs)),
            MappingProxyType(_merge(self.security, delta.security)) if delta.security else self.security,
            MappingProxyType(_merge(self.deleted, delta.deleted)) if delta.deleted else self.deleted,
            self.writes + 1 if self.writes != UNKNOWN_WRITES else UNKNOWN_WRITES,
            self.term,
            self.generation,
        )

    def partition(self, tp: TopicPartition) -> PartitionImage | None:
        """Return the partition; None if it does not exist."""
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]

    def eligible(self) -> dict[int, int]:
        """Return the broker epochs, by broker id, of the brokers that are allowed to join an ISR: they are registered
        and not stopping. Ids and epochs are of the same image, so that no caller pairs an id with the epoch of another
        life (KAFKA-15221)."""
        return {b.broker_id: b.broker_epoch for b in self.brokers.values() if not b.is_stopping}

    def setting(self, topic: TopicImage, name: str, default: Value) -> Value:
        """Return the topic's own value of a setting, else the cluster's value, else `default`. Values of single brokers
        are ignored, because acknowledgements must not depend on the leader (KAFKA-16540).
        """
        return topic.configs.get(name, self.configs.get(name, default))

    @property
    def throttle_bytes(self) -> int:
        """Limit in bytes per second for copying to replicas that are being added; 0 for no limit."""
        return int(self.configs.get(THROTTLE_SETTING, 0))

    @property
    def cordoned(self) -> frozenset[int]:
        """Brokers that get no new replicas."""
        return cordoned_brokers(self.configs.get(CORDONED_SETTING, ""))

    def min_insync(self, topic: TopicImage, replication_factor: int) -> int:
        """Return the topic's `min.insync.replicas`, limited to the number of replicas."""
        return min(int(self.setting(topic, MIN_INSYNC_SETTING, 1)), replication_factor)


def cordoned_brokers(value: Value) -> frozenset[int]:
    """Return the brokers that CORDONED_SETTING lists."""
    return frozenset(int(i) for i in str(value).split(",") if i)


def _merge(old: Mapping[K, V], changes: Mapping[K, V | None]) -> dict[K, V]:
    merged = dict(old)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged
