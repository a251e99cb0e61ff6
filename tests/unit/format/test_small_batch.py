"""Small batches are byte for byte Arrow's, and Arrow reads them."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.producer.rows import envelope_batch
from sparklog.errors import CorruptBatchError
from sparklog.format.batch import (
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    assign_producer,
    decode_batch,
    decode_header,
    encode_batch,
    verify_batch,
)
from sparklog.format.flat import root_table, table_field
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.format.small_batch import SmallRows, decode_small_batch, encode_small_batch
from tests.support.cases import for_each
from tests.unit.format.small_rows import small_rows


def by_arrow(rows: SmallRows, *, compression: str = "none", headers: Any = None) -> memoryview:
    batch = envelope_batch(list(rows.values), rows.keys and list(rows.keys), headers, np.array(rows.timestamps_us))  # type: ignore[arg-type]
    bounds: dict[str, Any] = {
        "min_timestamp_ms": min(rows.timestamps_us) // 1000,
        "max_timestamp_ms": max(rows.timestamps_us) // 1000,
    }
    attributes = ATTRIBUTE_LOG_APPEND_TIME
    return encode_batch(batch, schema_id=7, compression=compression, attributes=attributes, **bounds)


@given(small_rows(), st.booleans())
def test_they_equal_arrows_bytes(rows: SmallRows, transactional: bool) -> None:
    expected = by_arrow(rows)
    assign_producer(expected, producer_id=5, producer_epoch=2, base_sequence=77, transactional=transactional)
    attributes = ATTRIBUTE_LOG_APPEND_TIME | (ATTRIBUTE_TRANSACTIONAL if transactional else 0)
    assert bytes(encode_small_batch(rows, 7, attributes, 5, 2, 77)) == bytes(expected)


@given(small_rows())
def test_written_batches_are_read(rows: SmallRows) -> None:
    data = encode_small_batch(rows, 7)
    header = decode_header(data)
    verify_batch(data, 0, header)
    behind = b"12345678" + bytes(data)
    assert decode_small_batch(behind, 8, header) == (rows.values, rows.keys, tuple(rows.timestamps_us))  # type: ignore[arg-type]
    assert decode_batch(data, ENVELOPE_SCHEMA).column("value").to_pylist() == rows.values


@for_each(
    "given_rows",
    [
        {"compression": "lz4"},
        {"headers": [[("h", b"1")], None]},
        {"values": [b"a", None]},
        {"keys": [b"a", None]},
    ],
    ids=str,
)
def test_other_batches_take_arrows_path(given_rows: dict[str, Any]) -> None:
    columns = {name: given_rows.pop(name, default) for name, default in (("values", [b"v" * 99] * 2), ("keys", None))}
    data = by_arrow(SmallRows(columns["values"], columns["keys"], [0, 1]), **given_rows)
    assert decode_small_batch(data, 0, decode_header(data)) is None


def test_batches_of_other_columns_take_arrows_path() -> None:
    batch = pa.record_batch({"value": pa.array([b"1"], pa.binary())})
    data = encode_batch(batch, schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0)
    assert decode_small_batch(data, 0, decode_header(data)) is None


@for_each("number", range(34))
@for_each("by", [-8, -1, 1, 7, 1 << 20])
def test_buffers_at_other_places_take_arrows_path(number: int, by: int) -> None:
    """A buffer that does not begin at a multiple of 8, is too short for the rows, or not within the body; otherwise the
    result equals Arrow's."""
    data = encode_small_batch(SmallRows([b"abc", b"defg"], [b"k", b"l"], [1, 2]), 7)
    at = record_batch_position(data) + 8 * number
    value = struct.unpack_from("<q", data, at)[0] + by
    struct.pack_into("<q", data, at, value)
    try:
        found = decode_small_batch(data, 0, decode_header(data))
    except CorruptBatchError:
        return
    if found is not None:
        arrow = decode_batch(data, ENVELOPE_SCHEMA)
        assert found.values == arrow.column("value").to_pylist()
        assert found.keys == arrow.column("key").to_pylist()
        assert list(found.timestamps_us) == arrow.column("timestamp").cast(pa.int64()).to_pylist()


def record_batch_position(data: memoryview) -> int:
    """Return the position of the list of buffers."""
    batch = root_table(data, table_field(data, root_table(data, 8), 2))
    return root_table(data, table_field(data, batch, 2)) + 4


@given(small_rows(), st.data())
def test_damage_raises_only_corruption_errors(rows: SmallRows, draw: st.DataObject) -> None:
    good = encode_small_batch(rows, 7)
    header = decode_header(good)
    data = bytearray(good)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(8, len(data) - 1))
        data[at] = draw.draw(st.integers(0, 255))
    try:
        found = decode_small_batch(data, 0, header)  # type: ignore[arg-type]
    except CorruptBatchError:
        return
    if found is not None:
        assert len(found.values) == len(found.timestamps_us) == header.record_count
        assert sum(map(len, found.values)) <= header.body_length_bytes


GOOD = bytes(encode_small_batch(SmallRows([b"abc", b"defg"], [b"k", b"l"], [1, 2]), 7))


@for_each("position", range(0, len(GOOD), 4))
def test_any_number_that_is_wrong(position: int) -> None:
    """Every 4 bytes of a message become the largest and the smallest numbers there are."""
    header = decode_header(GOOD)
    for wrong in (b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff\xff\xff\xff", bytes(4)):
        data = bytearray(GOOD)
        data[position : position + 4] = wrong
        try:
            found = decode_small_batch(data, 0, header)  # type: ignore[arg-type]
        except CorruptBatchError:
            continue
        if found is not None:
            assert all(len(v) <= header.body_length_bytes for v in itertools.chain(found.values, found.keys or ()))
