"""An irregular file, or one of an absurd size, under each name of a data directory: every operation on it ends, and
names the path."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from sparklog.cli.doctor.directory_facts import data_dir_facts
from sparklog.cli.log.segment_dump import dump_segment, segment_paths
from sparklog.environment.databases import SqliteDatabases
from sparklog.environment.files import FILE_BYTES_MAX, OddFileError, RealFiles, odd_file, read_regular, read_whole
from sparklog.errors import SparklogError, StorageError
from sparklog.log.directories.broker_epoch import noted_lives
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.tools.repair import repair
from sparklog.log.tools.verify import bytes_to_check, verify
from tests.support.inspection import stopped_directory
from tests.support.log_managers import E0, E1, spec, started

TIB = 1 << 40
BOUND_S = 60


def fifo(path: Path) -> None:
    os.mkfifo(path)


def sock(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # a socket's path may be too long
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(TIB)


ODD: list[Callable[[Path], None]] = [fifo, sock, Path.mkdir, circle, huge]


@contextlib.contextmanager
def bounded(what: object) -> Iterator[None]:
    """Fails instead of hanging."""

    def late(*_: object) -> None:
        raise AssertionError(f"{what}: it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(BOUND_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def put(make: Callable[[Path], None], path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    make(path)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of partitions 0 and 1, with every kind of file."""
    made = stopped_directory(tmp_path_factory.mktemp("odd") / "data")
    (first,) = sorted((made / "events-0").glob("*.arrow"))[:1]
    for suffix in (".txnindex", ".snapshot"):
        (made / "events-0" / f"{first.stem}{suffix}").touch()
    return made


PARTITION_NAMES = (
    "partition.json", "topic.json", "leader-epochs.json", "truncation.json", "repaired-gaps.json", "cleaner-point.json",
    "remote-log.journal", "FIRST.arrow", "LAST.arrow", "FIRST.index", "FIRST.timeindex", "FIRST.txnindex",
    "FIRST.snapshot", "LAST.snapshot", "FIRST.arrow.cleaned", "FIRST.arrow.swap", "FIRST.arrow.deleted",
    "leader-epochs.json.tmp",
)  # fmt: skip
VITAL = (".lock", "meta.json")
"""Without them nobody knows whose directory it is, or whether another broker uses it."""
ALWAYS_WRITTEN = ("recovery-points.json", "clean-shutdown", "log-dirs.json", "expiry-clock.json")
DIRECTORY_NAMES = (
    ".lock", "meta.json", "clean-shutdown", "recovery-points.json", "log-dirs.json", "expiry-clock.json",
    "broker-epoch.json", "recovery-points.json.tmp", ".probe", "expiry-clock.json.tmp",
)  # fmt: skip


def pairs(names: tuple[str, ...], always: tuple[str, ...]) -> list[tuple[str, Callable[[Path], None]]]:
    """Each name with one kind, those of `always` with all."""
    return [(name, make) for i, name in enumerate(names) for make in (ODD if name in always else [ODD[i % len(ODD)]])]


PAIRS = pairs(PARTITION_NAMES, ("leader-epochs.json", "LAST.arrow"))
DIRECTORY_PAIRS = pairs(DIRECTORY_NAMES, ("recovery-points.json", "recovery-points.json.tmp", ".probe"))


def named(directory: Path, name: str) -> Path:
    segments = sorted(directory.glob("*.arrow"))
    return directory / name.replace("FIRST", segments[0].stem).replace("LAST", segments[-1].stem)


def copy(stopped: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(stopped, to))


def test_in_a_partition_only_that_one_is_offline(stopped: Path, tmp_path: Path) -> None:
    for name, make in PAIRS:
        data_dir = copy(stopped, tmp_path / "data")
        path = named(data_dir / "events-0", name)
        put(make, path)
        with bounded(name):
            manager = started(data_dir)
            try:
                assert E1 in manager.table.logs, name
                if E0 in manager.table.offline:
                    assert path.name in str(manager.table.offline[E0]), name
                else:
                    log = manager.table.get(E0)
                    assert log.log_end_offset, name
                    found = log.reader.read(0, 1 << 20)
                    assert found is not None, name
                    found.release()
            finally:
                manager.close()


def test_of_a_directory_a_start_goes_on_without_a_hint(stopped: Path, tmp_path: Path) -> None:
    """Two starts: an odd file does not keep the next one from being written either."""
    for name, make in DIRECTORY_PAIRS:
        data_dir = copy(stopped, tmp_path / "data")
        put(make, data_dir / name)
        with bounded(name):
            if name in VITAL:
                with pytest.raises(StorageError, match=re.escape(name)):
                    started(data_dir)
                continue
            for _ in range(2):
                manager = LogManager(data_dir, expiry_rate=100)
                manager.load("c1", [spec(), spec(partition=1)])
                assert (set(manager.table.logs), manager.table.offline) == ({E0, E1}, {}), name
                assert noted_lives(manager.directories.all) is not None
                manager.table.get(E0).raise_high_watermark(manager.table.get(E0).log_end_offset)
                assert manager.table.get(E0).reader.read(0, 1 << 20) is not None
                manager.directories.all[0].health.probe()
                assert manager.close(), (name, make)
            assert not odd_file(data_dir / name), name
            assert RealFiles().exists(data_dir / name) or name not in ALWAYS_WRITTEN


