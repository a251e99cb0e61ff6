"""The rule for new versions of a schema, compared with what becomes of stored values: each pair of types is tried."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable
from decimal import Decimal
from functools import cache
from typing import Any

import fastavro
import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from sparklog.errors import SchemaMismatchError
from sparklog.format.ddl import parse_ddl
from sparklog.format.schema_evolution import growth
from sparklog.gateway.records.small import write_small
from sparklog.gateway.records.typed import typed_batch
from sparklog.kafka.records import batch_v2
from sparklog.kafka.records.errors import InvalidRecordError
from sparklog.kafka.schemas.json_schema import parse_json_schema
from sparklog.kafka.schemas.protobuf import ProtobufSchema, linked_files, parse_protobuf
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.carrying import check_carries
from sparklog.kafka.values.framed_records import Target, check_columns, columns_of_schema, read_framed
from sparklog.kafka.values.framed_rows import check_forms, write_framed
from tests.support.cases import for_each
from tests.support.clients import info
from tests.unit.gateway.registry_schemas import FixedSchemas, avro

ROOM = 1 << 24


def logical(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return (kind if isinstance(kind, dict) else {"type": kind}) | {"logicalType": name, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size}


def decimal(precision: int, scale: int, kind: Any = "bytes") -> dict[str, Any]:
    return logical("decimal", kind, precision=precision, scale=scale)


def signed(*numbers: int, size: int | None = None) -> list[bytes]:
    return [n.to_bytes(size or (n.bit_length() + 8) // 8, "big", signed=True) for n in numbers]


def record(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "In", "fields": [{"name": "x", "type": kind}]}


INTS, LONGS = [0, 2**24 + 1, 2**31 - 1, -(2**31)], [0, 2**53 + 1, 2**63 - 1, -(2**63)]
MICROS = [0, 1, 1_700_000_000_000_001]
AVRO: dict[str, tuple[Any, list[Any]]] = {
    "boolean": ("boolean", [True, False]),
    "int": ("int", INTS),
    "long": ("long", LONGS),
    "float": ("float", [0.0, 1.5, float("inf"), 2.0**100]),
    "double": ("double", [0.1, 1e300, float("nan"), float(2**40)]),
    "string": ("string", ["", "A", "ü"]),
    "bytes": ("bytes", [b"", b"\xff\xfe", b"A"]),
    "fixed(1)": (fixed(1), [b"A", b"\xff"]),
    "fixed(4)": (fixed(4), [b"AAAA", b"\xff" * 4]),
    "enum A": (enum("A"), ["A"]),
    "enum A B": (enum("A", "B"), ["A", "B"]),
    "enum A with a default": (enum("A", default="A"), ["A"]),
    "decimal(9,2)": (decimal(9, 2), signed(10**9 - 1, -(10**9) + 1, 5)),
    "decimal(11,2)": (decimal(11, 2), signed(10**11 - 1, 5)),
    "decimal(11,4)": (decimal(11, 4), signed(10**11 - 1, 5)),
    "decimal(9,0)": (decimal(9, 0), signed(10**9 - 1, 5)),
    "decimal(5,0)": (decimal(5, 0), signed(10**5 - 1)),
    "decimal(9,2) on fixed": (decimal(9, 2, fixed(5)), signed(10**9 - 1, 5, size=5)),
    "date": (logical("date", "int"), [0, 20_000, 2**31 - 1]),
    "timestamp-millis": (logical("timestamp-millis", "long"), [0, 1, 1_700_000_000_001]),
    "timestamp-micros": (logical("timestamp-micros", "long"), MICROS),
    "local-timestamp-millis": (logical("local-timestamp-millis", "long"), [0, 1]),
    "local-timestamp-micros": (logical("local-timestamp-micros", "long"), MICROS),
    "time-millis": (logical("time-millis", "int"), [0, 2**31 - 1]),
    "time-micros": (logical("time-micros", "long"), [0, 2**63 - 1]),
    "null": ("null", [None]),
    "null or int": (["null", "int"], [None, *INTS]),
    "null or timestamp-millis": (["null", logical("timestamp-millis", "long")], [None, 1]),
    "null or timestamp-micros": (["null", logical("timestamp-micros", "long")], [None, *MICROS]),
    "array of int": ({"type": "array", "items": "int"}, [[], INTS]),
    "array of null or int": ({"type": "array", "items": ["null", "int"]}, [[None, 1]]),
    "array of timestamp-millis": ({"type": "array", "items": logical("timestamp-millis", "long")}, [[1]]),
    "array of timestamp-micros": ({"type": "array", "items": logical("timestamp-micros", "long")}, [MICROS]),
    "map of enum A": ({"type": "map", "values": enum("A")}, [{"k": "A"}]),
    "map of enum A B": ({"type": "map", "values": enum("A", "B")}, [{"k": "B"}]),
    "record of timestamp-millis": (record(logical("timestamp-millis", "long")), [{"x": 1}]),
    "record of timestamp-micros": (record(logical("timestamp-micros", "long")), [{"x": one} for one in MICROS]),
    "record of null or string": (record(["null", "string"]), [{"x": None}, {"x": "A"}]),
    "record of string": (record("string"), [{"x": "A"}]),
}  # fmt: skip
"""Types of Avro with values at their ends, in the form before logical types."""


def with_field(kind: Any) -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}


def without_logical(kind: Any) -> Any:
    if isinstance(kind, list):
        return [without_logical(one) for one in kind]
    if not isinstance(kind, dict):
        return kind
    plain = {name: without_logical(one) for name, one in kind.items() if name not in ("logicalType", "fields")}
    if "fields" in kind:
        plain["fields"] = [field | {"type": without_logical(field["type"])} for field in kind["fields"]]
    return plain


def encoded(kind: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(without_logical(with_field(kind))), {"f": value})
    return out.getvalue()


def grown(former: pa.Schema, columns: pa.Schema) -> pa.Schema:
    return growth(former, columns).applied_to(former, (), None)


def shown(rows: pa.RecordBatch) -> str:
    (column,) = rows.columns
    return repr((column.cast(pa.int32()) if pa.types.is_date(column.type) else column).to_pylist())


def stored(form: str, schema: Parsed, newest: Parsed, columns: pa.Schema, payload: bytes) -> pa.RecordBatch | None:
    """The row of a record; None if it is refused."""
    target = Target("t", form, columns, "t-value")
    schemas = FixedSchemas({1: schema, 2: newest})
    try:
        return read_framed(pa.array([b"\0\0\0\0\1" + payload]), np.zeros(1, bool), target, schemas, ROOM).batch
    except InvalidRecordError:
        return None


def read_back(form: str, newest: Parsed, row: pa.RecordBatch) -> str:
    """The row as a consumer's record in the newest version, read again; or the reason why it has none."""
    schemas, target = FixedSchemas({1: newest}), Target("t", form, row.schema, "t-value")
    try:
        values = write_framed(row, np.zeros(1, bool), target, schemas, ROOM)
        again = read_framed(values, np.zeros(1, bool), target, schemas, ROOM).batch
    except (SchemaMismatchError, InvalidRecordError) as e:
        return str(e)
    return shown(again)


