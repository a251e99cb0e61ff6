"""Debezium's events in Avro, in the form of Confluent's AvroConverter: a zero byte, the schema's id (4 bytes, big
endian), and the Avro binary.

The converter writes Kafka Connect's schema into attributes of the Avro schema (`connect.name`, `connect.type`,
`connect.parameters`). They become the schema part that an event in JSON has, so that `forms` reads both. A schema
without these attributes, such as one of Flink, has Avro's logical types, which stand for Connect's types of the same
meaning. Values are read without their logical types: a decimal as its bytes, a time as its number.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sparklog.debezium.forms import DEPTH_MAX, Form, row_forms, struct_forms
from sparklog.errors import DeserializationError, InvalidConfigError

MAGIC = b"\0"
HEAD_BYTES = 5
"""Size of the zero byte and the id."""
SCHEMAS_KEPT_MAX = 1_000
FIELDS_MAX = 20_000
"""Largest number of fields of a schema at all levels."""
LEVELS_MAX = 4 * DEPTH_MAX
"""Largest depth of a schema's JSON: a level of types has up to four of them."""
_UNREADABLE = (EOFError, IndexError, KeyError, OverflowError, RecursionError, StopIteration, TypeError, ValueError)
"""Exceptions with which fastavro ends at bytes that do not fit the schema."""
_LITERALS = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
}
_TIME, _CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
_LOGICAL = {
    "decimal": _CONNECT + "Decimal",
    "date": _CONNECT + "Date",
    "time-millis": _CONNECT + "Time",
    "time-micros": _TIME + "MicroTime",
    "timestamp-millis": _CONNECT + "Timestamp",
    "timestamp-micros": _TIME + "MicroTimestamp",
    "timestamp-nanos": _TIME + "NanoTimestamp",
    "local-timestamp-millis": _CONNECT + "Timestamp",
    "local-timestamp-micros": _TIME + "MicroTimestamp",
    "local-timestamp-nanos": _TIME + "NanoTimestamp",
}
"""Connect's name of the type for each logical type of Avro."""


class RegisteredSchema(NamedTuple):
    """A schema of a registry."""

    type: str
    """AVRO, JSON or PROTOBUF."""
    text: str


SchemaOf = Callable[[int], RegisteredSchema]
"""Returns the schema with an id. Raises SparklogError."""


class _Decoder(NamedTuple):
    """A schema that is ready to read records."""

    parsed: Any
    """The schema in fastavro's form, without logical types; None for JSON."""
    connect: Mapping[str, Any]
    """The schema of Kafka Connect."""


class FramedRecords:
    """Reader of records in Confluent's framing. It keeps the schemas."""

    def __init__(self, schema_of: SchemaOf) -> None:
        self._schema_of = schema_of
        self._decoders: dict[int, _Decoder] = {}

    def payload(self, record: bytes, *, is_key: bool) -> tuple[Any, Mapping[str, Form] | None]:
        """Return the payload of a record, and the forms of its row or, for a key, of its columns; None if the schema
        does not name them. Raises DeserializationError: The bytes do not fit the schema; and errors of the
        registry."""
        if len(record) < HEAD_BYTES:
            raise DeserializationError(f"{record!r:.80} ends within the schema's id, which has 4 bytes")
        schema_id = int.from_bytes(record[1:HEAD_BYTES], "big")
        if schema_id not in self._decoders:
            if len(self._decoders) >= SCHEMAS_KEPT_MAX:
                self._decoders.clear()
            self._decoders[schema_id] = _decoder(self._schema_of(schema_id), schema_id)
        decoder = self._decoders[schema_id]
        if decoder.parsed is None:
            return record[HEAD_BYTES:], None
        is_struct = decoder.connect.get("type") == "struct"
        forms = (struct_forms if is_key else row_forms)(decoder.connect) if is_struct else None
        return _decoded(record, decoder.parsed, schema_id), forms


def _decoded(record: bytes, parsed: Any, schema_id: int) -> Any:
    import fastavro

    stream = io.BytesIO(record)
    stream.seek(HEAD_BYTES)
    try:
        value = fastavro.schemaless_reader(stream, parsed, None)
    except _UNREADABLE as e:
        raise DeserializationError(
            f"{record!r:.80} does not fit the Avro schema {schema_id}: {e or 'it is cut'}"
        ) from e
    if stream.tell() != len(record):
        raise DeserializationError(
            f"{record!r:.80} has {len(record) - stream.tell()} bytes more than a record of the Avro schema {schema_id}"
        )
    return value


def _decoder(schema: RegisteredSchema, schema_id: int) -> _Decoder:
    """Return the decoder of a schema. Raises DeserializationError; InvalidConfigError: fastavro is not installed."""
    if schema.type == "JSON":
        return _Decoder(None, {})
    if schema.type != "AVRO":
        raise DeserializationError(
            f"schema {schema_id} has the type {schema.type}: use Avro or JSON for Debezium's events"
        )
    try:
        import fastavro
    except ImportError as e:
        raise InvalidConfigError("events in Avro need the package fastavro: pip install 'sparklog[avro]'") from e
    try:
        avro = json.loads(schema.text)
        connect = _Translation(schema_id).connect(avro, "", 0)
        parsed = fastavro.parse_schema(_without_logical_types(avro))
    except (fastavro.schema.SchemaParseException, RecursionError, TypeError, ValueError) as e:
        raise DeserializationError(f"schema {schema_id} is no Avro schema: {e}") from e
    return _Decoder(parsed, connect)