def test_an_odd_identity_takes_its_directory_alone_offline(tmp_path: Path) -> None:
    for make in ODD:
        with bounded(make):
            data_dir = tmp_path / str(ODD.index(make))
            paths = [data_dir / "a", data_dir / "b"]
            manager = LogManager(data_dir, log_dirs=paths)
            manager.load("c1", [spec(), spec(partition=1)])
            (place,) = [p for p in paths if manager.table.location_of(E0)[0] == p]
            manager.close()
            put(make, place / "meta.json")
            manager = LogManager(data_dir, log_dirs=paths)
            manager.load("c1", [replace(s, was_created=True) for s in (spec(), spec(partition=1))])
            assert set(manager.table.logs) == {E1} and "meta.json" in str(manager.table.offline[E0]), make
            assert [d.path for d in manager.directories.all if d.failure] == [place]
            manager.close()


def test_the_tools_say_which_file_it_is(stopped: Path, tmp_path: Path) -> None:
    for place, make in [(f"events-0/{name}", make) for name, make in PAIRS] + DIRECTORY_PAIRS:
        data_dir = copy(stopped, tmp_path / "data")
        path = named(data_dir / "events-0", place.removeprefix("events-0/")) if "/" in place else data_dir / place
        put(make, path)
        with bounded(place):
            bytes_to_check([data_dir])
            found = verify([data_dir])
            told = [f.path for f in (*found.damage, *found.notes)]
            if place.endswith((".tmp", ".cleaned", ".swap", ".deleted")) and "/" in place:
                assert str(path) in [f.path for f in found.damage], place
            if "/" in place or place in ("meta.json", "clean-shutdown", "recovery-points.json", "log-dirs.json"):
                assert str(path) in told, place
            assert not [f for f in found.damage if "events-1" in f.path], place
            with contextlib.suppress(SparklogError):
                repair(data_dir / "events-0", RealFiles(), dry_run=True)
            repair(data_dir / "events-1", RealFiles(), dry_run=True)
            data_dir_facts(data_dir)
            for segment in segment_paths(data_dir / "events-0"):
                with contextlib.suppress(SparklogError):
                    dump_segment(segment)


def test_an_incomplete_swap_that_a_start_refuses_is_damage(stopped: Path, tmp_path: Path) -> None:
    data_dir = copy(stopped, tmp_path / "data")
    swap = named(data_dir / "events-0", "FIRST.arrow.swap")
    swap.touch()
    assert str(swap) in [f.path for f in verify([data_dir]).damage]
    manager = started(data_dir)
    assert swap.name in str(manager.table.offline[E0])
    manager.close()
    named(data_dir / "events-0", "FIRST.arrow.cleaned").touch()  # it does not count
    assert str(swap) not in [f.path for f in verify([data_dir]).damage]
    manager = started(data_dir)
    assert manager.table.offline == {}
    manager.close()


def test_a_partition_without_its_directory_is_damage(stopped: Path, tmp_path: Path) -> None:
    for make in (fifo, Path.touch, nowhere):
        for is_clean in (True, False):
            data_dir = copy(stopped, tmp_path / "data")
            shutil.rmtree(data_dir / "events-0")
            make(data_dir / "events-0")
            if not is_clean:
                (data_dir / "clean-shutdown").unlink()
            with bounded(make):
                assert [f.path for f in verify([data_dir]).damage] == [str(data_dir / "events-0")], (make, is_clean)


def test_the_reason_names_the_path_and_its_kind(tmp_path: Path) -> None:
    expected: dict[Callable[[Path], None], str] = {
        fifo: r"odd is a pipe \(FIFO\), no regular file: move it away",
        sock: "odd is a socket, no regular file",
        Path.mkdir: "odd is a directory, no regular file",
        circle: "odd: Too many levels of symbolic links",
        huge: f"odd is larger than .* bytes, the most allowed: it has {TIB}",
    }
    for make, reason in expected.items():
        path = tmp_path / "odd"
        with bounded(make):
            make(path)
            with pytest.raises(StorageError, match=reason):
                read_whole(RealFiles(), path)
            with pytest.raises((OddFileError, OSError)):
                read_regular(path)
            with pytest.raises(StorageError, match="odd"):
                SqliteDatabases().open(path)
        path.rmdir() if make is Path.mkdir else path.unlink()
    put(nowhere, tmp_path / "odd")  # as good as absent
    assert read_whole(RealFiles(), tmp_path / "odd") is None
    with (tmp_path / "segment").open("wb") as file:
        file.truncate(FILE_BYTES_MAX)
    RealFiles().open(tmp_path / "segment").close()
