"""Packed batches keep their content for every reader, and are smaller; damage is corruption."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.producer.rows import envelope_batch
from sparklog.errors import CorruptBatchError
from sparklog.format.batch import (
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    COMPRESSIONS,
    ProducerFields,
    assign_producer,
    decode_batch,
    decode_header,
    encode_batch,
    message_of,
    stamp_batch,
    verify_batch,
    write_producer_fields,
)
from sparklog.format.envelope_layout import I64, layout_of
from sparklog.format.offset_column import decode_rows
from sparklog.format.packed_batch import (
    PACKED_ROWS_MIN,
    compression_of_batch,
    decode_packed_batch,
    encode_packed_batch,
)
from sparklog.format.schema import ENVELOPE_SCHEMA, HEADER_TYPE, TIMESTAMP_TYPE
from tests.golden.make_golden import segment, typed_rows
from tests.support.cases import for_each

NOW_US = 1_700_000_000_123_456
HEADERS = [[("h", b"1")]]


def rows_of(n: int, *, key: bytes | None = None, value_size: int = 100, run: int = 0) -> pa.RecordBatch:
    """Records that differ; their timestamps change every `run` records (0: never)."""
    values = [(b"%d-" % i).ljust(value_size, b"v") for i in range(n)]
    keys = None if key is None else [key + b"%d" % i for i in range(n)]
    stamps = np.full(n, NOW_US) + (np.arange(n) // run if run else 0)
    return envelope_batch(values, keys, None, stamps)  # type: ignore[arg-type]


def packed(rows: pa.RecordBatch, **given_arguments: Any) -> memoryview:
    found = encode_packed_batch(rows, schema_id=7, **given_arguments)
    assert found is not None
    return found.payload


def decoded(data: Any, columns: list[int] | None = None) -> pa.RecordBatch | None:
    return decode_packed_batch(data, ENVELOPE_SCHEMA, decode_header(data), columns)


@st.composite
def envelopes(draw: st.DrawFn) -> pa.RecordBatch:
    """Batches that are packed; some are slices of larger ones."""
    n, skipped, behind = draw(st.integers(256, 1500)), draw(st.integers(0, 70)), draw(st.integers(0, 9))
    total = n + skipped + behind
    random = np.random.default_rng(draw(st.integers(0, 2**32)))

    def column() -> list[bytes]:
        return [b"x" * size for size in random.integers(0, draw(st.sampled_from([1, 2, 30, 300])), total).tolist()]

    run = draw(st.sampled_from([1, 3, 7, 8, 9, 50, 5000]))
    first = draw(st.integers(-(2**62), 2**62))
    stamps = first + np.arange(total, dtype=np.int64) // run * draw(st.integers(-(2**40), 2**40))
    return envelope_batch(column(), draw(st.sampled_from([None, column()])), None, stamps).slice(skipped, n)  # type: ignore[arg-type]


@given(envelopes())
def test_every_reader_reads_the_written_rows(rows: pa.RecordBatch) -> None:
    data = packed(rows)
    header = decode_header(data)
    verify_batch(data, 0, header)
    for found in (decoded(data), pa.ipc.read_record_batch(pa.py_buffer(data), ENVELOPE_SCHEMA)):
        assert found is not None
        found.validate(full=True)
        assert found.equals(rows)
        assert found.schema.equals(ENVELOPE_SCHEMA, check_metadata=True)
    assert len(data) == header.size_bytes


@given(envelopes())
def test_the_header_is_the_one_that_arrows_writer_gives(rows: pa.RecordBatch) -> None:
    stamps = rows.column("timestamp").cast(pa.int64()).to_pylist()
    low, high = min(stamps) // 1000, max(stamps) // 1000
    found = encode_packed_batch(rows, schema_id=7, attributes=ATTRIBUTE_LOG_APPEND_TIME)
    assert found is not None
    assert found[1:] == (low, high)
    plain = encode_batch(
        rows, schema_id=7, min_timestamp_ms=low, max_timestamp_ms=high, attributes=ATTRIBUTE_LOG_APPEND_TIME
    )
    assert len(found.payload) < len(plain)
    differ = {"crc", "body_length_bytes", "metadata_length_bytes", "stamp_position"}
    headers = [decode_header(data)._asdict() for data in (found.payload, plain)]
    assert {k: v for k, v in headers[0].items() if k not in differ} == {
        k: v for k, v in headers[1].items() if k not in differ
    }


@given(envelopes(), st.lists(st.integers(0, 3), unique=True))
def test_columns_decode_alone(rows: pa.RecordBatch, columns: list[int]) -> None:
    columns.sort()
    data = packed(rows)
    found = decoded(data, columns)
    assert found is not None and found.equals(rows.select(columns))
    assert found.num_rows == rows.num_rows
    assert found.schema.equals(rows.select(columns).schema)
    assert decode_batch(data, ENVELOPE_SCHEMA, columns).equals(found)
    assert decode_rows(data, ENVELOPE_SCHEMA, decode_header(data), columns)[0].equals(found)


def buffers_of(data: Any) -> np.ndarray:
    return message_of(data, 0, decode_header(data)).buffers


def test_columns_decode_where_the_others_were_not_fetched() -> None:
    rows = rows_of(1000, key=b"k", run=50)
    data = packed(rows)
    header = decode_header(data)
    buffers = buffers_of(data)
    for column, first, end in ((0, 0, 3), (1, 3, 6), (2, 6, 15), (3, 15, 17)):
        sparse = bytearray(data[: header.size_bytes - header.body_length_bytes]).ljust(len(data), b"\0")
        body = len(data) - header.body_length_bytes
        for at, size in buffers[first:end].tolist():
            sparse[body + at : body + at + size] = data[body + at : body + at + size]
        found = decoded(sparse, [column])
        assert found is not None and found.equals(rows.select([column]))


@pytest.mark.parametrize(
    ("rows", "bytes_each"),
    [
        (rows_of(10_485), 4.2),
        (rows_of(10_485, key=b"k"), 8.2),
        (rows_of(10_485, run=1000), 4.3),
        (rows_of(10_485, run=1), 12.2),
        (rows_of(PACKED_ROWS_MIN, value_size=20), 8),
    ],
    ids=["no keys", "keys", "a few times", "each its time", "few"],
)
def test_bytes_beside_keys_and_values(rows: pa.RecordBatch, bytes_each: float) -> None:
    data = packed(rows)
    held = sum(len(v) for name in ("key", "value") for v in rows.column(name).to_pylist() if v is not None)
    assert len(data) - held <= bytes_each * rows.num_rows
    plain = encode_batch(rows, schema_id=7, min_timestamp_ms=0, max_timestamp_ms=0)
    assert len(data) < len(plain)


def test_keys_and_values_are_not_copied() -> None:
    data = pa.py_buffer(bytes(packed(rows_of(5000, key=b"k"))))
    before = pa.total_allocated_bytes()
    found = decoded(data, [0, 1])
    assert found is not None and pa.total_allocated_bytes() - before < 4096
    for column in found.columns:
        parts = [part for part in column.buffers() if part is not None]
        assert all(data.address <= part.address < data.address + data.size and not part.address % 8 for part in parts)


def test_memory_used_before_is_filled_completely() -> None:
    rows = rows_of(1001, key=b"k", value_size=13, run=1)
    expected = bytes(packed(rows))

    def used(size: int) -> pa.Buffer:
        return pa.py_buffer(bytearray(b"\xaa" * size))

    assert bytes(packed(rows, allocate=used)) == expected


@for_each(
    "rows",
    [
        rows_of(PACKED_ROWS_MIN - 1),
        envelope_batch([b"v"] * 300, [b"k", None] * 150, None, np.zeros(300, np.int64)),
        envelope_batch([b"v", None] * 150, None, None, np.zeros(300, np.int64)),
        envelope_batch([b"v"] * 300, None, HEADERS * 300, np.zeros(300, np.int64)),  # type: ignore[arg-type]
        envelope_batch([b"v"] * 300, None, [None] * 299 + HEADERS, np.zeros(300, np.int64)),  # type: ignore[arg-type, operator]
        rows_of(300).set_column(2, ENVELOPE_SCHEMA.field(2), pa.array([[]] * 300, HEADER_TYPE)),
        rows_of(300).set_column(3, ENVELOPE_SCHEMA.field(3), pa.nulls(300, TIMESTAMP_TYPE)),
    ],
    ids=["few", "some keys", "a null value", "headers", "headers of one", "empty headers", "no timestamps"],
)
def test_other_rows_are_decoded_by_arrow(rows: pa.RecordBatch) -> None:
    assert encode_packed_batch(rows, schema_id=7) is None


def test_other_batches_are_decoded_by_arrow() -> None:
    facts: dict[str, Any] = {"schema_id": 7, "min_timestamp_ms": 0, "max_timestamp_ms": 0}
    for rows in (rows_of(300), rows_of(300, key=b"k"), rows_of(3), typed_rows(0, 300)):
        for compression in COMPRESSIONS:
            data = encode_batch(rows, compression=compression, **facts)
            header = decode_header(data)
            assert decode_packed_batch(data, rows.schema, header, [1]) is None
            assert decode_packed_batch(data, rows.schema, header) is None
            assert decode_rows(data, rows.schema, header)[0].equals(rows)
    data = packed(rows_of(300))
    assert decode_packed_batch(data, ENVELOPE_SCHEMA.with_metadata({"a": "b"}), decode_header(data)) is None


def test_their_producer_is_assigned_and_their_offset_stamped() -> None:
    rows = rows_of(300)
    data = packed(rows, checksum=False)
    assign_producer(data, producer_id=5, producer_epoch=2, base_sequence=77, transactional=True)
    stamp_batch(data, 0, decode_header(data), base_offset=1000, leader_epoch=3, append_time_ms=9)
    header = decode_header(data)
    verify_batch(data, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 77)
    assert (header.base_offset, header.last_offset, header.attributes) == (1000, 1299, ATTRIBUTE_TRANSACTIONAL)
    found = decoded(data)
    assert found is not None and found.equals(rows)


@for_each("rows", [rows_of(300), rows_of(300, key=b"k", run=1), rows_of(300, value_size=0)])
def test_their_compression_is_called_none(rows: pa.RecordBatch) -> None:
    assert compression_of_batch(packed(rows)) == "none"
    for compression in COMPRESSIONS:
        data = encode_batch(rows, schema_id=7, min_timestamp_ms=0, max_timestamp_ms=0, compression=compression)
        assert compression_of_batch(data) == compression


def test_incompressible_content_still_counts_as_compressed() -> None:
    """Arrow's writer stores the compressed bytes even if they are more."""
    random = np.random.default_rng(1)
    values = [random.bytes(size) for size in random.integers(0, 60_000, 40).tolist()]
    rows = envelope_batch(values, values, None, random.integers(-(2**62), 2**62, 40))  # type: ignore[arg-type]
    data = encode_batch(rows, schema_id=7, min_timestamp_ms=0, max_timestamp_ms=0, compression="lz4")
    assert compression_of_batch(data) == "lz4"
    typed = encode_batch(typed_rows(0, 300), schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0, compression="lz4")
    assert compression_of_batch(typed) == "lz4"


