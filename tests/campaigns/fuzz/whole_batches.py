"""Batches that are sound in themselves and still do not belong: other columns, other types, attributes that lie."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa

from sparklog.format.batch import (
    ATTRIBUTE_COMMIT,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_OFFSET_COLUMN,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER_KEY,
    encode_batch,
)
from sparklog.format.offset_column import OFFSET_FIELD
from tests.golden.make_golden import BASE_MS

HOSTILE_OFFSET = 3
"""Offset of the hostile batch: behind an honest one of 3 rows."""

Wrong = Callable[[pa.RecordBatch, int, str, Random], tuple[str, bytes]]
"""Makes of honest rows, their schema's id and a compression: the fault, and the batch."""
WRONG: list[Wrong] = []

_TYPES: list[Any] = [
    pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.large_string(), pa.large_binary(),
    pa.string_view(), pa.binary_view(), pa.null(), pa.date64(), pa.decimal256(60, 2), pa.binary(3), pa.list_(pa.int32()), pa.large_list(pa.int8()),
    pa.list_(pa.int8(), 4), pa.struct([]), pa.struct([("a", pa.string())]), pa.map_(pa.string(), pa.int8()), pa.month_day_nano_interval(),
]  # fmt: skip


def _wrong(function: Wrong) -> Wrong:
    WRONG.append(function)
    return function


def encoded(rows: pa.RecordBatch, schema_id: int, compression: str, **more: Any) -> bytes:
    """An encoded batch, not stamped."""
    return bytes(
        encode_batch(
            rows,
            schema_id=schema_id,
            min_timestamp_ms=BASE_MS,
            max_timestamp_ms=BASE_MS + rows.num_rows,
            compression=compression,
            **more,
        )
    )


def _of_type(t: Any, n: int) -> pa.Array:
    """Return `n` values of any type, with any content."""
    if pa.types.is_null(t):
        return pa.nulls(n)
    plain: dict[Any, Any] = {
        pa.bool_(): True,
        pa.string(): "ab",
        pa.binary(): b"ab",
        pa.large_string(): "ab",
        pa.large_binary(): b"ab",
    }
    value = plain.get(t)
    if value is None and (pa.types.is_integer(t) or pa.types.is_floating(t)):
        value = 77
    return pa.nulls(n, t) if value is None else pa.array([value] * n, t)


def _with_column(rows: pa.RecordBatch, index: int, column: pa.Array) -> pa.RecordBatch:
    columns = list(rows.columns)
    columns[index] = column
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


@_wrong
def other_type(rows: pa.RecordBatch, schema_id: int, compression: str, rng: Random) -> tuple[str, bytes]:
    index = rng.randrange(rows.num_columns)
    t = rng.choice(_TYPES)
    name = f"column {rows.schema.names[index]} of type {t} instead of {rows.schema.types[index]}"
    return name, encoded(_with_column(rows, index, _of_type(t, rows.num_rows)), schema_id, compression)


@_wrong
def other_columns(rows: pa.RecordBatch, schema_id: int, compression: str, rng: Random) -> tuple[str, bytes]:
    indexes = list(range(rows.num_columns))
    how = rng.choice(["fewer", "more", "swapped", "reversed", "one", "twice"])
    if how == "fewer":
        indexes.pop(rng.randrange(len(indexes)))
    elif how == "more":
        indexes.append(rng.choice(indexes))
    elif how == "swapped" and len(indexes) > 1:
        a, b = rng.sample(indexes, 2)
        indexes[a], indexes[b] = indexes[b], indexes[a]
    elif how == "reversed":
        indexes.reverse()
    elif how == "one":
        indexes = [rng.choice(indexes)]
    else:
        indexes += indexes
    columns = [rows.column(i) for i in indexes]
    made = pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])
    return f"columns {how}: {indexes}", encoded(made, schema_id, compression)


@_wrong
def nested(rows: pa.RecordBatch, schema_id: int, compression: str, rng: Random) -> tuple[str, bytes]:
    """A column of lists in lists in lists."""
    depth = rng.choice([2, 20, 60])
    t: Any = pa.int8()
    for _ in range(depth):
        t = pa.list_(t)
    index = rng.randrange(rows.num_columns)
    made = _with_column(rows, index, pa.nulls(rows.num_rows, t))
    return f"column {index} nested {depth} times", encoded(made, schema_id, compression)