def refusal(new: Parsed, columns: pa.Schema, *others: Parsed) -> str:
    """The reason for which a version is refused; "" if it is registered."""
    try:
        check_columns(new, columns)
        check_carries(new, [(f"version {i}", one) for i, one in enumerate(others, 1)], columns)
    except SchemaMismatchError as e:
        return str(e)
    return ""


def fates(form: str, old: Parsed, new: Parsed, columns: pa.Schema, payloads: Iterable[bytes]) -> list[tuple[str, str]]:
    """The stored rows of records of the old version, and the rows of consumers' records in the new one."""
    rows = [stored(form, old, old, columns, payload) for payload in payloads]
    return [(shown(row), read_back(form, new, row)) for row in rows if row is not None]


@for_each("former, later", [(a, b) for a in AVRO for b in AVRO])
def test_a_version_of_avro_is_refused_if_a_stored_value_has_no_form_in_it(former: str, later: str) -> None:
    (old_kind, samples), (new_kind, _) = AVRO[former], AVRO[later]
    old, new = avro(with_field(old_kind)), avro(with_field(new_kind))
    first = columns_of_schema(old)
    columns = grown(first, columns_of_schema(new))
    reason = refusal(new, columns, old)
    rows = fates("avro", old, new, columns, [encoded(old_kind, one) for one in samples])
    assert len(rows) == len(samples)
    if (former, later) == ("time-millis", "time-micros"):
        assert "would read other times" in reason
    elif reason:
        assert "field 'f" in reason
        assert any(before != after for before, after in rows), (reason, "all values have a form")
    elif later != "enum A with a default":
        assert [after for _, after in rows] == [before for before, _ in rows]