@for_each("position", [2**63 - 8, 2**40, -8])
def test_a_position_behind_everything_is_damage(position: int) -> None:
    data = bytearray(packed(rows_of(300)))
    layout = layout_of(data, 0)
    assert layout is not None
    I64.pack_into(data, layout.buffers + 4 * 16, position)
    assert compression_of_batch(data) == "lz4"  # as far as it says; who decodes it finds out
    with pytest.raises(CorruptBatchError):
        decode_batch(data, ENVELOPE_SCHEMA)


def test_other_tools_read_them_in_a_segment(tmp_path: Path) -> None:
    datafusion = pytest.importorskip("datafusion")
    batches = [rows_of(300), rows_of(256, key=b"k"), rows_of(400, run=100), rows_of(300, run=1)]
    expected = pa.Table.from_batches(batches)
    path = tmp_path / "00000000000000000000.arrow"
    parts, offset = [], 0
    for rows in batches:
        data = packed(rows)
        stamp_batch(data, 0, decode_header(data), base_offset=offset, leader_epoch=0, append_time_ms=0)
        parts.append(bytes(data))
        offset += rows.num_rows
    path.write_bytes(segment(ENVELOPE_SCHEMA, "events", parts))
    with pa.memory_map(str(path)) as source:
        assert pa.ipc.open_file(source).read_all().replace_schema_metadata(None).equals(expected)
    assert ds.dataset(path, format="ipc").to_table().replace_schema_metadata(None).equals(expected)
    frame = pl.scan_ipc(path).collect()
    assert frame.equals(pl.DataFrame(expected))
    assert pl.scan_ipc(path).select("value").collect()["value"].to_list() == expected["value"].to_pylist()
    context = datafusion.SessionContext()
    context.register_arrow("segment", str(path))  # Arrow's Rust reader
    (found,) = context.sql("SELECT count(*) AS n, count(DISTINCT value) AS v, count(key) AS k FROM segment").collect()
    assert found.to_pydict() == {"n": [1256], "v": [400], "k": [256]}


