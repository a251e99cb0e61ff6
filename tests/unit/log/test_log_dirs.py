"""Several log directories: where partitions go, and a disk that fails takes only its own away."""

from __future__ import annotations

import errno
import json
import logging
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.environment.files import SHORTAGE_ERRNOS, File, RealFiles, storage_error
from sparklog.errors import DataDirLockedError, LogCorruptError, StorageError, StorageFullError
from sparklog.format.epoch_checkpoint import LEADER_EPOCHS_FILE
from sparklog.log.directories.room import FREE_BYTES_MAX, HOLD_S, Room
from sparklog.log.housekeeping.expiry_clock import EXPIRY_CLOCK_FILE
from sparklog.log.housekeeping.flush_run import flush_logs
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.model.watched_files import DISK_ERRNOS
from sparklog.types import TopicPartition
from tests.support.log_dirs import FOUR, TPS, FullFiles, places, started
from tests.support.log_managers import kill, spec
from tests.support.logs import append, records, values


class BreakableFiles(RealFiles):
    """Disks that break: below a directory in `broken` every operation named in `operations` fails."""

    def __init__(self) -> None:
        self.broken: dict[Path, int] = {}
        self.operations = {"write", "sync", "read", "truncate", "open", "list", "exists"}
        self.attempts: list[tuple[str, Path]] = []

    def meet(self, operation: str, path: Path) -> None:
        for directory, number in self.broken.items():
            if directory in path.parents and operation in self.operations:
                self.attempts.append((operation, path))
                error = OSError(number, "made up")
                raise storage_error(operation, path, error) from error

    def open(self, path: Path, *, create: bool = False) -> File:
        self.meet("open", path)
        return BreakableFile(super().open(path, create=create), path, self)  # type: ignore[return-value]

    def exists(self, path: Path) -> bool:
        self.meet("exists", path)
        return super().exists(path)

    def sync_directory(self, path: Path) -> None:
        self.meet("sync", path / "x")


class BreakableFile:
    def __init__(self, inner: File, path: Path, files: BreakableFiles) -> None:
        self._inner, self._path, self._files = inner, path, files

    def read(self, position: int, size_bytes: int) -> bytes:
        self._files.meet("read", self._path)
        return self._inner.read(position, size_bytes)

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._files.meet("write", self._path)
        self._inner.write(position, data)

    def truncate(self, size_bytes: int) -> None:
        self._files.meet("truncate", self._path)
        self._inner.truncate(size_bytes)

    def sync(self) -> None:
        self._files.meet("sync", self._path)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@pytest.mark.parametrize("failed", ["b", "data"])
def test_the_expiry_clock_is_written_unless_its_own_disk_has_failed(tmp_path: Path, failed: str) -> None:
    names = ("data", "b")
    files = BreakableFiles()
    manager = started(tmp_path, names, [], files=files, expiry_rate=2)  # type: ignore[arg-type]
    path = tmp_path / "data" / EXPIRY_CLOCK_FILE
    assert path.exists()
    path.unlink()
    next(d for d in manager.directories.all if d.path.name == failed).health.fail(StorageError("made up"))
    manager.save_expiry_clock()
    assert path.exists() == (failed == "b")
    manager.close()


def test_partitions_go_where_the_fewest_are(tmp_path: Path) -> None:
    manager = started(tmp_path, "abc", [])
    for s in FOUR:
        manager.creation.create_partition(s)
    assert places(tmp_path) == {"a": ["events-0", "events-3"], "b": ["events-1"], "c": ["events-2"]}
    manager.removal.delete_partition(TPS[1])
    manager.creation.create_partition(spec("other"))
    manager.creation.create_partition(spec("other", 1))
    assert manager.table.location_of(TopicPartition("other", 0))[0] == tmp_path / "b"
    assert manager.table.location_of(TopicPartition("other", 1))[0] == tmp_path / "b", (
        "ties go in the order of the setting"
    )
    assert manager.close()


