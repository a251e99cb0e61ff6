"""The segment file: head, seal, scan, and other tools opening it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from sparklog.errors import LogCorruptError
from sparklog.format import segment as s
from sparklog.format.batch import (
    HEADER_MARK,
    BatchHeader,
    TruncatedBatchError,
    decode_header,
    encode_batch,
    stamp_batch,
)
from sparklog.format.schema import ENVELOPE_SCHEMA
from tests.golden.make_golden import TYPED_SCHEMA, envelope_rows, segment, stamped, typed_rows
from tests.support.cases import for_each

INFO = s.SegmentInfo("events", "ab" * 16, 0, 0, 1)


def reader(data: bytes | bytearray) -> s.PositionedRead:
    return lambda position, size: bytes(data[position : position + size])


def scanned(data: bytes | bytearray, *, next_offset: int = 0, verify: bool = True) -> tuple[s.ScanResult, list[int]]:
    """The scan's result and the base offsets it visited."""
    visited: list[int] = []

    def visit(_: int, header: BatchHeader) -> None:
        visited.append(header.base_offset)

    start = s.decode_head(reader(data)).data_position
    return s.scan(reader(data), start, len(data), visit, next_offset=next_offset, verify=verify), visited


def build(rows: Callable[[int, int], pa.RecordBatch], batches: int, count: int, compression: str) -> bytes:
    """A sealed segment of `batches` batches with `count` rows each."""
    parts = []
    for i in range(batches):
        data = encode_batch(
            rows(i * count, count), schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0, compression=compression
        )
        stamp_batch(data, 0, decode_header(data), base_offset=i * count, leader_epoch=0, append_time_ms=0)
        parts.append(bytes(data))
    return segment(rows(0, 0).schema, "events", parts)


def unsealed(data: bytes) -> bytes:
    seal = s.decode_seal(reader(data), len(data))
    assert seal is not None
    return data[: seal.data_end]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("batches", [0, 1, 7])
@pytest.mark.parametrize("rows", [envelope_rows, typed_rows])
def test_sealed_segment_opens_in_other_tools(
    tmp_path: Path, rows: Callable[[int, int], pa.RecordBatch], batches: int, compression: str
) -> None:
    path = tmp_path / s.segment_name(0)
    path.write_bytes(build(rows, batches, 20, compression))
    expected = pa.Table.from_batches([rows(0, batches * 20)])

    with pa.memory_map(str(path)) as source:
        file = pa.ipc.open_file(source)
        assert file.num_record_batches == batches
        table = file.read_all()
        table.validate(full=True)
        assert table.replace_schema_metadata(None).equals(expected)
        for i in range(batches):
            assert file.get_batch(i).num_rows == 20
    table = ds.dataset(path, format="ipc").to_table()
    assert table.replace_schema_metadata(None).equals(expected)
    assert ds.dataset(path, format="ipc").count_rows() == batches * 20
    with pa.OSFile(str(path)) as stream:  # the stream format, after the file's magic
        stream.seek(8)
        assert pa.ipc.open_stream(stream).read_all().num_rows == batches * 20
    assert_polars_reads(path, expected)


def assert_polars_reads(path: Path, expected: pa.Table) -> None:
    frame = pl.scan_ipc(path).collect()
    assert frame.height == expected.num_rows
    assert frame.columns == expected.column_names
    simple = [f.name for f in expected.schema if not pa.types.is_map(f.type)]
    assert frame.select(simple).equals(pl.DataFrame(expected.select(simple)))
    if expected.num_rows:
        first = expected.column_names[0]
        assert pl.scan_ipc(path).select(first).collect()[first].to_list() == expected[first].to_pylist()


def test_head_round_trip() -> None:
    for schema in (ENVELOPE_SCHEMA, TYPED_SCHEMA):
        info = s.SegmentInfo("flüge", "00" * 16, 9_999, 2**62, 7)
        head = s.encode_head(schema, info)
        assert len(head) % 8 == 0
        decoded = s.decode_head(reader(head + b"more"))
        assert decoded == s.SegmentHead(schema, info, len(head))
        assert decoded.schema.metadata is None


def test_head_with_a_long_schema_is_read_in_two_steps() -> None:
    schema = pa.schema([(f"column {i}", pa.int64()) for i in range(3_000)])
    head = s.encode_head(schema, INFO)
    assert len(head) > 64 * 1024
    assert s.decode_head(reader(head)).schema == schema


