"""Directories and files that are exchanged under a running log: writes to the old ones are lost."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.environment.files import FileIdentity, RealFiles
from sparklog.errors import DataDirLockedError, StorageError, StorageUnavailableError
from sparklog.format.segment import SegmentInfo
from sparklog.log.directories.log_directory import take_lock
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.model.watched_files import LOOK_AGE_S_MAX, PROBE_FILE, DirectoryHealth, WatchedFiles
from sparklog.log.segments.segment import LogSegment
from sparklog.types import TopicPartition
from tests.support.logs import SCHEMAS, append, records

CLUSTER = "c" * 32
TP = TopicPartition("events", 0)
SPEC = PartitionSpec(LogOwner("events", "0" * 32, 0, "timestamp"), LogConfig.from_settings({}), SCHEMAS.__getitem__)


def started(directory: Path) -> LogManager:
    manager = LogManager(directory)
    manager.load(CLUSTER, [SPEC])
    return manager


def replace_by_copy(path: Path) -> None:
    """As a restore does: everything is there again, in other files."""
    path.rename(path.with_name("old"))
    copy = shutil.copytree if path.with_name("old").is_dir() else shutil.copy2
    copy(path.with_name("old"), path)


def remove(path: Path) -> None:
    path.unlink()


def exchange(path: Path) -> None:
    """As editors and rsync do."""
    new = path.with_name("new")
    shutil.copy2(path, new)
    new.rename(path)


REPLACEMENTS: dict[str, Callable[[Path], None]] = {
    "the directory is moved away and copied back": replace_by_copy,
    "the lock file is exchanged": lambda data: exchange(data / ".lock"),
    "the lock file is removed": lambda data: remove(data / ".lock"),
    "a partition's directory is moved away and copied back": lambda data: replace_by_copy(data / "events-0"),
    "a partition's directory is removed": lambda data: shutil.rmtree(data / "events-0"),
    "the active segment is exchanged": lambda data: exchange(data / "events-0" / f"{0:020d}.arrow"),
    "the active segment is removed": lambda data: remove(data / "events-0" / f"{0:020d}.arrow"),
}


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_an_exchanged_file_is_noticed_after_an_append(tmp_path: Path, name: str) -> None:
    data = tmp_path / "data"
    manager = started(data)
    append(manager.table.get(TP), records(3))
    manager.failures.look(data)
    assert not manager.directories.failed
    REPLACEMENTS[name](data)
    append(manager.table.get(TP), records(1))  # within the second
    manager.failures.look(data)
    assert list(manager.directories.failed) == [data]
    with pytest.raises(StorageError, match="has failed"):
        manager.table.get(TP).appender.append(records(1))
    before = {p: p.read_bytes() for p in data.rglob("*") if p.is_file()}
    assert not manager.close()
    assert {p: p.read_bytes() for p in data.rglob("*") if p.is_file()} == before, "nothing is written into the new one"


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_an_append_checks_a_log_whose_last_check_is_old(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    manager = started(data)
    append(manager.table.get(TP), records(3))
    REPLACEMENTS[name](data)
    later_s = time.monotonic() + LOOK_AGE_S_MAX + 0.1
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    for directory in manager.directories.all:
        directory.health._now_s = lambda: later_s
    with pytest.raises(StorageError):
        manager.table.get(TP).appender.append(records(1))
    assert list(manager.directories.failed) == [data]
    manager.close()


def test_a_segment_that_is_opened_again_must_be_the_same_file(tmp_path: Path) -> None:
    manager = started(tmp_path)
    log = manager.table.get(TP)
    append(log, records(3))
    log.segments[0].close_handle()  # as when many others are used
    exchange(tmp_path / "events-0" / f"{0:020d}.arrow")
    with pytest.raises(StorageError, match="another file or directory than before"):
        log.appender.append(records(1))
    assert manager.directories.failed
    manager.close()


def test_no_new_segment_is_created_in_an_exchanged_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    manager = started(data)
    append(manager.table.get(TP), records(3))
    replace_by_copy(data / "events-0")
    with pytest.raises(StorageError, match="another file or directory than before"):
        manager.table.get(TP).appender.begin_segment()
    assert sorted(p.name for p in (data / "events-0").glob("*.arrow")) == [f"{0:020d}.arrow"]
    manager.close()


def test_moving_away_and_back_is_no_exchange(tmp_path: Path) -> None:
    data = tmp_path / "data"
    manager = started(data)
    append(manager.table.get(TP), records(3))
    data.rename(tmp_path / "away")
    (tmp_path / "away").rename(data)
    append(manager.table.get(TP), records(1))
    manager.failures.look(data)
    assert not manager.directories.failed
    assert manager.close()


def test_deleting_compacting_and_rolling_is_no_exchange(tmp_path: Path) -> None:
    manager = started(tmp_path)
    log = manager.table.get(TP)
    for _ in range(3):
        append(log, records(3))
        log.appender.begin_segment()
    manager.failures.look(tmp_path)
    append(log, records(3))
    log.retention.delete_records(9)
    log.retention.drop_below_log_start()
    manager.failures.look(tmp_path)
    append(log, records(3))
    manager.removal.delete_partition(TP)
    log.flusher.look()
    assert not manager.directories.failed
    assert manager.close()


class FilesUnderLock(RealFiles):
    """Files that note whether a lock is held at each rename and check."""

    def __init__(self) -> None:
        self.is_held: Callable[[], bool] = lambda: True
        self.calls: list[tuple[str, bool]] = []

    def rename(self, source: Path, target: Path) -> None:
        self.calls.append(("rename", self.is_held()))
        super().rename(source, target)

    def check_in_place(self, path: Path, identity: FileIdentity) -> None:
        self.calls.append(("check", self.is_held()))
        super().check_in_place(path, identity)


def test_no_check_comes_between_the_rename_of_a_compacted_segment_and_its_new_path(tmp_path: Path) -> None:
    """The log uses a compacted segment while it still has the ending `.swap`. A check in between would see no file, and
    the log directory would fail."""
    files = FilesUnderLock()
    segment = LogSegment.create(files, tmp_path, SegmentInfo("events", "0" * 32, 0, 0, 1), SCHEMAS[1])
    files.is_held = segment._lock.locked
    segment.move(tmp_path / "a.arrow.swap")
    segment.check_in_place()
    segment.move(tmp_path / "a.arrow")
    segment.check_in_place()
    assert set(files.calls) == {("rename", True), ("check", True)}


def test_a_data_directory_beside_the_log_directories_is_looked_at(tmp_path: Path) -> None:
    data = tmp_path / "data"
    manager = LogManager(data, log_dirs=[tmp_path / "a"])
    manager.directories.look_at_data_dir()
    replace_by_copy(data)
    with pytest.raises(StorageError, match="lock is another file"):
        manager.directories.look_at_data_dir()
    manager.close()


class HangingFiles(RealFiles):
    """Looks wait for `alive`, as at a mount whose server is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = threading.Event()
        self.alive.set()
        self.looks = 0

    def check_in_place(self, path: Path, identity: FileIdentity) -> None:
        self.looks += 1
        assert self.alive.wait(30)
        super().check_in_place(path, identity)


