"""The controller's decisions about the cluster: an immutable image with a version, and the deltas between images.

Every broker holds one image and pulls deltas. Only the controller creates new images, and only from durable writes. A
version is (controller epoch, zxid of the write). A broker drops an image or delta with a lower version than its image,
so no reordering on the network can restore an old state.
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
"""Largest number of kept deletions. A broker that comes back after more of them puts the files of the topics aside."""
MIN_INSYNC_SETTING = "min.insync.replicas"
INTERNAL_REPLICAS, INTERNAL_MIN_INSYNC = 3, 2
"""An internal topic with this number of replicas needs this number in sync (Kafka's transaction.state.log.min.isr):
answers to groups and transactions then survive the loss of a broker, even if the others have just been away."""
UNCLEAN_SETTING = "unclean.leader.election.enable"
FLUSH_MODE_SETTING = "flush.mode"
THROTTLE_SETTING = "replication.throttled.rate"
"""Setting of the cluster: bytes per second (KIP-73). Set with a reassignment, and removed with the last one."""
CORDONED_SETTING = "cordoned.brokers"
"""Setting of the cluster: ids with commas. No new replica is placed on these brokers (KIP-1073)."""


class Version(NamedTuple):
    """Version of an image: the epoch of the controller that created it, and the zxid of its write. Ordered."""

    controller_epoch: int = NO_EPOCH
    zxid: int = NO_EPOCH


class BrokerImage(Struct, frozen=True):
    """A registered broker. `broker_epoch`: czxid of its registration (KIP-380); a restart has a higher one.

    `clean_epochs`: broker epochs of earlier lives of which it has everything that it had then: since, it has always
    been stopped cleanly, or killed while its machine ran on, or only its session has ended. `flushed_epochs`: those of
    which it has everything that was fsynced. In lives after `last_written_epoch`, if it is one, nothing was written.
    `is_stopping`: it asked for a controlled shutdown; it leads nothing and joins no ISR any more.
    """

    broker_id: int
    broker_epoch: int
    rack: str | None = None
    endpoints: tuple[str, ...] = ()
    clean_epochs: tuple[int, ...] = ()
    flushed_epochs: tuple[int, ...] = ()
    is_stopping: bool = False
    last_written_epoch: int = NO_EPOCH

    def vouches_for(self, life: int, epochs: tuple[int, ...]) -> bool:
        """Return True if the broker still has all data of a life; `epochs` are the lives of which it has everything."""
        return life in epochs or (self.last_written_epoch in epochs and life > self.last_written_epoch)


class PartitionImage(Struct, frozen=True):
    """One partition. Every change raises `partition_epoch`; every change of leader raises `leader_epoch`, too.

    `replicas`: the assignment, the preferred leader first; during a reassignment old and new ones. `elr`: eligible
    leader replicas (KIP-966), which left the ISR while it was below min.insync.replicas, so they have all committed
    records. `last_leader`: the leader at the moment when ISR and ELR became empty. `recovering`: the leader of an
    unclean election has not completed it yet; the ISR does not grow.
    """

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_leader: int = NO_LEADER
    recovering: bool = False
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_reassigned(self) -> bool:
        """True during a reassignment."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The assignment when a reassignment under way is done."""
        return tuple(r for r in self.replicas if r not in self.removing)


class TopicImage(Struct, frozen=True):
    """A topic. `schemas`: Arrow IPC schema messages by id; `configs`: the topic's own settings only; `owner`: the user
    whose quota counts it ("": none); `request_id`: of the request that has created it."""

    name: str
    topic_id: str
    partitions: tuple[PartitionImage, ...]
    kind: str = "envelope"
    key_columns: tuple[str, ...] = ()
    timestamp_column: str | None = None
    created_ms: int = 0
    configs: Mapping[str, Value] = field(default_factory=dict)
    schemas: Mapping[int, bytes] = field(default_factory=dict)
    owner: str = ""
    request_id: str = ""


class DeletedTopic(Struct, frozen=True):
    """The order to delete a topic, by its id. Brokers delete no files of a topic without one: an image that lacks the
    topic may come from an older copy of the store."""

    name: str
    number: int
    """Rises with each deletion; the lowest numbers are dropped first."""


class ClusterDelta(Struct, frozen=True):
    """The changes from one image to the next; None as a value: removed. `partitions` are applied on top of `topics`."""

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
    """The cluster's metadata at one version.

    `brokers`: the registered ones; `known`: the last broker epoch of every broker so far; `configs`: settings of the
    cluster, which topics inherit; `security`: see `security.records`.
    """

    version: Version = Version()
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    known: Mapping[int, int] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    configs: Mapping[str, Value] = field(default_factory=dict)
    security: Mapping[RecordId, bytes] = field(default_factory=dict)
    deleted: Mapping[str, DeletedTopic] = field(default_factory=dict)
    """The newest DELETED_MAX deletions, by topic id."""
    writes: int = UNKNOWN_WRITES
    """Version of `/controller_epoch`, which counts the controllers' writes; UNKNOWN_WRITES: not known."""
    term: int = 0
    """Identity of the controller epoch (the session in which the controller was elected), 0: not known."""
    generation: int = 0
    """Rises when an operator writes the cluster's metadata back into an older store."""

    def apply(self, delta: ClusterDelta, version: Version) -> ClusterImage:
        """Return the image after `delta`; this very one if `version` is not newer. Raises KeyError for a partition of a
        topic that there is not."""
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
        """Return broker epochs of the brokers that may join an ISR: registered and not stopping. Ids and epochs come
        from one image, so no code pairs an id with the epoch of another life (KAFKA-15221)."""
        return {b.broker_id: b.broker_epoch for b in self.brokers.values() if not b.is_stopping}

    def setting(self, topic: TopicImage, name: str, default: Value) -> Value:
        """Return a setting of the topic, or the cluster's, or `default`. A single broker's setting never counts:
        acknowledgements must not depend on the leader (KAFKA-16540).
        """
        return topic.configs.get(name, self.configs.get(name, default))

    @property
    def throttle_bytes(self) -> int:
        """Limit of the bytes per second for replicas that are being added; 0: no limit."""
        return int(self.configs.get(THROTTLE_SETTING, 0))

    @property
    def cordoned(self) -> frozenset[int]:
        """Brokers that get no new replicas."""
        return cordoned_brokers(self.configs.get(CORDONED_SETTING, ""))

    def min_insync(self, topic: TopicImage, replication_factor: int) -> int:
        """Return `min.insync.replicas`, at most the number of replicas."""
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
