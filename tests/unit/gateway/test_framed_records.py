"""Records in Confluent's framing as rows: several schemas in one batch, nulls, faults."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import MessageTooLargeError, SchemaMismatchError
from sparklog.kafka.records.errors import InvalidRecordError
from sparklog.kafka.values.avro_columns import columns_of
from sparklog.kafka.values.framed_records import SCHEMAS_PER_BATCH_MAX, Rows, Target, read_framed
from sparklog.kafka.values.framed_rows import write_framed
from sparklog.kafka.values.rows_at_fault import UnwritableRowError
from sparklog.kafka.values.schemas import SchemasNotLoadedError
from tests.support.cases import for_each
from tests.unit.gateway.registry_schemas import FixedSchemas, avro

ROOM = 1 << 24


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": n, "type": t, **m} for n, t, *more in fields for m in more or [{}]],
    }


OLD = record(("n", "int"), ("before", "string"))
NEW = record(("n", "long"), ("after", "string", {"aliases": ["before"]}), ("more", "string", {"default": "none"}))
SCHEMAS = FixedSchemas({1: avro(OLD), 2: avro(NEW)})
COLUMNS = pa.schema([("n", pa.int64()), ("after", pa.string()), ("more", pa.string())])


def framed(schema_id: int, source: Any, value: Any) -> bytes:
    out = io.BytesIO()
    out.write(bytes([0, *schema_id.to_bytes(4, "big")]))
    fastavro.schemaless_writer(out, fastavro.parse_schema(source), value)
    return out.getvalue()


def rows_of(
    values: list[bytes | None],
    columns: pa.Schema = COLUMNS,
    schemas: FixedSchemas = SCHEMAS,
    empty: tuple[int, ...] = (),
    room: int = ROOM,
) -> Rows:
    is_empty = np.isin(np.arange(len(values)), empty)
    target = Target("t", "avro", columns, "t-value")
    return read_framed(pa.array(values, pa.binary()), is_empty, target, schemas, room)


def test_records_of_several_schemas_stay_in_order() -> None:
    values: list[bytes | None] = [
        framed(1, OLD, {"n": i, "before": f"b{i}"}) if i % 3 else framed(2, NEW, {"n": i, "after": "a", "more": "m"})
        for i in range(100)
    ]
    values[50] = None
    rows = rows_of(values, empty=(50,)).batch.to_pylist()
    assert rows[50] == {"n": None, "after": None, "more": None}
    for i in set(range(100)) - {50}:
        expected = {"after": f"b{i}", "more": "none"} if i % 3 else {"after": "a", "more": "m"}
        assert rows[i] == {"n": i, **expected}


def test_a_field_that_the_newest_schema_lacks_is_dropped_and_counted() -> None:
    schemas = FixedSchemas({1: avro(OLD), 2: avro(record(("n", "int")))})
    rows = rows_of([framed(1, OLD, {"n": 1, "before": "x"})], pa.schema([("n", pa.int32())]), schemas)
    assert rows.batch.to_pylist() == [{"n": 1}]
    assert rows.dropped == {"before": 1}


GOOD = framed(1, OLD, {"n": 1, "before": "x"})
REFUSED: list[tuple[bytes | None, str]] = [
    (None, "record 1 has no value: topic 't' takes avro"),
    (
        b"",
        "record 1: its value has no schema id: it has 0 bytes; a value begins with a byte 0 and the id in four bytes",
    ),
    (b"{}    ", "record 1: its value has no schema id: it begins with the byte 123; a value begins"),
    (b"\0\0\0\0\7abc", "record 1 does not fit the topic 't' (schema 7): the registry has no schema of this id"),
    (GOOD[:-1], "record 1 does not fit the topic 't' (schema 1): field 'before': the record ends inside of it"),
    (GOOD + b"x", "record 1 does not fit the topic 't' (schema 1): bytes follow its last field"),
    (GOOD[:-1] + b"\xff", "field 'before': a text is not UTF-8"),
]


@for_each("value, reason", REFUSED)
def test_a_record_that_does_not_fit_is_named_with_its_field(value: bytes | None, reason: str) -> None:
    for others in (1, 30):
        with pytest.raises(InvalidRecordError) as e:
            rows_of([GOOD, value, *[GOOD] * others])
        assert list(e.value.records) == [1]
        assert reason in e.value.records[1]


def test_values_are_cast_exactly_or_refused() -> None:
    source = record(("n", "long"))
    schemas = FixedSchemas({1: avro(source)})
    values: list[bytes | None] = [framed(1, source, {"n": n}) for n in (1, 2**31, 2**53 + 1)]
    values *= 10
    with pytest.raises(InvalidRecordError) as e:
        rows_of(values, pa.schema([("n", pa.int32())]), schemas)
    assert list(e.value.records) == [i for i in range(30) if i % 3]
    with pytest.raises(InvalidRecordError) as e:
        rows_of(values, pa.schema([("n", pa.float64())]), schemas)
    assert list(e.value.records) == [i for i in range(30) if i % 3 == 2]


@for_each("repeats", [1, 40])
def test_a_null_record_beside_another_one_changes_no_value(repeats: int) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    inner = record(("sum", decimal), ("state", named("enum", "S", symbols=["A", "B"])), name="Inner")
    own = record(("r", ["null", inner]), ("n", "int"))
    values = [{"r": None, "n": 1}, {"r": {"sum": Decimal("0.50"), "state": "B"}, "n": 2}]
    data: list[bytes | None] = [framed(1, own, value) for value in values]
    schema = avro(own)
    rows = rows_of(data * repeats, columns_of(schema.type), FixedSchemas({1: schema}))
    assert rows.batch.to_pylist() == values * repeats


def test_schemas_that_are_not_loaded_are_named_together() -> None:
    class Empty(FixedSchemas):
        def schema_of(self, schema_id: int) -> Any:
            raise SchemasNotLoadedError([schema_id])

    with pytest.raises(SchemasNotLoadedError) as e:
        rows_of([framed(1, OLD, {"n": 1, "before": ""}), framed(2, OLD, {"n": 1, "before": ""})], schemas=Empty())
    assert e.value.ids == {1, 2}


def named(kind: str, name: str = "N", **more: Any) -> dict[str, Any]:
    return {"type": kind, "name": name, **more}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}
ODD: list[tuple[Any, str]] = [
    (["int", "string"], "field 'f': a union of int, string has no column"),
    (["null", "int", "string"], "field 'f': a union of null, int, string has no column"),
    (named("record", fields=[]), "field 'f': the record N has no fields"),
    (named("record", fields=[{"name": "x", "type": ["null", "N"]}]), "field 'f.x': N contains itself"),
    (named("record", fields=[{"name": "x", "type": {"type": "array", "items": "N"}}]), "field 'f.x[]': N contains"),
    ({"type": "array", "items": "null"}, "field 'f': its elements take no bytes"),
    ({"type": "array", "items": named("fixed", size=0)}, "field 'f': its elements take no bytes"),
    ({"type": "map", "values": ["int", "string"]}, "field 'f[]': a union of int, string has no column"),
    (DECIMAL, "field 'f': a decimal of 40 digits; a column has at most 38"),
    (named("record", fields=[{"name": "x", "type": "int"}, {"name": "X", "type": "int"}]), "occurs twice"),
]
COLUMN_TYPES: list[tuple[Any, Any]] = [
    (["null", "int"], pa.int32()),
    (["long", "null"], pa.int64()),
    (["string"], pa.string()),
    ("null", pa.string()),
    (named("enum", symbols=["A"]), pa.string()),
    (named("fixed", size=12, logicalType="duration"), pa.binary()),
    (named("fixed", size=16, logicalType="uuid"), pa.binary()),
    ({"type": "string", "logicalType": "uuid"}, pa.string()),
    ({**DECIMAL, "precision": 38}, pa.decimal128(38, 2)),
    ({**DECIMAL, "precision": 0}, pa.binary()),
    (named("fixed", size=4, logicalType="decimal", precision=9), pa.decimal128(9, 0)),
    ({"type": "int", "logicalType": "date"}, pa.date32()),
    ({"type": "string", "logicalType": "date"}, pa.string()),
    ({"type": "int", "logicalType": "time-millis"}, pa.int32()),
    ({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64()),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, pa.timestamp("us")),
    (
        {"type": "map", "values": {"type": "map", "values": "int"}},
        pa.map_(pa.string(), pa.map_(pa.string(), pa.int32())),
    ),
]


@for_each("source, reason", ODD)
def test_types_without_a_column_are_refused_by_path(source: Any, reason: str) -> None:
    with pytest.raises(SchemaMismatchError) as e:
        columns_of(avro(record(("f", source))).type)
    assert reason in str(e.value)


@for_each("source, column", COLUMN_TYPES)
def test_odd_types_have_a_column(source: Any, column: Any) -> None:
    assert columns_of(avro(record(("f", source))).type).field("f").type == column


def nest(depth: int) -> Any:
    """A schema in which each record has two fields of the next one."""
    source: Any = "int"
    for i in range(depth):
        source = record(("a", source), ("b", f"R{i - 1}" if i else "int"), name=f"R{i}")
    return source


def test_hostile_schemas_and_records_stay_within_the_memory_of_a_batch() -> None:
    with pytest.raises(SchemaMismatchError, match="more than 10000 fields"):
        columns_of(avro(nest(30)).type)
    long = "x" * 100_000
    source = record(("f", {"type": "array", "items": named("enum", symbols=[long])}))
    schemas, columns = FixedSchemas({1: avro(source)}), pa.schema([("f", pa.list_(pa.string()))])
    bomb = b"\0\0\0\0\1" + b"\xc0\x84\x3d" + b"\0" * 500_001
    with pytest.raises(MessageTooLargeError):
        rows_of([bomb], columns, schemas)
    reader = record(("n", "int"), ("f", "string", {"default": long}))
    schemas = FixedSchemas({1: avro(record(("n", "int"))), 2: avro(reader)})
    with pytest.raises(MessageTooLargeError):
        rows_of([b"\0\0\0\0\1\0"] * 1_000, columns_of(avro(reader).type), schemas)


def test_rows_that_the_schema_does_not_allow_are_named() -> None:
    source = record(("n", "int"), ("e", named("enum", symbols=["A"])))
    rows = pa.RecordBatch.from_pylist(
        [{"n": i, "e": "A"} for i in range(9)] + [{"n": 1, "e": "B"}, {"n": None, "e": "A"}]
    )
    target = Target("t", "avro", rows.schema, "t-value")
    with pytest.raises(UnwritableRowError, match="'B' is no symbol of the enum N") as e:
        write_framed(rows, np.zeros(11, bool), target, FixedSchemas({1: avro(source)}), ROOM)
    assert e.value.row == 9
    with pytest.raises(SchemaMismatchError, match="has no schema: register one"):
        write_framed(rows, np.zeros(11, bool), target, FixedSchemas(), ROOM)


class UnreadableSchemas(FixedSchemas):
    """Schemas of which some cannot be read."""

    def __init__(self, schemas: dict[int, Any], *unreadable: int) -> None:
        super().__init__(schemas)
        self.unreadable = unreadable

    def schema_of(self, schema_id: int) -> Any:
        if schema_id in self.unreadable:
            raise SchemaMismatchError(f"cannot read {schema_id}")
        return super().schema_of(schema_id)

    def newest(self, subject: str) -> Any:
        newest = super().newest(subject)
        assert newest is not None
        return newest[0], self.schema_of(newest[0])


def test_records_of_a_schema_that_cannot_be_read_have_its_reason() -> None:
    schema = avro({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
    target = Target("t", "avro", columns_of(schema.type), "t-value")
    data = pa.array([b"\0\0\0\0\1\2", b"\0\0\0\0\2\2"])
    with pytest.raises(InvalidRecordError) as e:
        read_framed(data, np.zeros(2, bool), target, UnreadableSchemas({1: schema, 2: schema, 3: schema}, 2), ROOM)
    assert e.value.records == {1: "record 1 does not fit the topic 't' (schema 2): cannot read 2"}
    with pytest.raises(InvalidRecordError) as e:
        read_framed(data, np.zeros(2, bool), target, UnreadableSchemas({1: schema, 2: schema, 3: schema}, 3), ROOM)
    assert e.value.records.keys() == {0, 1}, "defaults and aliases of the newest schema are not known"


def test_records_beyond_the_first_ids_of_a_batch_are_named_together() -> None:
    target = Target("t", "avro", pa.schema([("n", pa.int32())]), "t-value")
    values = [b"\0" + (5_000 - i).to_bytes(4, "big") for i in range(SCHEMAS_PER_BATCH_MAX + 3)]
    data = pa.array([values[0], b"no frame", *values, values[0]], pa.binary())
    with pytest.raises(InvalidRecordError, match="record 102: the batch has more than 100 schema ids") as e:
        read_framed(data, np.zeros(len(data), bool), target, FixedSchemas(), ROOM)
    assert list(e.value.records) == [102, 103, 104]
