"""The health of a log directory: which errors take it offline, and when its identity is checked."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from sparklog.errors import StorageError, StorageFullError, StorageUnavailableError
from sparklog.log.model.watched_files import LOOK_AGE_S_MAX, DirectoryHealth, WatchedFile, WatchedFiles

DIRECTORY = Path("/data")


def error_of(number: int) -> StorageError:
    """Return the error of an operation that has failed with `number`."""
    error = StorageError(errno.errorcode[number])
    error.__cause__ = OSError(number, "told")
    return error


class Files:
    """A file system whose checks, changes and files fail with `error`."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.now_s = 100.0
        self.looks = self.probes = 0
        self.written: list[bytes] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def identity(self) -> str:
        return "identity"

    def close(self) -> None:
        pass

    def open_directory(self, path: Path) -> Any:
        return self

    def check_in_place(self, path: Path, identity: Any) -> None:
        self.looks += 1
        self._fail()

    def write_atomic(self, path: Path, data: bytes) -> None:
        self.probes += 1
        self._fail()

    def remove(self, path: Path) -> None:
        self._fail()

    def write(self, position: int, data: bytes) -> None:
        self.written.append(data)

    def sync(self) -> None:
        self._fail()

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


def world() -> tuple[Files, DirectoryHealth, list[int]]:
    """Return a file system, the health of a directory in it, and a list that gets longer with each failure."""
    files, failures = Files(), list[int]()
    health = DirectoryHealth(DIRECTORY, files, lambda: failures.append(1))  # type: ignore[arg-type]
    health.hold(files)  # type: ignore[arg-type]
    return files, health, failures


def test_the_first_failure_stays_and_is_reported_once() -> None:
    files, health, failures = world()
    health.check()
    health.fail("first")
    health.fail("second")
    assert len(failures) == 1
    with pytest.raises(StorageError, match=r"has failed and is offline \(first\)"):
        health.check()
    with pytest.raises(StorageError, match="first"):
        WatchedFile(files, health).write(0, b"x")  # type: ignore[arg-type]
    assert files.written == []


@pytest.mark.parametrize(
    ("number", "is_failed", "probes"),
    [
        (errno.EIO, True, 0),
        (errno.EROFS, True, 0),
        (errno.EMFILE, False, 0),
        (errno.ENOMEM, False, 0),
        (errno.EACCES, False, 1),
    ],
)
def test_errors_are_judged_by_their_number(number: int, is_failed: bool, probes: int) -> None:
    files, health, failures = world()
    health.note(error_of(number))
    assert (bool(failures), files.probes) == (is_failed, probes)


def test_a_probe_that_fails_takes_the_directory_offline_unless_it_is_full_or_memory_is_short() -> None:
    for number, is_failed in ((errno.EACCES, True), (errno.EMFILE, False)):
        files, health, failures = world()
        health.hold(files)  # type: ignore[arg-type]
        health._identities = []  # the look before the probe finds everything in place
        files.error = error_of(number)
        health.probe()
        assert (len(failures), files.probes) == (is_failed, 1), number
    files, health, failures = world()
    health._identities = []
    files.error = StorageFullError("full")
    health.probe()
    assert failures == []


def test_a_look_that_fails_by_a_shortage_gives_no_verdict() -> None:
    for number, is_failed in ((errno.EMFILE, False), (errno.ENOENT, True)):
        files, health, failures = world()
        files.error = error_of(number)
        assert not health.look()
        assert bool(failures) is is_failed, number
    files, health, failures = world()
    files.error = StorageError("another file")
    assert not health.look() and failures


def test_a_write_checks_the_directory_when_the_last_look_is_too_old() -> None:
    files, health, _ = world()
    file = WatchedFile(files, health)  # type: ignore[arg-type]
    files.now_s += LOOK_AGE_S_MAX
    file.write(0, b"at the limit")
    assert files.looks == 0
    files.now_s += 0.5
    file.write(0, b"beyond it")
    assert files.looks == 2, "the lock file and the directory"
    file.write(0, b"again")
    assert files.looks == 2 and len(files.written) == 3


def test_a_write_without_a_recent_look_is_refused_by_the_reason() -> None:
    for number, refusal in ((errno.EMFILE, StorageUnavailableError), (errno.ENOENT, StorageError)):
        files, health, _ = world()
        files.now_s += 2 * LOOK_AGE_S_MAX
        files.error = error_of(number)
        with pytest.raises(StorageError) as refused:
            WatchedFile(files, health).write(0, b"x")  # type: ignore[arg-type]
        assert type(refused.value) is refusal, number
        assert files.written == []


def test_a_change_of_the_directory_needs_a_look_that_succeeds() -> None:
    files, health, _ = world()
    watched = WatchedFiles(files, health)  # type: ignore[arg-type]
    watched.remove(DIRECTORY / "x")
    assert files.looks == 2
    files.error = error_of(errno.EMFILE)
    with pytest.raises(StorageUnavailableError, match="still the same directory"):
        watched.remove(DIRECTORY / "x")
    files.error = StorageError("another file")
    with pytest.raises(StorageError, match="is offline"):
        watched.remove(DIRECTORY / "x")


def test_failed_syncs_and_shortages_are_counted() -> None:
    files, health, failures = world()
    file = WatchedFile(files, health)  # type: ignore[arg-type]
    file.sync()
    files.error = StorageFullError("full")
    with pytest.raises(StorageFullError):
        file.sync()
    assert (health.shortages, health.sync_failures, failures) == (1, 0, [])
    files.error = error_of(errno.EIO)
    with pytest.raises(StorageError):
        file.sync()
    assert (health.shortages, health.sync_failures, len(failures)) == (1, 1, 1)
    assert health.syncs.count == 1
