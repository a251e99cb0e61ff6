"""The systems of the cases: a sparklog broker, or a Kafka broker, under one set of names."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import sparklog
from sparklog.types import TopicPartition

WAIT_S = 60
Headers = Sequence[tuple[str, bytes]]


class Transaction(Protocol):
    """A producer with one transaction after the other."""

    def begin(self) -> None: ...

    def send(self, topic: str, *values: str | None, key: str | None = None) -> None:
        """Returns when the records are stored, not yet visible to readers of committed records."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class System(Protocol):
    """A log with its broker. `name` is also Spark's name of its source and sink."""

    name: str
    bootstrap_servers: str

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Returns when the topic can be written and read; `configs` with _ for the dots."""

    def delete_topic(self, name: str) -> None: ...

    def add_partitions(self, topic: str, total: int) -> None: ...

    def delete_records(self, topic: str, partition: int, before: int) -> None: ...

    def send(
        self,
        topic: str,
        *values: str | None,
        partition: int | None = None,
        key: str | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Returns when the records are stored."""

    def transactions(self) -> Transaction: ...

    def partition_of(self, topic: str, key: str) -> int:
        """The partition that the system's own producer chooses for a key; sends a record."""


_numbers = itertools.count()
_run = uuid.uuid4().hex[:6]


def unused_name(prefix: str = "t") -> str:
    """A topic name that no other case uses."""
    return f"{prefix}-{_run}-{next(_numbers)}"


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


class SparklogSystem:
    """format("sparklog") and a sparklog broker."""

    name = "sparklog"

    def __init__(self, bootstrap_servers: str, admin: sparklog.Admin, producer: sparklog.Producer) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = admin
        self._producer = producer

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        self._admin.create_topic(name, partitions, configs=_dotted(configs))

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topic(name)

    def add_partitions(self, topic: str, total: int) -> None:
        self._admin.add_partitions(topic, total)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._admin.delete_records({TopicPartition(topic, partition): before})

    def send(
        self,
        topic: str,
        *values: str | None,
        partition: int | None = None,
        key: str | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        more = {"partition": partition, "key": encoded(key), "headers": headers, "timestamp_ms": timestamp_ms}
        for future in [self._producer.send(topic, encoded(v), **more) for v in values]:  # type: ignore[arg-type]
            future.result(WAIT_S)

    def transactions(self) -> Transaction:
        return _SparklogTransaction(self.bootstrap_servers)

    def partition_of(self, topic: str, key: str) -> int:
        return int(self._producer.send(topic, b"", key=key.encode()).result(WAIT_S).partition)


class _SparklogTransaction:
    def __init__(self, bootstrap_servers: str) -> None:
        self._producer = sparklog.Producer(bootstrap_servers, linger_ms=0, transactional_id=unused_name("tx"))
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: str | None, key: str | None = None) -> None:
        for future in [self._producer.send(topic, encoded(v), encoded(key), partition=0) for v in values]:
            future.result(WAIT_S)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close()


class KafkaSystem:
    """format("kafka") of Spark's connector and a Kafka broker."""

    name = "kafka"

    def __init__(self, bootstrap_servers: str, wait_for_partitions: Callable[[str, Sequence[int]], None]) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient

        self.bootstrap_servers = bootstrap_servers
        self._wait = wait_for_partitions
        quiet = {"bootstrap.servers": bootstrap_servers, "log_level": 2}
        self._admin = AdminClient(quiet)  # type: ignore[arg-type]
        # as Kafka's own clients partition, not as librdkafka does by itself
        self._new_producer = lambda: Producer(quiet | {"linger.ms": 0, "partitioner": "murmur2_random"})
        self._producer = self._new_producer()

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        from confluent_kafka.cimpl import NewTopic

        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=_dotted(configs))
        self._admin.create_topics([new], operation_timeout=WAIT_S)[name].result(WAIT_S)
        self._wait(name, range(partitions))

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name], operation_timeout=WAIT_S)[name].result(WAIT_S)
        self._producer = self._new_producer()  # this one would remember the old topic for minutes

    def add_partitions(self, topic: str, total: int) -> None:
        from confluent_kafka.cimpl import NewPartitions

        self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(WAIT_S)
        self._wait(topic, range(total))
        self._producer = self._new_producer()

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        from confluent_kafka import TopicPartition as Place

        for future in self._admin.delete_records([Place(topic, partition, before)]).values():
            future.result(WAIT_S)

    def send(
        self,
        topic: str,
        *values: str | None,
        partition: int | None = None,
        key: str | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        more: dict[str, Any] = {"key": encoded(key)}
        more |= {} if partition is None else {"partition": partition}
        more |= {} if headers is None else {"headers": list(headers)}
        more |= {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        _produce(self._producer, topic, values, more)

    def transactions(self) -> Transaction:
        return _KafkaTransaction(self.bootstrap_servers)

    def partition_of(self, topic: str, key: str) -> int:
        return int(_produce(self._producer, topic, [""], {"key": key.encode()})[0].partition())


class _KafkaTransaction:
    def __init__(self, bootstrap_servers: str) -> None:
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": bootstrap_servers, "log_level": 2, "transactional.id": unused_name("tx")}
        self._producer = Producer(settings)
        self._producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: str | None, key: str | None = None) -> None:
        _produce(self._producer, topic, values, {"key": encoded(key), "partition": 0})

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)

    def close(self) -> None:
        self._producer.flush(WAIT_S)


def _produce(producer: Any, topic: str, values: Iterable[str | None], more: Mapping[str, Any]) -> list[Any]:
    """Send and wait; returns the stored records. Raises KafkaException."""
    from confluent_kafka import KafkaException

    stored: list[Any] = []
    failed: list[Any] = []
    for value in values:
        producer.produce(
            topic, encoded(value), on_delivery=lambda e, m: (failed if e else stored).append(e or m), **more
        )
    if producer.flush(WAIT_S) or failed:
        raise KafkaException(failed[0] if failed else f"{topic}: not everything was delivered in {WAIT_S} s")
    return stored


def _dotted(configs: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in configs.items()}