F = FieldDescriptorProto
SCALARS: dict[str, list[Any]] = {
    **{name: [5, *INTS] for name in ("int32", "sint32", "sfixed32")},
    **{name: [5, *LONGS] for name in ("int64", "sint64", "sfixed64")},
    **{name: [0, 5, 2**32 - 1] for name in ("uint32", "fixed32")},
    **{name: [0, 5, 2**64 - 1] for name in ("uint64", "fixed64")},
    "float": [0.0, 1.5, 2.0**100],
    "double": [0.1, 1e300, float(2**40)],
    "bool": [True, False],
    "string": ["", "A", "ü"],
    "bytes": [b"", b"\xff", b"A"],
}
PROTOBUF: dict[str, tuple[dict[str, Any], list[Any]]] = {
    **{name: ({"type": getattr(F, f"TYPE_{name.upper()}")}, values) for name, values in SCALARS.items()},
    "enum A": ({"type": F.TYPE_ENUM, "type_name": ".p.EnumA.E"}, [0]),
    "enum A B": ({"type": F.TYPE_ENUM, "type_name": ".p.EnumAB.E"}, [0, 1]),
    "Timestamp": ({"type": F.TYPE_MESSAGE, "type_name": ".google.protobuf.Timestamp"}, [{"seconds": 5, "nanos": 1000}]),
    "Duration": ({"type": F.TYPE_MESSAGE, "type_name": ".google.protobuf.Duration"}, [{"seconds": 5, "nanos": 1000}]),
    "Int64Value": ({"type": F.TYPE_MESSAGE, "type_name": ".google.protobuf.Int64Value"}, [{"value": one} for one in LONGS]),
    "UInt32Value": ({"type": F.TYPE_MESSAGE, "type_name": ".google.protobuf.UInt32Value"}, [{"value": 2**32 - 1}]),
    "message of int64": ({"type": F.TYPE_MESSAGE, "type_name": ".p.Long"}, [{"x": one} for one in LONGS]),
    "message of int32": ({"type": F.TYPE_MESSAGE, "type_name": ".p.Int"}, [{"x": one} for one in INTS]),
    "message of enum A": ({"type": F.TYPE_MESSAGE, "type_name": ".p.OfA"}, [{"x": 0}]),
    "message of enum A B": ({"type": F.TYPE_MESSAGE, "type_name": ".p.OfAB"}, [{"x": 1}]),
    "repeated int32": ({"type": F.TYPE_INT32, "label": F.LABEL_REPEATED}, [[], INTS]),
    "repeated uint32": ({"type": F.TYPE_UINT32, "label": F.LABEL_REPEATED}, [[2**32 - 1]]),
    "repeated int64": ({"type": F.TYPE_INT64, "label": F.LABEL_REPEATED}, [LONGS]),
}  # fmt: skip
"""Types of Protobuf with values at their ends."""


