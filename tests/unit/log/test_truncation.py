"""Cutting a log back, as a follower does when its records are not the leader's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog.errors import OffsetOutOfRangeError, StorageError
from sparklog.log.partition_log import PartitionLog
from sparklog.log.state.truncation_mark import TRUNCATION_FILE
from tests.support.compaction import Stored, append_rows, compact, open_keyed, stored
from tests.support.logs import LimitedFiles, open_log, records, segment_files, values


def append(log: PartitionLog, count: int, epoch: int = 0, *, size: int = 100) -> None:
    log.appender.append(
        records(count, first_ms=log.log_end_offset * 10, value=b"%d" % epoch * size), leader_epoch=epoch
    )
    log.raise_high_watermark(log.log_end_offset)


def filled(tmp_path: Path, files: LimitedFiles | None = None) -> PartitionLog:
    """30 records in batches of 3, several segments, an epoch per 9 records."""
    log = open_log(tmp_path, {"segment.bytes": 4096, "index.interval.bytes": 600}, files=files)
    for i in range(10):
        append(log, 3, i // 3, size=300)
    assert len(segment_files(tmp_path)) > 2
    return log


@pytest.mark.parametrize("restart", ["no", "clean", "crash"])
@pytest.mark.parametrize("offset", [0, 1, 3, 8, 9, 10, 17, 18, 27, 28, 29, 30])
def test_a_log_ends_where_it_was_cut(tmp_path: Path, offset: int, restart: str) -> None:
    log = filled(tmp_path)
    before = values(log)
    end = offset - offset % 3
    assert log.truncation.truncate_to(offset) == end
    assert (log.log_end_offset, log.high_watermark) == (end, end)
    assert values(log) == before[:end]
    assert log.leader_epoch == ((end - 1) // 9 if end else -1)
    if restart != "no":
        if restart == "clean":
            log.close()
        log = open_log(tmp_path, {"segment.bytes": 4096}, clean=restart == "clean")
        assert values(log) == before[:end]
    append(log, 2, 7)
    assert [o for o, _ in values(log)] == list(range(end + 2))
    assert log.epochs.end_offset_for(6, log.log_end_offset)[1] == end
    times = [log.reader.offset_for_timestamp(t).offset for t in (0, end * 10, end * 10 + 1)]
    assert times == [0, end, end + 1]
    log.close()
    log = open_log(tmp_path)
    assert len(values(log)) == end + 2


def test_sealed_and_closed_segments_are_cut_too(tmp_path: Path) -> None:
    filled(tmp_path).close()
    log = open_log(tmp_path, {"segment.bytes": 4096})
    assert log.truncation.truncate_to(10) == 9
    assert len(values(log)) == 9
    assert not segment_files(tmp_path)[-1].read_bytes().endswith(b"ARROW1")
    assert not segment_files(tmp_path)[-1].with_suffix(".index").exists()


def test_a_log_is_cut_before_its_first_record_and_inside_deleted_ones(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.retention.delete_records(10)
    assert log.truncation.truncate_to(11) == 9  # the batch that holds 11 begins there
    assert (log.log_start_offset, log.log_end_offset) == (9, 9)
    append(log, 3, 4)
    assert log.truncation.truncate_to(5) == 5
    assert (log.log_start_offset, log.log_end_offset, log.leader_epoch) == (5, 5, -1)
    assert [p.name for p in segment_files(tmp_path)] == [f"{5:020d}.arrow"]
    append(log, 2, 5)
    assert [o for o, _ in values(log)] == [5, 6]
    log.close()
    log = open_log(tmp_path)
    assert (log.log_start_offset, log.log_end_offset) == (5, 7)
    with pytest.raises(OffsetOutOfRangeError):
        log.reader.read(4, 1)


def test_a_log_that_was_cut_to_its_start_has_no_times(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.retention.delete_records(9)
    assert log.truncation.truncate_to(9) == 9
    for _ in range(2):
        assert log.reader.offset_for_timestamp(0) == log.reader.offset_of_max_timestamp() == (-1, -1)
        log.close()
        log = open_log(tmp_path, log_start_offset=9)


def test_epochs_are_forgotten_also_without_a_cut(tmp_path: Path) -> None:
    """An election without records, then a truncation to the log end: without this the follower asks for ever."""
    log = open_log(tmp_path)
    append(log, 3, 1)
    log._state.epochs.begin(4, 3)  # became leader, nothing was appended
    assert log.leader_epoch == 4
    assert log.truncation.truncate_to(3) == 3
    assert log.leader_epoch == 1
    log._state.epochs.begin(5, 3)
    assert log.truncation.truncate_to(100) == 3
    assert log.leader_epoch == 1
    assert open_log(tmp_path, clean=False).leader_epoch == 1


def test_the_old_checkpoint_is_not_believed_after_a_truncation(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.flusher.flush()
    old: dict[str, Any] = {"recovery_point": 30, "high_watermark": 30, "log_start_offset": 15}
    log.truncation.truncate_to(12)
    log = open_log(tmp_path, clean=False, **old)
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (12, 12, 12)
    append(log, 3, 9)
    # a checkpoint gathered before a truncation does not make its mark go
    before = log.truncation.count
    log.truncation.truncate_to(9)
    log.truncation.forget(before)
    assert (tmp_path / "events-0" / TRUNCATION_FILE).exists()
    log.truncation.forget(log.truncation.count)
    assert not (tmp_path / "events-0" / TRUNCATION_FILE).exists()
    log.truncation.forget(log.truncation.count)


def test_readers_of_a_cut_segment_keep_their_file(tmp_path: Path) -> None:
    log = filled(tmp_path)
    held = log.reader.read(27, 1 << 20)
    assert held is not None
    log.truncation.truncate_to(5)
    held.release()
    assert len(values(log)) == 3


def test_a_truncation_that_fails_takes_the_log_offline(tmp_path: Path) -> None:
    files = LimitedFiles()
    log = filled(tmp_path, files)
    files.fail_truncate = True
    uses: list[Callable[[], object]] = [
        lambda: log.truncation.truncate_to(4),
        lambda: append(log, 1, 9),
        log.flusher.flush,
    ]
    for use in uses:
        with pytest.raises(StorageError, match="truncation to 4 failed"):
            use()


@pytest.mark.parametrize("offset", [1, 5, 8, 9])
def test_a_log_cut_in_a_gap_of_compaction_ends_before_the_gap(tmp_path: Path, offset: int) -> None:
    """The batches 0 to 2 and 6 to 8 are gone, all their keys came again."""
    log = open_keyed(tmp_path)
    for keys in (b"aaa", b"xyz", b"bbb", b"abq"):
        append_rows(log, [(bytes([key]), b"1") for key in keys])
    assert compact(log) is not None
    end = 0 if offset < 6 else 6
    whole = [row for row in stored(log) if row.offset < end]
    assert log.truncation.truncate_to(offset) == log.log_end_offset == end
    log.close()
    log = open_keyed(tmp_path, high_watermark=end)
    assert (log.log_end_offset, stored(log)) == (end, whole)
    append_rows(log, [(b"n", b"2")])
    assert stored(log) == [*whole, Stored(end, b"n", b"2")]


def test_records_appended_after_a_cut_are_compacted(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    append_rows(log, [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    append_rows(log, [(b"a", b"2"), (b"b", b"2")])
    compact(log)
    log.truncation.truncate_to(3)
    append_rows(log, [(b"d", b"1")])
    append_rows(log, [(b"d", b"2")])
    compact(log)
    assert [row.value for row in stored(log) if row.key == b"d"] == [b"2"]


@pytest.mark.parametrize("cut", [True, False])
def test_files_that_were_to_be_deleted_later_are_gone_before_their_successors(tmp_path: Path, cut: bool) -> None:
    """Of segments that the log no longer has, at offsets that it has again after a cut."""
    log = filled(tmp_path)
    log.retention.delete_records(log.segments[2].base_offset)
    assert log.retention.drop_below_log_start() == 2
    assert len(segment_files(tmp_path)) == len(log.segments) + 2, "they stay for file.delete.delay.ms"
    if cut:
        log.truncation.truncate_to(1)
    else:
        log.truncation.restart_at(1)
    for _ in range(9):
        append(log, 3, 9, size=300)
    again = open_log(tmp_path, {"segment.bytes": 4096}, clean=False)
    assert values(again) == values(log)
