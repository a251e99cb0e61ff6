"""Writes and reads trips with confluent-kafka's serializers.

python python_client.py SERVERS REGISTRY FORMAT write TOPIC     the rows come from stdin, one JSON object per line
python python_client.py SERVERS REGISTRY FORMAT read COUNT TOPIC...
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

HERE = Path(__file__).parent
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def trip_class() -> Any:
    """Return the class of a Protobuf trip."""
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString((HERE / "trip.desc").read_bytes())
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("rides.Trip"))


def serdes(form: str, registry: SchemaRegistryClient) -> tuple[Any, Any, Any, Any]:
    """Return the serializer, the deserializer, and the conversions of a row's JSON to its values and back."""
    if form == "avro":
        text = (HERE / "trip.avsc").read_text()
        return (
            AvroSerializer(registry, text),
            AvroDeserializer(registry),
            lambda row: row | {"raw": base64.b64decode(row["raw"])},
            lambda row: (
                row
                | {
                    "raw": base64.b64encode(row["raw"]).decode(),
                    "at": round((row["at"] - EPOCH).total_seconds() * 1000),
                }
            ),
        )
    if form == "protobuf":
        trip = trip_class()
        return (
            ProtobufSerializer(trip, registry),
            ProtobufDeserializer(trip, {}, registry),
            lambda row: json_format.ParseDict(row, trip()),
            lambda message: json_format.MessageToDict(message, always_print_fields_with_no_presence=True),
        )
    text = (HERE / "trip.json").read_text()
    return JSONSerializer(text, registry), JSONDeserializer(text), lambda row: row, lambda row: row


def exit_on_error(error: Any, record: Any) -> None:
    """Callback of a delivery: exit with status 1 if it has failed."""
    if error is not None:
        sys.exit(str(error))


def main() -> None:
    servers, url, form, verb, *more = sys.argv[1:]
    serialize, deserialize, native, plain = serdes(form, SchemaRegistryClient({"url": url}))
    if verb == "write":
        (topic,) = more
        producer = Producer({"bootstrap.servers": servers})
        for line in sys.stdin:
            value = serialize(native(json.loads(line)), SerializationContext(topic, MessageField.VALUE))
            producer.produce(topic, value, on_delivery=exit_on_error)
        producer.flush()
        return
    count, topics = int(more[0]), more[1:]
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"python-{form}", "auto.offset.reset": "earliest"})
    consumer.subscribe(topics)
    remaining = count * len(topics)
    while remaining:
        record = consumer.poll(10)
        if record is None:
            continue
        if record.error():
            sys.exit(str(record.error()))
        topic = str(record.topic())
        row = plain(deserialize(record.value(), SerializationContext(topic, MessageField.VALUE)))
        print(json.dumps({"topic": topic, "row": row}))
        remaining -= 1
    consumer.close()


if __name__ == "__main__":
    main()