def file_with(field: dict[str, Any]) -> ProtobufSchema:
    """A schema with a message M, whose field `f` is as described."""
    file = FileDescriptorProto(name="a.proto", package="p", syntax="proto3")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers"))
    described = {"name": "f", "number": 1, "label": F.LABEL_OPTIONAL} | field
    file.message_type.add(name="M").field.add(**described)
    for name in ("A", "AB"):
        scope = file.message_type.add(name=f"Enum{name}").enum_type.add(name="E")
        for number, letter in enumerate(name):
            scope.value.add(name=letter, number=number)
    inner = {"Long": F.TYPE_INT64, "Int": F.TYPE_INT32}
    for name, kind in inner.items():
        file.message_type.add(name=name).field.add(name="x", number=1, type=kind, label=F.LABEL_OPTIONAL)
    for name in ("A", "AB"):
        of_enum = {"type": F.TYPE_ENUM, "type_name": f".p.Enum{name}.E", "label": F.LABEL_OPTIONAL}
        file.message_type.add(name=f"Of{name}").field.add(name="x", number=1, **of_enum)
    return parse_protobuf(base64.b64encode(file.SerializeToString()).decode(), {})


@cache
def proto(name: str) -> ProtobufSchema:
    return file_with(PROTOBUF[name][0])


def messages(name: str) -> list[bytes]:
    pool = descriptor_pool.DescriptorPool()
    for file in linked_files(proto(name)):
        pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.M"))
    return [b"\0" + kind(f=value).SerializeToString() for value in PROTOBUF[name][1]]


@for_each("former, later", [(a, b) for a in PROTOBUF for b in PROTOBUF])
def test_a_version_of_protobuf_is_refused_if_a_stored_value_has_no_form_in_it(former: str, later: str) -> None:
    old, new = proto(former), proto(later)
    columns = grown(columns_of_schema(old), columns_of_schema(new))
    reason = refusal(new, columns, old)
    rows = fates("protobuf", old, new, columns, messages(former))
    assert len(rows) == len(PROTOBUF[former][1])
    if reason:
        assert "field 'f" in reason
        assert any(before != after for before, after in rows), (reason, "all values have a form")
    else:
        assert [after for _, after in rows] == [before for before, _ in rows]


COLUMNS: dict[str, list[Any]] = {
    "TINYINT": [127, -128, 0],
    "SMALLINT": [2**15 - 1, -(2**15), 0],
    "INT": INTS,
    "BIGINT": LONGS,
    "FLOAT": [1.5, 2.0**100],
    "DOUBLE": [0.1, 1e300],
    "BOOLEAN": [True, False],
    "STRING": ["", "A", "ü"],
    "BINARY": [b"", b"\xff", b"A"],
    "DATE": [20_000, 2**31 - 1],
    "TIMESTAMP": MICROS,
    "TIMESTAMP_NTZ": MICROS,
    "INTERVAL DAY TO SECOND": [-1, 5_000_001],
    "DECIMAL(9,2)": [Decimal("9999999.99")],
    "DECIMAL(20,0)": [Decimal(10**20 - 1), Decimal(-(10**20) + 1)],
    "DECIMAL(38,10)": [Decimal("0.5"), Decimal("12345678901.0000000001")],
    "ARRAY<BIGINT>": [LONGS],
    "ARRAY<INT>": [INTS],
    "MAP<STRING, BIGINT>": [[("k", one)] for one in LONGS],
    "MAP<INT, STRING>": [[(1, "A")]],
    "STRUCT<x: TIMESTAMP>": [{"x": one} for one in MICROS],
    "STRUCT<x: BIGINT>": [{"x": one} for one in LONGS],
    "STRUCT<x: STRING>": [{"x": "B"}],
}
"""Columns with values at their ends."""


def row_of(column: pa.Schema, value: Any) -> pa.RecordBatch:
    kind = column.field("f").type
    if isinstance(value, int) and pa.types.is_temporal(kind):
        array = pa.array([value], pa.int32() if pa.types.is_date(kind) else pa.int64()).view(kind)
    else:
        array = pa.array([value], kind)
    return pa.RecordBatch.from_arrays([array], schema=column)


