"""One key lies in one partition, whichever client writes it, so that compaction and the newest rows are right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from kafka import KafkaProducer
from kafka.errors import InvalidRecordError

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.producer.partitioner import partition_for_key
from tests.support.cli import run_here
from tests.support.waiting import PATIENCE_S, until

IDS = range(16)
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.bytes": 8192}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with a gateway, which compacts at once."""
    directory = tmp_path_factory.mktemp("keys") / "data"
    more = {"log.cleaner.backoff.ms": 20}
    with sparklog.start_local(data_dir=directory, kafka=True, settings=more) as local:
        yield local


@pytest.fixture
def admin(kafka: LocalBroker) -> Iterator[sparklog.Admin]:
    with sparklog.Admin(kafka.bootstrap_servers) as found:
        yield found


def produced(kafka: LocalBroker, topic: str, records: dict[bytes, bytes | None], **more: Any) -> dict[bytes, Any]:
    """Sends records with librdkafka, and returns each key's error; None if the record is stored."""
    outcomes: dict[bytes, Any] = {}
    producer = Producer({"bootstrap.servers": kafka.kafka_bootstrap_servers, "linger.ms": 20, **more})
    for key, value in records.items():
        producer.produce(topic, value, key, on_delivery=lambda e, m: outcomes.update({m.key() or b"": e and e.code()}))
    assert producer.flush(PATIENCE_S) == 0
    return outcomes


def write_with_every_client(kafka: LocalBroker, topic: str, ids: dict[Any, bytes], path: Path) -> None:
    """Writes a row of each id, which has these bytes as its key, with each client in turn."""
    with sparklog.Producer(kafka.bootstrap_servers) as native:
        for one in ids:
            native.send(topic, {"id": one, "name": "send"})
        native.flush()
        native.send_batch(topic, {"id": list(ids), "name": ["batch"] * len(ids)}).result(60)
    path.write_text("".join(json.dumps({"id": one, "name": "line"}) + "\n" for one in ids))
    printed = run_here("produce", topic, path, "--bootstrap-servers", kafka.bootstrap_servers)
    assert printed.returncode == 0, printed.stderr
    murmur2 = {"partitioner": "murmur2_random"}
    assert set(produced(kafka, topic, dict.fromkeys(ids.values(), b'{"name":"librdkafka"}'), **murmur2).values()) == {
        None
    }
    python = KafkaProducer(bootstrap_servers=kafka.kafka_bootstrap_servers)
    futures = [python.send(topic, json.dumps({"id": one, "name": "python"}).encode(), key) for one, key in ids.items()]
    for future in futures:
        future.get(PATIENCE_S)
    python.close()


def partitions_of_ids(kafka: LocalBroker, topic: str) -> dict[Any, set[int]]:
    rows = sparklog.read_table(kafka.bootstrap_servers, topic, include_metadata=True)
    found: dict[Any, set[int]] = {}
    for one, partition in zip(rows.column("id").to_pylist(), rows.column("_partition").to_pylist(), strict=True):
        found.setdefault(one, set()).add(partition)
    return found


@pytest.mark.parametrize("kind", ["BIGINT", "STRING"])
def test_every_client_writes_a_key_to_one_partition(
    kafka: LocalBroker, admin: sparklog.Admin, topic: str, kind: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 4, f"id {kind}, name STRING", ["id"], configs=COMPACT)
    keys: dict[Any, bytes] = (
        {i: b'{"id":%d}' % i for i in IDS} if kind == "BIGINT" else {f"u{i}": b"u%d" % i for i in IDS}
    )
    write_with_every_client(kafka, topic, keys, tmp_path / "rows.jsonl")
    placed = partitions_of_ids(kafka, topic)
    assert set(placed) == set(keys) and all(len(partitions) == 1 for partitions in placed.values())
    dead = dict(list(keys.items())[:4])
    tombstones: dict[bytes, bytes | None] = dict.fromkeys(dead.values())
    assert set(produced(kafka, topic, tombstones, partitioner="murmur2_random").values()) == {None}
    left = {one: "python" for one in keys if one not in dead}

    def latest() -> dict[Any, Any]:
        rows = sparklog.read_table(kafka.bootstrap_servers, topic, latest=True)
        return dict(zip(rows.column("id").to_pylist(), rows.column("name").to_pylist(), strict=True))

    assert latest() == left
    check_consumer(kafka, topic, keys, dead)
    fill = {"id": [one for one in keys for _ in range(400)], "name": ["f" * 50] * (400 * len(keys))}
    with sparklog.Producer(kafka.bootstrap_servers) as native:
        native.send_batch(topic, fill).result(60)
        native.send_batch(topic, {"id": list(dead), "name": pa.nulls(len(dead), pa.string())}).result(60)
        for _ in range(3):  # the active segment is not compacted
            native.send_batch(topic, {"id": list(left) * 100, "name": ["python"] * (100 * len(left))}).result(60)
    until(lambda: rows_of(kafka, topic, dead) <= len(dead), "compaction")
    assert latest() == left and {one: placed[one] for one in left} == {
        one: found for one, found in partitions_of_ids(kafka, topic).items() if one in left
    }