def read_or_refused(data: bytearray, columns: list[int] | None) -> pa.RecordBatch | None:
    """Return the content of the damaged batch; it equals Arrow's result, if Arrow reads it."""
    try:
        header = decode_header(data)
        found = decode_packed_batch(data, ENVELOPE_SCHEMA, header, columns)
        if found is None:
            decode_rows(data, ENVELOPE_SCHEMA, header, columns)
    except CorruptBatchError:
        return None
    return found


def buffers_position(data: Any) -> int:
    """Return the position of the list of buffers."""
    first = buffers_of(data)
    return bytes(data).index(first.tobytes())


@for_each("by", [-(2**62), -8, -1, 1, 8, 2**20, 2**62])
@for_each("key", [None, b"k"])
def test_buffers_that_are_elsewhere(key: bytes | None, by: int) -> None:
    good = bytes(packed(rows_of(300, key=key, run=20)))
    at = buffers_position(good)
    for number in range(34):
        data = bytearray(good)
        (value,) = struct.unpack_from("<q", data, at + 8 * number)
        struct.pack_into("<q", data, at + 8 * number, max(-(2**63), min(value + by, 2**63 - 1)))
        for columns in (None, [0], [1], [2], [3]):
            found = read_or_refused(data, columns)
            if found is not None:
                found.validate()
                assert found.num_rows == 300


