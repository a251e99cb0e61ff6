"""Records of confluent-kafka's serializers become columns of a typed topic, and consumers read them in their format."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp

import sparklog
from sparklog.client.local import LocalBroker
from tests.support.cli import run_here
from tests.support.waiting import PATIENCE_S

TRIP: dict[str, Any] = {
    "type": "record",
    "name": "Trip",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "zone", "type": ["null", "string"], "default": None},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "DONE"]}},
    ],
}
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("zone", pa.string()),
        ("fare", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("stops", pa.list_(pa.string())),
        ("state", pa.string()),
    ]
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with sparklog.start_local(tmp_path_factory.mktemp("values") / "data", kafka=True) as local:
        yield local


@pytest.fixture(scope="module")
def admin(broker: LocalBroker) -> Iterator[sparklog.Admin]:
    with sparklog.Admin(broker.bootstrap_servers) as own:
        yield own


@pytest.fixture(scope="module")
def registry(broker: LocalBroker) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": broker.schema_registry_url}) as own:
        yield own


def trip(i: int) -> dict[str, Any]:
    zone = None if i % 2 else f"zone {i}"
    fare, at = Decimal(i) / 4, datetime(2020, 1, 1, 0, 0, i % 60, tzinfo=UTC)
    return {"id": i, "zone": zone, "fare": fare, "at": at, "stops": ["a"] * (i % 3), "state": "DONE"}


def send(broker: LocalBroker, topic: str, serialize: Any, values: list[Any]) -> list[str]:
    """Send values, and return the reasons of the refused ones."""
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": broker.kafka_bootstrap_servers, "linger.ms": 50})
    for value in values:
        data = value if isinstance(value, bytes) else serialize(value, SerializationContext(topic, MessageField.VALUE))
        producer.produce(topic, data, on_delivery=lambda e, m: errors.append(e.name()) if e else None)
    assert producer.flush(PATIENCE_S) == 0
    return errors


def read(broker: LocalBroker, topic: str, count: int, deserialize: Callable[[bytes], Any]) -> list[Any]:
    settings = {"bootstrap.servers": broker.kafka_bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer, values = Consumer(settings), list[Any]()
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_S
        while len(values) < count and time.monotonic() < deadline:
            record = consumer.poll(1)
            if record is not None and record.error() is None:
                values.append(deserialize(record.value() or b""))
    finally:
        consumer.close()
    return values


def rows_of(broker: LocalBroker, topic: str) -> list[dict[str, Any]]:
    return sparklog.read_table(broker.bootstrap_servers, topic).to_pylist()


def test_avro_of_unchanged_clients_is_columns(
    broker: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    admin.create_topic("trips", 1, COLUMNS, configs={"kafka.value.format": "avro"})
    trips = [trip(i) for i in range(300)]
    serialize = AvroSerializer(registry, json.dumps(TRIP))
    assert send(broker, "trips", serialize, trips) == []
    columns = list(COLUMNS.names)
    assert [{name: row[name] for name in columns} for row in rows_of(broker, "trips")] == trips
    deserialize = AvroDeserializer(registry)
    context = SerializationContext("trips", MessageField.VALUE)
    assert read(broker, "trips", 300, lambda data: deserialize(data, context)) == trips


def ride_class() -> Any:
    """The class of a message with a well-known type and a list."""
    file = FileDescriptorProto(name="ride.proto", package="values", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    fields = file.message_type.add(name="Ride").field
    optional, repeated = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
    fields.add(name="id", number=1, type=FieldDescriptorProto.TYPE_UINT64, label=optional)
    at = {"type": FieldDescriptorProto.TYPE_MESSAGE, "type_name": ".google.protobuf.Timestamp"}
    fields.add(name="at", number=2, label=optional, **at)
    fields.add(name="stops", number=3, type=FieldDescriptorProto.TYPE_STRING, label=repeated)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("values.Ride"))


def test_protobuf_and_json_of_unchanged_clients_are_columns(
    broker: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    ride = ride_class()
    columns = "id DECIMAL(20,0), at TIMESTAMP, stops ARRAY<STRING>"
    admin.create_topic("rides", 1, columns, configs={"kafka.value.format": "protobuf"})
    rides = [ride(id=2**64 - 1 - i, at=Timestamp(seconds=i, nanos=5000), stops=["a"] * (i % 3)) for i in range(100)]
    assert send(broker, "rides", ProtobufSerializer(ride, registry), rides) == []
    assert [row["id"] for row in rows_of(broker, "rides")] == [2**64 - 1 - i for i in range(100)]
    deserialize = ProtobufDeserializer(ride, {}, registry)
    context = SerializationContext("rides", MessageField.VALUE)
    assert read(broker, "rides", 100, lambda data: deserialize(data, context)) == rides

    admin.create_topic("objects", 1, "n INT, s STRING", configs={"kafka.value.format": "json-schema"})
    text = json.dumps({"title": "O", "type": "object", "properties": {"n": {"type": "integer"}}})
    objects = [{"n": i, "s": "x"} for i in range(20)]
    assert send(broker, "objects", JSONSerializer(text, registry), objects) == []
    assert [(row["n"], row["s"]) for row in rows_of(broker, "objects")] == [(i, "x") for i in range(20)]
    from_json = JSONDeserializer(text)
    context = SerializationContext("objects", MessageField.VALUE)
    assert read(broker, "objects", 20, lambda data: from_json(data, context)) == objects


def test_a_renamed_field_with_an_alias_and_a_new_one_with_a_default(
    broker: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    def record(*fields: Any) -> str:
        return json.dumps({"type": "record", "name": "R", "fields": list(fields)})

    old = record({"name": "n", "type": "int"}, {"name": "before", "type": "string"})
    new = record(
        {"name": "n", "type": "long"},
        {"name": "after", "type": "string", "aliases": ["before"]},
        {"name": "more", "type": "string", "default": "none"},
    )
    admin.create_topic("renamed", 1, "n BIGINT, after STRING, more STRING", configs={"kafka.value.format": "avro"})
    old_serialize = AvroSerializer(registry, old)
    assert send(broker, "renamed", old_serialize, [{"n": 0, "before": "x"}]) != []
    registry.set_compatibility("renamed-value", level="NONE")
    registry.register_schema("renamed-value", Schema(new, "AVRO"))
    assert send(broker, "renamed", AvroSerializer(registry, new), [{"n": 2, "after": "z", "more": "m"}]) == []
    assert send(broker, "renamed", old_serialize, [{"n": 1, "before": "y"}]) == []
    assert [(row["n"], row["after"], row["more"]) for row in rows_of(broker, "renamed")] == [
        (2, "z", "m"),
        (1, "y", "none"),
    ]


def test_a_new_field_of_a_schema_that_another_topic_had_before_is_not_dropped(
    broker: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    fields: list[Any] = [{"name": "n", "type": "int"}, {"name": "late", "type": ["null", "string"], "default": None}]
    old, new = (json.dumps({"type": "record", "name": "Late", "fields": fields[:count]}) for count in (1, 2))
    for topic, columns in (("earlier", "n INT, late STRING"), ("later", "n INT")):
        admin.create_topic(topic, 1, columns, configs={"kafka.value.format": "avro"})
        assert send(broker, topic, AvroSerializer(registry, old), [{"n": 1}]) == []
        registry.register_schema(f"{topic}-value", Schema(new, "AVRO"))
        if topic == "later":
            admin.alter_schema(topic, add_columns="late STRING")
        assert send(broker, topic, AvroSerializer(registry, new), [{"n": 2, "late": "x"}]) == []
        assert [row["late"] for row in rows_of(broker, topic)] == [None, "x"]


def test_records_that_do_not_fit_are_refused(
    broker: LocalBroker, admin: sparklog.Admin, registry: SchemaRegistryClient
) -> None:
    admin.create_topic("strict", 1, "n INT", configs={"kafka.value.format": "avro"})
    schema = json.dumps({"type": "record", "name": "S", "fields": [{"name": "n", "type": "int"}]})
    serialize = AvroSerializer(registry, schema)
    data = serialize({"n": 70_000}, SerializationContext("strict", MessageField.VALUE))
    assert isinstance(data, bytes)
    other = AvroSerializer(
        registry, schema.replace("int", "string"), conf={"subject.name.strategy": lambda c, n: "other"}
    )
    cases = [b"", b"{}", b"\0\0\0\xff\xff" + data[5:], data[:-1], data + b"\0"]
    for case in cases:
        assert send(broker, "strict", None, [case]) == ["INVALID_RECORD"], case
    assert send(broker, "strict", other, [{"n": "x"}]) == ["INVALID_RECORD"]
    assert send(broker, "strict", None, [data]) == []
    assert [row["n"] for row in rows_of(broker, "strict")] == [70_000]


def test_schemas_create_topics_and_change_their_columns(tmp_path: Path) -> None:
    settings = {"auto.create.typed.topics": True}
    local = sparklog.start_local(tmp_path / "data", kafka=True, settings=settings)
    with local as broker, SchemaRegistryClient({"url": broker.schema_registry_url}) as registry:
        first: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
        assert send(broker, "created", AvroSerializer(registry, json.dumps(first)), [{"n": 1}]) == []
        more = {"name": "s", "type": ["null", "string"], "default": None}
        second = {**first, "fields": [{"name": "n", "type": "long"}, more]}
        assert send(broker, "created", AvroSerializer(registry, json.dumps(second)), [{"n": 2**40, "s": "x"}]) == []
        assert [(row["n"], row["s"]) for row in rows_of(broker, "created")] == [(1, None), (2**40, "x")]
        registry.set_compatibility("created-value", level="NONE")
        for fields, code, reason in [
            ([{"name": "n", "type": "string"}, more], 409, "field 'n' is string, the column has int64"),
            ([{"name": "n", "type": "long"}, {"name": "u", "type": ["int", "string"]}], 409, "field 'u': a union of"),
            ([{"name": "n", "type": "long"}, {"name": "N", "type": "int"}], 409, "occurs twice"),
        ]:
            with pytest.raises(SchemaRegistryError) as e:
                registry.register_schema("created-value", Schema(json.dumps({**first, "fields": fields}), "AVRO"))
            assert e.value.error_code == code
            assert reason in e.value.error_message
        third = {**first, "fields": [{"name": "total", "type": "long", "aliases": ["n"]}, more]}
        assert send(broker, "created", AvroSerializer(registry, json.dumps(third)), [{"total": 3, "s": None}]) == []
        assert [list(row.items()) for row in rows_of(broker, "created")][-1] == [("n", 3), ("s", None)]
        union = {**first, "fields": [{"name": "u", "type": ["int", "string"]}]}
        with pytest.raises(SchemaRegistryError, match="field 'u': a union of int, string has no column"):
            registry.register_schema("refused-value", Schema(json.dumps(union), "AVRO"))
        ride = ride_class()
        assert send(broker, "rides", ProtobufSerializer(ride, registry), [ride(id=7, stops=["a"])]) == []
        assert [(row["id"], row["stops"]) for row in rows_of(broker, "rides")] == [(7, ["a"])]


def check(url: str, subject: str, schema: str, kind: str = "AVRO", references: tuple[Any, ...] = ()) -> dict[str, Any]:
    """The answer of the registry to the check of a schema, with the effects on the topic."""
    body = {"schema": schema, "schemaType": kind, "references": references}
    request = urllib.request.Request(
        f"{url}/compatibility/subjects/{subject}/versions?verbose=true&effects=true",
        json.dumps(body).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_a_check_has_the_verdict_of_the_registration(tmp_path: Path) -> None:
    def record(*fields: Any) -> str:
        return json.dumps({"type": "record", "name": "R", "fields": list(fields)})

    def at(unit: str) -> dict[str, Any]:
        return {"name": "at", "type": {"type": "long", "logicalType": f"timestamp-{unit}"}}

    n, wide, text = ({"name": "n", "type": kind} for kind in ("int", "long", "string"))
    more = {"name": "s", "type": ["null", "string"], "default": None}
    union = {"name": "u", "type": ["null", "int", "string"], "default": None}
    steps: list[tuple[str, str, str, str]] = [
        ("c-value", record(at("micros"), union), "", "field 'u': a union of null, int, string has no column"),
        ("c-value", record(n, at("micros")), "topic c is created: n INT, at TIMESTAMP", ""),
        ("c-value", record(n, at("micros")), "", ""),
        ("c-value", record(text, at("micros")), "", "TYPE_MISMATCH"),
        ("c-value", record(n, at("millis")), "", "field 'at' is timestamp-millis, which has no form for all values of timestamp-micros (version 1)"),
        ("c-value", record(n, at("micros"), union), "", "field 'u': a union of null, int, string has no column"),
        ("c-value", record(wide, at("micros"), more), "topic c gets the column s STRING; topic c has a wider column n BIGINT", ""),
        ("keyed-key", json.dumps("long"), "", ""),
        ("keyed-value", record(n), "topic keyed is created: key BIGINT, n INT, with the key key", ""),
        ("keyed-key", json.dumps("double"), "", "topic keyed has the key schema"),
        ("of-no-topic", record(n), "", ""),
    ]  # fmt: skip
    settings = {"auto.create.typed.topics": True}
    local = sparklog.start_local(tmp_path / "data", kafka=True, settings=settings)
    with (
        local as broker,
        SchemaRegistryClient({"url": broker.schema_registry_url}) as registry,
        sparklog.Admin(broker.bootstrap_servers) as admin,
    ):
        for subject, schema, effects, reason in steps:
            topics = {name: admin.describe_topic(name).schema for name in admin.list_topics()}
            subjects = {one: registry.get_versions(one) for one in registry.get_subjects()}
            answer = check(broker.schema_registry_url, subject, schema)
            assert {name: admin.describe_topic(name).schema for name in admin.list_topics()} == topics
            assert {one: registry.get_versions(one) for one in registry.get_subjects()} == subjects
            assert "; ".join(answer["effects"]) == effects
            assert answer["is_compatible"] == (not answer["messages"]) == (not reason), answer
            if subject in subjects:
                assert registry.test_compatibility(subject, Schema(schema, "AVRO")) == (not reason)
            if reason:
                assert reason in answer["messages"][0]
                with pytest.raises(SchemaRegistryError) as e:
                    registry.register_schema(subject, Schema(schema, "AVRO"))
                assert reason in e.value.error_message
            else:
                registry.register_schema(subject, Schema(schema, "AVRO"))
        assert admin.describe_topic("c").schema.names == ["n", "at", "s"]
        (tmp_path / "r.avsc").write_text(record(wide, at("micros"), more, {**more, "name": "last"}))
        environment = {"SPARKLOG_SCHEMA_REGISTRY_URL": broker.schema_registry_url}
        shown = run_here("schema", "check", "c-value", str(tmp_path / "r.avsc"), environment=environment)
        assert shown.stdout == "c-value: compatible\ntopic c gets the column last STRING\n"


def post(url: str, path: str, body: dict[str, Any], method: str = "POST") -> tuple[int, Any]:
    """The status and the body of an answer of the registry."""
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url + path, json.dumps(body).encode(), headers, method=method)
        ) as a:
            return a.status, json.load(a)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def test_rows_stay_readable_after_deletions_and_imports_of_versions(tmp_path: Path) -> None:
    def record(kind: Any) -> str:
        return json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]})

    local = sparklog.start_local(tmp_path / "data", kafka=True, settings={"auto.create.typed.topics": True})
    with (
        local as broker,
        SchemaRegistryClient({"url": broker.schema_registry_url}) as registry,
        sparklog.Admin(broker.bootstrap_servers) as admin,
    ):
        url, context = broker.schema_registry_url, SerializationContext("t", MessageField.VALUE)
        for kind, n in (("int", 1), ("long", 2**40)):
            assert send(broker, "t", AvroSerializer(registry, record(kind)), [{"n": n}]) == []
        with pytest.raises(SchemaRegistryError, match=r"version 2 cannot be deleted: .*'n' is int, which has no form"):
            registry.delete_version("t-value", 2)
        registry.delete_version("t-value", 1)
        registry.set_compatibility("t-value", level="NONE")
        with pytest.raises(
            SchemaRegistryError, match=r"'n' is float, which .* all values of int \(version 1, deleted\)"
        ):
            registry.register_schema("t-value", Schema(record("float"), "AVRO"))
        registry.delete_subject("t-value")
        deserialize = AvroDeserializer(registry)
        assert read(broker, "t", 2, lambda data: deserialize(data, context)) == [{"n": 1}, {"n": 2**40}]

        registry.register_schema("again-value", Schema(record("int"), "AVRO"))
        registry.register_schema("again-value", Schema(record("long"), "AVRO"))
        admin.delete_topic("again")
        assert check(url, "again-value", record("int"))["effects"] == []
        assert check(url, "again-value", record("long"))["effects"] == ["topic again is created: n BIGINT"]
        with SchemaRegistryClient({"url": url}) as fresh:
            assert send(broker, "again", AvroSerializer(fresh, record("int")), []) == []
            assert send(broker, "again", AvroSerializer(fresh, record("long")), [{"n": 2**40}]) == []
        assert [row["n"] for row in rows_of(broker, "again")] == [2**40]

        assert post(url, "/mode/in-value", {"mode": "IMPORT"}, "PUT")[0] == 200
        millis, micros = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
        later = {"schema": record(millis), "id": 501, "version": 2}
        assert post(url, "/subjects/in-value/versions", later)[0] == 200
        status, refusal = post(url, "/subjects/in-value/versions", {"schema": record(micros), "id": 500, "version": 1})
        assert (
            status == 409
            and "timestamp-millis, which has no form for all values of timestamp-micros" in refusal["message"]
        )
        newer = {"schema": record(micros), "id": 502, "version": 3}
        assert post(url, "/subjects/in-value/versions", newer)[0] == 200


def test_an_outside_registry_is_read_over_http_and_its_death_delays_new_ids_only(tmp_path: Path) -> None:
    outside = sparklog.start_local(tmp_path / "outside", kafka=True)
    settings = {"schema.registry.url": outside.schema_registry_url}
    with sparklog.start_local(tmp_path / "data", kafka=True, settings=settings) as broker:
        with outside, SchemaRegistryClient({"url": outside.schema_registry_url}) as registry:
            named = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
            registry.register_schema("inner", Schema(json.dumps(named), "AVRO"))
            outer = {"type": "record", "name": "R", "fields": [{"name": "i", "type": "Inner"}]}
            text = Schema(json.dumps(outer), "AVRO", [SchemaReference("Inner", "inner", 1)])
            with sparklog.Admin(broker.bootstrap_servers) as admin:
                admin.create_topic("outer", 1, "i STRUCT<x: INT>", configs={"kafka.value.format": "avro"})
            serialize = AvroSerializer(registry, text)
            data = serialize({"i": {"x": 5}}, SerializationContext("outer", MessageField.VALUE))
            assert isinstance(data, bytes)
            assert send(broker, "outer", None, [data]) == []
        assert send(broker, "outer", None, [data]) == []
        assert [row["i"] for row in rows_of(broker, "outer")] == [{"x": 5}, {"x": 5}]
