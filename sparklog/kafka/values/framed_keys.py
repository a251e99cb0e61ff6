"""Keys with schemas: the keys of records as key columns, and the keys of rows as bytes (`kafka.key.format`).

A topic has one key schema with its id, `kafka.key.schema`. The bytes of a row's key are the record of the key columns
in this schema, so that equal keys have equal bytes. Keys of other schemas are read, too.

| key schema | key columns |
|---|---|
| Avro record, Protobuf message, JSON object | the fields, by their names |
| another Avro type, JSON text, number or boolean | the only key column |

A row that is null in all key columns has no key.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import InvalidRequestError, SchemaMismatchError
from sparklog.format.canonical_json import canonical_keys, key_slices
from sparklog.format.key_equality import canonical_key
from sparklog.format.key_format import KEY_SCHEMA_CHARS_MAX, PinnedPart, PinnedSchema
from sparklog.format.schema import null_column
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX
from sparklog.kafka.records.varints import Array
from sparklog.kafka.schemas.avro import AvroField, AvroSchema, AvroType, parse_avro
from sparklog.kafka.schemas.errors import RegistryError
from sparklog.kafka.schemas.json_schema import JsonSchema, resolved
from sparklog.kafka.schemas.protobuf import ProtobufSchema, parse_protobuf
from sparklog.kafka.schemas.schema_types import Parsed, SchemaType
from sparklog.kafka.values.avro_bytes import Space
from sparklog.kafka.values.framed_records import (
    AVRO,
    JSON_SCHEMA,
    PROTOBUF,
    Target,
    check_columns,
    columns_of_schema,
    read_framed,
)
from sparklog.kafka.values.framed_rows import write_payloads
from sparklog.kafka.values.framing import FRAME_BYTES, byte_slices, with_frames
from sparklog.kafka.values.json_schema_rows import check_key_types
from sparklog.kafka.values.keys import RowForm
from sparklog.kafka.values.rows_at_fault import UnwritableRowError, rows_at_fault
from sparklog.kafka.values.schemas import KeySchemaMissingError, Schemas, key_subject

KEY_COLUMN = "key"
"""Name of the key column of a topic that is created for keys without fields."""
_JSON_VALUES = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
"""Types of JSON Schemas whose values are the only key column, and the column of a new topic."""
_SCHEMAS_KEPT_MAX = 1_000
_KEY_BYTES_MAX = 128 * 1024 * 1024
"""Largest size of fields of keys that have no column."""


class _KeySchema(NamedTuple):
    """A topic's key schema, which fits its key columns."""

    id: int
    schema: Parsed


def pinned_schema(schema_id: int, schema: Parsed) -> PinnedSchema:
    """Return the key schema of a topic as its setting has it. Raises SchemaMismatchError if a topic cannot have it."""
    parts: list[PinnedPart] = []
    own = _part_of(schema, parts, {})
    kind = {AVRO: SchemaType.AVRO, PROTOBUF: SchemaType.PROTOBUF, JSON_SCHEMA: SchemaType.JSON}[form_of_schema(schema)]
    pinned = PinnedSchema(schema_id, own.schema, kind.value, own.compiled, parts, own.uses)
    if len(pinned.text) > KEY_SCHEMA_CHARS_MAX:
        with_parts = f" with the {len(parts)} schemas that it uses" if parts else ""
        raise SchemaMismatchError(
            f"a key schema has at most {KEY_SCHEMA_CHARS_MAX} characters, this one{with_parts} has {len(pinned.text)}"
        )
    return pinned


def _part_of(schema: Parsed, parts: list[PinnedPart], places: dict[int, int]) -> PinnedPart:
    """Return a schema as a part of a setting, and add those that it uses to `parts`. `places`: places of the parts by
    the identities of their schemas."""
    uses: dict[str, int] = {}
    for name, one in schema.references.items():
        if id(one) not in places:
            part = _part_of(one, parts, places)
            places[id(one)] = len(parts)
            parts.append(part)
        uses[name] = places[id(one)]
    if isinstance(schema, ProtobufSchema):
        return PinnedPart(compiled=schema.serialized, uses=uses)
    return PinnedPart(schema.text, uses=uses)


