"""The watched file system of one log directory: the first caller that meets a failing disk reports it.

Every error of the disk goes through `DirectoryHealth`, which decides if it concerns the whole directory. After a
failure nothing in the directory is read or written: a disk that has lost one write cannot be trusted with the next.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from sparklog.environment.files import SHORTAGE_ERRNOS, File, FileIdentity, FileSystem
from sparklog.errors import StorageError, StorageFullError, StorageUnavailableError
from sparklog.histogram import Histogram

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
PROBE_FILE = ".probe"
T = TypeVar("T")

DISK_ERRNOS = frozenset(
    {
        errno.EIO,
        errno.EROFS,
        errno.ENXIO,
        errno.ENODEV,
        errno.ESTALE,
        errno.EUCLEAN,
        errno.EREMOTEIO,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
    }
)
"""Errors that mean a broken disk, or a broken connection to it."""
LOOK_AGE_S_MAX = 1.0
"""Largest age of the last check of the directory's identity at the time of an acknowledged write."""


class DirectoryHealth:
    """Usability of a log directory. `failure` is set once and stays; any thread can set it.

    `hold` records the directory's identity. From then on, every write checks the identity first if the last check is
    older than LOOK_AGE_S_MAX. So if checks hang, on a dead mount, no write is acknowledged without a recent check.
    """

    def __init__(
        self,
        directory: Path,
        files: FileSystem,
        on_failure: Callable[[], None],
        now_s: Callable[[], float] | None = None,
    ) -> None:
        """`on_failure` is called once, by the thread that found the failure: it must not wait or use the disk."""
        self.directory = directory
        self.failure: StorageError | None = None
        self._files = files
        self._on_failure = on_failure
        self._now_s = files.monotonic_s if now_s is None else now_s
        self._lock = threading.Lock()
        self._look_lock = threading.Lock()
        self._probe_lock = threading.Lock()
        self._looked_s = self._now_s()
        self._identities: list[tuple[Path, FileIdentity]] = []
        self.syncs = Histogram()
        """Durations of successful fsyncs of files."""
        self.sync_failures = 0
        self.shortages = 0
        """Number of writes that have failed because the disk is full."""
        self._count_lock = threading.Lock()

    def hold(self, lock: File) -> None:
        """Record the identities of the directory and of its lock file `lock`, with which later checks compare. Raises
        StorageError."""
        held = self._files.open_directory(self.directory)
        try:
            self._identities = [
                (self.directory / LOCK_FILE, lock.identity()),
                (self.directory, held.identity()),
            ]
        finally:
            held.close()
        self._looked_s = self._now_s()

    @property
    def look_age_s(self) -> float:
        """Return the seconds since the last check of the directory's identity; 0 before `hold`."""
        return self._now_s() - self._looked_s if self._identities else 0.0

    def sync(self, file: File) -> None:
        """Fsync a file, and record the duration. An error counts as a sign of a failing disk. Raises StorageFullError,
        StorageError."""
        began_s = self._now_s()
        try:
            file.sync()
        except StorageFullError:
            self.note_shortage()
            raise
        except StorageError as e:
            with self._count_lock:
                self.sync_failures += 1
            self.note(e)
            raise
        with self._count_lock:
            self.syncs.observe(self._now_s() - began_s)

    def note_shortage(self) -> None:
        """Count a write that has failed because the disk is full."""
        with self._count_lock:
            self.shortages += 1

    def check(self) -> None:
        """Raise StorageError if the directory has failed."""
        if self.failure is not None:
            raise StorageError(str(self.failure))

    def fail(self, reason: object) -> None:
        """Take the directory offline because of `reason`."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = StorageError(
                f"log directory {self.directory} has failed and is offline ({reason}); repair or replace the "
                f"disk, then restart the broker"
            )
        logger.error("%s", self.failure)
        self._on_failure()

    def note(self, error: StorageError) -> None:
        """Handle the error of an operation in the directory. An error of the disk fails the directory; a lack of
        descriptors or memory is ignored; any other error starts a `probe`."""
        cause = error.__cause__
        number = cause.errno if isinstance(cause, OSError) else None
        if number in SHORTAGE_ERRNOS:
            return
        if number in DISK_ERRNOS:
            self.fail(error)
        else:
            self.probe(error)

    def probe(self, suspicion: object = "a check") -> None:
        """Check that the directory is in place, and that a file can be written in it and removed. If not, the directory
        fails; a full disk is no failure. `suspicion`: the error that led to the probe, for the text of the failure.
        Probes run one after the other: two at a time would remove each other's file."""
        if self.failure is not None or not self.look():
            return
        probe = self.directory / PROBE_FILE
        try:
            with self._probe_lock:
                self._files.write_atomic(probe, b"")
                self._files.remove(probe)
        except StorageFullError:
            pass  # full, but alive
        except StorageError as e:
            if _is_shortage(e):
                return
            self.fail(e if isinstance(suspicion, str) else f"{suspicion}; then: {e}")

    def look(self) -> bool:
        """Check cheaply that the path still leads to the directory and the lock file that this process holds; if not,
        the directory fails. Returns False if the check failed. If another directory was put there (restored, mounted,
        copied back), writes to the open files would be lost, and another broker could hold the new lock."""
        with self._look_lock:
            began_s = self._now_s()
            try:
                for path, identity in self._identities:
                    self._files.check_in_place(path, identity)
            except StorageError as e:
                if not _is_shortage(e):
                    self.fail(e)
                return False
            self._looked_s = began_s
        return True

    def look_before_write(self) -> None:
        """Check the directory if the last check is too old. Raises StorageError if the directory has failed, or
        StorageUnavailableError if the check was not possible."""
        if self.failure is None and self.look_age_s > LOOK_AGE_S_MAX and not self.look() and self.failure is None:
            raise StorageUnavailableError(f"cannot verify that {self.directory} is still the same directory; try again")
        self.check()


