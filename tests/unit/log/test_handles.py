"""Open segment files: few of many, never one that is in use taken away."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparklog.environment.files import File, RealFiles
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.model.log_config import LogConfig
from sparklog.log.partition_log import PartitionLog
from sparklog.log.segments.slices import HandleCache, SharedFile
from tests.support.log_managers import E0, spec
from tests.support.logs import OWNER, SCHEMAS, ManualClock, append, read_all, records, values


class CountedFiles(RealFiles):
    """Counts how many segment files are open."""

    def __init__(self) -> None:
        self.open_now: set[object] = set()
        self.opened = 0

    def open(self, path: Path, *, create: bool = False) -> File:
        inner = super().open(path, create=create)
        return CountedFile(inner, self) if path.suffix == ".arrow" else inner  # type: ignore[return-value]


class CountedFile:
    def __init__(self, inner: File, files: CountedFiles) -> None:
        self._inner, self._files = inner, files
        files.open_now.add(self)
        files.opened += 1

    def close(self) -> None:
        self._files.open_now.remove(self)  # KeyError: closed twice
        self._inner.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def many_segments(tmp_path: Path, files: CountedFiles, limit: int, count: int) -> PartitionLog:
    """A log of `count` segments with one batch of one record each."""
    log = PartitionLog.open(
        tmp_path / OWNER.directory_name,
        OWNER,
        LogConfig.from_settings({"segment.bytes": 4096}),
        SCHEMAS.__getitem__,
        files=files,
        clock=ManualClock(),
        clean=True,
        handles=HandleCache(limit),
    )
    for i in range(count):
        append(log, records(1, value=b"%04d" % i * 1000))
    assert log.segment_count == count
    return log


def test_no_more_are_open_than_allowed(tmp_path: Path) -> None:
    files = CountedFiles()
    log = many_segments(tmp_path, files, 5, 30)
    assert len(files.open_now) == 5
    assert [v[:4] for _, v in values(log)] == [b"%04d" % i for i in range(30)]
    assert len(files.open_now) <= 5
    log.close()
    assert not files.open_now


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    files = CountedFiles()
    log = many_segments(tmp_path, files, 3, 6)
    for offset in (0, 1, 0, 2, 0, 4, 0):  # 0 is used all the time
        read_one(log, offset)
    before = files.opened
    read_one(log, 0)
    assert files.opened == before
    read_one(log, 1)
    assert files.opened == before + 1


def read_one(log: PartitionLog, offset: int) -> None:
    piece = log.reader.read(offset, 1)
    assert piece is not None
    piece.release()


def test_a_file_in_use_stays_open_beyond_the_limit(tmp_path: Path) -> None:
    files = CountedFiles()
    log = many_segments(tmp_path, files, 4, 20)
    pieces = [log.reader.read(offset, 1) for offset in range(20)]
    assert len(files.open_now) == 20
    for piece in pieces:
        assert piece is not None
        assert len(piece.read()) == piece.length_bytes
        piece.release()
    assert len(files.open_now) == 4
    for offset in range(10):
        read_one(log, offset)
    assert len(files.open_now) <= 4
    log.close()


def test_an_active_segment_whose_file_was_closed_goes_on(tmp_path: Path) -> None:
    files = CountedFiles()
    handles = HandleCache(1)
    manager = LogManager(tmp_path, files=files, handles=handles)
    manager.load("c1", [spec(partition=p) for p in range(4)])
    for turn in range(3):
        for log in manager.table.logs.values():
            append(log, records(2, first_ms=turn))
            assert len(files.open_now) == 1
    for log in manager.table.logs.values():
        assert len(values(log)) == 6
        log.flusher.flush()
    assert manager.close()
    assert not files.open_now
    manager = LogManager(tmp_path)
    manager.load("c1", [spec(partition=p) for p in range(4)])
    manager.table.get(E0).raise_high_watermark(6)
    assert len(values(manager.table.get(E0))) == 6
    manager.close()


def test_a_deleted_segment_can_be_read_to_the_end(tmp_path: Path) -> None:
    files = CountedFiles()
    log = many_segments(tmp_path, files, 2, 6)
    piece = log.reader.read(3, 1)
    assert piece is not None
    log.mark_deleted()
    assert len(files.open_now) == 1
    assert len(piece.read()) == piece.length_bytes
    piece.release()
    piece.release()
    assert not files.open_now


def test_readers_in_threads_never_meet_a_closed_file(tmp_path: Path) -> None:
    files = CountedFiles()
    log = many_segments(tmp_path, files, 2, 12)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(15):
                assert len(read_all(log)) == 12
        except BaseException as e:  # noqa: BLE001  (told in the test)
            errors.append(e)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    read_one(log, 0)
    assert len(files.open_now) <= 2
    log.close()
    assert not files.open_now


class FakeFile:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("limit", [1, 5])
@pytest.mark.parametrize("order", [1, -1])
def test_files_that_are_released_are_closed_down_to_the_limit(limit: int, order: int) -> None:
    """With more files in use than one eviction checks, and no later read that would evict."""
    cache = HandleCache(limit)
    files = [FakeFile() for _ in range(300)]
    shared = [SharedFile(file) for file in files]  # type: ignore[arg-type]
    for one in shared:
        cache.add(one.acquire())
    assert len(cache) == 300
    for released, one in enumerate(shared[::order], 1):
        one.release()
        assert len(cache) == max(limit, 300 - released)
    assert sum(file.closed for file in files) == 300 - limit


def test_an_idle_file_that_is_added_does_not_stay_beyond_the_limit() -> None:
    cache = HandleCache(2)
    for _ in range(100):
        cache.add(SharedFile(FakeFile()).acquire())  # type: ignore[arg-type]
    idle = FakeFile()
    cache.add(SharedFile(idle))  # type: ignore[arg-type]
    assert idle.closed == 1
    assert len(cache) == 100


def test_a_file_that_is_just_opened_is_not_taken_away_when_its_segment_closes(tmp_path: Path) -> None:
    """The segment is deleted between the opening and the entry in the cache: the reader's file was then closed as an
    idle one."""
    files = CountedFiles()
    log = many_segments(tmp_path, files, 4, 2)
    segment = log.segments[0]
    segment.close_handle()

    class Interrupted(HandleCache):
        def add(self, shared: SharedFile) -> None:
            closing.start()
            closing.join(0.1)
            super().add(shared)

    closing = threading.Thread(target=segment.close_handle)
    cache = segment._handles = Interrupted(0)
    held = segment.acquire()
    closing.join()
    assert len(cache) == 0
    assert held.file.size() > 0
    held.release()
    segment._handles = HandleCache()
    log.close()
    assert not files.open_now


@given(st.lists(st.tuples(st.sampled_from(["open", "use", "done", "forget"]), st.integers(0, 5)), max_size=80))
@example([("use", 0), ("use", 2), ("use", 3), ("open", 1), ("done", 0), ("done", 2)])
def test_the_cache_against_a_model(steps: list[tuple[str, int]]) -> None:
    """In every order of events: a file is closed once, never while it is used, and an idle one stays only as long as
    not too many are open."""
    cache = HandleCache(2)
    owned: dict[int, tuple[SharedFile, FakeFile]] = {}
    users: dict[int, list[SharedFile]] = {i: [] for i in range(6)}
    files: list[FakeFile] = []
    for step, i in steps:
        if step in ("open", "use"):
            if i not in owned or not owned[i][0].reacquire():
                file = FakeFile()
                files.append(file)
                shared = SharedFile(file).acquire()  # type: ignore[arg-type]
                owned[i] = (shared, file)
                cache.add(shared)
            users[i].append(owned[i][0])
            cache.touch(owned[i][0])
            if step == "open":
                users[i].pop().release()
        elif step == "done" and users[i]:
            users[i].pop().release()
        elif step == "forget" and i in owned:
            shared, _ = owned.pop(i)
            cache.forget(shared)
            shared.release()
        assert all(shared._file.closed == 0 for held in users.values() for shared in held)  # type: ignore[attr-defined]
        assert all(file.closed <= 1 for file in files)
        busy = sum(shared in users[i] for i, (shared, _) in owned.items())
        assert len(cache) <= max(2, busy)
    for held in users.values():
        for shared in held:
            shared.release()
    for shared, _ in owned.values():
        cache.forget(shared)
        shared.release()
    assert all(file.closed == 1 for file in files)


MANY = """
import os, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from sparklog_broker.descriptors import share_out
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.segments.slices import HandleCache
from tests.support.logs import SCHEMAS, LimitedFiles, append, records, values

config = LogConfig.from_settings({"segment.bytes": 4096})
specs = [PartitionSpec(LogOwner("t", "a" * 32, p, "timestamp"), config, SCHEMAS.__getitem__) for p in range(25)]
payload = bytes(records(1, value=b"x" * 4000))
for turn in range(2):
    handles = HandleCache(share_out(1024, 100_000, 10_000).files)
    assert handles.limit == 512, handles.limit
    manager = LogManager(Path(sys.argv[1]), files=LimitedFiles(), handles=handles)
    manager.load("c1", specs)
    if turn == 0:
        for n in range(80):
            for log in manager.table.logs.values():
                append(log, bytearray(payload))
    held = []
    for log in manager.table.logs.values():
        log.raise_high_watermark(log.log_end_offset)
        assert (log.segment_count, len(values(log))) == (80, 80)
        held += [log.reader.read(offset, 1) for offset in range(0, 80, 8)]
    assert len(os.listdir("/proc/self/fd")) < 900
    assert all(len(piece.read()) == piece.length_bytes for piece in held)
    for piece in held:
        piece.release()
    assert manager.close()
print("ok")
"""


def test_two_thousand_segments_under_a_limit_of_1024_descriptors(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MANY, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert result.stdout == "ok\n", result.stderr