def rows_of(kafka: LocalBroker, topic: str, ids: dict[Any, bytes]) -> int:
    found: list[Any] = sparklog.read_table(kafka.bootstrap_servers, topic).column("id").to_pylist()
    return sum(one in ids for one in found)


def check_consumer(kafka: LocalBroker, topic: str, keys: dict[Any, bytes], dead: dict[Any, bytes]) -> None:
    """A Kafka client gets the same bytes as the key from every writer, and tombstones without a value."""
    settings = {"bootstrap.servers": kafka.kafka_bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: dict[bytes, list[bytes | None]] = {}

    def enough() -> bool:
        for message in consumer.consume(500, 0.2):
            if message.error() is None:
                found.setdefault(message.key() or b"", []).append(message.value())
        return sum(map(len, found.values())) >= 5 * len(keys) + len(dead)

    until(enough, "all records")
    consumer.close()
    assert {key: len(values) for key, values in found.items()} == {
        key: 6 if one in dead else 5 for one, key in keys.items()
    }
    assert {key for key, values in found.items() if None in values} == set(dead.values())


def test_a_record_in_another_partition_is_refused_with_both(
    kafka: LocalBroker, admin: sparklog.Admin, topic: str
) -> None:
    described = admin.create_topic(topic, 4, "id BIGINT, name STRING", ["id"])
    assert described.configs == {"kafka.key.format": "json"}
    records: dict[bytes, bytes | None] = {b'{"id":%d}' % i: b"{}" for i in IDS}
    by_crc32 = produced(kafka, topic, records, **{"linger.ms": 0, "batch.num.messages": 1})
    assert set(by_crc32.values()) == {None, KafkaError.INVALID_RECORD}
    stored = {key for key, error in by_crc32.items() if error is None}
    assert {b'{"id":%d}' % i for i in partitions_of_ids(kafka, topic)} == stored
    producer = KafkaProducer(bootstrap_servers=kafka.kafka_bootstrap_servers, enable_idempotence=False)
    own = producer.send(topic, b"{}", b'{"id":5}').get(PATIENCE_S).partition
    with pytest.raises(InvalidRecordError) as refused:
        producer.send(topic, b"{}", b'{ "id": 5 }', partition=(own + 1) % 4).get(PATIENCE_S)
    reason = str(refused.value)
    assert f"partition {(own + 1) % 4} of" in reason and f'{{"id":5}} belongs to partition {own} of 4' in reason
    producer.close()
    keys = AdminClient({"bootstrap.servers": kafka.kafka_bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entry = keys.describe_configs([resource])[resource].result(PATIENCE_S)["kafka.key.format"]
    assert (entry.value, entry.is_read_only) == ("json", True)
    with pytest.warns(DeprecationWarning):  # it replaces all settings
        altered = keys.alter_configs([ConfigResource(ConfigResource.Type.TOPIC, topic, {"retention.ms": "60000"})])
    altered[resource].result(PATIENCE_S)
    assert admin.describe_topic(topic).configs == {"kafka.key.format": "json", "retention.ms": 60_000}


def test_added_partitions_are_chosen_by_clients_that_see_them(
    kafka: LocalBroker, admin: sparklog.Admin, topic: str
) -> None:
    admin.create_topic(topic, 3, "id BIGINT, name STRING", ["id"])
    records: dict[bytes, bytes | None] = {b'{"id":%d}' % i: b"{}" for i in IDS}
    assert set(produced(kafka, topic, records, partitioner="murmur2_random").values()) == {None}
    admin.add_partitions(topic, 7)  # the gateway still has 3 in its cache
    assert set(produced(kafka, topic, records, partitioner="murmur2_random").values()) == {None}
    with sparklog.Producer(kafka.bootstrap_servers) as native:
        native.send_batch(topic, {"id": list(IDS), "name": ["x"] * len(IDS)}).result(60)
    rows = sparklog.read_table(kafka.bootstrap_servers, topic, include_metadata=True).to_pylist()
    assert len(rows) == 3 * len(IDS)
    for row in rows:
        key = b'{"id":%d}' % row["id"]
        assert row["_partition"] in {partition_for_key(key, 7)} | {partition_for_key(key, 3)}
    assert sum(row["_partition"] == partition_for_key(b'{"id":%d}' % row["id"], 7) for row in rows) >= 2 * len(IDS)
