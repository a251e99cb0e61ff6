"""Keys of confluent-kafka's serializers become key columns, and every client has a key in one partition."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    dual_schema_id_deserializer,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

import sparklog
from sparklog.client.local import LocalBroker
from tests.support.waiting import PATIENCE_S

KEYS = 24
VALUE = json.dumps(
    {"type": "record", "name": "V", "fields": [{"name": "name", "type": ["null", "string"], "default": None}]}
)
KEY = json.dumps({"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}]})
COLUMNS = pa.schema([("id", pa.int64()), ("zone", pa.string()), ("name", pa.string())])
Serialize = Callable[[Any, SerializationContext], Any]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    settings = {"auto.create.typed.topics": True, "num.partitions": 4}
    with sparklog.start_local(tmp_path_factory.mktemp("keys") / "data", kafka=True, settings=settings) as local:
        yield local


@pytest.fixture(scope="module")
def admin(broker: LocalBroker) -> Iterator[sparklog.Admin]:
    with sparklog.Admin(broker.bootstrap_servers) as own:
        yield own


@pytest.fixture(scope="module")
def registry(broker: LocalBroker) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": broker.schema_registry_url}) as own:
        yield own


def send(
    broker: LocalBroker, topic: str, records: list[tuple[Any, Any]], partitioner: str = "murmur2_random"
) -> list[str]:
    """Send keys and values, and return the errors."""
    errors: list[str] = []
    settings = {"bootstrap.servers": broker.kafka_bootstrap_servers, "partitioner": partitioner, "linger.ms": 50}
    producer = Producer(settings)
    for key, value in records:
        producer.produce(topic, key=key, value=value, on_delivery=lambda e, m: errors.append(e.name()) if e else None)
    assert producer.flush(PATIENCE_S) == 0
    return errors


def serialized(topic: str, keys: list[Any], serialize: Serialize, of_values: Serialize) -> list[tuple[Any, Any]]:
    key, value = (SerializationContext(topic, one) for one in (MessageField.KEY, MessageField.VALUE))
    return [(serialize(one, key), of_values({"name": f"n{i}"}, value)) for i, one in enumerate(keys)]


def read(broker: LocalBroker, topic: str, count: int) -> list[Any]:
    """Return the first records of a topic."""
    settings = {"bootstrap.servers": broker.kafka_bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer, records = Consumer(settings), list[Any]()
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_S
        while len(records) < count and time.monotonic() < deadline:
            record = consumer.poll(1)
            if record is not None and record.error() is None:
                records.append(record)
    finally:
        consumer.close()
    return records


def check_keys(
    broker: LocalBroker,
    topic: str,
    sent: list[tuple[Any, Any]],
    deserialize: Callable[[Any, Any], Any],
    keys: list[Any],
) -> list[dict[str, Any]]:
    """Send records, write their rows again with a client of sparklog, and compare the keys and partitions of both."""
    assert send(broker, topic, sent) == []
    rows = sparklog.read_table(broker.bootstrap_servers, topic).to_pylist()
    assert len(rows) == len(sent)
    with sparklog.Producer(broker.bootstrap_servers) as producer:
        producer.send_batch(
            topic, pa.Table.from_pylist(rows[:12], sparklog.read_table(broker.bootstrap_servers, topic).schema)
        )
        for row in rows[12:]:
            producer.send(topic, row)
    records = read(broker, topic, 2 * len(sent))
    partitions: dict[bytes, list[int]] = {}
    for record in records:
        partitions.setdefault(record.key(), []).append(record.partition())
    assert set(partitions) == {key for key, _ in sent}
    assert all(len(one) == 2 and len(set(one)) == 1 for one in partitions.values()), partitions
    assert len({one[0] for one in partitions.values()}) > 1
    context = SerializationContext(topic, MessageField.KEY)
    assert [deserialize(key, context) for key, _ in sent] == keys
    return rows


def key_class() -> Any:
    file = FileDescriptorProto(name="row_key.proto", package="keys", syntax="proto3")
    fields = file.message_type.add(name="RowKey").field
    fields.add(name="id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=FieldDescriptorProto.LABEL_OPTIONAL)
    fields.add(name="zone", number=2, type=FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_OPTIONAL)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("keys.RowKey"))


def test_avro_keys_of_unchanged_clients_are_in_one_partition(
    broker: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    configs = {"kafka.value.format": "avro", "kafka.key.format": "avro"}
    ids, names = list(range(KEYS)), [f"ü{i}" for i in range(KEYS)]
    of_values = AvroSerializer(registry, VALUE)
    for topic, schema, column, keys in (
        ("longs", '"long"', "id", ids),
        ("texts", '"string"', "zone", names),
        ("records", KEY, "id", [{"id": i} for i in ids]),
    ):
        admin.create_topic(topic, 4, COLUMNS, key_columns=[column], configs=configs)
        sent = serialized(topic, keys, AvroSerializer(registry, schema), of_values)
        rows = check_keys(broker, topic, sent, AvroDeserializer(registry), keys)
        plain = [key["id"] if isinstance(key, dict) else key for key in keys]
        assert {row[column]: row["name"] for row in rows} == {key: f"n{i}" for i, key in enumerate(plain)}
        assert send(broker, topic, sent, "consistent_random").count("INVALID_RECORD") > 0, "CRC32 is another hash"


def test_protobuf_and_json_keys_of_unchanged_clients_are_in_one_partition(
    broker: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    of_values = AvroSerializer(registry, VALUE)
    configs = {"kafka.value.format": "avro", "kafka.key.format": "protobuf"}
    admin.create_topic("messages", 4, COLUMNS, key_columns=["id", "zone"], configs=configs)
    kind = key_class()
    keys: list[Any] = [kind(id=i, zone="z" * (i % 3)) for i in range(KEYS)]
    sent = serialized("messages", keys, ProtobufSerializer(kind, registry), of_values)
    check_keys(broker, "messages", sent, ProtobufDeserializer(kind, {"use.deprecated.format": False}, registry), keys)
    configs["kafka.key.format"] = "json-schema"
    compact = {"json_encode": partial(json.dumps, separators=(",", ":"), ensure_ascii=False)}
    for topic, source, column, values in (
        (
            "objects",
            {"title": "K", "type": "object", "properties": {"id": {"type": "integer"}}},
            "id",
            [{"id": i} for i in range(KEYS)],
        ),
        ("strings", {"title": "S", "type": "string"}, "zone", [f"ü{i}" for i in range(KEYS)]),
    ):
        admin.create_topic(topic, 4, COLUMNS, key_columns=[column], configs=configs)
        serialize = JSONSerializer(json.dumps(source), registry, **compact)
        sent = serialized(topic, values, serialize, of_values)
        check_keys(broker, topic, sent, JSONDeserializer(json.dumps(source)), values)


def imported_class() -> Any:
    """The class of a key whose file imports an enum from another one."""
    pool = descriptor_pool.Default()
    zones = FileDescriptorProto(name="zones.proto", package="zones", syntax="proto3")
    enum = zones.enum_type.add(name="Zone")
    for i in range(KEYS):
        enum.value.add(name=f"Z{i}", number=i)
    file = FileDescriptorProto(name="of_zone.proto", package="of_zone", syntax="proto3", dependency=["zones.proto"])
    of_zone = {"type": FieldDescriptorProto.TYPE_ENUM, "type_name": ".zones.Zone"}
    file.message_type.add(name="Key").field.add(
        name="zone", number=1, label=FieldDescriptorProto.LABEL_OPTIONAL, **of_zone
    )
    for one in (zones, file):
        pool.AddSerializedFile(one.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("of_zone.Key"))


def test_key_schemas_can_refer_to_other_subjects(
    broker: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    of_values, zones = AvroSerializer(registry, VALUE), [f"Z{i}" for i in range(KEYS)]
    registry.register_schema(
        "zone-avro", Schema(json.dumps({"type": "enum", "name": "Zone", "symbols": zones}), "AVRO")
    )
    record = json.dumps({"type": "record", "name": "K", "fields": [{"name": "zone", "type": "Zone"}]})
    avro = Schema(record, "AVRO", [SchemaReference("Zone", "zone-avro", 1)])
    configs = {"kafka.value.format": "avro", "kafka.key.format": "avro"}
    keys: list[Any] = [{"zone": zone} for zone in zones]
    admin.create_topic("of-zones", 4, COLUMNS, key_columns=["zone"], configs=configs)
    for topic in ("of-zones", "created-of-zones"):
        sent = serialized(topic, keys, AvroSerializer(registry, avro), of_values)
        rows = check_keys(broker, topic, sent, AvroDeserializer(registry), keys)
        assert sorted(row["zone"] for row in rows) == sorted(zones)

    kind = imported_class()
    messages = [kind(zone=i) for i in range(KEYS)]
    configs["kafka.key.format"] = "protobuf"
    admin.create_topic("zone-messages", 4, COLUMNS, key_columns=["zone"], configs=configs)
    sent = serialized("zone-messages", messages, ProtobufSerializer(kind, registry), of_values)
    check_keys(broker, "zone-messages", sent, ProtobufDeserializer(kind, {}, registry), messages)
    assert registry.get_latest_version("zone-messages-key").schema.references

    registry.register_schema("zone-json", Schema('{"$id": "zone.json", "type": "string"}', "JSON"))
    by_name = Schema('{"title": "K", "$ref": "zone.json"}', "JSON", [SchemaReference("zone.json", "zone-json", 1)])
    configs["kafka.key.format"] = "json-schema"
    admin.create_topic("zones", 4, COLUMNS, key_columns=["zone"], configs=configs)
    registry.register_schema("zones-key", by_name)
    newest = {"auto.register.schemas": False, "use.latest.version": True}
    compact = partial(json.dumps, separators=(",", ":"), ensure_ascii=False)
    sent = serialized("zones", zones, JSONSerializer(by_name, registry, conf=newest, json_encode=compact), of_values)
    check_keys(broker, "zones", sent, lambda data, _: json.loads(data[5:]), zones)


def test_schemas_create_topics_with_keys(broker: LocalBroker, registry: SchemaRegistryClient) -> None:
    keys: list[Any] = [f"k{i}" for i in range(KEYS)]
    sent = serialized("made", keys, AvroSerializer(registry, '"string"'), AvroSerializer(registry, VALUE))
    rows = check_keys(broker, "made", sent, AvroDeserializer(registry), keys)
    assert sorted(row["key"] for row in rows) == sorted(keys)
    assert list(rows[0]) == ["key", "name"]
    whole = json.dumps(
        {"type": "record", "name": "W", "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "int"}]}
    )
    registry.register_schema("whole-key", Schema(KEY.replace('"long"', '"int"'), "AVRO"))
    registry.register_schema("whole-value", Schema(whole, "AVRO"))
    assert sparklog.read_table(broker.bootstrap_servers, "whole").schema == pa.schema(
        [("id", pa.int64()), ("n", pa.int32())]
    )
    registry.register_schema("bad-key", Schema(KEY.replace('"long"', '"string"'), "AVRO"))
    with pytest.raises(SchemaRegistryError, match="cannot be created with its columns: field 'id' is string"):
        registry.register_schema("bad-value", Schema(whole, "AVRO"))


def test_a_topic_keeps_the_key_schema_that_it_has_first(
    broker: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    configs = {"kafka.value.format": "avro", "kafka.key.format": "avro"}
    admin.create_topic("kept", 4, COLUMNS, key_columns=["id"], configs=configs)
    registry.register_schema("kept-value", Schema(VALUE, "AVRO"))
    key = serialized("other", [5], AvroSerializer(registry, '"long"'), AvroSerializer(registry, VALUE))
    assert send(broker, "kept", key) == ["INVALID_RECORD"], "the subject of the topic's keys has no schema"
    with (
        pytest.raises(sparklog.SparklogError, match="register one for the subject 'kept-key'"),
        sparklog.Producer(broker.bootstrap_servers) as producer,
    ):
        producer.send("kept", {"id": 5})
    for text, reason in (
        ('"string"', "field 'id' is string"),
        (KEY.replace('"id"', '"other"'), "'id' is in one of them"),
    ):
        with pytest.raises(SchemaRegistryError, match=reason) as e:
            registry.register_schema("kept-key", Schema(text, "AVRO"))
        assert e.value.error_code == 409
    registry.set_compatibility("kept-key", level="NONE")
    schema_id = registry.register_schema("kept-key", Schema('"long"', "AVRO"))
    assert f'"id":{schema_id}' in str(admin.describe_topic("kept").configs["kafka.key.schema"])
    with sparklog.Producer(broker.bootstrap_servers) as producer:
        producer.send("kept", {"id": 5})
    assert send(broker, "kept", key) == []
    with pytest.raises(SchemaRegistryError, match=f"has the key schema {schema_id} for life"):
        registry.register_schema("kept-key", Schema(KEY, "AVRO"))
    assert {tuple(r.key()) for r in read(broker, "kept", 2)} == {tuple(key[0][0])}


def send_with_headers(
    broker: LocalBroker, topic: str, keys: Any, values: Any, records: list[tuple[Any, Any]]
) -> list[str]:
    """Send records whose schemas are named in headers, and return the errors."""
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": broker.kafka_bootstrap_servers, "partitioner": "murmur2_random"})
    for key, value in records:
        headers: list[Any] = []
        data = {
            "key": keys(key, SerializationContext(topic, MessageField.KEY, headers)),
            "value": values(value, SerializationContext(topic, MessageField.VALUE, headers)),
        }
        assert {name for name, _ in headers} == {"__key_schema_id", "__value_schema_id"}
        producer.produce(
            topic, **data, headers=headers, on_delivery=lambda e, m: errors.append(e.name()) if e else None
        )
    assert producer.flush(PATIENCE_S) == 0
    return errors


def test_schemas_can_be_named_by_headers(
    broker: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    in_header = {"schema.id.serializer": header_schema_id_serializer}
    configs = {"kafka.value.format": "avro", "kafka.key.format": "avro"}
    admin.create_topic("headers", 1, COLUMNS, key_columns=["id"], configs=configs)
    keys, values = (AvroSerializer(registry, one, conf=in_header) for one in ('"long"', VALUE))
    assert send_with_headers(broker, "headers", keys, values, [(i, {"name": f"n{i}"}) for i in range(5)]) == []
    rows = sparklog.read_table(broker.bootstrap_servers, "headers").to_pylist()
    assert [(row["id"], row["name"]) for row in rows] == [(i, f"n{i}") for i in range(5)]
    deserialize = AvroDeserializer(registry)
    read_values = [
        deserialize(r.value(), SerializationContext("headers", MessageField.VALUE)) for r in read(broker, "headers", 5)
    ]
    assert read_values == [{"name": f"n{i}"} for i in range(5)]

    kind = key_class()
    configs = {"kafka.value.format": "json-schema", "kafka.key.format": "protobuf"}
    admin.create_topic("header-messages", 1, COLUMNS, key_columns=["id", "zone"], configs=configs)
    of_keys = ProtobufSerializer(kind, registry, conf=in_header)
    text = {"title": "V", "type": "object", "properties": {"name": {"type": "string"}}}
    of_values = JSONSerializer(json.dumps(text), registry, conf=in_header)
    records = [(kind(id=i, zone="z"), {"name": f"n{i}"}) for i in range(5)]
    assert send_with_headers(broker, "header-messages", of_keys, of_values, records) == []
    rows = sparklog.read_table(broker.bootstrap_servers, "header-messages").to_pylist()
    assert rows == [{"id": i, "zone": "z", "name": f"n{i}"} for i in range(5)]


def test_an_envelope_topic_keeps_headers_with_ids(
    broker: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    in_header = {"schema.id.serializer": header_schema_id_serializer}
    admin.create_topic("plain", 1)
    keys, values = (AvroSerializer(registry, one, conf=in_header) for one in ('"long"', VALUE))
    assert send_with_headers(broker, "plain", keys, values, [(5, {"name": "a name"})]) == []
    (record,) = read(broker, "plain", 1)
    context = SerializationContext("plain", MessageField.VALUE, record.headers())
    with SchemaRegistryClient({"url": broker.schema_registry_url}) as fresh:
        dual = {"schema.id.deserializer": dual_schema_id_deserializer}
        assert AvroDeserializer(fresh, conf=dual)(record.value(), context) == {"name": "a name"}, (
            "by GET /schemas/guids/{guid}"
        )


def test_keys_of_an_outside_registry(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path / "outside", kafka=True) as outside:
        settings = {"schema.registry.url": outside.schema_registry_url}
        with (
            sparklog.start_local(tmp_path / "data", kafka=True, settings=settings) as broker,
            SchemaRegistryClient({"url": outside.schema_registry_url}) as registry,
            sparklog.Admin(broker.bootstrap_servers) as admin,
        ):
            configs = {"kafka.value.format": "avro", "kafka.key.format": "avro"}
            admin.create_topic("away", 4, COLUMNS, key_columns=["id"], configs=configs)
            keys = list(range(KEYS))
            sent = serialized("away", keys, AvroSerializer(registry, '"long"'), AvroSerializer(registry, VALUE))
            check_keys(broker, "away", sent, AvroDeserializer(registry), keys)
            admin.create_topic("away-headers", 1, COLUMNS, key_columns=["id"], configs=configs)
            in_header = {"schema.id.serializer": header_schema_id_serializer}
            of_keys, of_values = (AvroSerializer(registry, one, conf=in_header) for one in ('"long"', VALUE))
            assert send_with_headers(broker, "away-headers", of_keys, of_values, [(5, {"name": "x"})]) == []
            assert sparklog.read_table(broker.bootstrap_servers, "away-headers")["id"].to_pylist() == [5]
