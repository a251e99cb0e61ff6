"""Compaction of one log: the remaining records, their offsets, and their files."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.errors import LogCorruptError, StorageFullError
from sparklog.format.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_OFFSET_COLUMN,
    decode_header,
    stamp_batch,
)
from sparklog.log.housekeeping.cleaner import due_for_compaction
from sparklog.log.housekeeping.retention_run import run_retention
from sparklog.log.model.compaction_policy import CLEANER_POINT_FILE
from sparklog.types import OffsetAndTimestamp
from tests.support.compaction import (
    OWNER,
    Row,
    append_rows,
    check_compacted,
    compact,
    files_of,
    headers,
    keyed_batch,
    last_values,
    model_of,
    open_keyed,
    stored,
)
from tests.support.logs import LimitedFiles, ManualClock, read_all

DAY_MS = 86_400_000


A, B, C = b"a", b"b", b"c"


def test_the_last_record_of_each_key_stays_with_its_offset(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    batches: list[list[Row]] = [[(A, b"1"), (B, b"1"), (A, b"2")], [(C, b"1"), (B, b"2")], [(A, b"3")]]
    for rows in batches:
        append_rows(log, rows)
    result = compact(log)
    assert result is not None and result.rows_removed == 3
    assert stored(log) == [(3, C, b"1"), (4, B, b"2"), (5, A, b"3")]
    assert log.log_end_offset == 6 and log.log_start_offset == 0
    check_compacted(log, model_of(*batches))
    assert append_rows(log, [(A, b"4")]) == 6
    log.close()


def test_a_reader_may_start_anywhere_also_in_a_gap(tmp_path: Path) -> None:
    log = open_keyed(tmp_path, {"index.interval.bytes": 1})
    for i in range(20):
        append_rows(log, [(b"%d" % (i % 3), b"v%d" % i), (b"only%d" % i, b"x")])
    compact(log)
    everything = stored(log)
    for offset in range(log.log_end_offset + 1):
        assert stored(log, offset, max_bytes=1) == [row for row in everything if row.offset >= offset]
    log.close()


def test_uncompacted_segments_stay_unchanged(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    append_rows(log, [(A, b"1"), (B, b"1")])
    before = (log.directory / "00000000000000000000.arrow").stat().st_ino
    result = compact(log)
    assert result is not None and result.rows_removed == 0
    assert (log.directory / "00000000000000000000.arrow").stat().st_ino == before
    assert not log.segments[0].compacted
    assert compact(log) is None
    log.close()


def test_the_last_segment_and_uncommitted_records_are_not_compacted(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    append_rows(log, [(A, b"1"), (A, b"2")])
    assert compact(log, roll=False) is None
    log.appender.append(keyed_batch([(A, b"3"), (A, b"4")]))
    log.appender.begin_segment()
    assert due_for_compaction(log) is None  # the segment ends above the high watermark
    log.raise_high_watermark(4)
    compact(log)
    assert stored(log) == [(3, A, b"4")]
    log.close()


def test_a_batch_keeps_its_header(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_keyed(tmp_path, clock=clock)
    append_rows(log, [(A, b"1"), (B, b"1"), (C, b"1")], first_ms=100)
    clock.time_ms += 5
    append_rows(log, [(A, b"2")], first_ms=50)
    before = headers(log)
    compact(log)
    first, last = headers(log)
    assert first.attributes == last.attributes == ATTRIBUTE_OFFSET_COLUMN
    assert (first.record_count, last.record_count) == (2, 1)
    for field in (
        "base_offset",
        "last_offset_delta",
        "leader_epoch",
        "append_time_ms",
        "schema_id",
        "max_timestamp_ms",
    ):
        assert [getattr(h, field) for h in (first, last)] == [getattr(h, field) for h in before]
    log.close()


def test_emptied_batches_go_but_a_segment_ends_where_the_next_begins(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    for value in range(3):
        append_rows(log, [(A, b"%d" % value), (A, b"%d" % value)])
    log.appender.begin_segment()
    append_rows(log, [(A, b"last")])
    log.appender.begin_segment()
    compact(log)
    assert [(h.base_offset, h.record_count, h.next_offset) for h in headers(log)] == [(6, 1, 7)]
    assert [(s.base_offset, s.next_offset) for s in log.segments] == [(0, 7), (7, 7)]
    log.close()
    again = open_keyed(tmp_path)
    assert stored(again) == [(6, A, b"last")]
    again.close()


def test_an_emptied_segment_keeps_an_empty_batch_for_its_end(tmp_path: Path) -> None:
    log = open_keyed(tmp_path, {"segment.bytes": 8192})
    append_rows(log, [(A, b"x" * 4500)])
    append_rows(log, [(A, b"y" * 4500)])
    compact(log)
    assert [(h.base_offset, h.record_count, h.next_offset) for h in headers(log)] == [(0, 0, 1), (1, 1, 2)]
    assert [(s.base_offset, s.next_offset) for s in log.segments] == [(0, 1), (1, 2), (2, 2)]
    assert stored(log) == [(1, A, b"y" * 4500)]
    assert log.reader.offset_of_max_timestamp() == OffsetAndTimestamp(1, 0)
    append_rows(log, [(B, b"z")])
    compact(log)  # now the two are merged, and the empty batch is not needed any more
    assert [(h.base_offset, h.record_count) for h in headers(log)] == [(1, 1), (2, 1)]
    log.close()


def test_records_without_a_key_are_kept_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_keyed(tmp_path)
    append_rows(log, [(None, b"1"), (A, b"1"), (None, None), (A, b"2")])
    with caplog.at_level(logging.WARNING):
        result = compact(log)
    assert result is not None and result.null_keys == 2
    assert "2 records without a key" in caplog.text
    assert stored(log) == [(0, None, b"1"), (2, None, None), (3, A, b"2")]
    log.close()


def test_an_empty_key_is_a_key(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    append_rows(log, [(b"", b"1"), (b"\0", b"1"), (b"", b"2"), (b"\0" * 8, b"1")])
    compact(log)
    assert [row.offset for row in stored(log)] == [1, 2, 3]
    log.close()


# --- tombstones ---


def test_a_tombstone_stays_for_delete_retention_after_its_first_compaction(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_keyed(tmp_path, clock=clock)
    append_rows(log, [(A, b"1"), (B, b"1"), (A, None)])
    clock.time_ms += 10 * DAY_MS  # its age does not count
    compact(log)
    assert stored(log) == [(1, B, b"1"), (2, A, None)]
    (header,) = headers(log)
    assert header.attributes & ATTRIBUTE_DELETE_HORIZON
    assert header.min_timestamp_ms == clock.time_ms + DAY_MS
    clock.time_ms += DAY_MS - 1
    assert compact(log) is None
    append_rows(log, [(C, b"1")])
    compact(log)  # another run does not give it more time
    assert headers(log)[0].min_timestamp_ms == clock.time_ms + 1
    clock.time_ms += 1
    compact(log, roll=False)  # due because of the horizon alone
    assert stored(log) == [(1, B, b"1"), (3, C, b"1")]
    assert compact(log, roll=False) is None
    log.close()


def test_a_key_written_again_after_its_tombstone_lives(tmp_path: Path) -> None:
    log = open_keyed(tmp_path, {"delete.retention.ms": 0})
    append_rows(log, [(A, b"1"), (A, None), (A, b"2"), (B, None)])
    compact(log)
    compact(log, roll=False)
    assert last_values(stored(log)) == {A: b"2"}
    log.close()


def test_the_horizon_is_set_only_when_all_that_a_tombstone_deletes_is_gone(tmp_path: Path) -> None:
    """With a small map a run ends in the middle; a tombstone behind that place has not deleted anything yet."""
    log = open_keyed(tmp_path, {"delete.retention.ms": 0})
    append_rows(log, [(b"%d" % i, b"1") for i in range(60)])
    append_rows(log, [(b"%d" % i, None) for i in range(60)])
    rows = model_of([(b"%d" % i, b"1") for i in range(60)], [(b"%d" % i, None) for i in range(60)])
    for _ in range(10):
        result = compact(log, buffer_bytes=1, roll=True)
        if result is None:
            break
        check_compacted(log, rows)
        with_horizon = [h for h in headers(log) if h.attributes & ATTRIBUTE_DELETE_HORIZON]
        assert all(h.last_offset < result.next_dirty_offset for h in with_horizon)
    assert stored(log) == []
    log.close()


# --- what else may happen ---


def test_control_batches_are_kept(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    append_rows(log, [(A, b"1")])
    for epoch in range(2):
        log.appender.append_marker(7, epoch, 0, commit=True)
    append_rows(log, [(A, b"2")])
    compact(log)
    assert [(h.base_offset, bool(h.attributes & ATTRIBUTE_CONTROL)) for h in headers(log)] == [
        (1, True),
        (2, True),
        (3, False),
    ]
    log.close()


def test_the_last_batch_of_a_producer_stays_even_empty(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    for sequence in range(3):
        data = keyed_batch([(A, b"x")], producer_id=5, producer_epoch=1, base_sequence=sequence)
        log.appender.append(data)
    log.raise_high_watermark(3)
    append_rows(log, [(A, b"y")])
    compact(log)
    assert [(h.base_offset, h.record_count, h.producer_id, h.base_sequence) for h in headers(log)] == [
        (2, 0, 5, 2),
        (3, 1, -1, -1),
    ]
    log.close()


def test_compact_and_delete_together(tmp_path: Path) -> None:
    clock = ManualClock(10 * DAY_MS)
    log = open_keyed(tmp_path, {"cleanup.policy": "compact,delete", "retention.ms": 7 * DAY_MS}, clock=clock)
    append_rows(log, [(A, b"old")], first_ms=DAY_MS)
    log.appender.begin_segment()
    append_rows(log, [(A, b"1"), (B, b"1"), (B, b"2")], first_ms=9 * DAY_MS)
    run_retention({OWNER.topic_partition: log}, lambda: None)
    assert log.log_start_offset == 1
    compact(log)
    assert stored(log) == [(1, A, b"1"), (3, B, b"2")]
    clock.time_ms += 7 * DAY_MS
    run_retention({OWNER.topic_partition: log}, lambda: None)
    assert stored(log) == [] and log.log_start_offset == log.log_end_offset == 4
    log.close()


def test_segments_that_retention_takes_during_a_run_are_not_brought_back(tmp_path: Path) -> None:
    from sparklog.log.compaction.offset_map import OffsetMap
    from sparklog.log.housekeeping.cleaner import compact_log

    log = open_keyed(tmp_path, {"cleanup.policy": "compact,delete"})
    append_rows(log, [(A, b"1"), (A, b"2")])
    log.appender.begin_segment()
    due = due_for_compaction(log)
    assert due is not None
    calls = 0

    def interfere(size_bytes: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            log.retention.delete_records(-1)
            log.retention.drop_below_log_start()

    result = compact_log(due, OffsetMap(1 << 12), interfere)
    assert not result.complete
    assert stored(log) == []
    assert [n for n in files_of(log) if n.endswith((".swap", ".cleaned"))] == []
    log.close()


def test_a_damaged_batch_is_not_copied(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    append_rows(log, [(A, b"1"), (A, b"2")])
    log.appender.begin_segment()
    path = log.directory / "00000000000000000000.arrow"
    data = bytearray(path.read_bytes())
    position = log.segments[0].end.position - 20
    data[position] ^= 1
    path.write_bytes(data)
    log.segments[0].close_handle()
    with pytest.raises(LogCorruptError, match=r"0000\.arrow, position \d+: .*not compacted"):
        compact(log)
    assert path.read_bytes() == bytes(data)
    log.close()


def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path) -> None:
    files = LimitedFiles()
    log = open_keyed(tmp_path, files=files)
    for i in range(3):
        append_rows(log, [(A, b"%d" % i * 2000), (b"%d" % i, b"x" * 2000)])
    log.appender.begin_segment()
    before, names = stored(log), files_of(log)
    files.free_bytes = 3000
    with pytest.raises(StorageFullError):
        compact(log)
    assert stored(log) == before and files_of(log) == names
    files.free_bytes = 1 << 30
    compact(log)
    assert len(stored(log)) == 4
    log.close()


def test_a_lost_cleaner_point_costs_a_run_only(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    append_rows(log, [(A, b"1"), (A, b"2"), (B, b"1")])
    compact(log)
    before = stored(log)
    for content in (None, b"{", b'{"topic_id": "another", "first_dirty_offset": 99}'):
        point = log.directory / CLEANER_POINT_FILE
        point.unlink() if content is None else point.write_bytes(content)
        result = compact(log)
        assert result is not None and result.rows_removed == 0
        assert stored(log) == before
    log.close()


def test_stamps_do_not_change_under_compaction(tmp_path: Path) -> None:
    """A batch that needs no change is copied byte by byte, so that replicas stay the same."""
    log = open_keyed(tmp_path)
    append_rows(log, [(A, b"1"), (A, b"2")])
    append_rows(log, [(B, b"1")])
    compact(log)
    first = [data for _, data in read_all(log)]
    append_rows(log, [(C, b"1")])
    log.appender.begin_segment()
    append_rows(log, [(C, b"2")])
    compact(log)
    assert [data for _, data in read_all(log)][:2] == first
    header = decode_header(first[0])
    copy = bytearray(first[0])
    stamp_batch(
        copy,
        0,
        header,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        append_time_ms=header.append_time_ms,
    )
    assert bytes(copy) == bytes(first[0])
    log.close()


def test_a_compacted_segment_takes_no_append(tmp_path: Path) -> None:
    """After a cut of everything behind a compacted segment, it is the last one."""
    log = open_keyed(tmp_path)
    append_rows(log, [(A, b"1"), (A, b"2")])
    compact(log)
    append_rows(log, [(B, b"1")])
    log.truncation.truncate_to(2)
    assert append_rows(log, [(C, b"1")]) == 2
    assert stored(log) == [(1, A, b"2"), (2, C, b"1")]
    log.close()
    for path in log.directory.glob("*.arrow"):
        pa.ipc.open_file(path).read_all()
