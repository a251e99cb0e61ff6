"""Debezium's events in Avro, as Confluent's AvroConverter writes them."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from sparklog.debezium.avro_events import RegisteredSchema
from tests.unit.debezium.envelopes import CONNECT, DATA, TIME


def connect(avro: Any, logical: str, /, **more: Any) -> dict[str, Any]:
    """A type with the name of a type of Kafka Connect, as Confluent's converter writes it."""
    return {"type": avro, "connect.version": 1, "connect.name": logical, **more}


DECIMAL = connect(
    "bytes",
    CONNECT + "Decimal",
    scale=2,
    precision=64,
    logicalType="decimal",
    **{"connect.parameters": {"scale": "2", "connect.decimal.precision": "10"}},
)
FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "small", "type": ["null", {"type": "int", "connect.type": "int16"}]},
    {"name": "balance", "type": ["null", DECIMAL]},
    {"name": "day", "type": ["null", connect("int", TIME + "Date")]},
    {"name": "at", "type": ["null", connect("long", TIME + "NanoTimestamp")]},
    {"name": "zoned", "type": ["null", connect("string", TIME + "ZonedTimestamp")]},
    {"name": "bits", "type": ["null", connect("bytes", DATA + "Bits")]},
    {"name": "tags", "type": ["null", {"type": "array", "items": ["null", "string"]}]},
    {"name": "pairs", "type": ["null", {"type": "map", "values": ["null", "string"]}]},
    {"name": "doc", "type": ["null", "string"]},
    {
        "name": "odd",
        "type": [
            "null",
            connect(
                "record",
                DATA + "VariableScaleDecimal",
                name="VariableScaleDecimal",
                namespace="io.debezium.data",
                fields=[{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
            ),
        ],
    },
]
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "server.db.t",
    "connect.name": "server.db.t.Envelope",
    "fields": [
        {"name": "before", "type": ["null", {"type": "record", "name": "Value", "fields": FIELDS}], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}
KEY = {"type": "record", "name": "Key", "namespace": "server.db.t", "fields": [{"name": "id", "type": "long"}]}
SCHEMAS = {1: ENVELOPE, 2: KEY}


def schema_of(schema_id: int) -> RegisteredSchema:
    return RegisteredSchema("AVRO", json.dumps(SCHEMAS[schema_id]))


def framed(schema_id: int, value: Any, schema: Any = None) -> bytes:
    """A record in Confluent's framing. The values are those without logical types."""
    plain = json.loads(json.dumps(schema or SCHEMAS[schema_id]).replace('"logicalType"', '"-"'))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), value)
    return b"\0" + schema_id.to_bytes(4, "big") + stream.getvalue()


def row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "small": -3,
        "balance": b"\xff\x38",
        "day": 20_000,
        "at": 1_700_000_000_123_456_000,
        "zoned": "2024-01-31T10:00:00+02:00",
        "bits": b"\x05",
        "tags": ["a", None],
        "pairs": {"x": "1", "y": None},
        "doc": "text",
        "odd": {"scale": 3, "value": b"\x01\x00"},
        **more,
    }
