"""The files a compaction makes and takes away."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from sparklog.client.producer.rows import envelope_batch
from sparklog.format.batch import decode_header, iterate_batches
from sparklog.format.packed_batch import compression_of_batch
from sparklog.types import OffsetAndTimestamp
from tests.support.compaction import (
    append_rows,
    compact,
    files_of,
    last_values,
    open_keyed,
    stored,
)
from tests.support.logs import packed

A, B, C = b"a", b"b", b"c"


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_compacted_segment_is_an_arrow_file(tmp_path: Path, compression: str) -> None:
    log = open_keyed(tmp_path)
    for i in range(5):
        append_rows(log, [(b"%d" % (j % 7), b"%d" % i) for j in range(20)], compression=compression)
    compact(log)
    expected = [(row.offset, row.key, row.value) for row in stored(log)]
    log.close()
    path = log.directory / "00000000000000000000.arrow"
    tables = [
        pa.ipc.open_file(path).read_all(),
        ds.dataset(path, format="ipc").to_table(),
        pl.scan_ipc(path).collect().to_arrow(),
    ]
    for table in tables:
        columns = [table.column(name).to_pylist() for name in ("__offset", "key", "value")]
        assert list(zip(*columns, strict=True)) == expected
    again = open_keyed(tmp_path, clean=False)
    assert [tuple(row) for row in stored(again)] == expected
    again.close()


def test_packed_batches_stay_uncompressed(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    for first in (0, 200):
        keys: list[bytes | None] = [b"%d" % i for i in range(first, first + 300)]
        log.appender.append(packed(envelope_batch([b"v%d" % first] * 300, keys, None, np.full(300, 1000 * first))))
    log.raise_high_watermark(log.log_end_offset)
    before = last_values(stored(log))
    compact(log)
    assert last_values(stored(log)) == before
    assert len(stored(log)) == 500
    held = log.reader.read(0, 1 << 20)
    assert held is not None
    data = held.read()
    compressions = [compression_of_batch(data[at : at + h.size_bytes]) for at, h in iterate_batches(data)]
    assert compressions == ["none", "none"]
    held.release()
    log.close()


def test_small_segments_are_merged_and_the_old_files_go(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    for i in range(6):
        append_rows(log, [(A, b"%d" % i), (b"k%d" % i, b"x")])
        log.appender.begin_segment()
    assert log.segment_count == 7
    held = log.reader.read(0, 1)
    assert held is not None
    compact(log)
    assert log.segment_count == 2
    assert sum(name.endswith(".deleted") for name in files_of(log)) == 6
    assert log.retention.remove_dropped() == 6
    assert [n for n in files_of(log) if ".arrow." in n] == []
    rows, _ = held.read(), held.release()
    assert decode_header(rows).base_offset == 0
    log.close()


def test_the_offset_column_may_need_more_segments(tmp_path: Path) -> None:
    log = open_keyed(tmp_path, {"segment.bytes": 4096})
    for _ in range(40):
        append_rows(log, [(A, b""), (A, b"")])
    rows = [(b"%d" % i, b"") for i in range(120)]
    for i in range(0, 120, 4):
        append_rows(log, rows[i : i + 4])
    before = last_values(stored(log))
    compact(log)
    assert last_values(stored(log)) == before
    assert all(s.end.position <= 4096 for s in log.segments)
    bases = [s.base_offset for s in log.segments]
    assert [s.next_offset for s in log.segments[:-1]] == bases[1:]
    log.close()
    again = open_keyed(tmp_path, clean=False)
    assert last_values(stored(again)) == before
    again.close()


def test_a_segment_that_was_opened_before_still_reads_its_own_file(tmp_path: Path) -> None:
    """A reader that has found its segment just before the swap opens the file after it."""
    log = open_keyed(tmp_path, {"file.delete.delay.ms": 60_000})
    append_rows(log, [(A, b"1"), (A, b"2")])
    log.appender.begin_segment()
    old = log.segments[0]
    old.close_handle()
    compact(log)
    assert [header.record_count for _, header in old.headers_from(None)] == [2]
    assert log.reader.locate(0, 2)[0].first_offset == 0
    log.close()


def test_lookups_by_time_find_only_remaining_records(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    append_rows(log, [(A, b"1"), (B, b"1"), (C, b"1")], first_ms=1000)
    append_rows(log, [(C, b"2"), (B, b"2")], first_ms=500)
    compact(log)
    assert log.reader.offset_for_timestamp(0) == OffsetAndTimestamp(0, 1000)
    assert log.reader.offset_for_timestamp(1001) == OffsetAndTimestamp(-1, -1)
    assert log.reader.offset_of_max_timestamp() == OffsetAndTimestamp(0, 1000)
    append_rows(log, [(A, b"2")], first_ms=100)
    compact(log)
    assert log.reader.offset_for_timestamp(501) == OffsetAndTimestamp(4, 501)
    assert log.reader.offset_of_max_timestamp() == OffsetAndTimestamp(4, 501)
    log.close()
