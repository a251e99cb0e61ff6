"""Mirrors of topics whose values have schemas in a registry: the values become columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.timestamp_pb2 import Timestamp

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.net.cluster import cluster
from sparklog.client.refused import RefusedRecords, Values
from sparklog.errors import BrokerNotAvailableError, InvalidConfigError
from sparklog.mirror.worker.verify import verify_mirror
from sparklog.mirror.worker.worker import MirrorWorker
from tests.support.waiting import PATIENCE_S, START_S, until

NEEDS_GATEWAY = True
ACCOUNT: dict[str, Any] = {
    "type": "record",
    "name": "Account",
    "fields": [{"name": "id", "type": "int"}, {"name": "owner", "type": ["null", "string"], "default": None}],
}
WIDER = ACCOUNT | {
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "owner", "type": ["null", "string"], "default": None},
        {"name": "limit", "type": "double", "default": 1.5},
    ]
}


@pytest.fixture(scope="module")
def source() -> Iterator[LocalBroker]:
    with sparklog.start_local(timeout_s=START_S, kafka=True) as local:
        yield local


@pytest.fixture
def registry(source: LocalBroker) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": source.schema_registry_url}) as own:
        yield own


def send(source: LocalBroker, topic: str, records: list[tuple[bytes | None, bytes | None]]) -> None:
    kafka = AdminClient({"bootstrap.servers": source.kafka_bootstrap_servers})
    if topic not in kafka.list_topics(timeout=PATIENCE_S).topics:
        kafka.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": source.kafka_bootstrap_servers})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(PATIENCE_S) == 0


def encoded(serialize: Any, topic: str, value: object) -> bytes:
    data: bytes = serialize(value, SerializationContext(topic, MessageField.VALUE))
    return data


def run_once(target: LocalBroker) -> dict[str, str]:
    worker = MirrorWorker(target.bootstrap_servers)
    try:
        return worker.run_once()
    finally:
        worker.close()


def rows(target: LocalBroker, topic: str) -> list[dict[str, Any]]:
    return sparklog.read_table(target.bootstrap_servers, topic).to_pylist()


def test_avro_fills_the_columns_of_the_registry_and_follows_its_new_versions(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    topic = "accounts"
    first = AvroSerializer(registry, json.dumps(ACCOUNT))
    good = [(b'{"id":%d}' % i, encoded(first, topic, {"id": i, "owner": f"o{i}"})) for i in range(50)]
    bad = [(b'{"id":60}', b"\0\0\0\0\x01"), (b'{"id":61}', b'{"id":61}'), (b'{"id":62}', b"\0\0\1\0\0\2")]
    send(source, topic, [*good, *bad, (b'{"id":3}', None), (b'{"id":9}', good[8][1])])
    admin.create_mirror(
        "avro",
        source=f"kafka://{source.kafka_bootstrap_servers}",
        topics=topic,
        value_format="avro",
        registry=source.schema_registry_url,
        key_columns={topic: ["id"]},
    )
    created = admin.describe_topic(topic)
    assert created.schema == pa.schema([("id", pa.int32()), ("owner", pa.string())]) and created.key_columns == ("id",)
    assert run_once(target) == {}
    expected = [{"id": i, "owner": f"o{i}"} for i in range(50)]
    assert rows(target, topic) == [*expected, {"id": 3, "owner": None}]
    refused = sparklog.read_table(target.bootstrap_servers, f"{topic}.refused").to_pylist()
    assert [row["offset"] for row in refused] == [50, 51, 52, 54]
    reasons = [row["reason"] for row in refused]
    assert "no schema id" in reasons[1] or "framing" in reasons[1] or "byte" in reasons[1], reasons
    assert "no schema of this id" in reasons[2] and "key" in reasons[3]

    second = AvroSerializer(registry, json.dumps(WIDER))
    send(source, topic, [(None, encoded(second, topic, {"id": 70, "owner": None, "limit": 2.5})), good[0]])
    assert run_once(target) == {}
    assert admin.describe_topic(topic).schema.names == ["id", "owner", "limit"]
    assert rows(target, topic)[-2:] == [
        {"id": 70, "owner": None, "limit": 2.5},
        {"id": 0, "owner": "o0", "limit": 1.5},
    ]
    report = verify_mirror(cluster(target.bootstrap_servers, None), "avro")
    assert (report.differences, report.records) == (0, 57), report.problems

    assert admin.promote_mirror("avro") == [topic]
    again = RefusedRecords(cluster(target.bootstrap_servers, None), admin, topic)
    with pytest.raises(InvalidConfigError, match="--registry"):
        again.check(Values("avro"))
    assert again.check(Values("avro", source.schema_registry_url)).stored == 0


def test_protobuf_fills_columns(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    topic = "times"
    serialize = ProtobufSerializer(Timestamp, registry, {"use.deprecated.format": False, "skip.known.types": False})
    send(source, topic, [(None, encoded(serialize, topic, Timestamp(seconds=i, nanos=i))) for i in range(20)])
    admin.create_mirror(
        "protobuf",
        source=f"kafka://{source.kafka_bootstrap_servers}",
        topics=topic,
        value_format="protobuf",
        registry=source.schema_registry_url,
    )
    assert run_once(target) == {}
    assert rows(target, topic) == [{"seconds": i, "nanos": i} for i in range(20)]


def test_wrong_uses_of_a_registry_are_refused(source: LocalBroker, admin: sparklog.Admin) -> None:
    options: dict[str, Any] = {"source": f"kafka://{source.kafka_bootstrap_servers}", "topics": "t"}
    send(source, "t", [(None, b"x")])
    for more, message in (
        ({"value_format": "avro"}, "name its address"),
        ({"value_format": "json", "columns": {"t": "a INT"}, "registry": "http://h:1"}, "leave it out"),
        ({"value_format": "json-schema", "registry": source.schema_registry_url}, "needs the columns"),
        ({"value_format": "avro", "registry": source.schema_registry_url}, "no subject 't-value'"),
        ({"value_format": "avro", "registry": "h:1"}, "http://HOST:PORT"),
        ({"value_format": "xml", "registry": "http://h:1"}, "use one of"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            admin.create_mirror("wrong", **options, **more)
    with pytest.raises(BrokerNotAvailableError, match="registry"):
        admin.create_mirror("wrong", **options, value_format="avro", registry="http://127.0.0.1:1")


ACCOUNT_KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}


def test_keys_with_schemas_fill_key_columns_and_keep_their_bytes(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    topic = "keyed"
    values, keys = AvroSerializer(registry, json.dumps(ACCOUNT)), AvroSerializer(registry, json.dumps(ACCOUNT_KEY))

    def key(i: int) -> bytes:
        data = keys({"id": i}, SerializationContext(topic, MessageField.KEY))
        assert isinstance(data, bytes)
        return data

    records: list[tuple[bytes | None, bytes | None]] = [
        (key(i), encoded(values, topic, {"id": i, "owner": f"o{i}"})) for i in range(10)
    ]
    send(source, topic, [*records, (key(3), None), (b"7", records[7][1]), (key(8), records[9][1]), (key(1)[:-1], None)])
    options: dict[str, Any] = {
        "source": f"kafka://{source.kafka_bootstrap_servers}",
        "topics": topic,
        "value_format": "avro",
        "key_format": "avro",
        "registry": source.schema_registry_url,
    }
    with pytest.raises(InvalidConfigError, match="its keys do not fit its columns"):
        admin.create_mirror("wrong", **options, key_columns={topic: ["owner"]})
    with pytest.raises(InvalidConfigError, match=r"is of avro, but the format of the keys is protobuf"):
        admin.create_mirror("wrong", **{**options, "key_format": "protobuf"})
    admin.create_mirror("keys", **options)
    created = admin.describe_topic(topic)
    assert (created.key_columns, created.setting("kafka.key.format")) == (("id",), "avro")
    assert run_once(target) == {}
    assert rows(target, topic) == [*({"id": i, "owner": f"o{i}"} for i in range(10)), {"id": 3, "owner": None}]
    refused = sparklog.read_table(target.bootstrap_servers, f"{topic}.refused").to_pylist()
    assert [row["offset"] for row in refused] == [11, 12, 13] and all("key" in row["reason"] for row in refused)
    report = verify_mirror(cluster(target.bootstrap_servers, None), "keys")
    assert (report.differences, report.records) == (0, 14), report.problems

    assert admin.promote_mirror("keys") == [topic]
    consumer = Consumer(
        {"bootstrap.servers": target.kafka_bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    taken: list[Any] = []
    until(lambda: taken.extend(consumer.consume(20, 0.5)) or len(taken) == 11, "all rows")
    consumer.close()
    assert [one.key() for one in taken] == [*(key(i) for i in range(10)), key(3)], "the bytes are those of the source"
