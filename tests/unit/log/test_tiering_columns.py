"""Reading some columns from the store: the right rows, no byte that is not needed, nothing unchecked."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import decode_batch, encode_batch
from sparklog.format.body_layout import layout_of_schema
from sparklog.format.flat import record_batch_message
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.tiering.columns import ColumnReader, coalesce
from sparklog.log.tiering.layout import COLUMNS_SUFFIX
from tests.support.cases import for_each
from tests.support.logs import SCHEMAS, append, batch
from tests.support.tiering import FailingStore, Tiered, memory_store

KINDS = [
    pa.bool_(), pa.int8(), pa.float64(), pa.date32(), pa.timestamp("us", "UTC"), pa.decimal128(20, 3),
    pa.binary(), pa.string(), pa.list_(pa.int32()), pa.list_(pa.string()), pa.duration("us"),
    pa.struct([("a", pa.int32()), ("b", pa.string())]), pa.map_(pa.string(), pa.list_(pa.int64())),
    pa.struct([]),
]  # fmt: skip


@for_each("kind", KINDS, ids=str)
def test_buffer_counts_are_arrows(kind: pa.DataType) -> None:
    rows = pa.record_batch([pa.nulls(3, kind)], names=["c"])
    message = memoryview(rows.serialize())
    metadata_bytes = int.from_bytes(message[4:8], "little")
    found = record_batch_message(message[8 : 8 + metadata_bytes])
    assert len(found.buffers) == layout_of_schema(rows.schema).buffer_count


RANGES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), max_size=30)


@given(RANGES, st.integers(1, 100))
def test_coalesced_ranges_cover_all_and_keep_their_distance(ranges: list[tuple[int, int]], gap: int) -> None:
    starts, lengths = (np.array([r[i] for r in ranges], np.int64) for i in (0, 1))
    found = coalesce(starts, lengths, gap)
    for start, length in ranges:
        assert not length or any(a <= start and start + length <= b for a, b in found)
    assert all(after[0] - before[1] >= gap for before, after in pairwise(found))
    assert all(a < b for a, b in found)


def filled(tmp_path: Path, compression: str = "none") -> tuple[Tiered, FailingStore]:
    """A copied segment with 20 batches of large values."""
    store = FailingStore(memory_store().url)
    tiered = Tiered(tmp_path, store, settings={"segment.bytes": 16 << 20})
    rng = np.random.default_rng(7)
    for i in range(20):
        append(tiered.log, batch(range(10 * i, 10 * i + 10), value=rng.bytes(20_000), compression=compression))
    tiered.log.appender.roll()
    append(tiered.log, batch([1]))
    tiered.log.flusher.flush()
    tiered.tier()
    return tiered, store


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_only_the_requested_column_is_fetched(tmp_path: Path, compression: str) -> None:
    tiered, store = filled(tmp_path, compression)
    segment = tiered.log.tier.state.finished[0]
    reader = ColumnReader(store, segment, ENVELOPE_SCHEMA)
    assert reader.can_read
    timestamp = ENVELOPE_SCHEMA.get_field_index("timestamp")
    store.read_bytes = 0
    found, headers = [], []
    for message in reader.read(15, 105, [timestamp]):
        column = decode_batch(message.data, ENVELOPE_SCHEMA, [timestamp]).column(0)
        found += column.cast(pa.int64()).to_pylist()
        headers.append(message.header)
    assert (headers[0].base_offset, headers[-1].next_offset) == (10, 110)
    assert found == [1000 * t for t in range(10, 110)]
    assert store.read_bytes < segment.size_bytes // 10
    tiered.log.close()


def test_a_flipped_byte_in_a_column_is_detected(tmp_path: Path) -> None:
    tiered, store = filled(tmp_path)
    reader = ColumnReader(store, tiered.log.tier.state.finished[0], ENVELOPE_SCHEMA)
    store.flips = lambda key: True
    with pytest.raises(CorruptBatchError, match="is damaged"):
        list(reader.read(0, 10, [1]))
    name = next(n for _, n in store.calls if n.endswith(COLUMNS_SUFFIX))
    data = bytearray(store.file_system.cat_file(store.path(name)))
    data[len(data) // 2] ^= 1
    store.file_system.pipe_file(store.path(name), bytes(data))
    store.flips = lambda key: False
    with pytest.raises(CorruptBatchError, match="is damaged"):
        list(reader.read(0, 10, [1]))
    tiered.log.close()


def test_tiny_batches_have_no_list_of_columns(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(1)
    tiered.tier()
    assert not ColumnReader(tiered.store, tiered.log.tier.state.finished[0], SCHEMAS[1]).can_read
    tiered.log.close()


def test_nested_and_null_columns(tmp_path: Path) -> None:
    schema = pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(KINDS)])
    SCHEMAS[3] = schema
    try:
        tiered = Tiered(tmp_path)
        columns = [pa.nulls(50, kind) for kind in KINDS]
        strings = KINDS.index(pa.list_(pa.string()))
        columns[strings] = pa.array([["x" * i, None] for i in range(50)], KINDS[strings])
        columns[7] = pa.array([b"filler" * 1000] * 50, pa.binary())
        encoded = encode_batch(
            pa.record_batch(columns, schema=schema), schema_id=3, min_timestamp_ms=0, max_timestamp_ms=0
        )
        append(tiered.log, bytearray(encoded))
        tiered.log.appender.roll()
        append(tiered.log, bytearray(encoded))
        tiered.log.flusher.flush()
        tiered.tier()
        reader = ColumnReader(tiered.store, tiered.log.tier.state.finished[0], schema)
        (message,) = reader.read(0, 50, [0, strings])
        rows = decode_batch(message.data, schema, [0, strings])
        assert rows.column(1).equals(columns[strings])
        assert rows.column(0).equals(columns[0])
        tiered.log.close()
    finally:
        del SCHEMAS[3]
