"""Random Avro schemas: columns have the values that fastavro writes, and fastavro reads the values that columns had."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import MessageTooLargeError
from sparklog.kafka.schemas.avro import AvroType, parse_avro
from sparklog.kafka.values.avro_bytes import AvroReader, Space
from sparklog.kafka.values.avro_columns import columns_of, resolve
from sparklog.kafka.values.avro_records import SCALAR_RECORDS, read_avro
from sparklog.kafka.values.avro_scalar import AvroValueError, scalar_decoder
from sparklog.kafka.values.avro_write import write_avro

ROOM = 1 << 28
UTC = dt.UTC
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
Typed = tuple[Any, st.SearchStrategy[Any]]


def _milliseconds(value: dt.datetime) -> dt.datetime:
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
TIMES = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))
LEAVES: list[Typed] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", TEXT),
    ("bytes", st.binary(max_size=20)),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    ({"type": "long", "logicalType": "timestamp-micros"}, TIMES.map(lambda value: value.replace(tzinfo=UTC))),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        TIMES.map(lambda value: _milliseconds(value).replace(tzinfo=UTC)),
    ),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, TIMES),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 4},
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda number: Decimal((number < 0, _digits(number), -4))),
    ),
]


def _digits(number: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(number))))


@st.composite
def types(draw: Any, names: list[int], depth: int = 3) -> Typed:
    kind = draw(
        st.sampled_from(["leaf", "leaf", "null", "enum", "fixed", "array", "map", "record"] if depth else ["leaf"])
    )
    match kind:
        case "null":
            inner, values = draw(types(names, depth - 1).filter(lambda one: not isinstance(one[0], list)))
            return draw(st.sampled_from([["null", inner], [inner, "null"]])), st.none() | values
        case "enum":
            symbols = draw(st.lists(st.sampled_from("ABCDEFG"), min_size=1, unique=True))
            return {"type": "enum", "name": _name(names), "symbols": symbols}, st.sampled_from(symbols)
        case "fixed":
            size = draw(st.integers(1, 20))
            return {"type": "fixed", "name": _name(names), "size": size}, st.binary(min_size=size, max_size=size)
        case "array":
            inner, values = draw(types(names, depth - 1))
            return {"type": "array", "items": inner}, st.lists(values, max_size=4)
        case "map":
            inner, values = draw(types(names, depth - 1))
            return {"type": "map", "values": inner}, st.dictionaries(TEXT, values, max_size=4)
        case "record":
            return draw(records(names, depth - 1))
    leaf: Typed = draw(st.sampled_from(LEAVES))
    return leaf


def _name(names: list[int]) -> str:
    names.append(0)
    return f"N{len(names)}"


@st.composite
def records(draw: Any, names: list[int] | None = None, depth: int = 3) -> Typed:
    names = [] if names is None else names
    fields = [draw(types(names, depth)) for _ in range(draw(st.integers(1, 4)))]
    source = {
        "type": "record",
        "name": _name(names),
        "fields": [{"name": f"f{i}", "type": kind} for i, (kind, _) in enumerate(fields)],
    }
    return source, st.fixed_dictionaries({f"f{i}": values for i, (_, values) in enumerate(fields)})


def written(source: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(source), value)
    return out.getvalue()


def plain(value: Any) -> Any:
    """Return a value of Arrow as fastavro has it: maps are dictionaries."""
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return {key: plain(one) for key, one in value}
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def without_empty(value: Any) -> Any:
    """Return a value in which empty maps are empty lists, as Arrow has both."""
    if isinstance(value, dict):
        return {key: without_empty(one) for key, one in value.items()} or []
    return [without_empty(one) for one in value] if isinstance(value, list) else value


def rows_of(data: list[bytes], kind: AvroType) -> tuple[pa.RecordBatch, dict[int, str]]:
    columns = columns_of(kind)
    plan = resolve(kind, kind, columns, Space(ROOM))
    arrays, refused = read_avro(pa.array(data, pa.binary()), kind, plan, Space(ROOM))
    batch = pa.RecordBatch.from_arrays(arrays, schema=columns)
    batch.validate(full=True)
    return batch, refused


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_columns_are_the_values_that_fastavro_writes_and_reads(data: st.DataObject) -> None:
    source, values = data.draw(records())
    some = data.draw(st.lists(values, min_size=1, max_size=5))
    kind = parse_avro(json.dumps(source)).type
    payloads = [written(source, value) for value in some]
    for repeats in (1, SCALAR_RECORDS + 1):  # record by record, and field by field
        batch, refused = rows_of(payloads * repeats, kind)
        assert not refused
        assert [without_empty(plain(row)) for row in batch.to_pylist()] == [without_empty(v) for v in some] * repeats
        back = write_avro(batch, kind, Space(ROOM)).to_pylist()
        parsed = fastavro.parse_schema(source)
        assert [fastavro.schemaless_reader(io.BytesIO(one), parsed, None) for one in back] == some * repeats


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_records_are_refused_alike_and_alone(data: st.DataObject) -> None:
    source, values = data.draw(records())
    kind = parse_avro(json.dumps(source)).type
    good = written(source, data.draw(values))
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        if damaged and data.draw(st.booleans()):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        else:
            at = data.draw(st.integers(0, len(damaged)))
            damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    payloads = [good, bytes(damaged), good]
    try:
        expected: Any = scalar_decoder(kind)(bytes(damaged))
    except AvroValueError:
        expected = None
    reader = AvroReader(pa.array(payloads, pa.binary()), Space(ROOM))
    try:
        arrays = reader.read(kind)
    except MessageTooLargeError:
        return
    assert set(reader.refused) | set(reader.is_long.nonzero()[0].tolist()) <= {1}
    assert reader.is_long[1] or (1 in reader.refused) == (expected is None)
    rows = pa.RecordBatch.from_arrays(arrays, [f.name for f in kind.fields]).to_pylist()
    alone = scalar_decoder(kind)(good)
    assert repr([rows[0], rows[2]]) == repr([alone, alone])
    if 1 not in reader.refused and not reader.is_long[1]:
        assert repr(rows[1]) == repr(expected)