def _without_logical_types(schema: Any) -> Any:
    """Return the schema with plain values, which Kafka Connect's schema describes."""
    if isinstance(schema, Mapping):
        kept = {"name", "namespace", "type", "fields", "items", "values", "symbols", "size", "aliases"}
        return {
            k: _without_logical_types(v) if k in ("type", "fields", "items", "values") else v
            for k, v in schema.items()
            if k in kept
        }
    return [_without_logical_types(part) for part in schema] if isinstance(schema, list) else schema


class _Translation:
    """Translation of one Avro schema into a schema of Kafka Connect."""

    def __init__(self, schema_id: int) -> None:
        self._id = schema_id
        self._named: dict[str, tuple[dict[str, Any], int]] = {}
        """The types that have a name, with their numbers of fields at all levels."""
        self._fields = 0
        """Number of fields so far. A type counts at each use."""

    def connect(self, schema: Any, namespace: str, depth: int) -> dict[str, Any]:
        """Return the schema of Kafka Connect. Raises DeserializationError."""
        if depth > LEVELS_MAX:
            raise self._bad(schema, f"types are at most {DEPTH_MAX} levels deep")
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if isinstance(schema, str):
            return {"type": _LITERALS[schema]} if schema in _LITERALS else self._reference(schema, namespace)
        if not isinstance(schema, Mapping):
            raise self._bad(schema, "a schema is an object, a list or a name")
        kind = schema.get("type")
        if kind == "record":
            return self._record(schema, namespace, depth)
        if kind in ("enum", "fixed"):
            if kind == "fixed" and not schema.get("size"):
                raise self._bad(schema, "a fixed type has at least one byte")
            plain = {"type": "string" if kind == "enum" else "bytes"} | _attributes(schema)
            self._named[_full_name(schema, namespace)[0]] = plain, 0
            return plain
        if kind == "array":
            items = self.connect(schema.get("items"), namespace, depth + 1)
            if _is_empty(items):
                raise self._bad(schema, "an element of an array has at least one byte")
            return {"type": "array", "items": items} | _attributes(schema)
        if kind == "map":
            values = self.connect(schema.get("values"), namespace, depth + 1)
            return {"type": "map", "keys": {"type": "string"}, "values": values} | _attributes(schema)
        return self.connect(kind, namespace, depth + 1) | _attributes(schema)

    def _reference(self, name: str, namespace: str) -> dict[str, Any]:
        """Return a named type."""
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._named:
            raise self._bad(name, "a type has a name of Avro or stands before its use, and does not contain itself")
        connect, fields = self._named[full]
        self._count(fields)
        return dict(connect)

    def _union(self, schema: list[Any], namespace: str, depth: int) -> dict[str, Any]:
        types = [part for part in schema if part not in ("null", {"type": "null"})]
        if len(types) != 1 or len(schema) > 2:
            raise self._bad(schema, "a union is that of null and one type")
        return self.connect(types[0], namespace, depth + 1) | {"optional": len(schema) == 2}

    def _record(self, schema: Mapping[str, Any], namespace: str, depth: int) -> dict[str, Any]:
        name, inside = _full_name(schema, namespace)
        fields = schema.get("fields")
        if not isinstance(fields, list) or not all(isinstance(f, Mapping) for f in fields):
            raise self._bad(schema, "a record has a list of fields")
        before = self._fields
        self._count(len(fields))
        members = [self.connect(f.get("type"), inside, depth + 1) | {"field": f.get("name")} for f in fields]
        connect = {"type": "struct", "fields": members} | _attributes(schema)
        self._named[name] = connect, self._fields - before
        return dict(connect)

    def _count(self, fields: int) -> None:
        self._fields += fields
        if self._fields > FIELDS_MAX:
            raise DeserializationError(f"the Avro schema {self._id} has more than {FIELDS_MAX} fields")

    def _bad(self, schema: Any, advice: str) -> DeserializationError:
        return DeserializationError(f"the Avro schema {self._id} has {schema!r:.200}: {advice}")


def _is_empty(connect: Mapping[str, Any]) -> bool:
    """True if a value has no byte: then any number of them takes no place in a record."""
    is_struct = connect["type"] == "struct" and not connect.get("optional")
    return is_struct and all(map(_is_empty, connect["fields"]))


def _full_name(schema: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """Return the full name of a named type and the namespace inside of it."""
    name = str(schema.get("name"))
    if "." in name:
        return name, name.rpartition(".")[0]
    inside = str(schema.get("namespace", namespace))
    return (f"{inside}.{name}" if inside else name), inside


def _attributes(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name, the parameters and the literal type that Kafka Connect's schema has for an Avro schema."""
    attributes: dict[str, Any] = {}
    literal = schema.get("connect.type")
    if literal in ("int8", "int16"):
        attributes["type"] = literal
    name = schema.get("connect.name", _LOGICAL.get(str(schema.get("logicalType"))))
    if isinstance(name, str):
        attributes["name"] = name
    if name == _LOGICAL["decimal"]:
        parameters = schema.get("connect.parameters")
        attributes["parameters"] = dict(parameters) if isinstance(parameters, Mapping) else {}
        attributes["parameters"].setdefault("scale", schema.get("scale", 0))
        if "connect.name" not in schema:  # the converter writes 64 for an unknown precision
            attributes["parameters"]["connect.decimal.precision"] = schema.get("precision")
    return attributes
