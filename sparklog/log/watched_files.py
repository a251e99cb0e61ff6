"""The file system of one log directory, watched: a failing disk is noticed by whoever meets it first.

Every error that the disk reports goes through `DirectoryHealth`, which decides whether it is the directory's. Once it
has failed nothing in it is read or written any more: a disk that has lost one write cannot be trusted with the next.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from sparklog.errors import StorageError, StorageFullError
from sparklog.log.files import File, FileSystem

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
"""The disk, or the way to it, is broken."""
PROCESS_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})
"""Says nothing about the disk."""


class DirectoryHealth:
    """Whether a log directory can be used. `failure` is set once and stays; any thread may find it."""

    def __init__(self, directory: Path, files: FileSystem, on_failure: Callable[[], None]) -> None:
        """`on_failure` is called once, by the thread that found the failure: it must not wait or use the disk."""
        self.directory = directory
        self.failure: StorageError | None = None
        self._files = files
        self._on_failure = on_failure
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raises StorageError if the directory has failed."""
        if self.failure is not None:
            raise StorageError(str(self.failure))

    def fail(self, reason: object) -> None:
        """The directory cannot be used any more because of `reason`."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = StorageError(
                f"log directory {self.directory} has failed and is not used any more ({reason}); repair or replace the "
                f"disk, then restart the broker"
            )
        logger.error("%s", self.failure)
        self._on_failure()

    def note(self, error: StorageError) -> None:
        """An operation in the directory has failed: with the disk, or only for that file."""
        cause = error.__cause__
        number = cause.errno if isinstance(cause, OSError) else None
        if number in PROCESS_ERRNOS:
            return
        if number in DISK_ERRNOS:
            self.fail(error)
        else:
            self.probe(error)

    def probe(self, suspicion: object = "a check") -> None:
        """Finds out whether the directory is still there and can be written to."""
        if self.failure is not None or not self.look():
            return
        probe = self.directory / PROBE_FILE
        try:
            self._files.write_atomic(probe, b"")
            self._files.remove(probe)
        except StorageFullError:
            pass  # full, but alive
        except StorageError as e:
            self.fail(e if isinstance(suspicion, str) else f"{suspicion}; then: {e}")

    def look(self) -> bool:
        """The cheap check: whether the directory is still there. Its lock file is gone when it was removed or unmounted:
        writes to the files that are open would go nowhere then."""
        try:
            there = self._files.exists(self.directory / LOCK_FILE)
        except StorageError as e:
            self.fail(e)
            return False
        if not there:
            self.fail(f"{LOCK_FILE} is gone: it was removed or unmounted")
        return there


class WatchedFile:
    """A file of a watched directory."""

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
        if self._health.failure is not None:
            self._health.check()
        try:
            self._inner.write(position, data)
        except StorageError as e:
            self._health.note(e)
            raise

    def truncate(self, size_bytes: int) -> None:
        self._health.check()
        try:
            self._inner.truncate(size_bytes)
        except StorageError as e:
            self._health.note(e)
            raise

    def sync(self) -> None:
        self._health.check()
        try:
            self._inner.sync()
        except StorageError as e:
            self._health.note(e)
            raise

    def size(self) -> int:
        return self._inner.size()

    def fileno(self) -> int:
        return self._inner.fileno()

    def close(self) -> None:
        self._inner.close()


class WatchedFiles:
    """A `FileSystem` whose errors the directory's health learns of, and that refuses everything once it has failed."""

    def __init__(self, inner: FileSystem, health: DirectoryHealth) -> None:
        self._inner = inner
        self._health = health

    def _do(self, operation: Callable[[], T]) -> T:
        self._health.check()
        try:
            return operation()
        except StorageError as e:
            self._health.note(e)
            raise

    def open(self, path: Path, *, create: bool = False) -> File:
        return WatchedFile(self._do(lambda: self._inner.open(path, create=create)), self._health)

    def list_directory(self, path: Path) -> list[str]:
        return self._do(lambda: self._inner.list_directory(path))

    def make_directory(self, path: Path) -> None:
        self._do(lambda: self._inner.make_directory(path))

    def make_directories(self, directories: Mapping[Path, Mapping[str, bytes]]) -> None:
        self._do(lambda: self._inner.make_directories(directories))

    def rename(self, source: Path, target: Path) -> None:
        self._do(lambda: self._inner.rename(source, target))

    def remove(self, path: Path) -> None:
        self._do(lambda: self._inner.remove(path))

    def remove_tree(self, path: Path) -> None:
        self._do(lambda: self._inner.remove_tree(path))

    def exists(self, path: Path) -> bool:
        return self._do(lambda: self._inner.exists(path))

    def is_directory(self, path: Path) -> bool:
        return self._do(lambda: self._inner.is_directory(path))

    def write_atomic(self, path: Path, data: bytes) -> None:
        self._do(lambda: self._inner.write_atomic(path, data))

    def sync_directory(self, path: Path) -> None:
        self._do(lambda: self._inner.sync_directory(path))

    def lock(self, path: Path) -> File | None:
        return self._do(lambda: self._inner.lock(path))
