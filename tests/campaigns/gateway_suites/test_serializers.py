"""confluent-kafka's serializers with references and their settings, into typed topics and back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
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

pytestmark = pytest.mark.nightly

PLACE: dict[str, Any] = {"type": "record", "name": "rides.Place", "fields": [{"name": "name", "type": "string"}]}
ID = {"name": "id", "type": "long"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
TRIP: dict[str, Any] = {
    "type": "record",
    "name": "rides.Trip",
    "fields": [ID, {"name": "place", "type": "rides.Place"}],
}
ROWS: list[dict[str, Any]] = [{"id": i, "place": {"name": f"p{i}"}} for i in range(5)]
COLUMNS = "id BIGINT, place STRUCT<name: STRING>"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    data, settings = tmp_path_factory.mktemp("serializers") / "data", {"auto.create.typed.topics": True}
    with sparklog.start_local(data, kafka=True, settings=settings) as local:
        yield local


@pytest.fixture
def registry(broker: LocalBroker) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": broker.schema_registry_url}) as client:
        yield client


@pytest.fixture
def with_place(registry: SchemaRegistryClient) -> Schema:
    """A trip's schema with a reference to that of a place."""
    registry.register_schema("places", Schema(json.dumps(PLACE), "AVRO"))
    return Schema(json.dumps(TRIP), "AVRO", [SchemaReference("rides.Place", "places", 1)])


def write(broker: LocalBroker, topic: str, serializer: Any, values: list[Any]) -> None:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.kafka_bootstrap_servers})
    for value in values:
        data = serializer(value, SerializationContext(topic, MessageField.VALUE))
        producer.produce(topic, data, on_delivery=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(PATIENCE_S) == 0
    assert not errors


def read(broker: LocalBroker, topic: str, deserializer: Any) -> list[Any]:
    settings = {"bootstrap.servers": broker.kafka_bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    values: list[Any] = []
    consumer.subscribe([topic])
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < len(ROWS) and time.monotonic() < deadline:
        record = consumer.poll(1)
        if record is not None:
            assert record.error() is None, record.error()
            values.append(deserializer(record.value(), SerializationContext(topic, MessageField.VALUE)))
    consumer.close()
    return values


def columns(broker: LocalBroker, topic: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = sparklog.read_table(broker.bootstrap_servers, topic).to_pylist()
    return [{"id": row["id"], "place": row["place"]} for row in rows]


@pytest.mark.parametrize("settings", [{}, {"normalize.schemas": True}], ids=["as-they-are", "normalized"])
def test_avro_with_references(
    broker: LocalBroker, registry: SchemaRegistryClient, with_place: Schema, settings: dict[str, Any]
) -> None:
    topic = f"avro-references-{len(settings)}"
    write(broker, topic, AvroSerializer(registry, with_place, conf=settings), ROWS)
    assert read(broker, topic, AvroDeserializer(registry)) == columns(broker, topic) == ROWS


def test_avro_with_the_latest_version_and_without_registration(
    broker: LocalBroker, registry: SchemaRegistryClient, with_place: Schema
) -> None:
    unregistered = AvroSerializer(registry, with_place, conf={"auto.register.schemas": False})
    with pytest.raises(SchemaRegistryError, match="40401"):
        unregistered(ROWS[0], SerializationContext("latest", MessageField.VALUE))
    registry.register_schema("latest-value", with_place)
    newer = TRIP | {"fields": [*TRIP["fields"], NOTE]}
    registry.register_schema("latest-value", Schema(json.dumps(newer), "AVRO", with_place.references))
    latest = {"auto.register.schemas": False, "use.latest.version": True}
    write(broker, "latest", AvroSerializer(registry, with_place, conf=latest), ROWS)
    assert columns(broker, "latest") == ROWS
    assert read(broker, "latest", AvroDeserializer(registry)) == [row | {"note": None} for row in ROWS]


@pytest.mark.parametrize("strategy", [record_subject_name_strategy, topic_record_subject_name_strategy])
def test_records_of_other_subjects_become_rows(
    broker: LocalBroker, registry: SchemaRegistryClient, with_place: Schema, strategy: Any
) -> None:
    topic = strategy.__name__.replace("_", "-")
    with sparklog.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(topic, schema=COLUMNS, configs={"kafka.value.format": "avro"})
    write(broker, topic, AvroSerializer(registry, with_place, conf={"subject.name.strategy": strategy}), ROWS)
    assert columns(broker, topic) == ROWS
    with pytest.raises(AssertionError, match="INVALID_RECORD"):
        read(broker, topic, AvroDeserializer(registry))
    registry.register_schema(f"{topic}-value", with_place)  # consumers get the newest schema of this subject, at once
    assert read(broker, topic, AvroDeserializer(registry)) == ROWS


def trip_class() -> Any:
    """The class of a message that uses one of another file."""
    optional = FieldDescriptorProto.LABEL_OPTIONAL
    place = FileDescriptorProto(name="places/place.proto", package="rides", syntax="proto3")
    place.message_type.add(name="Place").field.add(name="name", number=1, label=optional, type=9)
    file = FileDescriptorProto(name="imports.proto", package="rides", syntax="proto3", dependency=[place.name])
    fields = file.message_type.add(name="Imports").field
    fields.add(name="id", number=1, label=optional, type=FieldDescriptorProto.TYPE_INT64)
    kind = FieldDescriptorProto.TYPE_MESSAGE
    fields.add(name="place", number=2, label=optional, type=kind, type_name=".rides.Place")
    pool = descriptor_pool.DescriptorPool()
    for one in (place, file):
        pool.AddSerializedFile(one.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("rides.Imports"))


def test_protobuf_with_imports(broker: LocalBroker, registry: SchemaRegistryClient) -> None:
    trip = trip_class()
    messages = [trip(id=row["id"], place=row["place"]) for row in ROWS]
    write(broker, "imports", ProtobufSerializer(trip, registry), messages)
    assert columns(broker, "imports") == ROWS
    assert read(broker, "imports", ProtobufDeserializer(trip, {}, registry)) == messages
    with urlopen(f"{broker.schema_registry_url}/subjects/places%2Fplace.proto/versions/1/schema") as answer:
        assert b"message Place {" in answer.read(), "others than Python's clients parse texts"


def test_json_schema_with_references(broker: LocalBroker, registry: SchemaRegistryClient) -> None:
    place = {"$id": "http://rides/place.json", "type": "object", "properties": {"name": {"type": "string"}}}
    registry.register_schema("place.json", Schema(json.dumps(place), "JSON"))
    properties = {"id": {"type": "integer"}, "place": {"$ref": "http://rides/place.json"}}
    text = json.dumps({"title": "Trip", "type": "object", "properties": properties})
    schema = Schema(text, "JSON", [SchemaReference("http://rides/place.json", "place.json", 1)])
    with sparklog.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("objects", schema=COLUMNS, configs={"kafka.value.format": "json-schema"})
    write(broker, "objects", JSONSerializer(schema, registry), ROWS)
    assert columns(broker, "objects") == ROWS
    assert read(broker, "objects", JSONDeserializer(schema, schema_registry_client=registry)) == ROWS
