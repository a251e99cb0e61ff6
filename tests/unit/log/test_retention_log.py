"""Retention of a log with files: order of the steps, readers under way, empty logs, restarts, full disks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sparklog.environment.files import RealFiles
from sparklog.errors import InvalidRequestError, OffsetOutOfRangeError, StorageError, StorageFullError
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.housekeeping.retention_run import RetentionResult, remove_dropped, run_retention
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.model.retention_policy import ExpiredSegments
from sparklog.log.partition_log import PartitionLog
from sparklog.types import TopicPartition
from tests.support.logs import (
    OWNER,
    SCHEMAS,
    LimitedFiles,
    ManualClock,
    append,
    open_log,
    read_all,
    records,
    segment_files,
    values,
)

TP = TopicPartition("events", 0)
BIG = b"x" * 1500
SMALL_SEGMENTS: dict[str, Any] = {"segment.bytes": 4096}


def filled(
    tmp_path: Path, settings: dict[str, Any] | None = None, *, segments: int = 4, clock: ManualClock | None = None
) -> PartitionLog:
    """A log whose segments have ten records each, the i-th with timestamps of 1000 * i on; the last is active."""
    log = open_log(tmp_path, {"retention.ms": -1} | (settings or {}), clock=clock or ManualClock(10_000))
    for i in range(segments):
        if i:
            log.appender.roll()
        append(log, records(10, first_ms=1000 * i))
    return log


def run(log: PartitionLog) -> RetentionResult:
    return run_retention({TP: log}, lambda: None)


def bases(tmp_path: Path) -> list[int]:
    return [int(p.stem) for p in segment_files(tmp_path)]


def test_old_segments_go_and_their_files_after_the_delay(tmp_path: Path) -> None:
    clock = ManualClock(10_000)
    log = filled(tmp_path, {"retention.ms": 8_500, "file.delete.delay.ms": 300}, clock=clock)
    assert run(log) == RetentionResult([TP], 0)
    assert (log.log_start_offset, log.segment_count) == (20, 2)
    assert [o for o, _ in values(log)] == list(range(20, 40))
    assert bases(tmp_path) == [0, 10, 20, 30]
    clock.time_ms += 299
    assert run(log) == RetentionResult([], 0)
    clock.time_ms += 1
    assert run(log) == RetentionResult([], 2)
    assert bases(tmp_path) == [20, 30]
    assert {p.name for p in log.directory.glob("*index")} == {f"{20:020}.index", f"{20:020}.timeindex"}


def test_size_retention_counts_the_remaining_segments(tmp_path: Path) -> None:
    log = filled(tmp_path)
    one = log.size_bytes // 4
    log.reconfigure(LogConfig.from_settings({"retention.ms": -1, "retention.bytes": 2 * one}))
    run(log)
    assert (log.log_start_offset, log.size_bytes) == (20, 2 * one)


def test_a_compacted_topic_keeps_its_old_segments(tmp_path: Path) -> None:
    log = filled(tmp_path, {"retention.ms": 0, "retention.bytes": 0, "cleanup.policy": "compact"})
    assert run(log) == RetentionResult([], 0)
    assert log.log_start_offset == 0
    with pytest.raises(InvalidRequestError, match="compact"):
        log.retention.delete_records(10)
    log.reconfigure(LogConfig.from_settings({"retention.ms": 0, "cleanup.policy": "compact,delete"}))
    run(log)
    assert log.log_start_offset == 40


def test_unreplicated_records_stay(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"retention.ms": 0}, clock=ManualClock(10_000))
    append(log, records(10))
    log.appender.roll()
    log.appender.append(records(10))  # above the high watermark
    log.appender.roll()
    run(log)
    assert (log.log_start_offset, log.high_watermark) == (10, 10)
    log.raise_high_watermark(20)
    run(log)
    assert log.log_start_offset == 20


def test_log_append_time_counts_if_the_topic_says_so(tmp_path: Path) -> None:
    from sparklog.format.batch import ATTRIBUTE_LOG_APPEND_TIME

    clock = ManualClock(50_000)
    log = open_log(tmp_path, {"retention.ms": 1_000, "message.timestamp.type": "LogAppendTime"}, clock=clock)
    append(log, records(5, first_ms=0, attributes=ATTRIBUTE_LOG_APPEND_TIME))
    clock.time_ms = 51_000
    run(log)
    assert log.log_start_offset == 0
    clock.time_ms = 51_001
    run(log)
    assert log.log_start_offset == 5


def test_an_expired_active_segment_is_rolled_first(tmp_path: Path) -> None:
    log = filled(tmp_path, {"retention.ms": 0, "file.delete.delay.ms": 0})
    run(log)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (40, 40, 0)
    run(log)
    assert bases(tmp_path) == [40], "the name of an empty segment keeps the offset"
    assert append(log, records(3, first_ms=20_000)) == 40
    assert run(log) == RetentionResult([], 0)
    assert [o for o, _ in values(log)] == [40, 41, 42]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["nothing", "segment", "checkpoint"])
def test_an_empty_log_keeps_its_offsets_over_restarts(tmp_path: Path, clean: bool, lost: str) -> None:
    log = filled(tmp_path, {"retention.ms": 0, "file.delete.delay.ms": 0})
    run(log)
    run(log)
    if clean:
        log.close()
    if lost == "segment":
        for path in log.directory.glob("*.arrow"):
            path.unlink()
    checkpoint: dict[str, Any] = (
        {} if lost == "checkpoint" else {"log_start_offset": 40, "high_watermark": 40, "recovery_point": 40}
    )
    for _ in range(2):
        log = open_log(tmp_path, clean=clean, **checkpoint)
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (40, 40, 40)
        if clean:
            log.close()
    log = open_log(tmp_path, clean=clean, **checkpoint)
    assert append(log, records(1)) == 40


def test_the_next_batch_may_have_another_schema(tmp_path: Path) -> None:
    log = filled(tmp_path, {"retention.ms": 0})
    run(log)
    assert append(log, records(2, first_ms=20_000, schema_id=2)) == 40
    assert len(read_all(log)) == 1


def test_slices_and_files_handed_out_before_outlive_the_deletion(tmp_path: Path) -> None:
    log = filled(tmp_path, {"retention.ms": 0, "file.delete.delay.ms": 500})
    whole = log.reader.read(0, 1 << 20)
    assert whole is not None
    before = whole.read()
    (located, *_) = log.reader.locate(0, 5)
    run(log)
    with pytest.raises(OffsetOutOfRangeError, match="from 40 to 40"):
        log.reader.read(0, 1 << 20)
    with pytest.raises(OffsetOutOfRangeError, match="from 40 to 40"):
        log.reader.locate(0, 5)
    assert Path(located.path).read_bytes()[located.start_position : located.end_position] == before
    log.close()
    assert not Path(located.path).exists()
    assert whole.read() == before
    whole.release()


def test_delete_records_is_exact_inside_a_batch(tmp_path: Path) -> None:
    log = filled(tmp_path, {"file.delete.delay.ms": 0})
    assert log.retention.delete_records(23) == 23
    assert run(log).raised == [TP]
    run(log)
    assert (log.log_start_offset, bases(tmp_path)) == (23, [20, 30])
    with pytest.raises(OffsetOutOfRangeError):
        log.reader.read(22, 1 << 20)
    first = log.reader.read(23, 1 << 20)
    assert first is not None
    assert first.base_offset == 20, "a batch is served whole, the reader skips rows"
    first.release()
    assert log.retention.delete_records(7) == 23
    assert log.retention.delete_records(-1) == 40
    with pytest.raises(OffsetOutOfRangeError, match="before offset 41"):
        log.retention.delete_records(41)
    assert log.reader.offset_for_timestamp(0) == (-1, -1)
    log.close()
    log = open_log(tmp_path, log_start_offset=40, high_watermark=40, recovery_point=40)
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    assert append(log, records(1)) == 40


def test_files_below_the_log_start_go_at_the_start_in_any_state(tmp_path: Path) -> None:
    log = filled(tmp_path, segments=5)
    log.close()
    first, second, third, *_ = segment_files(tmp_path)
    first.write_bytes(b"garbage")
    second.unlink()  # removed already before the crash
    third.write_bytes(third.read_bytes()[:-100])
    log = open_log(tmp_path, clean=False, log_start_offset=33, high_watermark=50)
    assert bases(tmp_path) == [30, 40]
    assert [o for o, _ in values(log)][3:] == list(range(33, 50))


def test_a_crash_that_took_only_deleted_records_leaves_an_empty_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(tmp_path, segments=1)
    path = segment_files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-10])
    log = open_log(tmp_path, clean=False, log_start_offset=7, high_watermark=10, recovery_point=7)
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)
    assert "below its log start; the log begins empty at 7" in caplog.text
    assert append(log, records(1)) == 7


class Failing(RealFiles):
    """Fails to remove files named in `stuck`."""

    def __init__(self) -> None:
        self.stuck: set[str] = set()

    def remove(self, path: Path) -> None:
        if path.name in self.stuck:
            raise StorageError(f"cannot remove {path}")
        super().remove(path)


def test_a_file_that_cannot_be_removed_is_tried_again_and_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Failing()
    log = open_log(tmp_path, {"retention.ms": 0, "file.delete.delay.ms": 0}, files=files, clock=ManualClock(10_000))
    other = open_log(tmp_path, owner=LogOwner("events", "0" * 32, 1), clock=ManualClock(10**12))
    for _ in range(2):
        append(log, records(10))
        append(other, records(10))
        log.appender.roll()
        other.appender.roll()
    logs = {TP: log, TopicPartition("events", 1): other}
    run_retention(logs, lambda: None)
    files.stuck = {segment_files(tmp_path)[0].name}
    assert remove_dropped(logs) == 0
    assert "partition events-0: files of deleted segments could not be removed" in caplog.text
    assert other.log_start_offset == 20, "older than seven days"
    files.stuck = set()
    assert remove_dropped(logs) == 2


def test_a_log_that_cannot_be_worked_on_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(tmp_path, {"retention.ms": 0})
    broken = open_log(tmp_path, {"retention.ms": 0}, owner=LogOwner("events", "0" * 32, 1), clock=ManualClock(10_000))
    append(broken, records(3))
    broken._state.health.fail(StorageError("it is broken"))
    assert run_retention({TopicPartition("events", 1): broken, TP: log}, lambda: None).raised == [TP]
    assert "partition events-1: retention failed" in caplog.text


def test_the_log_start_is_written_down_before_a_segment_leaves(tmp_path: Path) -> None:
    log = filled(tmp_path, {"retention.ms": 8_500})
    seen: list[tuple[int, int]] = []
    run_retention({TP: log}, lambda: seen.append((log.log_start_offset, log.segment_count)))
    assert seen == [(20, 4)]
    assert log.segment_count == 2


def test_a_checkpoint_that_fails_keeps_the_segments(tmp_path: Path) -> None:
    log = filled(tmp_path, {"retention.ms": 8_500})

    def fail() -> None:
        raise StorageError("the disk is gone")

    with pytest.raises(StorageError, match="the disk is gone"):
        run_retention({TP: log}, fail)
    assert log.segment_count == 4
    run(log)
    assert log.segment_count == 2, "the next run takes them out"


def test_retention_works_on_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, clock = LimitedFiles(), ManualClock(10_000)
    settings: dict[str, Any] = {"retention.ms": 0, "file.delete.delay.ms": 0}
    log = open_log(tmp_path, settings, files=files, clock=clock)
    for _ in range(3):
        append(log, records(10))
        log.appender.roll()
    files.free_bytes = 0

    def fail() -> None:
        raise StorageFullError("the disk is full")

    run_retention({TP: log}, fail)
    assert (log.log_start_offset, log.segment_count) == (20, 1), (
        "the last one keeps the offset: no room for an empty one"
    )
    assert "segments are deleted nevertheless" in caplog.text
    run_retention({TP: log}, fail)
    assert bases(tmp_path) == [20]
    log = open_log(tmp_path, settings, files=files, clock=clock, clean=False)  # without a checkpoint
    assert (log.log_start_offset, log.log_end_offset) == (20, 30)


def test_a_new_segment_never_writes_into_a_deleted_one_of_its_name(tmp_path: Path) -> None:
    log = filled(tmp_path, {"retention.ms": 0}, segments=1)
    piece = log.reader.read(0, 1 << 20)
    assert piece is not None
    before = piece.read()
    run(log)
    log._state.writer.dropped._due[0][1].path.rename(
        log.directory / "00000000000000000010.arrow"
    )  # as after a truncation
    log._state.writer.dropped._due[0][1].path = log.directory / "00000000000000000010.arrow"
    log.segments[-1].close_handle()
    log._state.writer.segments = log._state.segments.of([])
    append(log, records(5, first_ms=20_000, value=b"new"))
    assert piece.read() == before
    piece.release()
    assert {v for _, v in values(log)} == {b"new"}


def test_new_settings_are_in_effect_at_once(tmp_path: Path) -> None:
    log = filled(tmp_path, segments=1)
    append(log, records(1, value=BIG), records(1, value=BIG))
    assert log.segment_count == 1
    log.reconfigure(LogConfig.from_settings(SMALL_SEGMENTS | {"max.message.bytes": 3000}))
    append(log, records(1, value=BIG))
    assert log.segment_count == 2
    from sparklog.errors import MessageTooLargeError

    with pytest.raises(MessageTooLargeError):
        append(log, records(1, value=BIG * 2))


@contextmanager
def managed(data_dir: Path, settings: dict[str, Any], clock: ManualClock) -> Iterator[LogManager]:
    manager = LogManager(data_dir, clock=clock)
    manager.load("c1", [PartitionSpec(OWNER, LogConfig.from_settings(settings), SCHEMAS.__getitem__)])
    try:
        yield manager
    finally:
        manager.close()


def test_a_start_after_deletion_finds_the_log_start_in_the_checkpoint(tmp_path: Path) -> None:
    clock = ManualClock(10_000)
    with managed(tmp_path, {}, clock) as manager:
        log = manager.table.get(TP)
        append(log, records(10, first_ms=9_000))
        log.retention.delete_records(4)
        manager.checkpoints.write()
    with managed(tmp_path, {"retention.ms": 0}, clock) as manager:
        log = manager.table.get(TP)
        assert (log.log_start_offset, log.log_end_offset) == (4, 10)
        run_retention(manager.table.logs, manager.checkpoints.write)
        assert log.log_start_offset == 10
    with managed(tmp_path, {}, clock) as manager:
        log = manager.table.get(TP)
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (10, 10, 10)
        assert append(log, records(1)) == 10


def test_without_expired_segments_retention_is_silent_and_takes_no_lock(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(tmp_path)
    with log._state.write_lock:
        assert log.retention.retain() == ExpiredSegments(0)
    assert not caplog.records


@pytest.mark.parametrize("when", ["before the check", "after the check"])
def test_a_read_that_retention_overtakes_is_whole_or_refused(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention runs in the middle of a read, as it does when it comes from another thread."""
    log = filled(tmp_path, {"retention.ms": 0})
    check = log.reader._check_readable
    left = [1]

    def overtaken(offset: int) -> None:
        if when == "after the check":
            check(offset)
        if left:
            left.pop()
            run(log)
        if when == "before the check":
            check(offset)

    monkeypatch.setattr(log.reader, "_check_readable", overtaken)
    if when == "before the check":
        with pytest.raises(OffsetOutOfRangeError):
            log.reader.read(3, 1 << 20)
        return
    piece = log.reader.read(3, 1 << 20)
    assert piece is not None
    assert (piece.base_offset, piece.next_offset) == (0, 10)
    piece.release()


