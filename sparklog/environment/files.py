"""Files as a parameter: the few operations that the log needs, and their implementation on the real file system.

Errors:

- A full disk raises StorageFullError. The caller cuts off the remains of the failed write.
- A lack of descriptors or memory, and a file that may not be opened, raise StorageUnavailableError. A failed fsync
  never does, because the content of the disk is unknown then.
- Every other failure raises StorageError.

All errors name the path and the attempted operation. New files and directories get the mode that `data.file.mode`
names, without the bits that the umask forbids.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, Protocol

from sparklog.errors import InvalidConfigError, StorageError, StorageFullError, StorageUnavailableError

logger = logging.getLogger(__name__)

FILE_BYTES_MAX = 4 << 30
"""Largest file in bytes that is opened. A segment has at most 2 GiB of batches, and its footer is smaller."""
SMALL_FILE_BYTES_MAX = 256 << 20
"""Largest file in bytes that is read as a whole. A checkpoint of a million partitions has 200 MB."""


class OddFileError(StorageError):
    """A path leads to something that sparklog does not write: not a regular file, or a file of an impossible size. The
    error says nothing about the disk."""


class FileIdentity(NamedTuple):
    """Identity of the file behind a descriptor or a path, regardless of its name."""

    device: int
    inode: int


class File(Protocol):
    """An open file, which is read and written at given positions. Several threads can use it at once."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read up to `size_bytes` bytes; fewer only at the end of the file."""
        ...

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`. Raises StorageFullError, StorageUnavailableError or StorageError; any part of `data` can
        then be written."""
        ...

    def truncate(self, size_bytes: int) -> None: ...

    def sync(self) -> None:
        """Fsync the file: on return its content and size are on the disk."""
        ...

    def size(self) -> int: ...

    def fileno(self) -> int: ...

    def identity(self) -> FileIdentity: ...

    def is_cached(self, position: int, size_bytes: int) -> bool:
        """Return True if the first and last byte of the range can be read without waiting for a disk, or if the system
        cannot tell."""
        ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """The log's operations on paths."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open a file for reading and writing. `create`: True to create a missing file."""
        ...

    def list_directory(self, path: Path) -> list[str]: ...

    def make_directory(self, path: Path) -> None:
        """Create a directory and its missing parents, durable on return. An existing directory is no error."""
        ...

    def make_directories(self, directories: Mapping[Path, Mapping[str, bytes]]) -> None:
        """Create directories with small files in them, durable on return. Their parents exist. Raises StorageError; any
        of the new directories can then exist. One call takes far less time than creating the directories one by one."""
        ...

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None:
        """Remove a file. A missing file is no error."""
        ...

    def remove_tree(self, path: Path) -> None: ...

    def exists(self, path: Path) -> bool: ...

    def is_directory(self, path: Path) -> bool: ...

    def write_atomic(self, path: Path, data: bytes) -> None:
        """Replace a small file atomically, durable on return. After a crash it has the old or the new content."""
        ...

    def sync_directory(self, path: Path) -> None: ...

    def open_directory(self, path: Path) -> File:
        """Open a directory, only for `sync`. With it, the directory's names can be fsynced even when no more
        descriptors are available."""
        ...

    def lock(self, path: Path) -> File | None:
        """Lock the file `path` until the returned file is closed. Returns None if another process has the lock."""
        ...

    def check_in_place(self, path: Path, identity: FileIdentity) -> None:
        """Check that `path` still leads to the file or directory with this identity. Raises StorageError if not."""
        ...

    def monotonic_s(self) -> float:
        """Return the monotonic time in s, by which the age of checks is measured."""
        ...

    def space(self, path: Path) -> tuple[int, int]:
        """Return the size in bytes of the disk with the directory `path`, and the bytes that can still be written.
        Raises StorageError."""
        ...

    def boot_id(self) -> str:
        """Return an id of the machine's present boot; "": not known. As long as the id is the same, no written data
        have been lost, fsynced or not."""
        ...


TEMPORARY_SUFFIX = ".tmp"
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
SYNC_THREADS = 8
"""Number of threads for fsyncs. The file system combines simultaneous fsyncs into few writes to its journal."""


def read_whole(files: FileSystem, path: Path) -> bytes | None:
    """Return the content of a small file; None if it does not exist. Raises OddFileError, StorageError."""
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        size = file.size()
        _check_size(path, size, SMALL_FILE_BYTES_MAX)
        return file.read(0, size)
    finally:
        file.close()


def read_rebuildable(files: FileSystem, path: Path) -> bytes | None:
    """Read a file as `read_whole` does, but treat an odd file as an empty one. For a file that can be rebuilt. Raises
    StorageError."""
    try:
        return read_whole(files, path)
    except OddFileError as e:
        logger.warning("%s; the file counts as damaged", e)
        return b""


MISPLACED_SUFFIX = ".misplaced"
"""Ending of the names of files and directories that were put aside because they did not belong at their place."""


def put_aside(files: FileSystem, path: Path, reason: object) -> None:
    """Rename the file or directory at `path`, so that a new file can be written there. `reason`: text for the log.
    Raises StorageError."""
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}{MISPLACED_SUFFIX}")
    logger.warning("%s; the file is put aside as %s", reason, aside.name)
    files.rename(path, aside)


def read_hint(files: FileSystem, path: Path) -> bytes | None:
    """Read a file as `read_rebuildable` does, and put an odd file aside, so that the caller can write a new one at
    `path`. Raises StorageError."""
    try:
        return read_whole(files, path)
    except OddFileError as e:
        put_aside(files, path, e)
        return b""


_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def _check_size(path: Path, size_bytes: int, limit_bytes: int) -> None:
    if size_bytes > limit_bytes:
        raise OddFileError(
            f"{path} is larger than {limit_bytes} bytes, the most allowed: it has {size_bytes}; move it away or "
            "restore it"
        )


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise OddFileError(f"{path} is {kind}, no regular file: move it away or restore it")


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a regular file and return its descriptor. The call never waits, as opening a pipe could. Raises OddFileError
    for anything else than a regular file, OSError."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    except OSError as e:
        try:
            status = path.stat()
        except OSError:
            raise e from None
        _check_kind(path, status.st_mode)
        raise
    try:
        _check_kind(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def odd_file(path: Path, limit_bytes: int = FILE_BYTES_MAX) -> str:
    """Return the reason why `path` cannot be read as one of sparklog's files; "" if it can, or does not exist."""
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return f"{path} is a broken symbolic link" if path.is_symlink() else ""
    except OddFileError as e:
        return str(e)
    except OSError as e:
        return f"{path} cannot be opened: {e.strerror}"
    try:
        _check_size(path, os.fstat(descriptor).st_size, limit_bytes)
    except OddFileError as e:
        return str(e)
    finally:
        os.close(descriptor)
    return ""


def read_regular(path: Path, limit_bytes: int = SMALL_FILE_BYTES_MAX) -> bytes:
    """Return the content of a small regular file. Raises OddFileError, OSError."""
    with open(open_regular(path), "rb") as file:
        _check_size(path, os.fstat(file.fileno()).st_size, limit_bytes)
        return file.read()


def absolute(path: Path) -> Path:
    """Return the absolute form of a path. Raises InvalidConfigError if the process's working directory was removed, so
    that a relative path leads nowhere."""
    try:
        return path.absolute()
    except FileNotFoundError as e:
        raise InvalidConfigError(
            f"path {str(path)!r}: the working directory has been removed; change to another directory, or give an "
            "absolute path"
        ) from e


def read_ahead(file: File, size_bytes: int, position: int = 0) -> None:
    """Ask the system to read a range into its cache, before small reads in this range. It is only a hint, so errors are
    ignored."""
    with suppress(OSError):  # simulated files have no descriptor
        os.posix_fadvise(file.fileno(), position, size_bytes, os.POSIX_FADV_WILLNEED)


def write_whole(files: FileSystem, path: Path, data: bytes) -> None:
    """Replace a file's content in place, neither atomically nor durably. For files that can be rebuilt."""
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.write(0, data)
    finally:
        file.close()


def sync_whole(files: FileSystem, path: Path) -> None:
    """Fsync a file; a missing file is no error."""
    if not files.exists(path):
        return
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


SHORTAGE_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})
"""Errors of a temporary shortage in the process or the machine. They say nothing about the disk."""
REFUSAL_ERRNOS = frozenset({errno.EACCES, errno.EPERM})
BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
FILE_MODE_DEFAULT = 0o640


def directory_mode(file_mode: int) -> int:
    """Return the mode for directories: users who can read the files may also enter the directories."""
    return file_mode | (file_mode & 0o444) >> 2


def storage_error(action: str, path: Path, e: OSError) -> StorageError | StorageFullError:
    """Return the error for an OSError. `action`: the operation, which the text names, such as "open"."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError(f"the disk is full: cannot {action} {path}; free space there, then try again")
    is_sync = action.startswith("fsync")
    if e.errno in SHORTAGE_ERRNOS and not is_sync:
        return StorageUnavailableError(f"cannot {action} {path} just now: {e.strerror or e}")
    if e.errno == errno.ELOOP:
        return OddFileError(f"cannot {action} {path}: {e.strerror}; move it away")
    if e.errno in REFUSAL_ERRNOS and action in ("open", "create"):
        return StorageUnavailableError(f"cannot {action} {path}: {e.strerror or e}")
    return StorageError(f"cannot {action} {path}: {e.strerror or e}")


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

    def is_cached(self, position: int, size_bytes: int) -> bool:
        if not _NOWAIT:
            return True
        one = bytearray(1)
        try:
            for at in (position, position + size_bytes - 1):
                os.preadv(self._fd, [one], at, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError as e:
            return e.errno in _UNSUPPORTED
        return True

    def fileno(self) -> int:
        return self._fd

    def identity(self) -> FileIdentity:
        try:
            return _identity_in(os.fstat(self._fd))
        except OSError as e:
            raise storage_error("look at", self._path, e) from e

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        """Close the descriptor of a file that was dropped without `close`, as after a simulated crash in a test."""
        self.close()


class _RealDirectory(RealFile):
    """An open directory."""

    __slots__ = ()

    def sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as e:
            raise storage_error("fsync directory", self._path, e) from e


def _identity_in(status: os.stat_result) -> FileIdentity:
    return FileIdentity(status.st_dev, status.st_ino)


class RealFiles:
    """The machine's file system. `file_mode`: mode of new files; see `directory_mode` for new directories."""

    file_mode: int = FILE_MODE_DEFAULT

    def __init__(self, file_mode: int = FILE_MODE_DEFAULT) -> None:
        self.file_mode = file_mode

    def open(self, path: Path, *, create: bool = False) -> File:
        try:
            file = RealFile(open_regular(path, os.O_RDWR | (os.O_CREAT if create else 0), self.file_mode), path)
        except OSError as e:
            raise storage_error("create" if create else "open", path, e) from e
        if not create:
            _check_size(path, file.size(), FILE_BYTES_MAX)  # its end closes the descriptor
        return file

    def list_directory(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))  # noqa: PTH208  (the names are needed)
        except OSError as e:
            raise storage_error("list", path, e) from e

    def make_directory(self, path: Path) -> None:
        try:
            missing = list(takewhile(lambda p: not p.exists(), (path, *path.parents)))
            for absent in reversed(missing):
                absent.mkdir(mode=directory_mode(self.file_mode), exist_ok=True)
            if not path.is_dir():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        except OSError as e:
            raise storage_error("create directory", path, e) from e
        for created in reversed(missing):
            self.sync_directory(created.parent)

    def make_directories(self, directories: Mapping[Path, Mapping[str, bytes]]) -> None:
        for path, contents in directories.items():
            try:
                path.mkdir(mode=directory_mode(self.file_mode))
            except OSError as e:
                raise storage_error("create directory", path, e) from e
            for name, data in contents.items():
                write_whole(self, path / name, data)

        def sync(path: Path) -> None:
            for name in directories[path]:
                sync_whole(self, path / name)
            self.sync_directory(path)

        # after all writes: the first fsync then writes the journal's entries of all directories
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
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as e:  # also of a circle of links, which `Path.exists` takes for nothing
            raise storage_error("look at", path, e) from e
        return True

    def is_directory(self, path: Path) -> bool:
        try:
            return path.is_dir()
        except OSError as e:
            raise storage_error("look at", path, e) from e

    def write_atomic(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            file = self.open(temporary, create=True)
        except OddFileError as e:
            put_aside(self, temporary, e)
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
        directory = self.open_directory(path)
        try:
            directory.sync()
        finally:
            directory.close()

    def open_directory(self, path: Path) -> File:
        try:
            return _RealDirectory(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)
        except OSError as e:
            raise storage_error("open", path, e) from e

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

    def check_in_place(self, path: Path, identity: FileIdentity) -> None:
        try:
            present = _identity_in(path.stat())
        except FileNotFoundError:
            raise StorageError(f"{path} is gone: it was removed, renamed or unmounted") from None
        except OSError as e:
            raise storage_error("look at", path, e) from e
        if present != identity:
            raise StorageError(
                f"{path} is another file or directory than before: it was replaced, or a file system is mounted over it"
            )

    def monotonic_s(self) -> float:
        return time.monotonic()

    def space(self, path: Path) -> tuple[int, int]:
        try:
            statistics = os.statvfs(path)
        except OSError as e:
            raise storage_error("check the disk of", path, e) from e
        return statistics.f_blocks * statistics.f_frsize, statistics.f_bavail * statistics.f_frsize

    def boot_id(self) -> str:
        try:
            return BOOT_ID_PATH.read_text().strip()
        except OSError:
            return ""
