"""Protobuf records as rows: odd messages, nested messages, versions, hostile bytes."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from sparklog.errors import MessageTooLargeError, SchemaMismatchError
from sparklog.kafka.records.errors import InvalidRecordError
from sparklog.kafka.schemas.json_schema import parse_json_schema
from sparklog.kafka.schemas.protobuf import ProtobufSchema, parse_protobuf
from sparklog.kafka.values.avro_bytes import Space
from sparklog.kafka.values.carrying import check_carries
from sparklog.kafka.values.framed_records import Target, columns_of_schema, read_framed
from sparklog.kafka.values.framed_rows import write_framed
from sparklog.kafka.values.protobuf_messages import index_bytes, main_message
from sparklog.kafka.values.protobuf_records import PREFIXES_MAX, read_protobuf, types_of_messages
from tests.support.cases import for_each
from tests.unit.gateway.registry_schemas import FixedSchemas

ROOM = 1 << 24
F = FieldDescriptorProto
WELL_KNOWN = ("timestamp", "duration", "wrappers", "struct", "any", "empty")


def schema(*fill: Callable[[DescriptorProto], None]) -> ProtobufSchema:
    """A schema with messages M0, M1 and so on."""
    file = FileDescriptorProto(name="a.proto", package="p", syntax="proto3")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in WELL_KNOWN)
    enum = file.enum_type.add(name="E")
    enum.value.add(name="ZERO", number=0)
    for i, each in enumerate(fill):
        each(file.message_type.add(name=f"M{i}"))
    return parse_protobuf(base64.b64encode(file.SerializeToString()).decode(), {})


def field(name: str, number: int, kind: int, type_name: str = "", *, is_list: bool = False) -> Callable[[Any], None]:
    def add(message: DescriptorProto) -> None:
        label = F.LABEL_REPEATED if is_list else F.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)

    return add


def message(*fields: Callable[[Any], None]) -> Callable[[DescriptorProto], None]:
    def fill(own: DescriptorProto) -> None:
        for each in fields:
            each(own)

    return fill


def well_known(name: str) -> Callable[[DescriptorProto], None]:
    return message(field("f", 1, F.TYPE_MESSAGE, f".google.protobuf.{name}"))


COLUMN_TYPES = [
    (message(field("f", 1, F.TYPE_UINT64)), pa.decimal128(20, 0)),
    (message(field("f", 1, F.TYPE_FIXED32)), pa.int64()),
    (message(field("f", 1, F.TYPE_ENUM, ".p.E", is_list=True)), pa.list_(pa.string())),
    (well_known("Timestamp"), pa.timestamp("us", tz="UTC")),
    (well_known("Duration"), pa.duration("us")),
    (well_known("UInt64Value"), pa.decimal128(20, 0)),
    (well_known("BytesValue"), pa.binary()),
    (well_known("Any"), pa.struct([("type_url", pa.string()), ("value", pa.binary())])),
]
ODD = [
    (message(field("f", 1, F.TYPE_MESSAGE, ".p.M0")), "field 'f': the message p.M0 contains itself"),
    (message(field("f", 1, F.TYPE_MESSAGE, ".p.M0", is_list=True)), "field 'f': the message p.M0 contains itself"),
    (well_known("Struct"), "contains itself"),
    (well_known("Value"), "contains itself"),
    (well_known("Empty"), "field 'f': the message google.protobuf.Empty has no fields"),
    (message(), "the message p.M0 has no fields"),
    (message(field("f", 1, F.TYPE_INT32), field("F", 2, F.TYPE_INT32)), "occurs twice"),
]


@for_each("own, column", COLUMN_TYPES)
def test_odd_messages_have_columns(own: Any, column: Any) -> None:
    assert types_of_messages(schema(own), (0,)).columns.field("f").type == column


@for_each("own, reason", ODD)
def test_messages_without_columns_are_refused_by_path(own: Any, reason: str) -> None:
    with pytest.raises(SchemaMismatchError) as e:
        types_of_messages(schema(own), (0,))
    assert reason in str(e.value)


def rows_of(schemas: FixedSchemas, columns: pa.Schema, *values: bytes, form: str = "protobuf") -> Any:
    target = Target("t", form, columns, "t-value")
    return read_framed(pa.array(values, pa.binary()), np.zeros(len(values), bool), target, schemas, ROOM)


def test_a_renamed_field_keeps_its_number_and_a_second_message_its_index() -> None:
    old = schema(message(field("before", 1, F.TYPE_INT32), field("gone", 2, F.TYPE_STRING)))
    new = schema(message(field("after", 1, F.TYPE_INT32)), message(field("after", 7, F.TYPE_INT32)))
    columns = pa.schema([("after", pa.int64())])
    frame = b"\0\0\0\0"
    rows = rows_of(
        FixedSchemas({1: old, 2: new}),
        columns,
        frame + b"\1\0\x08\5\x12\1x",
        frame + b"\2\0\x08\6",
        frame + b"\2\2\2\x38\7",
        frame + b"\2\2\0\x08\x08",
    )
    assert rows.batch.to_pylist() == [{"after": n} for n in (5, 6, 7, 8)]
    assert rows.dropped == {"gone": 1}
    columns = pa.schema([("before", pa.int32()), ("after", pa.int32())])
    rows = rows_of(FixedSchemas({1: old, 2: new}), columns, frame + b"\1\0\x08\5")
    assert rows.batch.to_pylist() == [{"before": None, "after": 5}], "consumers get the newest field"


SHOP = """
syntax = "proto3";
package shop;
message Line { int32 id = 1; }
message Order { message Part { int32 x = 1; } int32 id = 2; Line line = 1; Part part = 3; map<string, Line> lines = 4; }
"""
MOVED = SHOP.replace("message Line", "message Address { int32 id = 1; string line = 2; }\nmessage Line")


def test_rows_are_the_message_that_has_their_columns() -> None:
    shop = parse_protobuf(SHOP, {})
    order, line, part = (1,), (0,), (1, 0)
    assert main_message(shop) == order, "the others are parts of it"
    for columns, index in ((["id", "line"], order), (["id"], line), (["x"], part), (["other"], order)):
        assert main_message(shop, columns) == index
    columns = columns_of_schema(shop)
    assert columns.names == ["id", "line", "part", "lines"]
    value = b"\x10\7\x0a\2\x08\5"
    frame = b"\0\0\0\0\1\2\2"
    schemas = FixedSchemas({1: shop})
    rows = rows_of(schemas, columns, frame + value)
    expected = [{"id": 7, "line": {"id": 5}, "part": None, "lines": []}]
    assert rows.batch.to_pylist() == expected
    target = Target("t", "protobuf", columns, "t-value")
    (record,) = write_framed(rows.batch, np.zeros(1, bool), target, schemas, ROOM).to_pylist()
    assert record.startswith(frame) and rows_of(schemas, columns, record).batch.to_pylist() == expected
    moved = FixedSchemas({1: shop, 2: parse_protobuf(MOVED, {})})
    assert rows_of(moved, columns, frame + value).batch.to_pylist() == expected, "a message is found by its name"
    (record,) = write_framed(rows.batch, np.zeros(1, bool), target, moved, ROOM).to_pylist()
    assert record.startswith(b"\0\0\0\0\2\2\4")


def test_an_index_has_the_bytes_of_confluents_framing() -> None:
    cases: dict[tuple[int, ...], bytes] = {(0,): b"\0", (1,): b"\2\2", (1, 0): b"\4\2\0", (100,): b"\2\xc8\1"}
    assert {index: index_bytes(index) for index in cases} == cases


def test_a_version_that_renames_the_field_of_a_column_is_refused() -> None:
    def of(name: str, number: int = 1) -> ProtobufSchema:
        return schema(message(field(name, number, F.TYPE_INT32)))

    columns = pa.schema([("before", pa.int32())])
    with pytest.raises(SchemaMismatchError, match=r"field 'after' has the number 1 of the column 'before' \(v1\)"):
        check_carries(of("after"), [("v2", of("after", 2)), ("v1", of("before"))], columns)
    check_carries(of("after", 2), [("v1", of("before"))], columns)
    check_carries(of("before"), [("v1", of("before"))], columns)
    check_carries(of("after"), [("v1", of("before"))], pa.schema([("after", pa.int32())]))


HOSTILE = [
    b"",
    b"\7",
    b"\2\4",
    b"\xff\xff\xff\xff\xff\xff",
    b"\0\x08",
    b"\0\x12\5a",
    b"\0\x12\1\xff",
    b"\0" + b"\xfb\1" * 3_000_000,
    b"\0" + b"\xfb\1" * 300_000 + b"\xfc\1" * 300_000,
]


@for_each("payload", HOSTILE)
def test_damaged_messages_are_refused_alone(payload: bytes) -> None:
    own = schema(message(field("n", 1, F.TYPE_INT32), field("s", 2, F.TYPE_STRING)))
    columns = pa.schema([("n", pa.int32()), ("s", pa.string())])
    frame = b"\0\0\0\0\1"
    with pytest.raises(InvalidRecordError) as e:
        rows_of(FixedSchemas({1: own}), columns, frame + b"\0\x08\1", frame + payload, frame + b"\0\x08\1")
    assert list(e.value.records) == [1]


def test_a_value_beyond_its_column_is_refused_with_its_field() -> None:
    for own, data, reason in [
        (well_known("Timestamp"), b"\x0a\2\x10\1", "field 'f': a time is finer than microseconds"),
        (message(field("f", 1, F.TYPE_ENUM, ".p.E")), b"\x08\7", "field 'f': 7 is no value of the enum"),
    ]:
        one = schema(own)
        columns = types_of_messages(one, (0,)).columns
        with pytest.raises(InvalidRecordError, match=reason):
            rows_of(FixedSchemas({1: one}), columns, b"\0\0\0\0\1\0" + data)


@for_each("is_inner", [False, True])
def test_a_record_with_two_fields_of_a_oneof_is_refused_alone(is_inner: bool) -> None:
    def choice(own: DescriptorProto) -> None:
        message(field("a", 1, F.TYPE_INT32), field("b", 2, F.TYPE_INT32))(own)
        own.oneof_decl.add(name="choice")
        for one in own.field:
            one.oneof_index = 0

    own = schema(message(field("l", 1, F.TYPE_MESSAGE, ".p.M1", is_list=True)), choice) if is_inner else schema(choice)
    columns = types_of_messages(own, (0,)).columns
    frame = b"\0\0\0\0\1\0"

    def record(data: bytes) -> bytes:
        return frame + (b"\x0a" + bytes([len(data)]) + data if is_inner else data)

    with pytest.raises(InvalidRecordError, match="'a' and 'b' are both set, and a oneof has one field") as e:
        rows_of(FixedSchemas({1: own}), columns, record(b"\x08\1"), record(b"\x08\1\x10\2"), record(b"\x10\2"))
    assert list(e.value.records) == [1]


def test_empty_messages_of_many_fields_stay_within_the_memory_of_a_batch() -> None:
    wide = message(*(field(f"f{i}", i + 1, F.TYPE_INT64) for i in range(2_000)))
    own = schema(message(field("l", 1, F.TYPE_MESSAGE, ".p.M1", is_list=True)), wide)
    columns = types_of_messages(own, (0,)).columns
    with pytest.raises(MessageTooLargeError):
        read_protobuf(pa.array([b"\0" + b"\x0a\0" * 100_000], pa.binary()), own, own, columns, Space(ROOM))


def test_json_of_a_schema_has_the_rules_of_json() -> None:
    own = parse_json_schema('{"type": "object"}', {})
    columns = pa.schema([("n", pa.int32())])
    schemas = FixedSchemas({1: own})
    frame = b"\0\0\0\0\1"
    rows = rows_of(schemas, columns, frame + b'{"n":1}', frame + b"{}", form="json-schema").batch
    assert rows.to_pylist() == [{"n": 1}, {"n": None}]
    target = Target("t", "json-schema", columns, "t-value")
    values = write_framed(rows, np.zeros(2, bool), target, schemas, ROOM).to_pylist()
    assert values == [frame + b'{"n":1}', frame + b"{}"]
    with pytest.raises(InvalidRecordError, match=r"record 1 does not fit the topic 't' \(schema 1\): .*n"):
        rows_of(schemas, columns, frame + b"{}", frame + b'{"n":"x"}', form="json-schema")


def test_records_without_an_index_leave_the_others_as_they_are() -> None:
    own = schema(message(field("n", 1, F.TYPE_INT32)))
    columns = pa.schema([("n", pa.int32())])
    frame = b"\0\0\0\0\1"
    values = [frame + b"\7"] * (PREFIXES_MAX + 5) + [frame + b"\0\x08\5"]
    with pytest.raises(InvalidRecordError) as e:
        rows_of(FixedSchemas({1: own}), columns, *values)
    assert list(e.value.records) == list(range(PREFIXES_MAX + 5))


ENUMS = """
syntax = "proto3";
message M { E e = 1; repeated N n = 2; enum E { ZERO = 0; %s } message N { map<string, E> m = 1; } }
"""


def test_values_of_enums_have_the_names_of_the_newest_schema() -> None:
    old, new, fewer = (parse_protobuf(ENUMS % names, {}) for names in ("A = 1; B = 2;", "A = 1; C = 2;", "A = 1;"))
    columns = columns_of_schema(old)
    record = b"\0\0\0\0\1\0\x08\2\x12\7\x0a\5\x0a\1k\x10\2"
    rows = rows_of(FixedSchemas({1: old, 2: new}), columns, record).batch
    assert rows.to_pylist() == [{"e": "C", "n": [{"m": [("k", "C")]}]}]
    with pytest.raises(InvalidRecordError, match="field 'e': 2 is no value of the enum"):
        rows_of(FixedSchemas({1: old, 2: fewer}), columns, record)
    for later in (new, fewer):
        with pytest.raises(SchemaMismatchError, match=r"field 'e' is enum without 'B', which .* values of enum \(v1\)"):
            check_carries(later, [("v1", old)], columns)
    check_carries(old, [("v1", fewer)], columns)
    nested = parse_protobuf(ENUMS.replace("E e = 1; ", "") % "A = 1;", {})
    with pytest.raises(SchemaMismatchError, match=r"field 'n\[\]\.m\[\]' is enum without 'B'"):
        check_carries(nested, [("v1", parse_protobuf(ENUMS.replace("E e = 1; ", "") % "B = 2;", {}))], columns)


def test_an_entry_of_a_map_without_its_value_is_refused_by_name() -> None:
    own = parse_protobuf('syntax = "proto3"; message M { map<string, N> m = 1; message N { int32 a = 1; } }', {})
    columns = columns_of_schema(own)
    frame = b"\0\0\0\0\1\0"
    whole, bare = frame + b"\x0a\x05\x0a\x01k\x12\x00", frame + b"\x0a\x03\x0a\x01k"
    assert rows_of(FixedSchemas({1: own}), columns, whole).batch.to_pylist() == [{"m": [("k", {"a": 0})]}]
    with pytest.raises(InvalidRecordError, match="an entry of a map has no value: write the value") as e:
        rows_of(FixedSchemas({1: own}), columns, whole, bare, whole)
    assert list(e.value.records) == [1]