def test_while_a_look_hangs_writes_wait_for_it(tmp_path: Path) -> None:
    now_s = 0.0
    files = HangingFiles()
    lock = take_lock(files, tmp_path, "test")
    failed = threading.Event()
    health = DirectoryHealth(tmp_path, files, failed.set, now_s=lambda: now_s)
    health.hold(lock)
    file = WatchedFiles(files, health).open(tmp_path / "file", create=True)
    looks = files.looks
    file.write(0, b"a")
    assert files.looks == looks, "a look is not too old: a write costs none"
    now_s = LOOK_AGE_S_MAX + 0.1
    files.alive.clear()
    written = threading.Event()

    def write() -> None:
        file.write(0, b"b")
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not written.wait(0.05)
    assert (tmp_path / "file").read_bytes() == b"a"
    files.alive.set()
    thread.join(30)
    assert (tmp_path / "file").read_bytes() == b"b"
    assert not failed.is_set()
    file.close()
    lock.close()


def test_a_check_without_memory_gives_no_verdict(tmp_path: Path) -> None:
    now_s = 0.0
    files = HangingFiles()
    lock = take_lock(files, tmp_path, "test")
    health = DirectoryHealth(tmp_path, files, lambda: None, now_s=lambda: now_s)
    health.hold(lock)
    file = WatchedFiles(files, health).open(tmp_path / "file", create=True)

    def lack(path: Path, identity: FileIdentity) -> None:
        raise StorageUnavailableError("no memory") from OSError(12, os.strerror(12))

    files.check_in_place = lack  # type: ignore[method-assign]
    now_s = LOOK_AGE_S_MAX + 0.1
    with pytest.raises(StorageUnavailableError, match="cannot verify"):
        file.write(0, b"b")
    assert health.failure is None
    del files.check_in_place
    file.write(0, b"b")
    file.close()
    lock.close()


def test_a_lock_that_is_exchanged_while_it_is_taken_does_not_count(tmp_path: Path) -> None:
    class Exchanging(RealFiles):
        def lock(self, path: Path) -> object:  # type: ignore[override]
            found = super().lock(path)
            exchange(path)
            return found

    with pytest.raises(StorageError, match="another file or directory than before"):
        take_lock(Exchanging(), tmp_path, "test")  # type: ignore[arg-type]


def test_two_brokers_cannot_have_one_directory(tmp_path: Path) -> None:
    manager = started(tmp_path)
    with pytest.raises(DataDirLockedError):
        LogManager(tmp_path)
    manager.close()


class SecondProbe(RealFiles):
    """While one probe is under way, another thread begins one."""

    health: DirectoryHealth
    second: threading.Thread | None = None

    def rename(self, source: Path, target: Path) -> None:
        if self.second is None and target.name == PROBE_FILE:
            self.second = threading.Thread(target=self.health.probe)
            self.second.start()
            self.second.join(0.2)  # without a lock it would be through by now, and our file would be gone
        super().rename(source, target)


def test_two_probes_at_once_do_not_take_the_directory_for_failed(tmp_path: Path) -> None:
    files = SecondProbe()
    lock = take_lock(files, tmp_path, "test")
    health = files.health = DirectoryHealth(tmp_path, files, lambda: None)
    health.hold(lock)
    health.probe()
    assert files.second is not None
    files.second.join(30)
    assert health.failure is None
    assert not (tmp_path / PROBE_FILE).exists()
    lock.close()