@for_each(
    "column, form, later",
    [(c, form, name) for c in COLUMNS for form, names in (("avro", AVRO), ("protobuf", PROTOBUF)) for name in names],
)
def test_a_version_can_have_fewer_or_more_values_than_its_column(column: str, form: str, later: str) -> None:
    kind, samples = AVRO.get(later, ("", []))
    new: Parsed = avro(with_field(kind)) if form == "avro" else proto(later)
    columns = parse_ddl(f"f {column}")
    reason = refusal(new, columns)
    of_column = [(shown(row), read_back(form, new, row)) for row in (row_of(columns, v) for v in COLUMNS[column])]
    payloads = [encoded(kind, one) for one in samples] if form == "avro" else messages(later)
    stored_ones = fates(form, new, new, columns, payloads) if not reason else []
    has_form_for_all = all(before == after for before, after in of_column)
    if reason:
        assert "field 'f" in reason and not has_form_for_all, (reason, of_column)
    elif later != "enum A with a default":
        assert all(before == after for before, after in stored_ones)
        assert has_form_for_all or len(stored_ones) == len(payloads), "neither contains the other"


JSON: dict[str, Any] = {
    "any": True,
    "nothing": False,
    "without a type": {"title": "x"},
    **{kind: {"type": kind} for kind in ("integer", "number", "string", "boolean", "null", "object", "array")},
    "null or integer": {"type": ["null", "integer"]},
    "one of number and string": {"oneOf": [{"type": "number"}, {"type": "string"}]},
    "by a reference": {"$ref": "#/definitions/n"},
    "all of": {"allOf": [{"type": ["number", "string"]}, {"type": ["string", "null"]}]},
    "array of string": {"type": "array", "items": {"type": "string"}},
    "array of integer": {"type": "array", "items": {"type": "integer"}},
    "map of string": {"type": "object", "additionalProperties": {"type": "string"}},
    "map of number": {"type": "object", "additionalProperties": {"type": "number"}},
    "object of string": {"type": "object", "properties": {"x": {"type": "string"}}},
    "object of number": {"type": "object", "properties": {"x": {"type": "number"}}},
}  # fmt: skip


@for_each("column, later", [(column, name) for column in COLUMNS for name in JSON])
def test_a_json_schema_is_refused_if_it_does_not_accept_the_type_of_a_columns_values(column: str, later: str) -> None:
    source = {"properties": {"f": JSON[later]}, "definitions": {"n": {"type": "integer"}}}
    new = parse_json_schema(json.dumps(source), {})
    columns = parse_ddl(f"f {column}")
    target = Target("t", "json-schema", columns, "t-value")
    values = []
    for value in COLUMNS[column]:
        row = row_of(columns, value)
        (record,) = write_framed(row, np.zeros(1, bool), target, FixedSchemas({1: new}), ROOM).to_pylist()
        values.append(json.loads(record[5:]))
    has_type = [jsonschema.Draft7Validator(source).is_valid(value) for value in values]
    assert bool(refusal(new, columns)) == (not all(has_type)), (values, refusal(new, columns))


def test_a_json_schema_of_a_topic_accepts_objects() -> None:
    for source in ('{"type": "array"}', '{"$ref": "#/definitions/n", "definitions": {"n": {"type": "integer"}}}'):
        assert "rows are objects" in refusal(parse_json_schema(source, {}), parse_ddl("a STRING"))


def record_of(**fields: Any) -> Parsed:
    """A record; a field with a tuple has a type and a default."""
    described = [
        {"name": name, "type": one[0], "default": one[1]} if isinstance(one, tuple) else {"name": name, "type": one}
        for name, one in fields.items()
    ]
    return avro({"type": "record", "name": "R", "fields": described})


NULL_OR_STRING = ["null", "string"]


