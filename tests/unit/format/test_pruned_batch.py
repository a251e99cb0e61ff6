"""Batches with some of their columns: what a reader decodes of them, and damage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import decode_header, encode_batch, iterate_batches, verify_batch
from sparklog.format.offset_column import OFFSET_COLUMN, decode_rows
from sparklog.format.pruned_batch import PrunedBatch, prune_batch
from tests.support.cases import for_each

ROWS = 500
SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("list", pa.list_(pa.field("element", pa.string()))),
        ("part", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("decimal", pa.decimal128(20, 3)),
        ("none", pa.float64()),
    ]
)
ROWS_OF_EACH: list[Sequence[Any]] = [
    range(ROWS),
    [None if i % 7 == 0 else f"text {i}" for i in range(ROWS)],
    [i % 3 == 0 for i in range(ROWS)],
    [[f"e{i}"] * (i % 3) for i in range(ROWS)],
    [{"x": i, "y": str(i)} for i in range(ROWS)],
    [{f"k{i}": i} for i in range(ROWS)],
    range(ROWS),
    [None] * ROWS,
]
TABLE = pa.record_batch([pa.array(v, f.type) for v, f in zip(ROWS_OF_EACH, SCHEMA, strict=True)], schema=SCHEMA)
COLUMNS: tuple[list[str], ...] = (
    ["number"],
    ["text", "list"],
    ["part", "none"],
    ["flag", "map"],
    ["decimal"],
    [],
)


def encoded(compression: str = "none", rows: pa.RecordBatch = TABLE, **more: Any) -> memoryview:
    return encode_batch(
        rows,
        schema_id=3,
        min_timestamp_ms=5,
        max_timestamp_ms=9,
        compression=compression,
        base_offset=70,
        leader_epoch=2,
        append_time_ms=11,
        **more,
    )


def indexes(*names: str, schema: pa.Schema = SCHEMA) -> list[int]:
    return [schema.names.index(name) for name in names]


def joined(pruned: PrunedBatch, data: memoryview) -> bytes:
    return pruned.head + b"".join(bytes(data[start:end]) for start, end in pruned.ranges)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_pruned_batch_is_a_sound_batch_with_these_columns(compression: str) -> None:
    data = encoded(compression)
    header = decode_header(data)
    for names in COLUMNS:
        pruned = prune_batch(data, header, SCHEMA, indexes(*names))
        assert pruned is not None
        message = joined(pruned, data)
        assert pruned.size_bytes == len(message) < header.size_bytes
        [(_, found)] = iterate_batches(message)
        assert found[1:13] == header[1:13], "the fields but for the checksum and the size"
        rows, _ = decode_rows(message, SCHEMA, found, indexes(*names))
        assert rows.equals(TABLE.select(names))


def test_a_compacted_batch_keeps_its_offsets() -> None:
    offsets = np.arange(70, 70 + 2 * ROWS, 2)
    rows = pa.record_batch(
        [*TABLE.columns, pa.array(offsets)], schema=SCHEMA.append(pa.field(OFFSET_COLUMN, pa.int64()))
    )
    data = encoded(rows=rows, attributes=1 << 3, last_offset_delta=2 * ROWS - 1)
    pruned = prune_batch(data, decode_header(data), SCHEMA, indexes("text"))
    assert pruned is not None
    message = joined(pruned, data)
    found, kept = decode_rows(message, SCHEMA, decode_header(message), [1])
    assert found.equals(TABLE.select([1]))
    assert kept is not None
    assert kept.tolist() == offsets.tolist()


def test_a_batch_with_nearly_all_columns_stays_whole() -> None:
    data = encoded()
    assert prune_batch(data, decode_header(data), SCHEMA, range(len(SCHEMA) - 1)) is None


@for_each("compression", ["none", "zstd"])
def test_every_changed_byte_is_detected(compression: str) -> None:
    data = encoded(compression)
    header = decode_header(data)
    pruned = prune_batch(data, header, SCHEMA, indexes("flag", "decimal"))
    assert pruned is not None
    sound = joined(pruned, data)
    stamp = range(header.stamp_position, header.stamp_position + 32)
    for at in range(len(sound)):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << at % 8
        if at in stamp:  # offsets and times are the leader's, and have no checksum, as in a whole batch
            continue
        with pytest.raises(CorruptBatchError):
            verify_batch(damaged, 0, decode_header(damaged))


def test_other_columns_cannot_be_decoded() -> None:
    data = encoded()
    pruned = prune_batch(data, decode_header(data), SCHEMA, indexes("number"))
    assert pruned is not None
    message = joined(pruned, data)
    with pytest.raises(CorruptBatchError, match="column 'decimal'"):
        decode_rows(message, SCHEMA, decode_header(message), [0, 6])


@for_each("names", [["number"], [], ["flags"], ["nothing"], ["nothings"]])
def test_columns_of_a_batch_with_many_rows_per_byte_are_read(names: list[str]) -> None:
    """A row takes a bit or nothing, so that the bytes of other columns do not bound the rows of these."""
    bits, rows = 1_000_000, 10_000
    ends = pa.array([0] * rows + [bits], pa.int32())
    nothing = pa.struct([])
    arrays = {
        "number": pa.array(range(rows), pa.int32()),
        "flags": pa.ListArray.from_arrays(ends, pa.array(np.zeros(bits, bool))),
        "nothing": pa.array([{}] * rows, nothing),
        "nothings": pa.ListArray.from_arrays(ends, pa.StructArray.from_buffers(nothing, bits, [None])),
    }
    table = pa.record_batch(arrays)
    data = encoded(rows=table)
    decode_rows(data, table.schema, decode_header(data), inflated_bytes_max=1_000)
    columns = indexes(*names, schema=table.schema)
    pruned = prune_batch(data, decode_header(data), table.schema, columns)
    assert (pruned is None) == (names[:1] in (["nothing"], ["nothings"]))
    message = data if pruned is None else memoryview(joined(pruned, data))
    found, _ = decode_rows(message, table.schema, decode_header(message), columns, inflated_bytes_max=1_000)
    assert found.equals(table.select(names))
