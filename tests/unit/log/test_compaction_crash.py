"""A crash, and a failing disk, at every call of a compaction that changes a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparklog.environment.files import File, RealFiles
from sparklog.errors import SparklogError, StorageError
from sparklog.log.compaction.swap import finish_swaps
from sparklog.log.partition_log import PartitionLog
from tests.support.compaction import (
    Row,
    Stored,
    append_rows,
    check_compacted,
    compact,
    open_keyed,
    stored,
)
from tests.support.logs import OWNER, LimitedFiles
from tests.unit.log.crash_points import CrashPoints

ROLLING: dict[str, Any] = {"segment.bytes": 4096, "delete.retention.ms": 0}


def fill(log: PartitionLog, count: int = 6) -> list[Stored]:
    """Several segments; keys that repeat, tombstones, a record without a key."""
    model: list[Stored] = []
    for i in range(count):
        rows = [
            (b"same", b"%d" % i * 300),
            (b"k%d" % (i % 3), None if i % 4 == 3 else b"%d" % i),
            (b"only%d" % i, b"x" * 400),
            (None, b"keyless"),
        ]
        base = append_rows(log, rows, first_ms=10 * i)
        model += [Stored(base + j, *row) for j, row in enumerate(rows)]
    return model


def check_reopened(directory: Path, model: list[Stored], end: int) -> None:
    """Open the directory after a crash, twice: the second time nothing is left to be done."""
    for _ in range(2):
        log = open_keyed(directory, ROLLING, files=LimitedFiles(), clean=False, high_watermark=end)
        assert log.log_end_offset == end
        check_compacted(log, model)
        names = {path.name for path in log.directory.iterdir()}
        assert not [n for n in names if n.endswith((".cleaned", ".swap", ".deleted"))]
        log.close(seal=False)
    log = open_keyed(directory, ROLLING, files=LimitedFiles(), clean=False, high_watermark=end)
    compact(log)
    check_compacted(log, model)
    log.close()


@pytest.mark.parametrize("splitting", [False, True])
def test_a_crash_at_every_call(tmp_path: Path, splitting: bool) -> None:
    live = tmp_path / "live"
    files: CrashPoints[int] = CrashPoints(live, tmp_path / "copies", lambda: 0)
    settings: dict[str, Any] = {"segment.bytes": 22_500} if splitting else ROLLING
    log = open_keyed(live, settings, files=files)
    model = small_rows(log) if splitting else fill(log)
    log.appender.begin_segment()
    end = log.log_end_offset
    before = stored(log)
    files.recording = True
    result = compact(log, roll=False)
    log.retention.remove_dropped()
    files.stop()
    assert result is not None and result.rows_removed
    assert stored(log) != before
    if splitting:
        assert any(len(list(copy.rglob("*.swap"))) == 2 for copy, _, _ in files.points)
    log.close()
    assert len(files.points) > 15
    for copy, what, _ in files.points:
        try:
            check_reopened(copy, model, end)
        except (AssertionError, SparklogError) as e:
            raise AssertionError(f"a crash before: {what}") from e


def small_rows(log: PartitionLog) -> list[Stored]:
    """One segment that becomes larger by the offset column than a segment may be: the run makes two of it."""
    model: list[Stored] = []
    for i in range(2):
        rows: list[Row] = [(b"s%d" % (299 * i + j), b"") for j in range(300)]
        base = append_rows(log, rows)
        model += [Stored(base + j, *row) for j, row in enumerate(rows)]
    return model


class FailingFiles(RealFiles):
    """Every changing call from number `fail_from` on fails, as on a disk that has died."""

    def __init__(self) -> None:
        self.calls = 0
        self.fail_from = 1 << 30
        self.fail_times = 1 << 30

    def count(self, what: str, path: Path) -> None:
        self.calls += 1
        if self.fail_from <= self.calls < self.fail_from + self.fail_times:
            raise StorageError(f"cannot {what} {path}: Input/output error")

    def open(self, path: Path, *, create: bool = False) -> File:
        if create:
            self.count("create", path)
        return _FailingFile(super().open(path, create=create), path, self)  # type: ignore[return-value]

    def rename(self, source: Path, target: Path) -> None:
        self.count("rename", source)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.count("remove", path)
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self.count("fsync", path)


class _FailingFile:
    def __init__(self, inner: File, path: Path, files: FailingFiles) -> None:
        self._inner, self._path, self._files = inner, path, files

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._files.count("write", self._path)
        self._inner.write(position, data)

    def truncate(self, size_bytes: int) -> None:
        self._files.count("truncate", self._path)
        self._inner.truncate(size_bytes)

    def sync(self) -> None:
        self._files.count("fsync", self._path)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@pytest.mark.parametrize("fail_times", [1, 1 << 30])
@pytest.mark.parametrize("splitting", [False, True])
def test_a_disk_that_fails_at_any_call_loses_no_record(tmp_path: Path, splitting: bool, fail_times: int) -> None:
    """Once or for good. The running log still reads its records, and so does the next start."""
    settings: dict[str, Any] = {"segment.bytes": 22_500} if splitting else ROLLING
    fail_at = 0
    while True:
        files = FailingFiles()
        directory = tmp_path / str(fail_at)
        log = open_keyed(directory, settings, files=files)
        model = small_rows(log) if splitting else fill(log, 3)
        log.appender.begin_segment()
        end = log.log_end_offset
        files.fail_from, files.fail_times = files.calls + 1 + fail_at, fail_times
        try:
            compact(log, roll=False)
            failed = False
        except StorageError:
            failed = True
        check_compacted(log, model)
        if failed and fail_times == 1:
            try_again(log, model)
        log.take_offline(StorageError("test"))
        check_reopened(directory, model, end)
        if not failed:
            break
        fail_at += 1
    assert fail_at > 12


def try_again(log: PartitionLog, model: list[Stored]) -> None:
    """The next run does it, unless the log has to be restarted first."""
    try:
        result = compact(log, roll=False)
    except StorageError as e:
        assert "restart" in str(e)
    else:
        assert result is None or result.complete  # None: only its last step had failed
    check_compacted(log, model)


def test_half_of_a_split_does_not_count(tmp_path: Path) -> None:
    """Two new files, only the higher of which has become .swap: the old ones stay."""
    names = ["00000000000000000000.arrow", "00000000000000000000.arrow.cleaned", "00000000000000000005.arrow.swap"]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    finish_swaps(RealFiles(), tmp_path, OWNER)
    assert [p.name for p in tmp_path.iterdir()] == names[:1]


def test_a_file_of_a_failed_run_does_not_make_the_next_one_look_unfinished(tmp_path: Path) -> None:
    live = tmp_path / "live"
    files: CrashPoints[int] = CrashPoints(live, tmp_path / "copies", lambda: 0)
    log = open_keyed(live, {"segment.bytes": 22_500}, files=files)
    model = small_rows(log)
    log.appender.begin_segment()
    end = log.log_end_offset
    (log.directory / "00000000000000000100.arrow.cleaned").write_bytes(b"left")
    files.recording = True
    compact(log, roll=False)
    files.stop()
    log.close()
    for copy, _, _ in files.points:
        check_reopened(copy, model, end)


def test_a_damaged_swap_file_is_not_used(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    append_rows(log, [(b"a", b"1"), (b"a", b"2")])
    log.close()
    path = log.directory / "00000000000000000000.arrow.swap"
    path.write_bytes(b"ARROW1\0\0 half")
    with pytest.raises(SparklogError, match="swap is not complete"):
        open_keyed(tmp_path)
    assert (log.directory / "00000000000000000000.arrow").exists()
    path.unlink()
    open_keyed(tmp_path).close()