@for_each(
    "columns, versions, reason",
    [
        ("a INT, b STRING", [{"a": "int"}, {"a": "int", "b": "string"}], "field 'b' has no default, and no null: rows of version 1"),
        ("a INT, b STRING", [{"a": "int"}, {"a": "int", "b": ("string", "")}], ""),
        ("a INT, b STRING", [{"a": "int"}, {"a": "int", "b": NULL_OR_STRING}], ""),
        ("a INT, b STRING", [{"a": "int"}], ""),
        ("b STRING", [{"b": NULL_OR_STRING}, {"b": "string"}], "field 'b' has no null, which rows can have (version 1)"),
        ("b STRING", [{"b": NULL_OR_STRING}, {"b": ("string", "x")}, {"b": "string"}], "no null, which rows can have (version 1)"),
        ("b STRING", [{"b": NULL_OR_STRING}, {"b": ("string", "x")}], ""),
        ("n BIGINT", [{"n": "int"}, {"n": "long"}, {"n": "int"}], "field 'n' is int, which has no form for all values of long (version 2)"),
        ("n BIGINT", [{"n": "int"}], ""),
        ("n BIGINT", [{"n": "double"}], "field 'n' is double, which has no form for all values of its column (BIGINT)"),
        ("n INT", [{"n": "long"}, {"n": "int"}], ""),
        ("n INT", [{"n": "string"}, {"n": "int"}], ""),
        ("n STRING", [{"n": "string"}, {"n": ("bytes", "\u00ff")}], "the default of the field 'n' does not fit the column"),
        ("l ARRAY<INT>", [{"l": {"type": "array", "items": ["null", "int"]}}, {"l": {"type": "array", "items": "int"}}], "field 'l[]' has no null"),
    ],
)  # fmt: skip
def test_all_earlier_versions_count(columns: str, versions: list[dict[str, Any]], reason: str) -> None:
    *earlier, new = [record_of(**version) for version in versions]
    assert (
        (reason in refusal(new, parse_ddl(columns), *earlier))
        if reason
        else not refusal(new, parse_ddl(columns), *earlier)
    )


def test_a_renamed_field_has_the_values_of_its_former_names() -> None:
    def named(name: str, kind: str, *aliases: str) -> Parsed:
        field = {"name": name, "type": logical(kind, "long"), "aliases": list(aliases)}
        return avro({"type": "record", "name": "R", "fields": [field]})

    columns = parse_ddl("a TIMESTAMP")
    first, second = named("a", "timestamp-micros"), named("b", "timestamp-micros", "a")
    for third in (named("b", "timestamp-millis", "a"), named("c", "timestamp-millis", "b", "a")):
        for earlier in ([first], [first, second], [second]):
            assert "is timestamp-millis, which has no form" in refusal(third, columns, *earlier)


def test_a_number_without_a_sign_can_become_one_of_more_bits() -> None:
    columns = parse_ddl("f BIGINT")
    assert not refusal(proto("uint64"), columns, proto("uint32"))


def sent(schemas: FixedSchemas, columns: str, records: list[tuple[int, Any, dict[str, Any]]], **configs: Any) -> None:
    """Send records, each with the id and the source of its schema, to a topic with the key column `id`."""
    topic = info(parse_ddl(columns), 1, ("id",), kafka_value_format="avro", kafka_key_format="json", **configs)
    values = []
    for schema_id, source, value in records:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(without_logical(source)), value)
        values.append(bytes([0, 0, 0, 0, schema_id]) + out.getvalue())
    data = write_small([b'{"id":5}'] * len(values), values, [0] * len(values))
    head = batch_v2.BatchV2(0, 0, 0, 2, 0, 0, len(values) - 1, 0, 0, -1, -1, -1, len(values))
    typed_batch(head, memoryview(data), topic, ROOM, 0, schemas)


