"""Debezium's events in Avro, in the form of Confluent's AvroConverter: a zero byte, the schema's id (4 bytes, big
endian), and the Avro binary.

The converter writes Kafka Connect's schema into attributes of the Avro schema (`connect.name`, `connect.type`,
`connect.parameters`). They become the schema part that an event in JSON has, so that `forms` reads both. A schema
without these attributes, such as one of Flink, has Avro's logical types, which stand for Connect's types of the same
meaning. Values are read without their logical types: a decimal as its bytes, a time as its number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sparklog.debezium.forms import Form, row_forms, struct_forms
from sparklog.errors import DeserializationError
from sparklog.kafka.schemas.avro import parse_avro
from sparklog.kafka.schemas.errors import RegistryError
from sparklog.kafka.values.avro_scalar import AvroValueError, scalar_decoder

HEAD_BYTES = 5
"""Size of the zero byte and the id."""
SCHEMAS_KEPT_MAX = 1_000
FIELDS_MAX = 20_000
"""Largest number of fields of a schema at all levels."""
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

    decode: Callable[[bytes], Any] | None
    """Function of the Avro binary; it raises AvroValueError. None for JSON."""
    forms: Mapping[str, Form] | None
    """Forms of the row or, for a key, of its columns; None if the schema does not name them."""


class FramedRecords:
    """Reader of records in Confluent's framing. It keeps the schemas."""

    def __init__(self, schema_of: SchemaOf) -> None:
        self._schema_of = schema_of
        self._decoders: dict[tuple[int, bool], _Decoder] = {}

    def payload(self, record: bytes, *, is_key: bool) -> tuple[Any, Mapping[str, Form] | None]:
        """Return the payload of a record, and the forms of its row or, for a key, of its columns; None if the schema
        does not name them. Raises DeserializationError: The bytes do not fit the schema; and errors of the
        registry."""
        if len(record) < HEAD_BYTES:
            raise DeserializationError(f"{record!r:.80} ends within the schema's id, which has 4 bytes")
        schema_id = int.from_bytes(record[1:HEAD_BYTES], "big")
        decoder = self._decoders.get((schema_id, is_key))
        if decoder is None:
            if len(self._decoders) >= SCHEMAS_KEPT_MAX:
                self._decoders.clear()
            decoder = self._decoders[schema_id, is_key] = _decoder(self._schema_of(schema_id), schema_id, is_key)
        if decoder.decode is None:
            return record[HEAD_BYTES:], None
        try:
            return decoder.decode(record[HEAD_BYTES:]), decoder.forms
        except AvroValueError as e:
            raise DeserializationError(f"{record!r:.80} does not fit the Avro schema {schema_id}: {e}") from e


def _decoder(schema: RegisteredSchema, schema_id: int, is_key: bool) -> _Decoder:
    """Return the decoder of a schema. Raises DeserializationError."""
    if schema.type == "JSON":
        return _Decoder(None, None)
    if schema.type != "AVRO":
        raise DeserializationError(
            f"schema {schema_id} has the type {schema.type}: use Avro or JSON for Debezium's events"
        )
    try:
        parsed = parse_avro(schema.text)
    except RegistryError as e:
        raise DeserializationError(f"schema {schema_id} is no Avro schema: {e}") from e
    connect = _Translation(schema_id).connect(json.loads(schema.text), "")  # it refuses circles
    forms = (struct_forms if is_key else row_forms)(connect) if connect.get("type") == "struct" else None
    return _Decoder(scalar_decoder(parsed.type), forms)


class _Translation:
    """Translation of one Avro schema, which `parse_avro` has accepted, into a schema of Kafka Connect."""

    def __init__(self, schema_id: int) -> None:
        self._id = schema_id
        self._named: dict[str, tuple[dict[str, Any], int]] = {}
        """The types that have a name, with their numbers of fields at all levels."""
        self._fields = 0
        """Number of fields so far. A type counts at each use."""

    def connect(self, schema: Any, namespace: str) -> dict[str, Any]:
        """Return the schema of Kafka Connect. Raises DeserializationError."""
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return {"type": _LITERALS[schema]} if schema in _LITERALS else self._reference(schema, namespace)
        kind = schema.get("type")
        if kind == "record":
            return self._record(schema, namespace)
        if kind in ("enum", "fixed"):
            plain = {"type": "string" if kind == "enum" else "bytes"} | _attributes(schema)
            self._named[_full_name(schema, namespace)[0]] = plain, 0
            return plain
        if kind == "array":
            items = self.connect(schema["items"], namespace)
            return {"type": "array", "items": items} | _attributes(schema)
        if kind == "map":
            values = self.connect(schema["values"], namespace)
            return {"type": "map", "keys": {"type": "string"}, "values": values} | _attributes(schema)
        return self.connect(kind, namespace) | _attributes(schema)

    def _reference(self, name: str, namespace: str) -> dict[str, Any]:
        """Return a named type."""
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._named:
            raise self._bad(name, "a type has a name of Avro or stands before its use, and does not contain itself")
        connect, fields = self._named[full]
        self._count(fields)
        return dict(connect)

    def _union(self, schema: list[Any], namespace: str) -> dict[str, Any]:
        types = [part for part in schema if part not in ("null", {"type": "null"})]
        if len(types) != 1 or len(schema) > 2:
            raise self._bad(schema, "a union is that of null and one type")
        return self.connect(types[0], namespace) | {"optional": len(schema) == 2}

    def _record(self, schema: Mapping[str, Any], namespace: str) -> dict[str, Any]:
        name, inside = _full_name(schema, namespace)
        fields, before = schema["fields"], self._fields
        self._count(len(fields))
        members = [self.connect(f["type"], inside) | {"field": f["name"]} for f in fields]
        connect = {"type": "struct", "fields": members} | _attributes(schema)
        self._named[name] = connect, self._fields - before
        return dict(connect)

    def _count(self, fields: int) -> None:
        self._fields += fields
        if self._fields > FIELDS_MAX:
            raise DeserializationError(f"the Avro schema {self._id} has more than {FIELDS_MAX} fields")

    def _bad(self, schema: Any, advice: str) -> DeserializationError:
        return DeserializationError(f"the Avro schema {self._id} has {schema!r:.200}: {advice}")


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
