"""The load of the mirrors' campaign: producers with and without transactions, and groups that commit."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import sparklog
from sparklog.errors import SparklogError
from sparklog.types import TopicPartition
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.campaigns.torture.mirror_sources import Source

PARTITIONS = 2
TYPED = "m-typed"
"""A typed topic of a sparklog cluster."""
GROUPS = ("g-first", "g-second")
PATIENCE_S = 300.0


class Topic(NamedTuple):
    """Settings of a topic at the source."""

    settings: Mapping[str, str]

    @property
    def is_compacted(self) -> bool:
        return self.settings.get("cleanup.policy") == "compact"


TOPICS: Mapping[str, Topic] = {
    "m-plain": Topic({}),
    "m-appended": Topic({"message.timestamp.type": "LogAppendTime"}),
    "m-small": Topic({"segment.bytes": str(1 << 20)}),
    "m-compacted": Topic({"cleanup.policy": "compact", "segment.ms": "2000", "min.cleanable.dirty.ratio": "0.01"}),
}


class Record(NamedTuple):
    """A record as its readers see it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def create_topics(source: Source) -> None:
    """Create all topics at the source."""
    admin = AdminClient({"bootstrap.servers": source.kafka, "log_level": 2})
    safe = {"min.insync.replicas": str(max(1, source.nodes - 1))}
    new = [NewTopic(name, PARTITIONS, source.nodes, config=safe | dict(t.settings)) for name, t in TOPICS.items()]
    for future in admin.create_topics(new, operation_timeout=60).values():
        future.result(120)
    if source.url.startswith("sparklog"):
        with sparklog.Admin(source.url.removeprefix("sparklog://")) as own:
            own.create_topic(TYPED, PARTITIONS, "id BIGINT, name STRING")


def records_of(address: str, topic: str, partition: int) -> dict[int, Record]:
    """Return the committed records of a partition of a sparklog topic by offset."""
    tp = TopicPartition(topic, partition)
    result: dict[int, Record] = {}
    with sparklog.Consumer(address, isolation_level="read_committed") as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning([tp])
        end = consumer.end_offsets([tp])[tp]
        while consumer.position(tp) < end:
            for r in consumer.poll(1_000):
                headers = tuple((h[0], h[1]) for h in r.headers or ())
                result[r.offset] = Record(r.key, r.value, headers, r.timestamp_ms)
    return result


class Load:
    """Clients of the source in threads, which go on when its nodes come back."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stop = threading.Event()
        self._counts = [0, 0, 0]
        self.committed: dict[str, dict[TopicPartition, int]] = {group: {} for group in GROUPS}
        """Offsets that the groups have committed last."""
        self._threads = [
            threading.Thread(target=self._plain, name="plain"),
            *(threading.Thread(target=self._transactions, args=(i,), name=f"transactions-{i}") for i in (1, 2)),
            threading.Thread(target=self._commit_often, name="groups"),
        ]
        if source.url.startswith("sparklog"):
            self._threads.append(threading.Thread(target=self._typed, name="typed"))
        for thread in self._threads:
            thread.start()

    @property
    def written(self) -> int:
        """Number of batches and transactions so far."""
        return min(self._counts)

    def stop(self) -> None:
        """End the clients, and let the groups commit the ends."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread.name
        until(self._commit, "the groups commit", within_s=PATIENCE_S, passing=(KafkaException,))

    def _plain(self) -> None:
        rng = random.Random(7)
        settings = {"bootstrap.servers": self._source.kafka, "enable.idempotence": True, "linger.ms": 2, "log_level": 0}
        producers = [Producer(settings | {"compression.type": c}) for c in ("none", "gzip", "snappy", "lz4", "zstd")]
        number = 0
        while not self._stop.wait(0.05):
            producer = rng.choice(producers)
            for topic in TOPICS:
                for _ in range(rng.randrange(1, 6)):
                    number += 1
                    value = rng.choice((None, b"", b"%d" % number, b"%d " % number * rng.randrange(1, 200)))
                    headers: Any = [("h", b"%d" % number), ("h", None)] if number % 3 == 0 else None
                    key = b"k%d" % rng.randrange(50)
                    producer.produce(topic, value, key, partition=rng.randrange(PARTITIONS), headers=headers)
            if producer.flush(60) == 0:
                self._counts[0] += 1
        for producer in producers:
            producer.flush(PATIENCE_S)

    def _transactions(self, i: int) -> None:
        rng = random.Random(i)
        settings = {"bootstrap.servers": self._source.kafka, "transactional.id": f"load-{i}", "log_level": 0}
        while not self._stop.is_set():
            producer = Producer(settings | {"transaction.timeout.ms": 30_000, "linger.ms": 0})
            try:
                producer.init_transactions(60)
                while not self._stop.wait(0.05):
                    producer.begin_transaction()
                    for topic in TOPICS:
                        for partition in range(PARTITIONS):
                            producer.produce(topic, b"%d" % rng.randrange(10**9), b"t%d" % i, partition=partition)
                    producer.flush(60)
                    aborts = rng.random() < 1 / 3
                    (producer.abort_transaction if aborts else producer.commit_transaction)(60)
                    self._counts[i] += 1
            except KafkaException:
                time.sleep(0.2)  # the outcome does not matter: the log says which transactions count
        self._close_transactions(settings)

    def _close_transactions(self, settings: Mapping[str, object]) -> None:
        """End a transaction whose outcome is not known."""

        def fence() -> bool:
            Producer(dict(settings)).init_transactions(60)
            return True

        until(fence, "no transaction is open", within_s=PATIENCE_S, passing=(KafkaException,))

    def _typed(self) -> None:
        address, number = self._source.url.removeprefix("sparklog://"), 0
        while not self._stop.is_set():
            try:
                with (
                    sparklog.Producer(address, transactional_id="typed") as producer,
                    sparklog.Admin(address) as admin,
                ):
                    producer.init_transactions()
                    while not self._stop.wait(0.05):
                        producer.begin_transaction()
                        number += 1
                        for partition in range(PARTITIONS):
                            producer.send_batch(TYPED, [{"id": number, "name": f"n{number}"}], partition=partition)
                        producer.abort_transaction() if number % 3 == 0 else producer.commit_transaction()
                        if number % 200 == 0:
                            admin.alter_schema(TYPED, add_columns=f"c{number} STRING")
            except SparklogError:
                time.sleep(0.2)

    def _commit_often(self) -> None:
        while not self._stop.wait(1):
            try:
                self._commit()
            except KafkaException:
                continue

    def _commit(self) -> bool:
        """Let each group commit the ends of all partitions. Raises KafkaException."""
        for group in GROUPS:
            consumer = Consumer({"bootstrap.servers": self._source.kafka, "group.id": group, "log_level": 0})
            try:
                tps = [KafkaPartition(topic, p) for topic in TOPICS for p in range(PARTITIONS)]
                for tp in tps:
                    tp.offset = consumer.get_watermark_offsets(tp, timeout=30)[1]
                consumer.commit(offsets=tps, asynchronous=False)
                self.committed[group] = {TopicPartition(tp.topic, tp.partition): tp.offset for tp in tps}
            finally:
                consumer.close()
        return True