def key_columns_of(schema: Parsed) -> pa.Schema:
    """Return the key columns of a new topic. Raises SchemaMismatchError if the schema does not name them."""
    if isinstance(schema, JsonSchema):
        kind = _type_of_value(schema)
        if not kind:
            raise SchemaMismatchError(
                "a JSON Schema of objects names no columns: create the topic with its key columns"
            )
        return pa.schema([(KEY_COLUMN, _JSON_VALUES[kind])])
    return columns_of_schema(_as_record(schema, (KEY_COLUMN,)))


def check_key_schema(schema: Parsed, form: str, columns: pa.Schema) -> None:
    """Raise SchemaMismatchError if keys of a schema are not the key columns. `form`: the topic's key format."""
    record = _as_record(schema, columns.names)
    if not isinstance(schema, JsonSchema):
        fields = columns_of_schema(record, columns.names if form == PROTOBUF else ()).names
        missing = [name for name in columns.names if name not in fields] or [
            f for f in fields if f not in columns.names
        ]
        if missing:
            raise SchemaMismatchError(
                f"the fields of the key schema are {', '.join(fields):.200}, the key columns are "
                f"{', '.join(columns.names):.200}: both need the same names ({missing[0]!r} is in one of them)"
            )
        check_columns(record, columns)
    elif form == JSON_SCHEMA:
        check_key_types(schema, columns, is_value=len(columns) == 1 and bool(_type_of_value(schema)))
    rows = pa.RecordBatch.from_arrays([null_column(0, field.type) for field in columns], schema=columns)
    _payloads(rows, record, Target("", form, columns, "", "key"))


def form_of_schema(schema: Parsed) -> str:
    """Return the format of a schema's records."""
    if isinstance(schema, AvroSchema):
        return AVRO
    return PROTOBUF if isinstance(schema, ProtobufSchema) else JSON_SCHEMA


def with_key_columns(columns: pa.Schema, key: Parsed, names: Sequence[str] = ()) -> tuple[pa.Schema, list[str]]:
    """Return the columns of a new topic with those of its keys, and their names. `names`: the key columns, which are in
    `columns`; empty: those of the schema. A column of both has the type that it has in values. Raises
    SchemaMismatchError."""
    chosen = list(names)
    if not chosen:
        of_keys = key_columns_of(key)
        columns = pa.schema([*(field for field in of_keys if field.name not in columns.names), *columns])
        chosen = of_keys.names
    missing = [name for name in chosen if name not in columns.names]
    if missing:
        raise SchemaMismatchError(f"the key column {missing[0]!r} is no column")
    check_key_schema(key, form_of_schema(key), pa.schema([columns.field(name) for name in chosen]))
    return columns, chosen


def read_keys(keys: Any, columns: pa.Schema, topic: RowForm, schemas: Schemas, rows_bytes_max: int) -> pa.RecordBatch:
    """Return the key columns of keys. `keys`: array of binary without nulls; `columns`: the key columns. Raises
    InvalidRecordError; MessageTooLargeError; SchemasNotLoadedError; KeySchemaMissingError."""
    _own_schema(topic, columns)
    target = Target(topic.name, topic.key_format, columns, key_subject(topic.name), "key")
    of_keys = _SchemasOfKeys(schemas, columns.names)
    if topic.key_format == JSON_SCHEMA and len(columns) == 1:
        keys = _as_objects(keys, columns.names[0])
    return read_framed(keys, np.zeros(len(keys), bool), target, of_keys, rows_bytes_max).batch


