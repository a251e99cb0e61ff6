"""Odd schemas, from the text to columns, a record, a row and a record again: right, or refused with a path."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from sparklog.errors import SchemaMismatchError
from sparklog.kafka.records.errors import InvalidRecordError
from sparklog.kafka.schemas.errors import RegistryError
from sparklog.kafka.schemas.json_schema import parse_json_schema
from sparklog.kafka.schemas.protobuf import linked_files, parse_protobuf
from sparklog.kafka.values.framed_records import Target, check_columns, columns_of_schema, read_framed
from sparklog.kafka.values.framed_rows import write_framed
from tests.support.cases import for_each
from tests.unit.gateway.registry_schemas import FixedSchemas, avro

ROOM = 1 << 24
PROTOS = Path(protoc.__file__).with_name("_proto")
DAY = dt.date(2026, 1, 31)


def record(kind: Any, **more: Any) -> dict[str, Any]:
    """A record with a field `f` of a type."""
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind, **more}]}


def logical(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    own = {"type": kind} if isinstance(kind, str) else dict(kind)
    return own | {"logicalType": name, **more}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size}


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
POINT = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int", "default": 7}]}
AVRO: list[tuple[str, Any, Any, Any]] = [
    ("a union with null behind", ["int", "null"], None, None),
    ("a union of one type", ["string"], "a", "a"),
    ("an enum with a default", ENUM, "B", "B"),
    ("an optional enum", ["null", ENUM], None, None),
    ("nested maps", {"type": "map", "values": {"type": "map", "values": "int"}}, {"a": {"b": 1}}, [("a", [("b", 1)])]),
    ("arrays of maps", {"type": "array", "items": {"type": "map", "values": "int"}}, [{}, {"a": 1}], [[], [("a", 1)]]),
    ("a map of optional records", {"type": "map", "values": ["null", POINT]}, {"k": {"x": 1}}, [("k", {"x": 1})]),
    ("decimal on fixed", logical("decimal", fixed(5), precision=9, scale=2), Decimal("-1.50"), Decimal("-1.50")),
    ("decimal of 38 digits", logical("decimal", "bytes", precision=38), Decimal(10**38 - 1), Decimal(10**38 - 1)),
    ("decimal that its fixed is too short for", logical("decimal", fixed(2), precision=9), b"\0\1", b"\0\1"),
    ("decimal without a precision", logical("decimal", "bytes"), b"\1", b"\1"),
    ("date on long", logical("date", "long"), 2**40, 2**40),
    ("timestamp-millis on int", logical("timestamp-millis", "int"), 5, 5),
    ("time-micros on int", logical("time-micros", "int"), 5, 5),
    ("uuid on int", logical("uuid", "int"), 5, 5),
    ("an unknown logical type", logical("weather", "string"), "rain", "rain"),
    ("date", logical("date", "int"), DAY, DAY),
    ("time-millis", logical("time-millis", "int"), dt.time(0, 0, 1), 1000),
    ("a long at its end", "long", -(2**63), -(2**63)),
    ("NaN", "double", float("nan"), float("nan")),
    ("text with a null character", "string", "a\0b", "a\0b"),
    ("fixed of no bytes", fixed(0), b"", b""),
    ("a record in a record", {"type": "record", "name": "Q", "fields": [{"name": "p", "type": POINT}]}, {"p": {"x": 2}}, {"p": {"x": 2}}),
]  # fmt: skip
AVRO_REFUSED: list[tuple[str, Any, str]] = [
    ("a union of two", ["int", "string"], "field 'f': a union of int, string has no column"),
    ("a union of records", [POINT, POINT | {"name": "O"}], "field 'f': a union of P, O has no column"),
    ("recursion", NODE, "field 'f.next': Node contains itself"),
    ("recursion in a map", {"type": "map", "values": NODE}, "field 'f[].next': Node contains itself"),
    ("a record without fields", POINT | {"fields": []}, "field 'f': the record P has no fields"),
    ("decimal of 39 digits", logical("decimal", "bytes", precision=39), "field 'f': a decimal of 39 digits"),
    ("an enum without its default", ENUM | {"default": "C"}, "at /fields/0/type: the default 'C'"),
    ("a default of another type", POINT | {"fields": [{"name": "x", "type": "int", "default": "7"}]}, "at /fields/0/type/fields/0: the default '7'"),
    ("a name twice", {"type": "array", "items": [POINT, POINT]}, "at /fields/0/type/items/1: the name 'P' is defined twice"),
    ("a fixed without a size", {"type": "fixed", "name": "F"}, "at /fields/0/type: the size None"),
]  # fmt: skip


def rows_of(schemas: FixedSchemas, form: str, columns: pa.Schema, *values: bytes) -> pa.RecordBatch:
    target = Target("t", form, columns, "t-value")
    data = pa.array([bytes([0, 0, 0, 0, max(schemas.schemas)]) + one for one in values], pa.binary())
    return read_framed(data, np.zeros(len(values), bool), target, schemas, ROOM).batch


def records_of(schemas: FixedSchemas, form: str, rows: pa.RecordBatch) -> list[bytes]:
    target = Target("t", form, rows.schema, "t-value")
    written = write_framed(rows, np.zeros(rows.num_rows, bool), target, schemas, ROOM)
    return [one[5:] for one in written.to_pylist()]


@for_each("name, kind, value, row", AVRO)
def test_an_odd_avro_type_is_right(name: str, kind: Any, value: Any, row: Any) -> None:
    schema = avro(record(kind))
    schemas = FixedSchemas({1: schema})
    out = io.BytesIO()
    if isinstance(kind, dict) and value == row and isinstance(value, bytes):
        kind = {name: one for name, one in kind.items() if name != "logicalType"}  # fastavro refuses such decimals
    plain = fastavro.parse_schema(record(kind))
    fastavro.schemaless_writer(out, plain, {"f": value})
    rows = rows_of(schemas, "avro", columns_of_schema(schema), out.getvalue())
    assert repr(rows.to_pylist()) == repr([{"f": row}])
    (again,) = records_of(schemas, "avro", rows)
    read = fastavro.schemaless_reader(io.BytesIO(again), plain, None)
    assert repr(read) == repr({"f": value})


@for_each("name, kind, reason", AVRO_REFUSED)
def test_an_odd_avro_type_is_refused_by_path(name: str, kind: Any, reason: str) -> None:
    with pytest.raises((SchemaMismatchError, RegistryError)) as e:
        columns_of_schema(avro(record(kind)))
    assert reason in str(e.value)


def test_aliases_defaults_and_promotions_lead_to_the_newest_schema() -> None:
    old = {
        "type": "record", "name": "Old", "fields": [
            {"name": "a", "type": "int"}, {"name": "e", "type": ENUM | {"symbols": ["A", "B", "C"]}},
            {"name": "p", "type": POINT | {"name": "OldP"}}, {"name": "gone", "type": "string"},
        ],
    }  # fmt: skip
    new = {
        "type": "record", "name": "New", "aliases": ["Old"], "fields": [
            {"name": "b", "type": "double", "aliases": ["a"]}, {"name": "e", "type": ENUM},
            {"name": "p", "type": POINT | {"aliases": ["OldP"], "fields": [*POINT["fields"], {"name": "y", "type": {"type": "map", "values": "int"}, "default": {"k": 1}}]}},
            {"name": "more", "type": ["null", "string"], "default": None}, {"name": "raw", "type": "bytes", "default": "\u00ff"},
        ],
    }  # fmt: skip
    schemas = FixedSchemas({1: avro(old), 2: avro(new)})
    out = io.BytesIO()
    value = {"a": 3, "e": "C", "p": {"x": 1}, "gone": "g"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(old), value)
    target = Target("t", "avro", columns_of_schema(avro(new)), "t-value")
    rows = read_framed(pa.array([b"\0\0\0\0\1" + out.getvalue()]), np.zeros(1, bool), target, schemas, ROOM)
    expected = {"b": 3.0, "e": "C", "p": {"x": 1, "y": [("k", 1)]}, "more": None, "raw": b"\xff"}
    assert rows.batch.to_pylist() == [expected]
    assert rows.dropped == {"gone": 1}
    (again,) = records_of(FixedSchemas({2: avro(new)}), "avro", rows.batch)
    read: Any = fastavro.schemaless_reader(io.BytesIO(again), fastavro.parse_schema(new), None)
    assert read == expected | {"e": "A", "p": {"x": 1, "y": {"k": 1}}}, "a symbol that the schema lacks is its default"


def test_a_symbol_that_no_consumer_could_read_is_refused() -> None:
    old, new = ({"type": "enum", "name": "E", "symbols": symbols} for symbols in (["A", "C"], ["A"]))
    schemas = FixedSchemas({1: avro(record(old)), 2: avro(record(["null", new]))})
    target = Target("t", "avro", pa.schema([("f", pa.string())]), "t-value")
    good, bad = b"\0\0\0\0\1\0", b"\0\0\0\0\1\2"
    assert read_framed(pa.array([good] * 3), np.zeros(3, bool), target, schemas, ROOM).batch.num_rows == 3
    with pytest.raises(InvalidRecordError, match=r"field 'f'.*a symbol that the enum E of the newest schema") as e:
        read_framed(pa.array([good, bad, good]), np.zeros(3, bool), target, schemas, ROOM)
    assert list(e.value.records) == [1]


def compiled(text: str) -> str:
    """The descriptor of a .proto text in base64."""
    with TemporaryDirectory() as folder:
        Path(folder, "x.proto").write_text(text)
        flags = [f"-I{folder}", f"-I{PROTOS}", f"--descriptor_set_out={folder}/out"]
        assert protoc.main(["", *flags, f"{folder}/x.proto"]) == 0
        file = FileDescriptorSet.FromString(Path(folder, "out").read_bytes()).file[0]
        return base64.b64encode(file.SerializeToString()).decode()


P2, P3 = 'syntax = "proto2"; ', 'syntax = "proto3"; '
WELL_KNOWN = "".join(
    f'import "google/protobuf/{name}.proto"; ' for name in ("timestamp", "duration", "wrappers", "struct", "any")
)
UTC = dt.UTC
PROTOBUF: list[tuple[str, str, Any, Any]] = [
    ("oneof", P3 + "message M { oneof o { int32 a = 1; string b = 2; } }", {"b": "x"}, {"a": None, "b": "x"}),
    ("oneof without a field", P3 + "message M { oneof o { int32 a = 1; string b = 2; } }", {}, {"a": None, "b": None}),
    ("oneof with a default", P3 + "message M { oneof o { int32 a = 1; string b = 2; } }", {"a": 0}, {"a": 0, "b": None}),
    ("uint64", P3 + "message M { uint64 a = 1; }", {"a": str(2**64 - 1)}, {"a": Decimal(2**64 - 1)}),
    ("optional", P3 + "message M { optional int32 a = 1; int32 b = 2; }", {}, {"a": None, "b": 0}),
    ("proto2 with defaults", P2 + "message M { optional int32 a = 1 [default = 5]; required bool b = 2; }", {"b": True}, {"a": None, "b": True}),
    ("a map of messages", P3 + "message M { map<int32, N> a = 1; message N { bool x = 1; } }", {"a": {"3": {"x": True}}}, {"a": [(3, {"x": True})]}),
    ("an enum with a negative number", P3 + "message M { E a = 1; enum E { Z = 0; N = -1; } }", {"a": "N"}, {"a": "N"}),
    ("Timestamp", P3 + WELL_KNOWN + "message M { google.protobuf.Timestamp a = 1; }", {"a": "2026-01-31T00:00:00.000001Z"}, {"a": dt.datetime(2026, 1, 31, 0, 0, 0, 1, UTC)}),
    ("Duration", P3 + WELL_KNOWN + "message M { google.protobuf.Duration a = 1; }", {"a": "-1.5s"}, {"a": dt.timedelta(seconds=-1.5)}),
    ("wrappers", P3 + WELL_KNOWN + "message M { google.protobuf.Int64Value a = 1; google.protobuf.StringValue b = 2; }", {"a": "0"}, {"a": 0, "b": None}),
    ("-0.0", P3 + WELL_KNOWN + "message M { double a = 1; float b = 2; repeated double c = 3; google.protobuf.DoubleValue d = 4; map<int32, float> e = 5; }", {"a": -0.0, "b": -0.0, "c": [-0.0, 1.5], "d": -0.0, "e": {"1": -0.0}}, {"a": -0.0, "b": -0.0, "c": [-0.0, 1.5], "d": -0.0, "e": [(1, -0.0)]}),
    ("the ends of float", P3 + "message M { double a = 1; float b = 2; optional float c = 3; }", {"a": 5e-324, "b": "-Infinity", "c": 0.0}, {"a": 5e-324, "b": float("-inf"), "c": 0.0}),
    ("a packed list that is not packed", P3 + "message M { repeated sint64 a = 1 [packed = false]; }", {"a": ["-1", "5"]}, {"a": [-1, 5]}),
    ("a second message", P3 + "message M { N a = 1; } message N { repeated N2 b = 1; } message N2 { bytes c = 1; }", {"a": {"b": [{"c": "AA=="}, {}]}}, {"a": {"b": [{"c": b"\0"}, {"c": b""}]}}),
]  # fmt: skip
PROTOBUF_REFUSED: list[tuple[str, str, str]] = [
    ("a group", P2 + "message M { optional group G = 1 { optional int32 x = 1; } }", "field 'g': "),
    ("recursion", P3 + "message M { repeated M a = 1; }", "field 'a': the message M contains itself"),
    ("recursion through another", P3 + "message M { N a = 1; } message N { M b = 1; }", "field 'a.b': the message M contains itself"),
    ("Struct", P3 + WELL_KNOWN + "message M { google.protobuf.Struct a = 1; }", "contains itself"),
    ("a message without fields", P3 + "message M { N a = 1; } message N {}", "field 'a': the message N has no fields"),
]  # fmt: skip


@for_each("name, text, value, row", PROTOBUF)
def test_an_odd_message_is_right(name: str, text: str, value: Any, row: Any) -> None:
    schema = parse_protobuf(compiled(text), {})
    pool = descriptor_pool.DescriptorPool()
    for file in linked_files(schema):
        pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("M"))
    message = json_format.ParseDict(value, kind())
    schemas = FixedSchemas({1: schema})
    rows = rows_of(schemas, "protobuf", columns_of_schema(schema), b"\0" + message.SerializeToString())
    shown = repr(rows.to_pylist()).replace("zoneinfo.ZoneInfo(key='UTC')", repr(UTC))
    assert shown == repr([row])
    (again,) = records_of(schemas, "protobuf", rows)
    assert kind.FromString(again[1:]) == message and repr(kind.FromString(again[1:])) == repr(message)


@for_each("name, text, reason", PROTOBUF_REFUSED)
def test_an_odd_message_is_refused_by_path(name: str, text: str, reason: str) -> None:
    with pytest.raises(SchemaMismatchError) as e:
        columns_of_schema(parse_protobuf(compiled(text), {}))
    assert reason in str(e.value)


def test_a_damaged_descriptor_is_refused_or_has_columns() -> None:
    file = base64.b64decode(compiled(P3 + "message M { int32 abc = 1; }"))
    with pytest.raises(RegistryError, match="is not UTF-8"):
        parse_protobuf(base64.b64encode(file.replace(b"abc", b"a\xffc")).decode(), {})
    head = file.index(b"\x22\x15\x0a\x01M")  # the message with its size and its name
    odd = file[:head] + b"\x22\x17\x0a\x01M\x18\x05" + file[head + 5 :]  # a number as a nested message
    assert columns_of_schema(parse_protobuf(base64.b64encode(odd).decode(), {})).names == ["abc"]


DRAFTS = ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema", "https://json-schema.org/draft/2020-12/schema")  # fmt: skip
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}
JSON: list[tuple[str, Any, str]] = [
    *((f"draft {draft[-21:]}", OBJECT | {"$schema": draft}, "") for draft in DRAFTS),
    ("a reference into $defs", {"$defs": {"o": OBJECT}, "$ref": "#/$defs/o"}, ""),
    ("a reference into definitions", {"definitions": {"o": OBJECT}, "properties": {"x": {"$ref": "#/definitions/o"}}}, ""),
    ("a tree", {"properties": {"next": {"$ref": "#"}}}, ""),
    ("oneOf and additionalProperties", {"oneOf": [OBJECT, {"type": "null"}], "additionalProperties": {"type": "string"}}, ""),
    ("items as a list, in draft 7", {"$schema": DRAFTS[0], "items": [{"type": "integer"}]}, ""),
    ("items as a list, in 2020-12", {"$schema": DRAFTS[2], "items": [{"type": "integer"}]}, "at /items: "),
    ("prefixItems in 2020-12", {"$schema": DRAFTS[2], "prefixItems": [{"type": "integer"}], "items": False}, ""),
    ("a type of no draft", {"properties": {"x": {"type": "decimal"}}}, "at /properties/x/type: 'decimal'"),
    ("a reference to nowhere", {"properties": {"x": {"$ref": "#/$defs/none"}}}, "leads to no part of the schema"),
    ("references in a circle", {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "lead from one to the next"),
    ("a pattern that is none", {"pattern": "("}, "at /pattern: "),
    ("an unknown draft", {"$schema": "http://example.com/own"}, ""),
    ("true", True, ""),
]  # fmt: skip


@for_each("name, source, reason", JSON)
def test_an_odd_json_schema_is_taken_or_refused_by_path(name: str, source: Any, reason: str) -> None:
    if not reason:
        assert json.loads(parse_json_schema(json.dumps(source), {}).text) == source
        return
    with pytest.raises(RegistryError) as e:
        parse_json_schema(json.dumps(source), {})
    assert reason in str(e.value)


def test_a_field_that_an_alias_renames_keeps_its_column() -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, {"name": "p", "type": POINT}]}
    new_point = POINT | {"fields": [{"name": "y", "type": "int", "aliases": ["x"]}]}
    new = {"type": "record", "name": "R", "fields": [
        {"name": "b", "type": "double", "aliases": ["z", "a"]}, {"name": "p", "type": new_point},
    ]}  # fmt: skip
    schemas = FixedSchemas({1: avro(old), 2: avro(new)})
    payloads = []
    for schema_id, source, value in ((1, old, {"a": 5, "p": {"x": 1}}), (2, new, {"b": 6.0, "p": {"y": 2}})):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(source), value)
        payloads.append(b"\0\0\0\0" + bytes([schema_id]) + out.getvalue())

    def read(columns: pa.Schema) -> pa.RecordBatch:
        target = Target("t", "avro", columns, "t-value")
        return read_framed(pa.array(payloads), np.zeros(2, bool), target, schemas, ROOM).batch

    present = columns_of_schema(avro(old))
    assert columns_of_schema(avro(new), present.names).names == ["a", "p"]
    check_columns(avro(new), present)
    rows = read(present)
    assert rows.to_pylist() == [{"a": 5, "p": {"x": 1}}, {"a": 6, "p": {"x": 2}}]
    records = [fastavro.schemaless_reader(io.BytesIO(r), new, None) for r in records_of(schemas, "avro", rows)]
    assert records == [{"b": 5.0, "p": {"y": 1}}, {"b": 6.0, "p": {"y": 2}}]
    both = read(pa.schema([*present, pa.field("b", pa.float64())]))
    assert [(row["a"], row["b"]) for row in both.to_pylist()] == [(None, 5.0), (None, 6.0)]


DEFAULTS: list[tuple[Any, Any, Any]] = [
    (logical("decimal", "bytes", precision=5, scale=2), "\x01\x00", Decimal("2.56")),
    (logical("decimal", fixed(4), precision=5, scale=2), "\xff\xff\xff\xff", Decimal("-0.01")),
    ([logical("decimal", "bytes", precision=5, scale=2), "null"], "\xff", Decimal("-0.01")),
    (logical("date", "int"), -1, dt.date(1969, 12, 31)),
    (logical("timestamp-millis", "long"), -1, dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, dt.UTC)),
    (logical("local-timestamp-micros", "long"), 5, dt.datetime(1970, 1, 1, 0, 0, 0, 5)),
    (logical("time-millis", "int"), 5, dt.time(0, 0, 0, 5_000)),
    ({"type": "map", "values": logical("date", "int")}, {"k": 1}, {"k": dt.date(1970, 1, 2)}),
    ({"type": "array", "items": POINT}, [{"x": 1}, {}], [{"x": 1}, {"x": 7}]),
    (record(logical("date", "int"), default=4), {}, {"f": dt.date(1970, 1, 5)}),
]


@for_each("kind, default, value", DEFAULTS)
def test_rows_without_a_column_have_its_default(kind: Any, default: Any, value: Any) -> None:
    fields = [{"name": "a", "type": "long"}, {"name": "late", "type": kind, "default": default}]
    source = {"type": "record", "name": "Late", "fields": fields}
    schemas = FixedSchemas({1: avro(source)})
    rows = pa.RecordBatch.from_pylist([{"a": 1}, {"a": 2}], pa.schema([("a", pa.int64())]))
    plain = fastavro.parse_schema(source)
    read = [fastavro.schemaless_reader(io.BytesIO(one), plain, None) for one in records_of(schemas, "avro", rows)]
    assert read == [{"a": a, "late": value} for a in (1, 2)]


@for_each("kind, default, value", DEFAULTS)
def test_a_null_in_a_field_without_null_becomes_its_default(kind: Any, default: Any, value: Any) -> None:
    fields = [{"name": "a", "type": "long"}, {"name": "late", "type": kind, "default": default}]
    source = {"type": "record", "name": "Late", "fields": fields}
    schemas = FixedSchemas({1: avro(source)})
    plain = fastavro.parse_schema(source)
    columns = columns_of_schema(avro(source))
    for rows in (1, 3):
        nulls = pa.RecordBatch.from_arrays(
            [pa.array([1] * rows), pa.nulls(rows, columns.field(1).type)], schema=columns
        )
        written = records_of(schemas, "avro", nulls)
        read = [fastavro.schemaless_reader(io.BytesIO(one), plain, None) for one in written]
        expected = None if isinstance(kind, list) else value
        assert read == [{"a": 1, "late": expected}] * rows


def test_values_beside_a_null_stay() -> None:
    fields = [{"name": "p", "type": POINT, "default": {"x": 1}}, {"name": "s", "type": "string", "default": "none"}]
    source = {"type": "record", "name": "Late", "fields": fields}
    schemas = FixedSchemas({1: avro(source)})
    before = [{"p": None, "s": "a"}, {"p": {"x": None}, "s": None}, {"p": {"x": 3}, "s": ""}, {"p": None, "s": None}]
    rows = pa.RecordBatch.from_pylist(before, columns_of_schema(avro(source)))
    plain = fastavro.parse_schema(source)
    read: list[Any] = [
        fastavro.schemaless_reader(io.BytesIO(one), plain, None) for one in records_of(schemas, "avro", rows)
    ]
    assert [(one["p"]["x"], one["s"]) for one in read] == [(1, "a"), (7, "none"), (3, ""), (1, "none")]
