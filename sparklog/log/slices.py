"""File handles that several users share, and the file ranges a fetch is answered with."""

from __future__ import annotations

import threading

from sparklog.log.files import File


class SharedFile:
    """An open file that is closed when its last user lets go. Made with one user."""

    __slots__ = ("_file", "_lock", "_users")

    def __init__(self, file: File) -> None:
        self._file = file
        self._users = 1
        self._lock = threading.Lock()

    @property
    def file(self) -> File:
        return self._file

    def acquire(self) -> SharedFile:
        """Adds a user. Only who is a user already (or holds the segment's lock) may call it."""
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        """Takes a user away; the last one closes the file."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._file.close()


class FileSlice:
    """Whole batches in a segment file: what `sendfile` needs. Must be released once it is sent.

    `base_offset` is the first batch's (it may lie below the offset asked for), `next_offset` that of the batch after
    the slice. `is_tail`: this process has appended all of it to the segment that is still active, so that it is in
    the page cache unless memory is short.
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
        """The file descriptor; valid until `release`."""
        return self._open().file.fileno()

    def read(self) -> bytes:
        """The bytes themselves, where `sendfile` cannot be used."""
        return self._open().file.read(self.position, self.length_bytes)

    def release(self) -> None:
        """Lets the file go; calling it again does nothing."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.release()

    def _open(self) -> SharedFile:
        if self._shared is None:
            raise ValueError("the file slice has been released")
        return self._shared
