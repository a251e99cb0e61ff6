"""`sparklog log dump` on files made with sparklog.format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparklog.cli.log.segment_dump import dump_segment, read_records, segment_paths
from sparklog.errors import CorruptBatchError, LogCorruptError
from sparklog.format import batch as batches
from sparklog.format import segment
from sparklog.format.checkpoint import PARTITION_FILE

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
INFO = segment.SegmentInfo("t", "0" * 32, 2, 10, 1)


def write(directory: Path, compressions: list[str], *, seal: bool) -> tuple[Path, list[int]]:
    """A segment with one batch of 3 rows per compression; returns its path and the batches' positions."""
    data = bytearray(segment.encode_head(SCHEMA, INFO))
    positions, metadata_lengths = [], []
    for i, compression in enumerate(compressions):
        rows = pa.record_batch({"n": [3 * i, 3 * i + 1, 3 * i + 2], "s": ["x" * 500] * 3}, schema=SCHEMA)
        message = batches.encode_batch(
            rows, schema_id=1, min_timestamp_ms=1000 + i, max_timestamp_ms=2000 + i, compression=compression
        )
        header = batches.decode_header(message)
        batches.stamp_batch(message, 0, header, base_offset=10 + 3 * i, leader_epoch=4, append_time_ms=5000)
        positions.append(len(data))
        metadata_lengths.append(header.metadata_length_bytes)
        data += message
    if seal:
        data += segment.encode_seal(
            SCHEMA, INFO, np.array(positions, np.int64), np.array(metadata_lengths, np.int32), len(data)
        )
    path = directory / segment.segment_name(10)
    path.write_bytes(data)
    return path, positions


def test_a_sealed_segment(tmp_path: Path) -> None:
    path, positions = write(tmp_path, ["none", "lz4", "zstd"], seal=True)
    path.with_suffix(".index").write_bytes(bytes(20))
    facts = dump_segment(path)
    assert (facts.topic, facts.partition, facts.base_offset, facts.sealed, facts.end) == ("t", 2, 10, True, "end")
    assert (facts.index_entries, facts.time_index_entries) == (2, None)
    assert [b.position for b in facts.batches] == positions
    assert [b.compression for b in facts.batches] == ["none", "lz4", "zstd"]
    assert [(b.base_offset, b.last_offset, b.records) for b in facts.batches] == [(10, 12, 3), (13, 15, 3), (16, 18, 3)]
    assert all(b.crc_ok and b.leader_epoch == 4 and b.timestamp_type == "CreateTime" for b in facts.batches)
    assert facts.records == 9


def test_an_active_segment(tmp_path: Path) -> None:
    facts = dump_segment(write(tmp_path, ["none"], seal=False)[0])
    assert (facts.sealed, facts.end, facts.records) == (False, "end", 3)


def test_records(tmp_path: Path) -> None:
    facts = dump_segment(write(tmp_path, ["none", "lz4"], seal=True)[0])
    rows = list(read_records(facts, 4))
    assert [(row["_offset"], row["n"]) for row in rows] == [(10, 0), (11, 1), (12, 2), (13, 3)]


@pytest.mark.parametrize(("broken", "end"), [(0, "corrupt"), (1, "torn tail")])
def test_a_flipped_bit_is_detected_and_located(tmp_path: Path, broken: int, end: str) -> None:
    path, positions = write(tmp_path, ["none", "none"], seal=False)
    data = bytearray(path.read_bytes())
    data[positions[broken] + 700] ^= 1
    path.write_bytes(data)
    facts = dump_segment(path)
    assert (facts.end, facts.data_end) == (end, positions[broken])
    assert [b.crc_ok for b in facts.batches] == [True] * broken + [False]
    assert "checksum" in facts.problem
    assert len(list(read_records(facts, 100))) == 3 * broken


def test_a_cut_batch(tmp_path: Path) -> None:
    path, positions = write(tmp_path, ["none", "none"], seal=False)
    path.write_bytes(path.read_bytes()[:-100])
    facts = dump_segment(path)
    assert (facts.end, facts.data_end, len(facts.batches)) == ("torn tail", positions[1], 1)


def test_not_a_segment(tmp_path: Path) -> None:
    for content in (b"", b"no arrow file at all, but of some length"):
        path = tmp_path / "x.arrow"
        path.write_bytes(content)
        with pytest.raises((LogCorruptError, CorruptBatchError), match=r"x\.arrow"):
            dump_segment(path)


def test_directories(tmp_path: Path) -> None:
    partition = tmp_path / "t-0"
    partition.mkdir()
    for base in (20, 0, 3):
        (partition / segment.segment_name(base)).touch()
    (partition / "00000000000000000000.index").touch()
    assert [segment.parse_segment_name(p.name) for p in segment_paths(partition)] == [0, 3, 20]
    with pytest.raises(LogCorruptError, match="partitions in it: t-0"):
        segment_paths(tmp_path)
    empty = tmp_path / "e-0"
    empty.mkdir()
    (empty / PARTITION_FILE).touch()
    assert segment_paths(empty) == []


def _stamped(message: memoryview) -> bytes:
    header = batches.decode_header(message)
    batches.stamp_batch(message, 0, header, base_offset=10, leader_epoch=4, append_time_ms=5000)
    return bytes(message)