def write_keys(columns: Sequence[Any], topic: RowForm, schemas: Schemas | None = None) -> Any:
    """Return the keys of rows as an array of binary; null for a row that is null in all key columns. `columns`: arrays
    of the topic's key columns. `schemas`: those of the registry, for a topic that has no key schema yet. Raises
    UnwritableRowError; SchemaMismatchError if no key can be written, KeySchemaMissingError, SchemasNotLoadedError."""
    of_keys = columns_of_keys(topic)
    rows = pa.RecordBatch.from_arrays([canonical_key(column) for column in columns], schema=of_keys)
    try:
        schema_id, schema = _own_schema(topic, of_keys)
    except KeySchemaMissingError:
        newest = None if schemas is None else schemas.newest(key_subject(topic.name))
        if newest is None:
            raise
        check_key_schema(newest[1], topic.key_format, of_keys)
        schema_id, schema = newest[0], _as_record(newest[1], topic.key_columns)
    is_keyless = _keyless(rows)
    chosen = np.flatnonzero(~is_keyless)
    some = rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen))
    place = f"topic {topic.name!r} has the key schema {schema_id}"
    try:
        payloads = _payloads(some, schema, Target(topic.name, topic.key_format, of_keys, "", "key"))
    except UnwritableRowError as e:
        raise UnwritableRowError(int(chosen[e.row]), f"{place}, and a row has another key: {e}") from None
    keys = with_frames(payloads, schema_id)
    if some is rows:
        return keys
    order = np.zeros(rows.num_rows, np.int64)
    order[chosen] = np.arange(len(chosen))
    return keys.take(pa.array(order, mask=is_keyless))


def unwritable_keys(columns: Sequence[Any], topic: RowForm) -> dict[int, str]:
    """Return the reasons of rows whose keys cannot be written, by index, at most RECORDS_NAMED_MAX."""
    rows = pa.RecordBatch.from_arrays(list(columns), schema=columns_of_keys(topic))
    return rows_at_fault(rows, lambda part: write_keys(part.columns, topic), UnwritableRowError, RECORDS_NAMED_MAX)