@for_each("by", [-8, 8, 2**32])
@for_each("key", [None, b"k"])
def test_entries_that_are_not_decoded_are_in_place_too(key: bytes | None, by: int) -> None:
    """Other Arrow readers look at all of them."""
    good = bytes(packed(rows_of(300, key=key, run=20)))
    at = buffers_position(good)
    for number in range(34):
        data = bytearray(good)
        (value,) = struct.unpack_from("<q", data, at + 8 * number)
        struct.pack_into("<q", data, at + 8 * number, value + by)
        for columns in (None, [1]):
            assert decoded(data, columns) is None, number


def test_the_headers_children_are_checked() -> None:
    data = bytearray(packed(rows_of(300)))
    body = len(data) - decode_header(data).body_length_bytes
    data[body + int(buffers_of(data)[8, 0]) + 8] = 1
    assert decoded(data, [1]) is not None
    assert decoded(data) is None and decoded(data, [2]) is None


@for_each("length", [-(2**63), -2, -1, 0, 2399, 2401, 2408, 2**40, 2**63 - 1])
def test_a_length_that_is_wrong_is_not_allocated(length: int) -> None:
    rows = rows_of(300, run=20)
    data = bytearray(packed(rows))
    at = len(data) - decode_header(data).body_length_bytes + int(buffers_of(data)[16, 0])
    assert struct.unpack_from("<q", data, at) == (2400,)
    struct.pack_into("<q", data, at, length)
    before = pa.total_allocated_bytes()
    assert decoded(data) is None
    assert pa.total_allocated_bytes() - before < 4096


