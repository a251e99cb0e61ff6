"""A crash at every file-system call of rolling, sealing and retention: acknowledged records survive."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from sparklog.errors import LogCorruptError, OffsetOutOfRangeError
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.housekeeping.retention_run import run_retention
from sparklog.log.model.log_config import LogConfig
from sparklog.log.partition_log import PartitionLog
from sparklog.testing._sim_files import SimFiles
from sparklog.types import TopicPartition
from tests.support.log_managers import kill
from tests.support.logs import OWNER, SCHEMAS, ManualClock, open_log, records, segment_files, values
from tests.unit.log.crash_points import CrashPoints

TP = TopicPartition("events", 0)
Step = Callable[[PartitionLog], None]


def plain(value: bytes, **more: Any) -> Step:
    def append(log: PartitionLog) -> None:
        log.appender.append(records(3, value=value, **more))
        log.raise_high_watermark(log.log_end_offset)

    return append


def two_in_one(value: bytes) -> Step:
    """One payload whose second batch has another schema: it rolls in the middle."""

    def append(log: PartitionLog) -> None:
        log.appender.append(records(3, value=value) + records(3, value=value, schema_id=2))
        log.raise_high_watermark(log.log_end_offset)

    return append


ROLLS: dict[str, tuple[dict[str, Any], list[Step]]] = {
    "size": ({"segment.bytes": 4096}, [plain(b"a" * 700), plain(b"b" * 700), plain(b"c" * 700)]),
    "age": ({"segment.ms": 50}, [plain(b"a"), plain(b"b", first_ms=40), plain(b"c", first_ms=100)]),
    "index full": (
        {"segment.index.bytes": 64, "index.interval.bytes": 1},
        [plain(bytes([65 + i])) for i in range(11)],
    ),
    "schema": ({}, [plain(b"a"), plain(b"b", schema_id=2), plain(b"c")]),
    "schema in one payload": ({}, [plain(b"a"), two_in_one(b"b")]),
    "roll": ({}, [plain(b"a"), lambda log: log.appender.roll(), plain(b"b")]),
    "roll and reopened": ({}, [plain(b"a"), lambda log: log.appender.roll(), lambda log: log.close()]),
}


@pytest.mark.parametrize("cause", ROLLS)
def test_a_crash_anywhere_in_a_roll_loses_no_acknowledged_record(tmp_path: Path, cause: str) -> None:
    settings, steps = ROLLS[cause]
    done: list[bytes] = []
    live, copies = tmp_path / "live", tmp_path / "copies"
    live.mkdir()
    files = CrashPoints(live, copies, lambda: len(done))
    log = open_log(live, settings, files=files)
    expected: list[list[tuple[int, bytes]]] = []
    files.recording = True
    for step in steps:
        expected.append(values(log))
        step(log)
        done.append(b"")
    if cause != "roll and reopened":
        expected.append(values(log))
    else:
        expected.append(expected[-1])
    files.stop()
    assert len(segment_files(live)) >= (1 if cause.startswith("roll") else 2)
    assert len(files.points) > 8
    for copy, what, steps_done in files.points:
        before, after = expected[steps_done], expected[min(steps_done + 1, len(steps))]
        for _ in range(2):
            log = open_log(copy, settings, clean=False)
            found = values(log)
            assert found[: len(before)] == before, f"crash at: {what}"
            assert found == after[: len(found)], f"crash at: {what}"
        log.appender.append(records(1, value=b"next"))
        log.raise_high_watermark(log.log_end_offset)
        assert values(log) == [*found, (len(found), b"next")], f"crash at: {what}"
        log.close()
        for path in segment_files(copy):
            with pa.ipc.open_file(path) as reader:
                assert reader.num_record_batches > 0, f"crash at: {what}: {path.name}"


class Promise(NamedTuple):
    """State at the moment of the crash: the log begins in [at_least, at_most]."""

    at_least: int
    at_most: int


def open_manager(data_dir: Path, settings: dict[str, Any], files: CrashPoints[Promise] | None) -> LogManager:
    manager = LogManager(data_dir, files=files, clock=ManualClock(10_000))
    manager.load("c1", [PartitionSpec(OWNER, LogConfig.from_settings(settings), SCHEMAS.__getitem__)])
    return manager


SETTINGS: dict[str, Any] = {"retention.ms": 8_500, "file.delete.delay.ms": 0, "index.interval.bytes": 1}


def test_a_crash_anywhere_in_retention_leaves_a_sound_log(tmp_path: Path) -> None:
    """Segments expire, records are deleted inside a batch, everything is deleted, appends continue. At every call, the
    log begins at its old or its new start, all records above exist, and no offset is used twice."""
    live = tmp_path / "live"
    promise = Promise(0, 0)
    files = CrashPoints(live, tmp_path / "copies", lambda: (promise, manager.table.get(TP).log_end_offset))
    manager = open_manager(live, SETTINGS, files)  # type: ignore[arg-type]
    log = manager.table.get(TP)
    for i in range(4):
        for j in (0, 5):
            log.appender.append(records(5, first_ms=1000 * i + j, value=b"%d" % i))
        log.appender.roll()
    log.raise_high_watermark(40)
    manager.checkpoints.write()

    files.recording = True
    promise = Promise(0, 20)
    assert run_retention(manager.table.logs, manager.checkpoints.write).raised == [TP]
    promise = Promise(20, 20)
    run_retention(manager.table.logs, manager.checkpoints.write)
    promise = Promise(20, 27)
    log.retention.delete_records(27)
    manager.checkpoints.write()
    promise = Promise(27, 27)
    run_retention(manager.table.logs, manager.checkpoints.write)
    promise = Promise(27, 40)
    log.retention.delete_records(-1)
    manager.checkpoints.write()
    promise = Promise(40, 40)
    run_retention(manager.table.logs, manager.checkpoints.write)
    run_retention(manager.table.logs, manager.checkpoints.write)
    log.appender.append(records(3, first_ms=9_500, value=b"new"))
    log.raise_high_watermark(43)
    files.stop()
    assert [p.stem for p in segment_files(live)] == [f"{40:020}"]
    assert len(files.points) > 30
    for copy, what, ((at_least, at_most), end) in files.points:
        check_sound(copy, what, at_least, at_most, end)


def check_sound(copy: Path, what: str, at_least: int, at_most: int, end: int) -> None:
    for _ in range(2):
        manager = open_manager(copy, SETTINGS, None)
        log = manager.table.get(TP)
        log.raise_high_watermark(log.log_end_offset)
        start = log.log_start_offset
        assert at_least <= start <= at_most, f"crash at: {what}"
        assert log.log_end_offset in (end, 43), f"crash at: {what}"
        found = {o: v for o, v in values(log) if o >= start} if start < log.log_end_offset else {}
        assert list(found) == list(range(start, log.log_end_offset)), f"crash at: {what}"
        assert all(v == (b"%d" % (o // 10) if o < 40 else b"new") for o, v in found.items()), f"crash at: {what}"
        if start:
            with pytest.raises(OffsetOutOfRangeError):
                log.reader.read(start - 1, 1 << 20)
        run_retention(manager.table.logs, manager.checkpoints.write)
        kill(manager)


def test_a_power_cut_never_takes_the_first_of_two_segments_unnoticed() -> None:
    """Neither was flushed. A log that began at the second one would answer as if the first had been deleted."""
    ends = set()
    for seed in range(100):
        files = SimFiles()
        log = open_log(Path("/data"), files=files)
        log.appender.append(records(3, value=b"a"))
        log.appender.begin_segment()
        log.close(seal=False)
        files.power_cut(random.Random(seed))
        try:
            log = open_log(Path("/data"), files=files, clean=False)
        except LogCorruptError:  # noticed: intact batches behind a lost head
            continue
        assert log.log_start_offset == 0
        ends.add(log.log_end_offset)
        log.close()
    assert ends == {0, 3}