def test_every_directory_stands_for_itself(tmp_path: Path) -> None:
    manager = started(tmp_path)
    for tp in TPS:
        append(manager.table.get(tp), records(3 + tp.partition))
    assert manager.close()
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [".lock", "log-dirs.json"]
    for name, theirs in (("a", {"events-0", "events-2"}), ("b", {"events-1", "events-3"})):
        directory = tmp_path / name
        assert {"meta.json", ".lock", "clean-shutdown", "recovery-points.json"} <= {p.name for p in directory.iterdir()}
        points = json.loads((directory / "recovery-points.json").read_bytes())["partitions"]
        assert set(points) == theirs
    ids = {json.loads((tmp_path / n / "meta.json").read_bytes())["data_dir_id"] for n in "ab"}
    assert len(ids) == 2
    manager = started(tmp_path, "ba")  # the order plays no part in finding them
    assert manager.started_clean
    assert [len(values(manager.table.get(tp))) for tp in TPS] == [3, 4, 5, 6]
    directory, directory_id = manager.table.location_of(TPS[1])
    assert (directory, {directory_id}) == (tmp_path / "b", ids - {manager.table.location_of(TPS[0])[1]})
    assert manager.close()


def test_only_the_unclean_directory_is_checked(tmp_path: Path) -> None:
    assert started(tmp_path).close()
    (tmp_path / "b" / "clean-shutdown").unlink()
    manager = started(tmp_path)
    assert [d.started_clean for d in manager.directories.all] == [True, False]
    assert not manager.started_clean
    manager.close()


def test_adding_a_directory_later(tmp_path: Path) -> None:
    assert started(tmp_path, "a").close()
    manager = started(tmp_path, "ab")
    manager.creation.create_partition(spec("other"))
    assert places(tmp_path) == {"a": [f"events-{p}" for p in range(4)], "b": ["other-0"]}
    assert manager.close()


def test_locks(tmp_path: Path) -> None:
    manager = started(tmp_path)
    with pytest.raises(DataDirLockedError, match=r"data is in use by another broker.*data\.dir"):
        LogManager(tmp_path / "data", log_dirs=[tmp_path / "c"])
    with pytest.raises(DataDirLockedError, match=rf"{tmp_path}/b is in use by another broker.*log\.dirs"):
        LogManager(tmp_path / "other", log_dirs=[tmp_path / "c", tmp_path / "b"])
    LogManager(tmp_path / "other", log_dirs=[tmp_path / "c"]).close()  # what a refused start had locked is free again
    manager.close()
    started(tmp_path).close()


def test_a_copied_directory_is_refused(tmp_path: Path) -> None:
    started(tmp_path, "a").close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    manager = LogManager(tmp_path / "data", log_dirs=[tmp_path / "a", tmp_path / "b"])
    with pytest.raises(StorageError, match=r"b is a copy of .*a \(both have data_dir_id"):
        manager.load("c1", FOUR)
    manager.close()


def test_a_partition_in_two_directories_is_offline(tmp_path: Path) -> None:
    manager = started(tmp_path)
    for tp in TPS:
        append(manager.table.get(tp), records(3))
    manager.close()
    shutil.copytree(tmp_path / "a" / "events-0", tmp_path / "b" / "events-0")
    manager = started(tmp_path)
    assert list(manager.table.offline) == [TPS[0]]
    with pytest.raises(
        LogCorruptError, match=r"events-0 is in two log directories: .*/a/events-0 and .*/b/events-0; move"
    ):
        manager.table.get(TPS[0])
    assert not manager.close()
    shutil.rmtree(tmp_path / "a" / "events-0")
    manager = started(tmp_path)
    assert len(values(manager.table.get(TPS[0]))) == 3
    assert manager.close()