@lru_cache(maxsize=_SCHEMAS_KEPT_MAX)
def _columns(schema: pa.Schema, key_columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([schema.field(column) for column in key_columns])


def columns_of_keys(topic: RowForm) -> pa.Schema:
    """Return the key columns of a topic."""
    return _columns(topic.schema, topic.key_columns)


def _keyless(rows: pa.RecordBatch) -> Any:
    """Return True for each row that is null in all columns."""
    if not all(column.null_count for column in rows.columns):
        return np.zeros(rows.num_rows, bool)
    return np.logical_and.reduce([np.asarray(c.is_null().to_numpy(zero_copy_only=False)) for c in rows.columns])


def _own_schema(topic: RowForm, columns: pa.Schema) -> _KeySchema:
    """Return the schema with which the topic's keys are written. Raises KeySchemaMissingError."""
    if not topic.key_schema:
        raise KeySchemaMissingError(topic.name)
    return _read(topic.key_schema, topic.key_format, columns)


@lru_cache(maxsize=_SCHEMAS_KEPT_MAX)
def _read(text: str, form: str, columns: pa.Schema) -> _KeySchema:
    """Return the schema of a setting, as that of records. Raises SchemaMismatchError if it does not fit the columns."""
    try:
        pinned = PinnedSchema.read(text)
    except ValueError as e:
        raise InvalidRequestError(f"the topic's key schema cannot be read: {e}") from None
    try:
        schema = _parsed(pinned)
    except (RegistryError, ValueError, RecursionError) as e:
        raise SchemaMismatchError(f"the topic's key schema is not valid: {e}") from None
    check_key_schema(schema, form, columns)
    return _KeySchema(pinned.id, _as_record(schema, columns.names))


def _parsed(pinned: PinnedSchema) -> Parsed:
    """Return a schema that a gateway has checked, or another writer has set. Every client parses it, so it needs no
    compiler, and no library for JSON. Raises RegistryError; ValueError."""
    parsed: list[Parsed] = []
    for one in (*pinned.parts, PinnedPart(pinned.schema, pinned.compiled, pinned.uses)):
        if any(not 0 <= place < len(parsed) for place in one.uses.values()):
            raise ValueError("a schema is used before its place")
        uses = {name: parsed[place] for name, place in one.uses.items()}
        parsed.append(_parsed_part(SchemaType(pinned.type), one.schema, one.compiled, uses))
    return parsed[-1]


def _parsed_part(kind: SchemaType, text: str, compiled: str, uses: dict[str, Any]) -> Parsed:
    if kind is SchemaType.AVRO:
        return parse_avro(text, uses)
    if kind is SchemaType.JSON:
        return JsonSchema(msgspec.json.decode(text), text, text, uses)
    if not base64.b64decode(compiled, validate=True):
        raise ValueError("it has no descriptor")
    return parse_protobuf(compiled, uses)


class _SchemasOfKeys:
    """The schemas of a registry, as those of records of the key columns. A key has exactly the fields of its own
    schema, so there is no newest one."""

    def __init__(self, schemas: Schemas, names: Sequence[str]) -> None:
        self._schemas = schemas
        self._names = names

    def schema_of(self, schema_id: int) -> Parsed | None:
        schema = self._schemas.schema_of(schema_id)
        return None if schema is None else _as_record(schema, self._names)

    def id_of(self, guid: UUID) -> int | None:
        return self._schemas.id_of(guid)

    def newest(self, subject: str) -> tuple[int, Parsed] | None:
        return None

    def note_dropped(self, topic: str, records: Mapping[str, int]) -> None:
        self._schemas.note_dropped(topic, records)


def _as_record(schema: Parsed, names: Sequence[str]) -> Parsed:
    """Return the schema, or that of a record with the only field of the names: both have the same bytes in Avro."""
    if not isinstance(schema, AvroSchema) or schema.type.kind == "record" or len(names) != 1:
        return schema
    record = AvroType("record", "key", fields=(AvroField(names[0], schema.type),))
    return AvroSchema(record, schema.text, schema.normal_text, schema.names, schema.references)


# -- JSON


def _type_of_value(schema: JsonSchema) -> str:
    """Return the type of a schema whose values are no objects; "" for objects."""
    try:
        root = resolved(schema.root, schema).value
    except RegistryError:  # registration has refused a `$ref` that leads nowhere
        return ""
    kind = root.get("type") if isinstance(root, dict) else None
    return kind if isinstance(kind, str) and kind in _JSON_VALUES else ""


def _as_objects(keys: Any, name: str) -> Any:
    """Return keys with an object of the column `name` in place of each value that is no object."""
    payloads = _cut(keys, FRAME_BYTES, 0)
    is_value = pc.invert(pc.match_substring_regex(payloads, r"^\s*\{"))
    if not pc.any(is_value).as_py():
        return keys
    begin, end, nothing = (pa.scalar(part, pa.binary()) for part in (_lead(name), b"}", b""))
    return pc.if_else(is_value, pc.binary_join_element_wise(_heads(keys), begin, payloads, end, nothing), keys)


def _json_payloads(rows: pa.RecordBatch, schema: JsonSchema) -> Any:
    """Return the keys as canonical JSON."""
    names = rows.schema.names
    parts = [one.cast(pa.binary()) for one in key_slices(rows.columns, names)]
    whole = pa.concat_arrays(parts) if parts else pa.array([], pa.binary())
    return _cut(whole, len(_lead(names[0])), 1) if _type_of_value(schema) and len(names) == 1 else whole


def _lead(name: str) -> bytes:
    """Return the bytes of an object before the value of its only field."""
    (null,) = canonical_keys([pa.array([None], pa.string())], [name]).to_pylist()
    lead: bytes = null[: -len(b"null}")]
    return lead


def _cut(array: Any, first: int, last: int) -> Any:
    """Return binary values without their first and last bytes."""
    data, begins, ends = _spans(array)
    starts = np.minimum(begins + first, ends)
    return byte_slices(data, starts, np.maximum(ends - last, starts))


def _heads(keys: Any) -> Any:
    data, begins, ends = _spans(keys)
    return byte_slices(data, begins, np.minimum(begins + FRAME_BYTES, ends))


def _spans(array: Any) -> tuple[Array, Array, Array]:
    """Return the bytes of binary values without nulls, and the beginning and end of each."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    body = array.buffers()[2]
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(1, np.uint8)
    return data, offsets[:-1], offsets[1:]


def _payloads(rows: pa.RecordBatch, schema: Parsed, target: Target) -> Any:
    """Return the keys of rows without their frames. Raises UnwritableRowError; SchemaMismatchError."""
    if isinstance(schema, JsonSchema) and target.form == JSON_SCHEMA:
        return _json_payloads(rows, schema)
    return write_payloads(rows, schema, target, Space(_KEY_BYTES_MAX))
