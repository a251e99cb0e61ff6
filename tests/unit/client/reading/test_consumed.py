"""Batches as a reader gets them: decoded late or at once, they are the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.reading.consumed import ConsumedBatch, Projection, decode_batches, records_of
from sparklog.errors import CorruptBatchError
from sparklog.format.batch import ATTRIBUTE_LOG_APPEND_TIME, iterate_batches
from sparklog.format.small_batch import SmallRows, encode_small_batch
from tests.support.clients import TP0, info
from tests.unit.format.small_rows import small_rows


def consumed(data: memoryview, columns: list[str] | None = None, start: int = 0) -> ConsumedBatch:
    buffer = pa.py_buffer(data)
    (batch,) = decode_batches(buffer, iterate_batches(data), TP0, Projection(info(), columns), start)
    return batch


@given(small_rows(), st.booleans())
def test_small_ones_are_read_as_arrow_reads_them(rows: SmallRows, log_append_time: bool) -> None:
    data = encode_small_batch(rows, info().schema_id, ATTRIBUTE_LOG_APPEND_TIME if log_append_time else 0)
    late, at_once = consumed(data), consumed(data)
    at_once.decode()
    assert late.small_rows() is not None and at_once.small_rows() is None
    assert records_of(late) == records_of(at_once)
    assert (late.num_rows, late.base_offset, late.next_offset) == (len(rows.values), 0, len(rows.values))
    assert np.array_equal(late.offsets(), at_once.offsets())
    assert np.array_equal(late.timestamps_ms(), at_once.timestamps_ms())
    assert late.data.equals(at_once.data)


def test_some_columns_and_some_rows() -> None:
    data = encode_small_batch(SmallRows([b"1", b"2", b"3"], [b"k", b"l", b"m"], [1000, 2000, 3000]), info().schema_id)
    values = records_of(consumed(data, ["value"]))
    assert [(r.key, r.value, r.timestamp_ms) for r in values] == [(None, b"1", 1), (None, b"2", 2), (None, b"3", 3)]
    assert consumed(data, ["key"]).timestamps_ms().tolist() == [1, 2, 3]
    assert [(r.offset, r.key) for r in records_of(consumed(data, start=1))] == [(1, b"l"), (2, b"m")]
    assert [(r.offset, r.key) for r in records_of(consumed(data).slice(2, 1))] == [(2, b"m")]


def test_undecodable_values_raise_at_every_access() -> None:
    data = encode_small_batch(SmallRows([b"1"], None, [1000]), info().schema_id)
    batch = consumed(data)
    data[8:40] = bytes(32)  # behind its back
    for _ in range(2):
        with pytest.raises(CorruptBatchError):
            records_of(batch)
        with pytest.raises(CorruptBatchError):
            batch.data  # noqa: B018