def test_leftovers_of_the_same_name_do_not_hide_the_partition(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = started(tmp_path)
    append(manager.table.get(TPS[1]), records(3))
    manager.close()
    for leftover in (b"", (tmp_path / "b/events-1/partition.json").read_bytes().replace(b"e" * 32, b"9" * 32)):
        shutil.rmtree(tmp_path / "a" / "events-1", ignore_errors=True)
        (tmp_path / "a" / "events-1").mkdir()
        (tmp_path / "a" / "events-1" / "partition.json").write_bytes(leftover)
        caplog.clear()
        manager = started(tmp_path)
        assert len(values(manager.table.get(TPS[1]))) == 3
        assert f"{tmp_path}/a/events-1 is not used: {tmp_path}/b/events-1 holds the partition" in caplog.text
        assert manager.close()


@pytest.mark.parametrize("operation", ["write", "sync", "read"])
@pytest.mark.parametrize("number", sorted(DISK_ERRNOS))
def test_a_failing_disk_takes_only_its_partitions(tmp_path: Path, operation: str, number: int) -> None:
    files = BreakableFiles()
    manager = started(tmp_path, files=files)
    called: list[int] = []
    manager.directories.on_failure = lambda: called.append(1)
    for tp in TPS:
        append(manager.table.get(tp), records(3))
        manager.table.get(tp).appender.roll()
    manager.checkpoints.write()
    files.broken[tmp_path / "a"] = number
    files.operations = {operation}
    with pytest.raises(StorageError):
        if operation == "write":
            manager.table.get(TPS[0]).appender.append(records(3))
        elif operation == "sync":
            manager.table.get(TPS[0]).flusher.flush()
        else:
            piece = manager.table.get(TPS[0]).reader.read(0, 1 << 20)
            assert piece is not None
            try:
                piece.read()
            finally:
                piece.release()
    assert called == [1]
    # nothing below it is touched any more, also by what has its files open
    tried = len(files.attempts)
    with pytest.raises(StorageError, match=r"log directory .*/a has failed and is offline \(cannot .*repair"):
        manager.table.get(TPS[2]).appender.append(records(1))
    assert manager.failures.has_unsettled
    (failure,) = manager.failures.settle()
    assert (failure.path, failure.partitions) == (tmp_path / "a", (TPS[0], TPS[2]))
    assert manager.failures.settle() == []
    assert set(manager.table.offline) == {TPS[0], TPS[2]}
    for tp in (TPS[0], TPS[2]):
        with pytest.raises(StorageError, match="has failed"):
            manager.table.get(tp)
    for tp in (TPS[1], TPS[3]):
        append(manager.table.get(tp), records(2))
        assert len(values(manager.table.get(tp))) == 5
    manager.creation.create_partition(spec("other"))
    assert manager.table.location_of(TopicPartition("other", 0))[0] == tmp_path / "b"
    flush_logs(manager.table.logs)
    manager.checkpoints.write()
    manager.removal.delete_partition(TPS[2])
    manager.removal.purge()
    assert not manager.close()
    assert len(files.attempts) == tried
    assert not (tmp_path / "a" / "clean-shutdown").exists()
    assert (tmp_path / "b" / "clean-shutdown").exists()


def test_the_log_of_a_failed_directory_is_offline_for_its_holder(tmp_path: Path) -> None:
    files = BreakableFiles()
    manager = started(tmp_path, files=files)
    log = manager.table.get(TPS[0])
    append(log, records(3))
    piece = log.reader.read(0, 1 << 20)
    assert piece is not None
    files.broken[tmp_path / "a"] = errno.EIO
    with pytest.raises(StorageError):
        log.appender.append(records(3))
    manager.failures.settle()
    for use in (
        lambda: log.reader.read(0, 1),
        lambda: log.appender.append(records(1)),
        lambda: log.reader.locate(0, 3),
    ):
        with pytest.raises(StorageError, match=r"log directory .* has failed"):
            use()
    piece.release()
    manager.close()


@pytest.mark.parametrize("number", [*sorted(SHORTAGE_ERRNOS), errno.ENOENT, errno.EACCES, errno.ENOSPC])
def test_errors_that_are_not_the_disks_keep_the_directory_online(tmp_path: Path, number: int) -> None:
    files = BreakableFiles()
    manager = started(tmp_path, files=files)
    files.broken[tmp_path / "a" / "events-0"] = number  # one partition's files only
    with pytest.raises((StorageError, StorageFullError)):
        manager.table.get(TPS[0]).appender.append(records(3))
    assert not manager.directories.failed
    append(manager.table.get(TPS[2]), records(3))
    files.broken.clear()
    append(manager.table.get(TPS[0]), records(3))
    assert manager.close()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_directory_that_refuses_everything_has_failed(tmp_path: Path, number: int) -> None:
    files = BreakableFiles()
    manager = started(tmp_path, files=files)
    files.broken[tmp_path / "a"] = number
    files.operations = {"open", "write"}
    with pytest.raises(StorageError):
        manager.table.get(TPS[0]).appender.append(records(3))
    assert list(manager.directories.failed) == [tmp_path / "a"]
    manager.close()


def test_a_removed_directory_is_noticed(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(manager.table.get(TPS[1]), records(3))
    manager.failures.look(tmp_path / "b")
    assert not manager.failures.has_unsettled
    shutil.rmtree(tmp_path / "b")
    append(manager.table.get(TPS[1]), records(3))  # its file is open: the write goes nowhere, without an error
    manager.failures.look(tmp_path / "b")
    (failure,) = manager.failures.settle()
    assert failure.path == tmp_path / "b"
    assert ".lock is gone: it was removed, renamed or unmounted" in str(failure.error)
    with pytest.raises(StorageError, match="removed"):
        manager.table.get(TPS[1])
    append(manager.table.get(TPS[0]), records(3))
    assert not manager.close()
    assert not (tmp_path / "b").exists(), "it is not made again"


def test_a_disk_that_is_broken_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = started(tmp_path)
    for tp in TPS:
        append(manager.table.get(tp), records(3))
    manager.close()
    files = BreakableFiles()
    files.broken[tmp_path / "b"] = errno.EIO
    manager = started(tmp_path, files=files)
    assert "b has failed and is offline" in caplog.text
    assert set(manager.table.offline) == {TPS[1], TPS[3]}
    for tp in (TPS[1], TPS[3]):  # not made anew elsewhere: their records are on the broken disk
        with pytest.raises(StorageError, match=r"events-\d is in no log directory that can be used: .*b has failed"):
            manager.table.get(tp)
    assert len(values(manager.table.get(TPS[2]))) == 3
    manager.creation.create_partition(spec("other"))
    assert not manager.close()
    assert places(tmp_path)["a"] == ["events-0", "events-2", "other-0"]
    files.broken.clear()
    manager = started(tmp_path, files=files)
    assert [len(values(manager.table.get(tp))) for tp in TPS] == [3, 3, 3, 3]
    assert manager.close()


def test_a_disk_that_breaks_while_it_is_loaded(tmp_path: Path) -> None:
    manager = started(tmp_path)
    for tp in TPS:
        append(manager.table.get(tp), records(3))
    kill(manager)
    files = BreakableFiles()
    files.broken[tmp_path / "a" / "events-2"] = errno.EIO
    manager = started(tmp_path, files=files)
    assert set(manager.table.offline) == {TPS[0], TPS[2]}
    assert not manager.failures.has_unsettled
    assert len(values(manager.table.get(TPS[1]))) == 3
    manager.close()


def test_without_any_directory_the_start_fails(tmp_path: Path) -> None:
    files = BreakableFiles()
    for name in "ab":
        files.broken[tmp_path / name] = errno.EIO
    with pytest.raises(StorageError, match=r"all log directories have failed: .*/a.*/b"):
        LogManager(tmp_path / "data", log_dirs=[tmp_path / "a", tmp_path / "b"], files=files)
    LogManager(tmp_path / "data").close()  # its lock is free again


def test_a_missing_partition_directory_is_not_created_again(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(manager.table.get(TPS[0]), records(3))
    manager.close()
    shutil.rmtree(tmp_path / "a" / "events-0")
    manager = started(tmp_path, "ba")
    with pytest.raises(LogCorruptError, match=r"a/events-0 .*files are missing"):
        manager.table.get(TPS[0])
    manager.close()


@pytest.mark.parametrize("away", ["not mounted", "not named"])
def test_partitions_of_an_absent_directory_are_not_created_again(tmp_path: Path, away: str) -> None:
    manager = started(tmp_path)
    for tp in TPS:
        append(manager.table.get(tp), records(3))
    assert manager.close()
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    for _ in range(2):  # nor by the start after the next, which knows the empty directory
        manager = started(tmp_path, "ab" if away == "not mounted" else "a")
        for tp in (TPS[1], TPS[3]):
            with pytest.raises(
                StorageError, match=rf"an earlier log directory is missing: {tmp_path}/b .*log-dirs\.json"
            ):
                manager.table.get(tp)
        append(manager.table.get(TPS[0]), records(1))
        manager.creation.create_partition(spec("other"))
        manager.close()
    shutil.rmtree(tmp_path / "b", ignore_errors=True)
    (tmp_path / "elsewhere").rename(tmp_path / "b")
    manager = started(tmp_path)
    assert [len(values(manager.table.get(tp))) for tp in TPS] == [5, 3, 3, 3]
    assert manager.close()


@pytest.mark.parametrize("how", ["its line", "the file", "unreadable"])
def test_a_directory_that_is_declared_lost(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    manager = started(tmp_path)
    append(manager.table.get(TPS[1]), records(3))
    assert manager.close()
    shutil.rmtree(tmp_path / "b")
    known = tmp_path / "data" / "log-dirs.json"
    if how == "its line":
        lines = known.read_text().splitlines()
        known.write_text("\n".join(line for line in lines if f"{tmp_path}/b" not in line).replace(",\n  }", "\n  }"))
    elif how == "the file":
        known.unlink()
    else:
        known.write_text("no JSON")
    manager = started(tmp_path)
    assert [values(manager.table.get(tp)) for tp in TPS] == [[]] * 4
    assert ("are not detected" in caplog.text) == (how == "unreadable")
    assert manager.close()
    manager = started(tmp_path)
    assert not manager.table.offline
    manager.close()


def test_a_directory_that_is_emptied_first_may_go(tmp_path: Path) -> None:
    assert started(tmp_path).close()
    for name in ("events-1", "events-3"):
        (tmp_path / "b" / name).rename(tmp_path / "a" / name)
    assert started(tmp_path, "a").close()
    assert str(tmp_path / "b") not in (tmp_path / "data" / "log-dirs.json").read_text()


def test_a_full_disk_gets_no_new_partition(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FullFiles()
    manager = started(tmp_path, specs=[], files=files)
    files.full = tmp_path / "a"
    caplog.set_level(logging.WARNING)
    manager.creation.create_partition(FOUR[0])
    assert places(tmp_path) == {"a": [], "b": ["events-0"]}
    assert "events-0 cannot be created in" in caplog.text
    assert not manager.directories.failed
    with pytest.raises(StorageFullError):
        manager.checkpoints.write()
    assert "events-0" in (tmp_path / "b" / "recovery-points.json").read_text(), "the other one's is written"
    files.full = tmp_path
    with pytest.raises(StorageFullError, match="disk is full"):
        manager.creation.create_partition(FOUR[1])
    assert places(tmp_path) == {"a": [], "b": ["events-0"]}
    files.full = None
    assert manager.close()


def test_a_leftover_of_another_topic_is_moved_aside_wherever_it_is(tmp_path: Path) -> None:
    manager = started(tmp_path, specs=[spec("other")])
    append(manager.table.get(TopicPartition("other", 0)), records(3))
    manager.close()
    manager = started(tmp_path, "ba", [])
    log = manager.creation.create_partition(spec("other", topic_id="9" * 32))
    assert (log.directory, log.log_end_offset) == (tmp_path / "b" / "other-0", 0)
    assert [n.endswith("-stray") for n in places(tmp_path)["a"]] == [True]
    assert manager.close()


# A log directory that was full stays so until there is enough room, and for a while


MIB = 1 << 20


def test_a_failed_write_fills_a_directory_and_room_frees_it_later() -> None:
    room = Room()
    assert not room.is_full and not room.wants_space(1e9)
    assert room.look(0, 5.0) is room
    room = room.look(3, 5.0)
    assert room.is_full and not room.wants_space(5.0 + HOLD_S - 0.1)
    assert room.measure(100 * MIB, 50 * MIB, 5.0 + HOLD_S - 0.1) is room
    later = 5.0 + HOLD_S
    assert room.wants_space(later)
    assert room.measure(100 * MIB, 5 * MIB - 1, later) is room
    assert room.measure(100 * MIB, 5 * MIB, later) == Room(3)
    assert not room.measure(100 << 40, FREE_BYTES_MAX, later).is_full, "5 % of a large disk are more than it takes"
    assert room.look(4, later).full_since_s == later, "it is held from the last failure on"


@given(st.lists(st.tuples(st.floats(0.1, 3.0), st.booleans(), st.booleans()), max_size=200))
def test_it_does_not_flap(steps: list[tuple[float, bool, bool]]) -> None:
    """However space comes and goes: between two beginnings of fullness there is at least HOLD_S."""
    room, now_s, shortages = Room(), 0.0, 0
    begun: list[float] = []
    for passed_s, fails, has_space in steps:
        now_s += passed_s
        shortages += fails
        was_full = room.is_full
        room = room.look(shortages, now_s)
        if room.wants_space(now_s):
            room = room.measure(100 * MIB, 50 * MIB if has_space else 0, now_s)
        if room.is_full and not was_full:
            begun.append(now_s)
    assert all(b - a >= HOLD_S for a, b in pairwise(begun))


# A topic's partitions are created together: their places, and obstacles there


def test_partitions_created_together_are_spread(tmp_path: Path) -> None:
    manager = started(tmp_path, specs=[spec("other")])
    manager.creation.create_partitions(FOUR)
    assert {name: len(found) for name, found in places(tmp_path).items()} == {"a": 3, "b": 2}
    assert all(manager.table.get(tp).log_end_offset == 0 for tp in TPS)
    logs = manager.table.logs
    manager.creation.create_partitions(FOUR)
    assert manager.table.logs == logs
    kill(manager)
    again = started(tmp_path)
    assert set(TPS) <= set(again.table.logs)
    assert again.close()


def test_partitions_created_together_go_to_disks_with_room(tmp_path: Path) -> None:
    files = FullFiles()
    manager = started(tmp_path, specs=[], files=files)
    files.full = tmp_path / "a"
    manager.creation.create_partitions(FOUR)
    assert {name: len(found) for name, found in places(tmp_path).items()} == {"a": 0, "b": 4}
    files.full = tmp_path
    with pytest.raises(StorageFullError, match="disk is full"):
        manager.creation.create_partitions([spec("other", p) for p in range(4)])
    assert {name: len(found) for name, found in places(tmp_path).items()} == {"a": 0, "b": 4}
    files.full = None
    assert manager.close()


def test_a_leftover_of_another_topic_is_moved_aside_when_partitions_are_created_together(tmp_path: Path) -> None:
    manager = started(tmp_path, specs=[spec("other", p) for p in range(2)])
    append(manager.table.get(TopicPartition("other", 0)), records(3))
    manager.close()
    manager = started(tmp_path, specs=[])
    manager.creation.create_partitions([spec("other", p, topic_id="9" * 32) for p in range(4)])
    assert [manager.table.get(TopicPartition("other", p)).log_end_offset for p in range(4)] == [0] * 4
    assert sum(name.endswith("-stray") for found in places(tmp_path).values() for name in found) == 2
    assert manager.close()


def test_the_first_append_to_partitions_created_together_writes_no_epoch(tmp_path: Path) -> None:
    specs = [spec("other", p) for p in range(3)]
    manager = started(tmp_path, specs=[])
    manager.creation.create_partitions(specs)
    paths = {p: next(tmp_path.glob(f"*/other-{p}")) / LEADER_EPOCHS_FILE for p in range(3)}
    before = {p: path.stat().st_ino for p, path in paths.items()}  # replaced, the file would be another one
    for partition, epoch in enumerate((0, 0, 4)):
        manager.table.get(TopicPartition("other", partition)).appender.append(records(3), leader_epoch=epoch)
    assert [paths[p].stat().st_ino == before[p] for p in range(3)] == [True, True, False]
    manager.table.get(TopicPartition("other", 1)).appender.append(records(3), leader_epoch=5)
    kill(manager)
    again = started(tmp_path, specs=specs)  # type: ignore[arg-type]
    found = [again.table.get(TopicPartition("other", p)) for p in range(3)]
    assert [log.epochs.end_offset_for(log.leader_epoch, log.log_end_offset) for log in found] == [
        (0, 3),
        (5, 6),
        (4, 3),
    ]
    assert found[1].epochs.end_offset_for(0, found[1].log_end_offset) == (0, 3)
    assert again.close()
