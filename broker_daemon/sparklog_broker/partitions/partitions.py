"""The broker's topics and partitions, and the requests that wait for their events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sparklog.errors import UnknownTopicOrPartitionError
from sparklog.log.partition_log import PartitionLog
from sparklog.metadata.store import Topic
from sparklog.replication.partition import ReplicaRole
from sparklog.types import TopicPartition
from sparklog_broker.config import BrokerConfig
from sparklog_broker.counters.traffic import Traffic
from sparklog_broker.partitions.io_threads import IoThreads
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.partitions.purgatory import Purgatory
from sparklog_broker.partitions.storage import Storage

RoleOf = Callable[[TopicPartition, PartitionLog | None], ReplicaRole]


class Partitions:
    """The served partitions. Event-loop thread only."""

    def __init__(self, config: BrokerConfig, storage: Storage, io: IoThreads) -> None:
        self.topics: dict[str, Topic] = {}
        self.fetches = Purgatory(config.fetch_purgatory_max)
        self.produces = Purgatory(config.fetch_purgatory_max)
        self.traffic = Traffic(config.metrics_topics_max)
        self.on_topics_changed: Callable[[], None] = lambda: None
        """Called after topics were added or removed, or the number of a topic's partitions has changed."""
        self._table = storage.logs.table
        self._io = io
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._schema_bytes: dict[str, list[tuple[int, bytes]]] = {}

    def get(self, topic: str, number: int) -> Partition:
        """Return a partition that this broker leads. Raises UnknownTopicOrPartitionError, NotLeaderError, and the
        errors of `Partition.check_offline`."""
        partition = self._existing(topic, number)
        partition.check_offline()
        partition.replicas.check_leads()
        return partition

    def readable(self, topic: str, number: int) -> Partition:
        """Return a partition that this broker leads or follows. Raises the errors of `get`."""
        partition = self._existing(topic, number)
        partition.check_offline()
        partition.replicas.check_follows()
        return partition

    def _existing(self, topic: str, number: int) -> Partition:
        partition = self._partitions.get((topic, number))
        if partition is not None:
            return partition
        topic_info = self.topics.get(topic)
        if topic_info is None:
            raise UnknownTopicOrPartitionError(f"topic {topic!r} does not exist; create it first")
        raise UnknownTopicOrPartitionError(
            f"topic {topic!r} has partitions 0 to {topic_info.partitions - 1}, and no partition {number}"
        )

    def find(self, tp: TopicPartition) -> Partition | None:
        """Return the partition, under any leader; None if it does not exist."""
        return self._partitions.get(tp)

    def leading_epoch(self, tp: TopicPartition) -> int:
        """Return the leader epoch in which this broker leads the partition; -1 if it does not lead. Any thread."""
        partition = self._partitions.get(tp)
        if partition is None:
            return -1
        epoch = partition.replicas.leader_epoch
        return epoch if partition.replicas.leads_in(epoch) else -1

    def all_have_committed(self, tp: TopicPartition) -> bool:
        """Return True if every replica has all records below this broker's high watermark. Callable on any thread."""
        partition = self._partitions.get(tp)
        log = None if partition is None else partition.open_log
        return partition is not None and log is not None and partition.replicas.all_have(log.high_watermark)

    def all(self) -> list[Partition]:
        """Return all partitions, unsorted. Callable on any thread."""
        return list(self._partitions.values())

    def of(self, topics: Iterable[str], keys: Iterable[TopicPartition]) -> list[Partition]:
        """Return the partitions of `topics` and the partitions in `keys`, each once. Unknown partitions are left
        out."""
        selected = dict.fromkeys(keys)
        for topic in topics:
            topic_info = self.topics.get(topic)
            selected |= {
                TopicPartition(topic, n): None for n in range(topic_info.partitions if topic_info is not None else 0)
            }
        return [partition for key in selected if (partition := self._partitions.get(key)) is not None]

    def schema_bytes(self, topic: Topic) -> list[tuple[int, bytes]]:
        """Return (schema id, Arrow IPC schema message) of the topic's schemas, the newest last."""
        return self._schema_bytes[topic.name]

    def opened(self, topic: Topic, role_of: RoleOf, first: int = 0) -> Iterator[Partition]:
        """Yield a topic's partitions from number `first` on, with their logs. `add` or `grow` then serves them.
        `role_of`: creates the broker's role for a partition."""
        for number in range(first, topic.partitions):
            key = TopicPartition(topic.name, number)
            log = self._table.find(key)
            yield Partition(
                key,
                topic.topic_id,
                replicas=role_of(key, log),
                thread=self._io.index_of(topic.name, number),
                fetches=self.fetches,
                produces=self.produces,
                traffic=self.traffic.of(topic.name),
                log=log,
                error=self._table.error_of(key),
            )

    def add(self, topic: Topic, partitions: Iterable[Partition]) -> None:
        """Serve a new topic with its partitions."""
        self._schema_bytes[topic.name] = _schema_messages(topic)
        self.grow(topic, partitions)

    def grow(self, topic: Topic, added: Iterable[Partition]) -> None:
        """Serve more partitions of a topic."""
        self._partitions.update((partition.key, partition) for partition in added)
        self.topics[topic.name] = topic
        self.on_topics_changed()

    def remove(self, topic: Topic) -> list[Partition]:
        """Stop serving a topic. Returns its partitions, which the caller must end."""
        self.topics.pop(topic.name, None)
        self._schema_bytes.pop(topic.name, None)
        self.traffic.forget(topic.name)
        gone = [p for n in range(topic.partitions) if (p := self._partitions.pop((topic.name, n), None)) is not None]
        self.on_topics_changed()
        return gone

    def use_schemas(self, topic: Topic) -> None:
        """Pass a topic's newer schemas to its partitions."""
        for number in range(topic.partitions):
            self._partitions[(topic.name, number)].use_schemas(topic.schemas.__getitem__, topic.schema_id)
        self._schema_bytes[topic.name] = _schema_messages(topic)
        self.topics[topic.name] = topic

    def stop_waiting(self) -> None:
        """End the waits of fetches, which are answered with the records that exist, and of produce requests, which get
        RequestTimedOutError."""
        self.fetches.stop()
        self.produces.stop()


def _schema_messages(topic: Topic) -> list[tuple[int, bytes]]:
    """Encode the topic's schemas by id, the newest last, as Arrow IPC schema messages."""
    return [(i, schema.serialize().to_pybytes()) for i, schema in sorted(topic.schemas.items())]