@for_each("held", [2392, 2408, 24_000_000])
def test_frames_that_hold_more_or_less_than_they_say(held: int) -> None:
    """The library's own frames, and those that are written here."""
    for content in (bytes(held), (np.arange(held // 8) // 30).tobytes()):
        frame = pa.Codec("lz4").compress(content, asbytes=True)
        data = with_timestamps(frame)
        assert decoded(data, [1]) is not None
        before = pa.total_allocated_bytes()
        assert decoded(data, [3]) is None
        assert pa.total_allocated_bytes() - before < 4096
        with pytest.raises(CorruptBatchError):
            decode_rows(data, ENVELOPE_SCHEMA, decode_header(data), [3])


def with_timestamps(frame: bytes) -> bytearray:
    """A packed batch of 300 rows whose timestamps are this frame, as a liar would write it."""
    good = bytearray(packed(rows_of(300)))
    header = decode_header(good)
    body = len(good) - header.body_length_bytes
    at = buffers_position(good)
    first = int(buffers_of(good)[16, 0])
    data = good[: body + first] + struct.pack("<q", 2400) + frame
    data += bytes(-len(data) % 8)
    old, new = (struct.pack("<q", size) for size in (header.body_length_bytes, len(data) - body))
    assert data[:body].count(old) == 1
    data[:body] = data[:body].replace(old, new)
    struct.pack_into("<q", data, at + 8 * 33, 8 + len(frame))
    seal = ProducerFields(0, 7, 300, 299, 0, 0, -1, -1, -1, len(data) - body)
    write_producer_fields(memoryview(data), header.stamp_position, seal)
    return data


@given(st.sampled_from([None, b"k"]), st.sampled_from([0, 1, 40]), st.data())
def test_damage_raises_only_corruption_errors(key: bytes | None, run: int, draw: st.DataObject) -> None:
    data = bytearray(packed(rows_of(260, key=key, value_size=10, run=run)))
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(data) - 1))
        data[at] = draw.draw(st.integers(0, 255))
    found = read_or_refused(data, draw.draw(st.sampled_from([None, [0], [1], [3], [1, 3]])))
    if found is not None:
        found.validate()
        assert found.num_rows == 260


@pytest.mark.parametrize("key", [None, b"k"])
def test_any_number_that_is_wrong(key: bytes | None) -> None:
    """Every 4 bytes of the metadata become the largest and the smallest numbers there are."""
    good = bytes(packed(rows_of(256, key=key, value_size=10, run=40)))
    for position in range(0, len(good) - decode_header(good).body_length_bytes, 4):
        for wrong in (b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff\xff\xff\xff", bytes(4)):
            data = bytearray(good)
            data[position : position + 4] = wrong
            found = read_or_refused(data, None)
            if found is not None:
                found.validate()
                assert found.num_rows == 256
            with contextlib.suppress(CorruptBatchError):
                assert compression_of_batch(data) in COMPRESSIONS


def test_a_batch_that_ends_too_early() -> None:
    good = bytes(packed(rows_of(256, value_size=10)))
    header = decode_header(good)
    for size in range(0, len(good), 40):
        assert decode_packed_batch(good[:size], ENVELOPE_SCHEMA, header) is None