def test_a_record_of_another_schema_without_a_form_in_the_newest_one_is_refused() -> None:
    def fields(*described: Any) -> dict[str, Any]:
        return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in described]}

    millis, micros = (logical(f"timestamp-{unit}", "long") for unit in ("millis", "micros"))
    id_and = ("id", "long")
    newest, finer = fields(id_and, ("at", millis)), fields(id_and, ("at", micros))
    optional, keyless = fields(id_and, ("at", ["null", millis])), fields(("at", millis))
    schemas = FixedSchemas({i: avro(one) for i, one in enumerate((finer, optional, keyless, newest), 1)})
    columns = "id BIGINT, at TIMESTAMP"
    good: list[tuple[int, Any, dict[str, Any]]] = [
        (1, finer, {"id": 5, "at": 2_000}),
        (2, optional, {"id": 5, "at": 2}),
        (3, keyless, {"at": 2}),
        (4, newest, {"id": 5, "at": 2}),
    ]
    sent(schemas, columns, good)
    for bad, reason in (
        ((1, finer, {"id": 5, "at": 2_001}), "field 'at'"),
        ((2, optional, {"id": 5, "at": None}), "field 'at' is null"),
    ):
        with pytest.raises(InvalidRecordError) as e:
            sent(schemas, columns, [*good, bad, *good])
        (message,) = e.value.records.values()
        assert list(e.value.records) == [4] and reason in message
        assert "consumers could not read it in the schema 4, the newest one of 't-value'" in message


def test_tombstones_need_no_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(subject: str) -> None:
        raise SchemaMismatchError("the registry has a schema that sparklog cannot read")

    schemas, target = FixedSchemas(), Target("t", "avro", parse_ddl("a STRING"), "t-value")
    monkeypatch.setattr(schemas, "newest", unreadable)
    rows = pa.RecordBatch.from_pylist([{"a": None}], target.columns)
    check_forms(rows, pa.array([None], pa.binary()), target, schemas, ROOM)


def test_a_time_of_day_in_another_unit_is_refused() -> None:
    millis, micros = (
        {"type": "record", "name": "R", "fields": [{"name": "noon", "type": logical(f"time-{unit}", kind)}]}
        for unit, kind in (("millis", "int"), ("micros", "long"))
    )
    schemas = FixedSchemas({1: avro(millis), 2: avro(micros)})
    with pytest.raises(InvalidRecordError, match="field 'noon' is time-millis, and time-micros in the newest schema"):
        sent(schemas, "id BIGINT, noon BIGINT", [(1, millis, {"noon": 1_000})])
    sent(schemas, "id BIGINT, noon BIGINT", [(2, micros, {"noon": 1_000})])


def renamed(*fields: tuple[str, ...], kind: Any = "string") -> Parsed:
    """A record whose fields have aliases behind their names."""
    described = [{"name": name, "type": kind, "aliases": aliases} for name, *aliases in fields]
    return avro({"type": "record", "name": "R", "fields": described})


@for_each(
    "columns, earlier, new",
    [
        ("b, a", [(("b",),), (("b",), ("a",))], (("a", "b"),)),
        ("d, e", [(("d",),)], (("e", "d"), ("d",))),
    ],
)
def test_a_former_field_counts_for_one_column(columns: str, earlier: list[Any], new: Any) -> None:
    """Rows of the first version have null in `a` or `e`, though the new field has their field as an alias."""
    names = parse_ddl(", ".join(f"{name} STRING" for name in columns.split(", ")))
    first, *others = [renamed(*fields) for fields in earlier]
    assert "rows of version 1, which lacks the field" in refusal(renamed(*new), names, first, *others)
    assert not refusal(renamed(*new, kind=["null", "string"]), names, first, *others)


NESTED = """
syntax = "proto3";
message M { repeated N l = 1; map<string, N> m = 2; N n = 3; message N { %s } }
"""