def test_head_cut_anywhere() -> None:
    head = s.encode_head(ENVELOPE_SCHEMA, INFO)
    for size in range(len(head)):
        with pytest.raises(TruncatedBatchError):
            s.decode_head(reader(head[:size]))


def test_flipped_head_gives_a_head_or_the_documented_error() -> None:
    head = bytearray(s.encode_head(TYPED_SCHEMA, INFO))
    errors = 0
    for bit in range(8 * len(head)):
        head[bit // 8] ^= 1 << bit % 8
        try:
            found = s.decode_head(reader(head))
            assert found.info._fields == INFO._fields
            str(found.schema)
        except (LogCorruptError, TruncatedBatchError):
            errors += 1
        head[bit // 8] ^= 1 << bit % 8
    assert errors > 128


def head_with(text: str) -> bytes:
    schema = ENVELOPE_SCHEMA.with_metadata({b"sparklog": text.encode()})
    return s.HEAD_MAGIC + schema.serialize().to_pybytes()


GOOD = {**INFO._asdict(), "format": 1}


@for_each(
    "text",
    [
        "",
        "null",
        "[]",
        '"x"',
        "7",
        "[" * 100_000,
        '{"topic":' * 50_000,
        json.dumps({k: v for k, v in GOOD.items() if k != "topic_id"}),
        json.dumps({k: v for k, v in GOOD.items() if k != "format"}),
        json.dumps(GOOD | {"topic": 7}),
        json.dumps(GOOD | {"topic_id": None}),
        json.dumps(GOOD | {"partition": "0"}),
        json.dumps(GOOD | {"partition": -1}),
        json.dumps(GOOD | {"schema_id": True}),
        json.dumps(GOOD | {"base_offset": 1.0}),
        json.dumps(GOOD | {"base_offset": 2**63}),
        json.dumps(GOOD | {"base_offset": float("nan")}),
    ],
)
def test_head_with_wrong_facts(text: str) -> None:
    with pytest.raises(LogCorruptError, match="head cannot be read"):
        s.decode_head(reader(head_with(text)))


def test_head_of_another_format() -> None:
    with pytest.raises(LogCorruptError, match="its format is 2, this version reads 1: use a newer sparklog"):
        s.decode_head(reader(head_with(json.dumps(GOOD | {"format": 2}))))


@for_each("data", [b"PAR1" + bytes(100), b"ARROW1\0\0" + bytes(100), b"ARROW1\0\0" + b"\xff" * 100])
def test_no_segment_at_all(data: bytes) -> None:
    with pytest.raises(LogCorruptError):
        s.decode_head(reader(data))
    assert s.decode_seal(reader(data), len(data)) is None


def test_head_whose_column_name_is_not_text() -> None:
    head = s.encode_head(pa.schema([("columnname", pa.int64())]), INFO)
    with pytest.raises(LogCorruptError, match="utf-8"):
        s.decode_head(reader(head.replace(b"columnname", b"column\xff\xfe\xfd\xfc")))


@for_each("batches", [0, 1, 2, 100])
def test_seal_lists_the_batches(batches: int) -> None:
    data = build(envelope_rows, batches, 3, "none")
    seal = s.decode_seal(reader(data), len(data))
    assert seal is not None
    head = s.decode_head(reader(data))
    found: list[tuple[int, int]] = []
    s.scan(
        reader(data),
        head.data_position,
        seal.data_end,
        lambda at, h: found.append((at, h.metadata_length_bytes)),
        next_offset=0,
    )
    assert found == list(zip(seal.positions.tolist(), seal.metadata_lengths.tolist(), strict=True))
    assert (seal.positions.dtype, seal.metadata_lengths.dtype) == (np.int64, np.int32)


def test_seal_is_none_while_a_segment_is_active_or_its_footer_torn() -> None:
    data = build(envelope_rows, 2, 3, "none")
    for size in range(len(data)):
        assert s.decode_seal(reader(data[:size]), size) is None
    assert s.decode_seal(reader(data), len(data) + 1) is None  # the file is shorter than its size was


@for_each("batches", [0, 1, 3])
def test_flipped_seal_gives_the_same_blocks_or_none(batches: int) -> None:
    good = build(envelope_rows, batches, 3, "none")
    right = s.decode_seal(reader(good), len(good))
    assert right is not None
    data = bytearray(good)
    refused = 0
    for bit in range(8 * right.data_end, 8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        found = s.decode_seal(reader(data), len(data))
        if found is None:
            refused += 1
        else:
            assert found.data_end == right.data_end
            assert found.positions.tolist() == right.positions.tolist()
            assert found.metadata_lengths.tolist() == right.metadata_lengths.tolist()
        data[bit // 8] ^= 1 << bit % 8
    assert refused > 100


def test_seal_with_an_insane_block_list() -> None:
    """Blocks that overlap, run backwards or do not begin behind the head are not believed."""
    good = build(envelope_rows, 3, 3, "none")
    right = s.decode_seal(reader(good), len(good))
    assert right is not None
    head = s.decode_head(reader(good))
    for positions in (
        right.positions + 8,
        right.positions[::-1].copy(),
        right.positions[[0, 2, 1]],
        right.positions[1:],
        np.array([], np.int64),
    ):
        seal = s.encode_seal(
            head.schema, head.info, positions, right.metadata_lengths[: len(positions)], right.data_end
        )
        data = good[: right.data_end] + seal
        assert s.decode_seal(reader(data), len(data)) is None


def test_scan_of_good_files() -> None:
    data = build(envelope_rows, 5, 3, "none")
    active = unsealed(data)
    for content in (data, active):
        for verify in (True, False):
            result, visited = scanned(content, verify=verify)
            assert result == s.ScanResult(s.ScanEnd.END, len(active))
            assert visited == [0, 3, 6, 9, 12]


def test_scan_of_a_torn_seal_ends_at_the_mark() -> None:
    data = build(envelope_rows, 3, 3, "none")
    active = len(unsealed(data))
    for size in range(active + len(s.END_OF_STREAM), len(data), 7):
        result, visited = scanned(data[:size])
        assert (result.end, result.position) == (s.ScanEnd.END, active)
        assert visited == [0, 3, 6]


def test_scan_cut_at_every_byte_is_torn_at_the_last_good_batch() -> None:
    data = unsealed(build(envelope_rows, 3, 2, "none"))
    start = s.decode_head(reader(data)).data_position
    ends = [start]
    s.scan(reader(data), start, len(data), lambda at, h: ends.append(at + h.size_bytes), next_offset=0, verify=False)
    for size in range(start, len(data) + 1):
        result, visited = scanned(data[:size])
        whole = max(e for e in ends if e <= size)
        assert result.position == whole
        assert result.end is (s.ScanEnd.END if size == whole else s.ScanEnd.TORN)
        assert len(visited) == ends.index(whole)
        assert bool(result.reason) is (result.end is s.ScanEnd.TORN)


@pytest.mark.parametrize("sealed", [False, True])
def test_scan_of_a_flipped_bit_at_every_byte(sealed: bool) -> None:
    """The part before the damage is visited; damage in the middle is CORRUPT, in the last batch of an active segment
    TORN, of a sealed one CORRUPT. A stamp has no checksum, so only the order of the offsets is checked there."""
    good = build(envelope_rows, 3, 2, "none")
    size = len(unsealed(good))
    data = bytearray(good if sealed else good[:size])
    start = s.decode_head(reader(good)).data_position
    batches: list[tuple[int, BatchHeader]] = []
    s.scan(reader(good), start, size, lambda at, h: batches.append((at, h)), next_offset=0)
    for number, (position, header) in enumerate(batches):
        before = [h.base_offset for _, h in batches[:number]]
        for at in range(position, position + header.size_bytes):
            in_stamp = 0 <= at - position - header.stamp_position < 32
            for bit in range(8) if at < position + 16 else (at % 8,):
                data[at] ^= 1 << bit
                result, visited = scanned(data)
                assert visited[:number] == before
                if result.position == position:
                    last = number == len(batches) - 1 and not sealed
                    assert visited == before
                    assert result.end is (s.ScanEnd.TORN if last else s.ScanEnd.CORRUPT), (number, at - position, bit)
                    assert result.reason
                else:
                    assert in_stamp, (number, at - position, bit)
                data[at] ^= 1 << bit


def test_scan_finds_an_end_mark_in_the_middle() -> None:
    data = bytearray(unsealed(build(envelope_rows, 3, 2, "none")))
    positions: list[int] = []
    start = s.decode_head(reader(data)).data_position
    s.scan(reader(data), start, len(data), lambda at, _: positions.append(at), next_offset=0)
    data[positions[1] + 4 : positions[1] + 8] = bytes(4)
    result, visited = scanned(data)
    assert (result.end, result.position, visited) == (s.ScanEnd.CORRUPT, positions[1], [0])


def test_scan_of_a_length_that_reaches_beyond_the_file_in_the_middle() -> None:
    data = bytearray(unsealed(build(envelope_rows, 3, 2, "none")))
    start = s.decode_head(reader(data)).data_position
    struct.pack_into("<i", data, start + 4, 1 << 20)
    result, visited = scanned(data)
    assert (result.end, result.position, visited) == (s.ScanEnd.CORRUPT, start, [])


@for_each("tail", [bytes(4096), b"\xff" * 4096, bytes(range(256)) * 16, b"\xff\xff\xff\xff\x08\0\0\0" * 999])
def test_scan_of_a_tail_of_garbage_is_torn(tail: bytes) -> None:
    data = unsealed(build(envelope_rows, 2, 2, "none"))
    result, visited = scanned(data + tail)
    assert (result.end, result.position, visited) == (s.ScanEnd.TORN, len(data), [0, 2])


def test_scan_looks_far_behind_the_damage() -> None:
    """An intact batch beyond the search's step, its mark on the step's edge."""
    first = stamped(envelope_rows(0, 2), 0)
    head = s.encode_head(ENVELOPE_SCHEMA, INFO)
    second = stamped(envelope_rows(2, 2), 2)
    mark = second.index(b"SLB1") - 4
    bad = len(head) + len(first)
    for shift in range(0, 24, 4):
        gap = (1 << 20) - mark + shift
        data = head + first + bytes(gap - gap % 8) + second
        result, visited = scanned(data)
        assert (result.end, result.position, visited) == (s.ScanEnd.CORRUPT, bad, [0])


def test_scan_does_not_take_an_embedded_older_batch_for_evidence() -> None:
    """A torn batch whose value holds a whole batch of lower offsets is still a torn tail."""
    head = s.encode_head(ENVELOPE_SCHEMA, INFO)
    good = stamped(envelope_rows(50, 2), 50)
    torn = stamped(envelope_rows(52, 2), 52)[:64] + bytes(64) + stamped(envelope_rows(0, 2), 0) + bytes(64)
    result, visited = scanned(head + good + torn)
    assert (result.end, visited) == (s.ScanEnd.TORN, [50])


def test_scan_refuses_offsets_that_run_backwards() -> None:
    head = s.encode_head(ENVELOPE_SCHEMA, INFO)
    data = head + stamped(envelope_rows(0, 5), 0) + stamped(envelope_rows(0, 2), 4)
    result, visited = scanned(data)
    assert (result.end, visited) == (s.ScanEnd.TORN, [0])
    assert "base offset 4 where 5 or more is expected" in result.reason
    assert scanned(data, next_offset=1)[1] == []


def test_scan_reads_metadata_longer_than_one_read() -> None:
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(200)])
    rows = pa.record_batch([pa.array([1, 2])] * 200, schema=schema)
    parts = [stamped(rows, 0), stamped(rows, 2)]
    assert decode_header(parts[0]).metadata_length_bytes > 2048
    data = s.encode_head(schema, INFO) + b"".join(parts)
    assert scanned(data, verify=False) == (s.ScanResult(s.ScanEnd.END, len(data)), [0, 2])


def test_segment_names() -> None:
    assert s.segment_name(12) == "00000000000000000012.arrow"
    for offset in (0, 12, 2**63 - 1):
        assert s.parse_segment_name(s.segment_name(offset)) == offset


@for_each(
    "name", ["", "12.arrow", "0" * 20, "0" * 20 + ".index", "²" * 20 + ".arrow", "٣" * 20 + ".arrow", "9" * 20 + ".arrow",
             "-" + "0" * 19 + ".arrow", "0" * 21 + ".arrow", " " + "0" * 19 + ".arrow"],
)  # fmt: skip
def test_other_names_are_no_segments(name: str) -> None:
    assert s.parse_segment_name(name) is None


def test_marks_on_the_edge_of_a_search_step_are_detected() -> None:
    for at in range((1 << 20) - 9, (1 << 20) + 2):
        data = bytes(at) + HEADER_MARK + bytes(20)
        assert s._find_all(reader(data), 0, len(data)).tolist() == [at]


def test_scan_gives_up_on_bytes_that_resemble_batches() -> None:
    """The search has a budget; beyond it the answer is the one that cuts nothing."""
    data = unsealed(build(envelope_rows, 2, 2, "none"))
    tail = (b"\xff\xff\xff\xff\0\0\x20\0" + HEADER_MARK) * (1 << 18)
    result, visited = scanned(data + tail)
    assert (result.end, result.position, visited) == (s.ScanEnd.CORRUPT, len(data), [0, 2])
