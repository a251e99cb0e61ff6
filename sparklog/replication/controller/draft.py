"""The image with changes that are not stored yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from sparklog.errors import UnknownTopicOrPartitionError
from sparklog.replication.cluster_image import (
    DELETED_MAX,
    NO_EPOCH,
    UNCLEAN_SETTING,
    BrokerImage,
    ClusterDelta,
    ClusterImage,
    DeletedTopic,
    PartitionImage,
    TopicImage,
    Version,
)
from sparklog.replication.controller.election import ElectionRules, settled
from sparklog.replication.controller.model import Safeguards
from sparklog.security.records import RecordChanges, RecordId, Records
from sparklog.settings import Value
from sparklog.types import TopicPartition


class Draft:
    """A set of changes to the stored image. Reads return the changed state."""

    def __init__(
        self,
        image: ClusterImage,
        offline: Mapping[tuple[int, int], Collection[TopicPartition]],
        safeguards: Safeguards,
        full: Mapping[tuple[int, int], Collection[TopicPartition]] = MappingProxyType({}),
    ) -> None:
        """`offline`, `full`: by (broker id, broker epoch), the partitions on failed or full disks of the broker."""
        self._image = image
        self._offline = offline
        self._guards = safeguards
        self._full = full
        self.brokers: dict[int, BrokerImage | None] = {}
        self.known: dict[int, int] = {}
        self._topics: dict[str, TopicImage | None] = {}
        self._partitions: dict[TopicPartition, PartitionImage] = {}
        self._configs: dict[str, Value | None] = {}
        self._security: dict[RecordId, bytes | None] = {}
        self._deleted: dict[str, DeletedTopic | None] = {}

    def delta(self) -> ClusterDelta:
        return ClusterDelta(
            self.brokers, self.known, self._topics, self._partitions, self._configs, self._security, self._deleted
        )

    def image(self) -> ClusterImage:
        """Return the image with all changes so far, under the next version."""
        version = Version(self._image.version.controller_epoch, self._image.version.zxid + 1)
        return self._image.apply(self.delta(), version)

    # --- brokers

    def broker(self, broker_id: int) -> BrokerImage | None:
        return self.brokers[broker_id] if broker_id in self.brokers else self._image.brokers.get(broker_id)

    def live_brokers(self) -> dict[int, BrokerImage]:
        ids = {*self._image.brokers, *self.brokers}
        return {i: b for i in sorted(ids) if (b := self.broker(i)) is not None}

    def rules(self, tp: TopicPartition, partition: PartitionImage, *, unclean: bool | None = None) -> ElectionRules:
        """Return the election rules for the partition. `unclean`: True to allow an unclean election; None for the
        topic's setting."""
        topic = self.topic(tp.topic)

        def can_lead(replica: int) -> bool:
            broker = self.broker(replica)
            if broker is None or broker.is_stopping:
                return False
            return tp not in self._offline.get((replica, broker.broker_epoch), ())

        def is_avoided(replica: int) -> bool:
            broker = self.broker(replica)
            if broker is None:
                return False
            return broker.is_suspected or tp in self._full.get((replica, broker.broker_epoch), ())

        image = self._image if not self._configs else self.image()
        allowed = bool(image.setting(topic, UNCLEAN_SETTING, False)) if unclean is None else unclean
        if not self._guards.eligible_leaders_only:
            allowed = True
        return ElectionRules(can_lead, image.min_insync(topic, len(partition.target)), allowed, is_avoided)

    # --- topics

    def topics(self) -> Iterator[TopicImage]:
        for name in sorted({*self._image.topics, *self._topics}):
            topic = self._topics[name] if name in self._topics else self._image.topics[name]
            if topic is not None:
                yield topic

    def has_topic(self, name: str) -> bool:
        return self._topics[name] is not None if name in self._topics else name in self._image.topics

    def topic(self, name: str) -> TopicImage:
        """Return a topic. The result lacks the changes of partitions, which `partition` returns. Raises
        UnknownTopicOrPartitionError.
        """
        topic = self._topics[name] if name in self._topics else self._image.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
        return topic

    def set_topic(self, topic: TopicImage) -> None:
        self._topics[topic.name] = topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and add the order to delete its files. Raises UnknownTopicOrPartitionError."""
        numbers = sorted((deleted.number, topic_id) for topic_id, deleted in self._deletions().items())
        topic = self.topic(name)
        epochs = (self.partition_at(name, number).leader_epoch for number in range(len(topic.partitions)))
        last_epoch = max((self.first_leader_epoch - 1, *epochs))
        self._deleted[topic.topic_id] = DeletedTopic(name, numbers[-1][0] + 1 if numbers else 0, last_epoch)
        for _, topic_id in numbers[: max(0, len(numbers) + 1 - DELETED_MAX)]:
            if topic_id in self._image.deleted:
                self._deleted[topic_id] = None
            else:
                del self._deleted[topic_id]
        self._topics[name] = None
        for tp in [tp for tp in self._partitions if tp.topic == name]:
            del self._partitions[tp]

    @property
    def first_leader_epoch(self) -> int:
        """The leader epoch in which a new topic begins. The newest deletion, which is always kept, has the highest
        epoch of all deleted topics."""
        return 1 + max((deleted.leader_epoch for deleted in self._deletions().values()), default=NO_EPOCH)

    def _deletions(self) -> dict[str, DeletedTopic]:
        return {i: d for i, d in {**self._image.deleted, **self._deleted}.items() if d is not None}

    def set_config(self, name: str, value: Value | None) -> None:
        self._configs[name] = value

    def config(self, name: str, default: Value) -> Value:
        """Return a setting of the cluster; `default` if it is not set."""
        value = self._configs[name] if name in self._configs else self._image.configs.get(name)
        return default if value is None else value

    # --- security

    def security(self) -> Records:
        return {n: v for n, v in {**self._image.security, **self._security}.items() if v is not None}

    def change_security(self, changes: RecordChanges) -> None:
        self._security |= changes

    @property
    def security_changes(self) -> RecordChanges:
        return self._security

    # --- partitions

    def all_partitions(self) -> Iterator[tuple[TopicPartition, PartitionImage]]:
        for topic in self.topics():
            for number, partition in enumerate(topic.partitions):
                tp = TopicPartition(topic.name, number)
                yield tp, self._partitions.get(tp, partition)

    def partitions_that(self, matches: Callable[[PartitionImage], bool]) -> list[tuple[TopicPartition, PartitionImage]]:
        """Return the partitions for which `matches` returns True. A large cluster has hundreds of thousands, so that
        names are made for these alone."""
        if self._partitions:
            return [(tp, state) for tp, state in self.all_partitions() if matches(state)]
        return [
            (TopicPartition(topic.name, number), state)
            for topic in self.topics()
            for number, state in enumerate(topic.partitions)
            if matches(state)
        ]

    def partition(self, tp: TopicPartition) -> PartitionImage:
        """Return a partition with its changes. Raises UnknownTopicOrPartitionError."""
        partitions = self.topic(tp.topic).partitions
        if not 0 <= tp.partition < len(partitions):
            raise UnknownTopicOrPartitionError(f"partition {tp} does not exist")
        return self._partitions.get(tp, partitions[tp.partition])

    def partition_at(self, topic: str, number: int) -> PartitionImage:
        """Return the partition with this number, as `partition` does."""
        return self.partition(TopicPartition(topic, number))

    def change(self, tp: TopicPartition, after: PartitionImage) -> PartitionImage:
        """Replace the partition with `after`. If `after` differs from the present state, its epochs rise (`settled`).
        Returns the new state. Raises UnknownTopicOrPartitionError."""
        before = self.partition(tp)
        new = settled(before, after)
        if not self._guards.epoch_bump:
            new = replace(new, leader_epoch=before.leader_epoch)
        if new != before:
            self._partitions[tp] = new
        return new