def test_files_located_while_retention_overtakes_have_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, {"retention.ms": 0})
    check = log.reader._check_readable

    def overtaken(offset: int) -> None:
        check(offset)
        run(log)

    monkeypatch.setattr(log.reader, "_check_readable", overtaken)
    assert [r.base_offset for r in log.reader.locate(3, 40)] == [0, 10, 20, 30]


def test_records_that_a_delta_table_lacks_are_kept(tmp_path: Path) -> None:
    """Until a worker reports, and from the table's next offset on: by retention, and by deletion on request."""
    log = filled(tmp_path, {"retention.ms": 0, "lake.location": "/lake"})
    assert log.retention.held_from == 0
    assert run(log).raised == []
    with pytest.raises(InvalidRequestError, match="Delta table has the offsets below 0 only"):
        log.retention.delete_records(5)
    log.retention.note_lake_offset(25)
    assert run(log).raised == [TP]
    assert log.log_start_offset == 20  # the segment with offset 25 stays
    with pytest.raises(InvalidRequestError, match="below 25 only"):
        log.retention.delete_records(-1)
    assert log.retention.delete_records(25) == 25
    log.retention.note_lake_offset(0)  # a rebuild
    assert log.retention.held_from == 0
    log.retention.follow_log_start(30)  # a follower does as its leader does
    assert log.log_start_offset == 30


def test_a_lake_that_does_not_hold_retention(tmp_path: Path) -> None:
    log = filled(tmp_path, {"retention.ms": 0, "lake.location": "/lake", "lake.hold.retention": False})
    assert log.retention.held_from is None
    assert run(log).raised == [TP]
