"""Row groups: small batches are collected within limits of rows, bytes and memory."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparklog.format.row_groups import SMALL_BATCHES_MAX, RowGroup

WIDE = pa.schema([("n", pa.int64()), ("wide", pa.binary())])


def batch(first: int, rows: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + rows), pa.int64())})


def test_a_row_group_is_full_at_its_rows_or_bytes() -> None:
    for limits in ({"rows_max": 12}, {"bytes_max": 12 * 8}):
        group = RowGroup(**limits)
        for first in (0, 5):
            group.add(batch(first, 5))
            assert not group.is_full
        group.add(batch(10, 2))
        assert group.is_full
        assert (group.rows, group.size_bytes) == (12, 96)
        assert [b.column("n").to_pylist() for b in group.take()] == [list(range(12))]
        assert (group.rows, group.size_bytes, group.is_full, group.take()) == (0, 0, False, [])


@pytest.mark.parametrize("count", [1, 2, SMALL_BATCHES_MAX - 1, SMALL_BATCHES_MAX, 3 * SMALL_BATCHES_MAX + 7])
def test_rows_keep_their_order(count: int) -> None:
    group = RowGroup()
    for n in range(count):
        group.add(batch(n))
    assert [b.column("n").to_pylist() for b in group.take()] == [list(range(count))]


def test_columns_of_the_same_name_and_texts_of_any_kind_are_combined() -> None:
    schema = pa.schema([("a", pa.string()), ("a", pa.dictionary(pa.int8(), pa.string()))])
    group = RowGroup()
    for text in ("x", "y"):
        column = pa.array([text, None])
        group.add(pa.RecordBatch.from_arrays([column, column.dictionary_encode()], schema=schema))
    (taken,) = group.take()
    assert [c.to_pylist() for c in taken.columns] == [["x", None, "y", None]] * 2


def test_small_parts_of_large_messages_release_the_messages() -> None:
    """Each batch has one column of a message of 100 kB, which stays in memory as long as the column refers to it."""
    group, before = RowGroup(), pa.total_allocated_bytes()
    for n in range(SMALL_BATCHES_MAX):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, WIDE) as writer:
            writer.write_batch(pa.record_batch([pa.array([n]), pa.array([bytes(100_000)])], schema=WIDE))
        group.add(pa.ipc.open_stream(sink.getvalue()).read_next_batch().select(["n"]))
        sink.close()
        if n == SMALL_BATCHES_MAX - 2:
            assert pa.total_allocated_bytes() - before > 10_000_000
    assert pa.total_allocated_bytes() - before < 1_000_000
    assert group.rows == SMALL_BATCHES_MAX
