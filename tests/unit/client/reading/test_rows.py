"""Rows that are read: consumed batches, the newest rows, the progress bar."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.rows import envelope_batch
from sparklog.client.reading.consumed import ConsumedBatch, Projection, decode_batches, records_of
from sparklog.client.reading.latest_rows import LatestRows, latest_view
from sparklog.client.reading.progress_bar import notebook_bar, progress_html
from sparklog.errors import CorruptBatchError
from sparklog.format.batch import ATTRIBUTE_LOG_APPEND_TIME, encode_batch, iterate_batches
from sparklog.format.packed_batch import encode_packed_batch
from sparklog.format.small_batch import SmallRows, encode_small_batch
from tests.support.cases import for_each
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


@for_each("keys", [None, [b"k%d" % i for i in range(300)]])
@for_each("columns", [None, ["value"], ["key", "timestamp"], ["headers"], []])
def test_packed_ones_are_read_as_others(keys: list[bytes | None] | None, columns: list[str] | None) -> None:
    rows = envelope_batch([b"%d" % i for i in range(300)], keys, None, np.arange(300) // 50 * 1000)
    packed = encode_packed_batch(rows, schema_id=info().schema_id)
    assert packed is not None
    plain = encode_batch(rows, schema_id=info().schema_id, min_timestamp_ms=0, max_timestamp_ms=5)
    for start in (0, 100):
        one, other = (consumed(data, columns, start) for data in (packed.payload, plain))
        assert one.data.equals(other.data) and one.num_rows == 300 - start
        assert np.array_equal(one.timestamps_ms(), other.timestamps_ms())
        assert records_of(one) == records_of(other)


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


# The progress bar of a notebook


IPython = pytest.importorskip("IPython")


def test_no_bar_outside_of_a_notebook() -> None:
    assert notebook_bar(10) is None


def test_the_bar_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    class ZMQInteractiveShell:
        pass

    shown: list[str] = []

    class Handle:
        def update(self, html: object) -> None:
            shown.append(html.data)  # type: ignore[attr-defined]

    def display(html: object, *, display_id: bool) -> Handle:
        shown.append(html.data)  # type: ignore[attr-defined]
        return Handle()

    monkeypatch.setattr(IPython, "get_ipython", ZMQInteractiveShell)
    monkeypatch.setattr("IPython.display.display", display)
    show = notebook_bar(10)
    assert show is not None
    show(3, 30)  # too soon after the first
    show(10, 1000)
    assert shown == [progress_html(0, 10, 0), progress_html(10, 10, 1000)]
    assert "1,000 rows" in shown[1]


def test_the_share_of_a_bar() -> None:
    assert 'value="33"' in progress_html(1, 3, 0)
    assert 'value="100"' in progress_html(0, 0, 0)


# The newest row of a key, as `read_table(latest=True)` and SQL choose it


SCHEMA = pa.schema([("row", pa.int64()), ("value", pa.string())])
INFO = TopicInfo("t", "id", "typed", 3, 5, {5: SCHEMA}, ("row",), None, {}, 0, ())
ROWS: list[list[Any]] = [
    [0, 0, 10, 1, "old"], [0, 1, 30, 2, "later"], [0, 2, 10, 3, "old"],
    [1, 0, 10, 1, "added"], [1, 1, 20, 2, "earlier"],
    [2, 0, 10, 3, None],
]  # fmt: skip
"""Partition, offset, time, key and value. Partitions were added: the rows of a key are in two of them."""
NEWEST = [{"row": 1, "value": "added"}, {"row": 2, "value": "later"}]


def _table(rows: list[list[Any]]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    names = ["_partition", "_offset", "_timestamp", "row", "value"]
    types = [pa.int32(), pa.int64(), pa.timestamp("us", "UTC"), pa.int64(), pa.string()]
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=names)


def test_of_equal_times_the_row_of_the_added_partition_is_the_newest() -> None:
    kept = LatestRows(INFO)
    for partition in range(3):
        kept.add(_table([row for row in ROWS if row[0] == partition]))
        kept.end_partition()
    assert sorted(kept.result(SCHEMA).to_pylist(), key=str) == NEWEST
    with duckdb.connect() as connection:
        connection.register("rows", _table(ROWS))
        found = connection.sql(latest_view(INFO, "rows", SCHEMA.names)).to_arrow_table()
    assert sorted(found.to_pylist(), key=str) == NEWEST