def test_a_message_inside_can_lose_fields() -> None:
    old, new = (parse_protobuf(NESTED % fields, {}) for fields in ("int32 a = 1; int32 b = 2;", "int64 a = 1;"))
    columns = columns_of_schema(old)
    assert not refusal(new, columns, old)
    both, one = {"a": 1, "b": 2}, {"a": 1, "b": None}
    row = pa.RecordBatch.from_pylist([{"l": [both], "m": [("k", both)], "n": both}], columns)
    schemas, target = FixedSchemas({1: new}), Target("t", "protobuf", columns, "t-value")
    values = write_framed(row, np.zeros(1, bool), target, schemas, ROOM)
    again = read_framed(values, np.zeros(1, bool), target, schemas, ROOM).batch
    assert again.to_pylist() == [{"l": [one], "m": [("k", one)], "n": one}]


ONEOF = 'syntax = "proto3"; message M { %s N n = 9; message N { %s } }'
APART, TOGETHER = "int32 a = 1; int32 b = 2;", "oneof o { int32 a = 1; int32 b = 2; }"
ALONE = "oneof o { int32 a = 1; } int32 b = 2;"


def test_fields_that_can_be_set_together_stay_out_of_a_oneof() -> None:
    apart, alone, together = (parse_protobuf(ONEOF % (part, part), {}) for part in (APART, ALONE, TOGETHER))
    columns = columns_of_schema(apart)
    for former in (apart, alone):
        assert "fields 'a' and 'b' are in one oneof, and rows can have both (version 1)" in refusal(
            together, columns, former
        )
    inside = parse_protobuf(ONEOF % (APART, TOGETHER), {})
    assert "fields 'n.a' and 'n.b' are in one oneof" in refusal(inside, columns, apart)
    for former in (together, inside):
        assert not refusal(apart, columns, former)
    assert not refusal(together, columns, together)
    both = {"a": 1, "b": 2}
    for row in ({**both, "n": None}, {"a": 1, "b": None, "n": both}):
        rows = pa.RecordBatch.from_pylist([row], columns)
        assert "'a' and 'b' are both set" in read_back("protobuf", together, rows)


def test_a_null_in_a_map_has_no_form_in_protobuf() -> None:
    new = parse_protobuf('syntax = "proto3"; message M { map<string, int32> f = 1; }', {})
    rows = pa.RecordBatch.from_pylist([{"f": [("k", None)]}], columns_of_schema(new))
    assert "a map has a null" in read_back("protobuf", new, rows)


def test_a_message_without_fields_makes_no_topic() -> None:
    file = parse_protobuf('syntax = "proto3"; message E { enum Z { A = 0; } } message M { E.Z z = 1; }', {})
    assert columns_of_schema(file) == parse_ddl("z STRING")


def test_the_rows_of_a_topic_stay_one_message() -> None:
    file = 'syntax = "proto3"; message M { %s } message N { int32 c = 1; int32 d = 2; }'
    first, second = (parse_protobuf(file % fields, {}) for fields in ("int32 c = 1; N e = 2;", "N a = 2;"))
    columns = columns_of_schema(first)
    assert columns.names == ["c", "e"]
    assert "rows are the message M, and in this version N has more of the topic's columns" in refusal(
        second, grown(columns, columns_of_schema(second, columns.names)), first
    )


def test_a_field_with_another_number_and_the_name_of_a_column_carries_its_values() -> None:
    file = 'syntax = "proto3"; message M { int32 a = 1; %s b = %d; }'
    first, same, narrower = (parse_protobuf(file % case, {}) for case in (("int64", 2), ("int64", 3), ("int32", 3)))
    columns = columns_of_schema(first)
    assert not refusal(same, columns, first)
    assert "field 'b' is int32, which has no form for all values of int64 (version 1)" in refusal(
        narrower, columns, first
    )


def test_types_that_are_used_very_often_are_not_compared_for_long() -> None:
    kind: Any = {"type": "record", "name": "T0", "fields": [{"name": name, "type": "int"} for name in "ab"]}
    for i in range(1, 12):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"T{i - 1}"}]
        kind = {"type": "record", "name": f"T{i}", "fields": fields}
    new = avro(kind)
    columns = columns_of_schema(new)
    assert not refusal(new, columns, new, new)
    assert "too many fields in all versions to compare them" in refusal(new, columns, *[new] * 100)