@_wrong
def null_key(rows: pa.RecordBatch, schema_id: int, compression: str, rng: Random) -> tuple[str, bytes]:
    """A map with a key that is null: the key's own column says so, where the schema forbids it."""
    n = rows.num_rows
    maps = [i for i, t in enumerate(rows.schema.types) if pa.types.is_map(t)]
    if not maps:
        return other_columns(rows, schema_id, compression, rng)
    entries = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.int64())])
    lists = pa.array([[{"key": None, "value": 1}, {"key": "k", "value": 2}]] * n, pa.list_(entries))
    return "a map's key is null", encoded(_with_column(rows, maps[0], lists), schema_id, compression)


@_wrong
def lying_offset_column(rows: pa.RecordBatch, schema_id: int, compression: str, rng: Random) -> tuple[str, bytes]:
    """A compacted batch whose offsets are not increasing, outside, null, of another type, or not there."""
    n = rows.num_rows
    delta = n + 3
    how = rng.choice(["right", "backwards", "equal", "below", "above", "null", "int32", "absent", "huge"])
    numbers: list[int | None] = list(range(HOSTILE_OFFSET, HOSTILE_OFFSET + n))
    if how == "backwards":
        numbers.reverse()
    elif how == "equal":
        numbers = [HOSTILE_OFFSET] * n
    elif how == "below":
        numbers[0] = HOSTILE_OFFSET - 1
    elif how == "above":
        numbers[-1] = HOSTILE_OFFSET + delta + 1
    elif how == "null":
        numbers[n // 2] = None
    elif how == "huge":
        numbers[-1] = 2**63 - 1
    field = OFFSET_FIELD.with_nullable(True)
    column = pa.array(numbers, pa.int64())
    if how == "int32":
        column, field = column.cast(pa.int32()), field.with_type(pa.int32())
    columns, schema = list(rows.columns), rows.schema
    if how != "absent":
        columns, schema = [*columns, column], schema.append(field)
    made = pa.RecordBatch.from_arrays(columns, schema=schema)
    data = encoded(made, schema_id, compression, attributes=ATTRIBUTE_OFFSET_COLUMN, last_offset_delta=delta)
    return f"__offset {how}", data


@_wrong
def control_with_rows(rows: pa.RecordBatch, schema_id: int, compression: str, rng: Random) -> tuple[str, bytes]:
    attributes = ATTRIBUTE_CONTROL | rng.choice(
        [0, ATTRIBUTE_TRANSACTIONAL, ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_COMMIT]
    )
    made = encoded(
        rows, schema_id, compression, attributes=attributes, producer_id=7, producer_epoch=0, base_sequence=0
    )
    return f"a control batch with {rows.num_rows} rows", made


@_wrong
def dictionary(rows: pa.RecordBatch, schema_id: int, compression: str, rng: Random) -> tuple[str, bytes]:
    """Indices into a dictionary that nobody has, in place of a column's values."""
    index = rng.randrange(rows.num_columns)
    indices = pa.array([rng.choice([0, 1, 2**31 - 1, -1]) for _ in range(rows.num_rows)], pa.int32())
    return f"column {index} as indices of a dictionary", encoded(
        _with_column(rows, index, indices), schema_id, compression
    )


@_wrong
def dictionary_message(rows: pa.RecordBatch, schema_id: int, compression: str, rng: Random) -> tuple[str, bytes]:
    """A DictionaryBatch message, as Arrow writes it before a batch, with sparklog's header put where it says
    nothing."""
    encoded_column = pa.array(["a", "b"] * rows.num_rows).dictionary_encode()
    sink = pa.BufferOutputStream()
    schema = pa.schema([pa.field("d", encoded_column.type)])
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(
            pa.RecordBatch.from_arrays([encoded_column], schema=schema), custom_metadata={HEADER_KEY: b"x"}
        )
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message = reader.read_next_message()
    honest = encoded(rows, schema_id, compression)
    return "a dictionary's message before the batch", message.serialize().to_pybytes() + honest
