"""Files, passed in: the few operations the log needs, and their implementation on the real file system.

A full disk raises StorageFullError, every other failure StorageError; both name the path and what was tried. What a
failed write left behind is the caller's to cut off.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from sparklog.errors import StorageError, StorageFullError


class File(Protocol):
    """An open file, read and written at positions; safe for use by several threads."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """Up to `size_bytes` bytes; fewer only at the end of the file."""
        ...

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Writes all of `data`, or raises StorageFullError or StorageError with any part of it written."""
        ...

    def truncate(self, size_bytes: int) -> None: ...

    def sync(self) -> None:
        """Returns when content and size are on the disk."""
        ...

    def size(self) -> int: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """What the log does with paths."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Opens for reading and writing; with `create` an absent file is made."""
        ...

    def list_directory(self, path: Path) -> list[str]: ...

    def make_directory(self, path: Path) -> None:
        """With its parents, durable on return; an existing directory is fine."""
        ...

    def make_directories(self, directories: Mapping[Path, Mapping[str, bytes]]) -> None:
        """Makes directories of one parent, which exists, with small files in them; durable on return. For new ones: what is
        in them when it fails is any part of that. Takes far less than one after the other does."""
        ...

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None:
        """Removes a file; an absent one is fine."""
        ...

    def remove_tree(self, path: Path) -> None: ...

    def exists(self, path: Path) -> bool: ...

    def is_directory(self, path: Path) -> bool: ...

    def write_atomic(self, path: Path, data: bytes) -> None:
        """Replaces a small file so that a crash leaves the old or the new content, durable on return."""
        ...

    def sync_directory(self, path: Path) -> None: ...

    def lock(self, path: Path) -> File | None:
        """Takes the exclusive lock `path` stands for until the file is closed; None when another holds it."""
        ...


TEMPORARY_SUFFIX = ".tmp"
SYNC_THREADS = 8
"""Of fsyncs that are under way together the file system makes few writes to its journal."""


def read_whole(files: FileSystem, path: Path) -> bytes | None:
    """The content of a small file, or None if there is none."""
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def read_ahead(file: File, size_bytes: int) -> None:
    """Asks the system for the first `size_bytes` at once, before they are read here and there. Only a hint."""
    with suppress(OSError):  # simulated files have no descriptor
        os.posix_fadvise(file.fileno(), 0, size_bytes, os.POSIX_FADV_WILLNEED)


def write_whole(files: FileSystem, path: Path, data: bytes) -> None:
    """Replaces a file's content in place; for files that can be rebuilt."""
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.write(0, data)
    finally:
        file.close()


def sync_whole(files: FileSystem, path: Path) -> None:
    """Fsyncs a file; one that is gone is fine."""
    try:
        file = files.open(path)
    except StorageError:
        if files.exists(path):
            raise
        return
    try:
        file.sync()
    finally:
        file.close()


def storage_error(what: str, path: Path, e: OSError) -> StorageError | StorageFullError:
    """The typed error for an OSError met while doing `what` with `path`."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError(f"the disk is full: cannot {what} {path}; free space there, then try again")
    return StorageError(f"cannot {what} {path}: {e.strerror or e}")


class RealFile:
    """A file descriptor, used with pread and pwrite only."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def read(self, position: int, size_bytes: int) -> bytes:
        try:
            data = os.pread(self._fd, size_bytes, position)
            if len(data) == size_bytes or not data:
                return data
            parts = [data]
            got = len(data)
            while got < size_bytes and (data := os.pread(self._fd, size_bytes - got, position + got)):
                parts.append(data)
                got += len(data)
            return b"".join(parts)
        except OSError as e:
            raise storage_error("read", self._path, e) from e

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        try:
            written = os.pwrite(self._fd, data, position)
            if written < len(data):
                view = memoryview(data)
                while written < len(view):
                    written += os.pwrite(self._fd, view[written:], position + written)
        except OSError as e:
            raise storage_error("write", self._path, e) from e

    def truncate(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._fd, size_bytes)
        except OSError as e:
            raise storage_error("truncate", self._path, e) from e

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)  # writes the size too, when it is needed to read the data back
        except OSError as e:
            raise storage_error("fsync", self._path, e) from e

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as e:
            raise storage_error("look at", self._path, e) from e

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        """A log that was dropped without `close`, as after a crash in a test, must not keep its descriptors."""
        self.close()


class RealFiles:
    """The machine's file system."""

    def open(self, path: Path, *, create: bool = False) -> File:
        try:
            return RealFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644), path)
        except OSError as e:
            raise storage_error("create" if create else "open", path, e) from e

    def list_directory(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))  # noqa: PTH208  (names are what is wanted)
        except OSError as e:
            raise storage_error("list", path, e) from e

    def make_directory(self, path: Path) -> None:
        try:
            missing = list(takewhile(lambda p: not p.exists(), (path, *path.parents)))
            path.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise storage_error("create directory", path, e) from e
        for made in reversed(missing):
            self.sync_directory(made.parent)

    def make_directories(self, directories: Mapping[Path, Mapping[str, bytes]]) -> None:
        for path, contents in directories.items():
            try:
                path.mkdir()
            except OSError as e:
                raise storage_error("create directory", path, e) from e
            for name, data in contents.items():
                write_whole(self, path / name, data)

        def sync(path: Path) -> None:
            for name in directories[path]:
                sync_whole(self, path / name)
            self.sync_directory(path)

        # Only now: the first fsync writes the journal's entries of all of them.
        with ThreadPoolExecutor(min(SYNC_THREADS, max(1, len(directories))), thread_name_prefix="sync") as threads:
            for _ in threads.map(sync, directories):
                pass
        for parent in {path.parent for path in directories}:
            self.sync_directory(parent)

    def rename(self, source: Path, target: Path) -> None:
        try:
            source.rename(target)
        except OSError as e:
            raise storage_error(f"rename to {target}", source, e) from e

    def remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as e:
            raise storage_error("remove", path, e) from e

    def remove_tree(self, path: Path) -> None:
        import shutil  # with three libraries for compressed archives, which a start need not wait for

        try:
            shutil.rmtree(path)
        except OSError as e:
            raise storage_error("remove", path, e) from e

    def exists(self, path: Path) -> bool:
        try:
            return path.exists()
        except OSError as e:
            raise storage_error("look at", path, e) from e

    def is_directory(self, path: Path) -> bool:
        try:
            return path.is_dir()
        except OSError as e:
            raise storage_error("look at", path, e) from e

    def write_atomic(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write(0, data)
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as e:
            raise storage_error("fsync directory", path, e) from e

    def lock(self, path: Path) -> File | None:
        file = self.open(path, create=True)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError as e:
            file.close()
            raise storage_error("lock", path, e) from e
        return file
