"""Open files that several users share, and the file ranges that answer a fetch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from sparklog.environment.files import File, read_ahead

OPEN_FILES_DEFAULT = 1024
_LOOKED_AT_MAX = 64
"""Number of files that one eviction checks. If all of them are in use, the cache exceeds its limit until they are
released."""


class RemoteReadRequired(Exception):  # noqa: N818  (not an error: the caller goes where it may wait)
    """The requested data are in the object store, and the caller did not allow the read to wait for it."""


class SharedFile:
    """An open file that is closed when its last user releases it. It is created with one user, its owner."""

    __slots__ = ("_file", "_lock", "_users", "on_idle")

    def __init__(self, file: File) -> None:
        self._file = file
        self._users = 1
        self._lock = threading.Lock()
        self.on_idle: Callable[[SharedFile], None] | None = None
        """Called when one user is left, in most cases the owner."""

    @property
    def file(self) -> File:
        return self._file

    def acquire(self) -> SharedFile:
        """Add a user. The caller must be a user already, so that the file is open."""
        with self._lock:
            self._users += 1
        return self

    def reacquire(self) -> bool:
        """Add a user if the file is still open. Returns False if it is closed."""
        with self._lock:
            if not self._users:
                return False
            self._users += 1
            return True

    def close_if_idle(self) -> bool:
        """Close the file if only its owner uses it. Returns True if the file is closed now."""
        with self._lock:
            if self._users > 1:
                return False
            last, self._users = self._users == 1, 0
        if last:
            self._file.close()
        return True

    def release(self) -> None:
        """Remove a user; the last one closes the file."""
        with self._lock:
            if not self._users:  # `close_if_idle` has removed the owner already
                return
            self._users -= 1
            users = self._users
        if users == 0:
            self._file.close()
        elif users == 1 and self.on_idle is not None:
            self.on_idle(self)


def sync_held(held: Sequence[SharedFile]) -> None:
    """Fsync the files that `hold_for_sync` has returned, and release all of them. Raises StorageError."""
    try:
        for shared in held:
            shared.file.sync()
    finally:
        for shared in held:
            shared.release()


class HandleCache:
    """Limits the number of open segment files of a process. The cache closes the least recently used idle files; the
    segments open them again when they are needed.

    A file in use stays open (a slice on its way to a socket, a write), so the number can exceed `limit`, by at most the
    number of files in use. While it does, each file is closed when its last user releases it. A file that is closed
    before its writes are fsynced loses nothing: the kernel keeps the pages, and reports a failed write-back to the
    descriptor that the later fsync uses.
    """

    def __init__(self, limit: int = OPEN_FILES_DEFAULT) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[SharedFile, None] = OrderedDict()
        """The open files, the least recently used first."""

    def __len__(self) -> int:
        """Return the number of open files in the cache."""
        return len(self._open)

    def add(self, shared: SharedFile) -> None:
        """Add a newly opened file, and close idle files if there are too many."""
        with self._lock:
            self._open[shared] = None
            shared.on_idle = self._close_surplus
            self._make_room()
        self._close_surplus(shared)

    def _close_surplus(self, shared: SharedFile) -> None:
        """Close `shared` if it is idle and too many files are open."""
        if len(self._open) <= self.limit:  # in most cases, so the lock is not taken
            return
        with self._lock:
            if len(self._open) > self.limit and shared in self._open and shared.close_if_idle():
                del self._open[shared]

    def _make_room(self) -> None:
        for _ in range(min(_LOOKED_AT_MAX, len(self._open))):
            if len(self._open) <= self.limit:
                break
            oldest, _none = self._open.popitem(last=False)
            if not oldest.close_if_idle():
                self._open[oldest] = None

    def touch(self, shared: SharedFile) -> None:
        """Make `shared` the most recently used file."""
        with self._lock:
            if shared in self._open:
                self._open.move_to_end(shared)
            if len(self._open) > self.limit:  # the last eviction found too many files in use
                self._make_room()

    def forget(self, shared: SharedFile) -> None:
        """Remove a file that its owner closes from the cache."""
        with self._lock:
            self._open.pop(shared, None)


class FileSlice:
    """Whole batches in a segment file, with the file and range for `sendfile`. A slice must be released after sending.

    `base_offset` is the base offset of the first batch, and can lie below the requested offset. `next_offset` is the
    offset after the slice. `is_tail`: this process has appended all of the slice to the active segment, so the slice is
    in the page cache unless memory is short.
    """

    __slots__ = ("_shared", "base_offset", "is_tail", "length_bytes", "next_offset", "position")

    def __init__(
        self,
        shared: SharedFile,
        position: int,
        length_bytes: int,
        base_offset: int,
        next_offset: int,
        *,
        is_tail: bool,
    ) -> None:
        self._shared: SharedFile | None = shared
        self.position = position
        self.length_bytes = length_bytes
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.is_tail = is_tail

    def fileno(self) -> int:
        """Return the file descriptor; valid until `release`."""
        return self._open().file.fileno()

    @property
    def is_cached(self) -> bool:
        """True if the slice can be sent without waiting for a disk, judged by its first and last byte."""
        return self._open().file.is_cached(self.position, self.length_bytes)

    def read_ahead(self) -> None:
        """Give the operating system the hint to read the whole range into the page cache."""
        read_ahead(self._open().file, self.length_bytes, self.position)

    def read(self) -> bytes:
        """Return the bytes of the slice, for connections on which `sendfile` cannot be used. Raises StorageError."""
        return self._open().file.read(self.position, self.length_bytes)

    def read_part(self, position: int, size_bytes: int) -> bytes:
        """Return `size_bytes` of the file from `position` on; the position counts from the start of the file, not of
        the slice. Raises StorageError."""
        return self._open().file.read(position, size_bytes)

    def part(self, position: int, length_bytes: int) -> FileSlice:
        """Return a range of the slice for another user, which releases it separately; the position counts from the
        start of the file."""
        shared = self._open().acquire()
        return FileSlice(shared, position, length_bytes, self.base_offset, self.next_offset, is_tail=self.is_tail)

    def duplicate(self) -> FileSlice:
        """Return the same range for another user, which releases it separately."""
        shared = self._open().acquire()
        return FileSlice(
            shared, self.position, self.length_bytes, self.base_offset, self.next_offset, is_tail=self.is_tail
        )

    def release(self) -> None:
        """Release the file; a second call does nothing."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.release()

    def _open(self) -> SharedFile:
        if self._shared is None:
            raise ValueError("the file slice has been released")
        return self._shared