def _is_shortage(error: StorageError) -> bool:
    """Return True if the error is a lack of descriptors or memory, and no sign of a faulty disk."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in SHORTAGE_ERRNOS


class WatchedFile:
    """A file of a watched directory: errors are reported to the directory's health."""

    __slots__ = ("_health", "_inner")

    def __init__(self, inner: File, health: DirectoryHealth) -> None:
        self._inner = inner
        self._health = health

    def read(self, position: int, size_bytes: int) -> bytes:
        if self._health.failure is not None:
            self._health.check()
        try:
            return self._inner.read(position, size_bytes)
        except StorageError as e:
            self._health.note(e)
            raise

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._health.look_before_write()
        try:
            self._inner.write(position, data)
        except StorageFullError:
            self._health.note_shortage()
            raise
        except StorageError as e:
            self._health.note(e)
            raise

    def truncate(self, size_bytes: int) -> None:
        self._health.check()
        try:
            self._inner.truncate(size_bytes)
        except StorageFullError:
            self._health.note_shortage()
            raise
        except StorageError as e:
            self._health.note(e)
            raise

    def sync(self) -> None:
        self._health.check()
        self._health.sync(self._inner)

    def size(self) -> int:
        return self._inner.size()

    def is_cached(self, position: int, size_bytes: int) -> bool:
        return self._inner.is_cached(position, size_bytes)

    def fileno(self) -> int:
        return self._inner.fileno()

    def identity(self) -> FileIdentity:
        return self._inner.identity()

    def close(self) -> None:
        self._inner.close()


class WatchedFiles:
    """A `FileSystem` that reports every error to the directory's health, and refuses everything once the directory has
    failed."""

    def __init__(self, inner: FileSystem, health: DirectoryHealth) -> None:
        self._inner = inner
        self._health = health

    def _do(self, operation: Callable[[], T]) -> T:
        self._health.check()
        try:
            return operation()
        except StorageFullError:
            self._health.note_shortage()
            raise
        except StorageError as e:
            self._health.note(e)
            raise

    def _change(self, operation: Callable[[], T]) -> T:
        """Run an operation that creates, renames or removes a file by its path, after a check of the directory: the
        operation would do harm in another directory at the same path. Such operations are rare.
        """
        if self._health.failure is None and not self._health.look():
            self._health.check()
            raise StorageUnavailableError(f"cannot verify that {self._health.directory} is still the same directory")
        return self._do(operation)

    def open(self, path: Path, *, create: bool = False) -> File:
        do = self._change if create else self._do
        return WatchedFile(do(lambda: self._inner.open(path, create=create)), self._health)

    def list_directory(self, path: Path) -> list[str]:
        return self._do(lambda: self._inner.list_directory(path))

    def make_directory(self, path: Path) -> None:
        self._change(lambda: self._inner.make_directory(path))

    def make_directories(self, directories: Mapping[Path, Mapping[str, bytes]]) -> None:
        self._change(lambda: self._inner.make_directories(directories))

    def rename(self, source: Path, target: Path) -> None:
        self._change(lambda: self._inner.rename(source, target))

    def remove(self, path: Path) -> None:
        self._change(lambda: self._inner.remove(path))

    def remove_tree(self, path: Path) -> None:
        self._change(lambda: self._inner.remove_tree(path))

    def exists(self, path: Path) -> bool:
        return self._do(lambda: self._inner.exists(path))

    def is_directory(self, path: Path) -> bool:
        return self._do(lambda: self._inner.is_directory(path))

    def write_atomic(self, path: Path, data: bytes) -> None:
        self._change(lambda: self._inner.write_atomic(path, data))

    def sync_directory(self, path: Path) -> None:
        self._do(lambda: self._inner.sync_directory(path))

    def open_directory(self, path: Path) -> File:
        return WatchedFile(self._do(lambda: self._inner.open_directory(path)), self._health)

    def lock(self, path: Path) -> File | None:
        return self._do(lambda: self._inner.lock(path))

    def check_in_place(self, path: Path, identity: FileIdentity) -> None:
        """Check that the file at `path` is still the file with `identity`. If not, the data that this process has
        written to it are lost: the directory fails. Raises StorageError."""
        self._health.check()
        try:
            self._inner.check_in_place(path, identity)
        except StorageError as e:
            if not _is_shortage(e):
                self._health.fail(e)
            raise

    def monotonic_s(self) -> float:
        return self._inner.monotonic_s()

    def space(self, path: Path) -> tuple[int, int]:
        return self._inner.space(path)

    def boot_id(self) -> str:
        return self._inner.boot_id()
