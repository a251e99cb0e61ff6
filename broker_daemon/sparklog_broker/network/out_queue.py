"""The parts of answers that a connection still has to send: bytes, and slices of files. Small slices are read and
joined to the bytes before them; a transport sends the larger slices from their files."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable

from sparklog_broker.network.reply import Slice

WRITE_BYTES_PER_EVENT = 8 * 1024 * 1024
"""Largest number of bytes sent in one event, so that a fast reader does not occupy the loop."""
GATHERED_BYTES_MAX = 16 * 1024
"""Largest size of joined parts, in bytes. A call for each part would wake the peer each time, which costs more than the
copy."""
_BYTES = (bytes, memoryview)

Part = bytes | memoryview | Slice
WriteSome = Callable[[Part, int, int, bool], int]
"""Sends up to `count` bytes of a part, beginning at `start`; the last argument is True for the last part. Returns the
number of bytes sent. Raises BlockingIOError, OSError."""


class ShortFileError(Exception):
    """A file ends before the announced slice. The connection must be closed, because padding would be false data."""


class OutQueue:
    """Parts in the order in which they are sent. A slice is released when it is sent, or by `clear`."""

    __slots__ = ("_parts", "_sent", "held_bytes", "held_files")

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self._sent = 0
        """Number of sent bytes of the first part."""
        self.held_bytes = 0
        """Memory of the parts that are not sent completely, in bytes."""
        self.held_files = 0
        """Number of file slices among the parts."""

    def __bool__(self) -> bool:
        return bool(self._parts)

    def extend(self, parts: Iterable[Part]) -> None:
        """Append `parts`, and own their slices. Small parts are joined; small slices are read into the joined bytes."""
        for part in parts:
            added = part if isinstance(part, _BYTES) else _read_if_small(part)
            if isinstance(added, _BYTES):
                self.held_bytes += len(added)
            else:
                self.held_files += 1
            last = self._parts[-1] if self._parts else None
            if isinstance(last, bytes) and isinstance(added, bytes) and len(last) + len(added) <= GATHERED_BYTES_MAX:
                self._parts[-1] = last + added
            else:
                self._parts.append(added)

    def clear(self) -> None:
        """Release the unsent parts."""
        for part in self._parts:
            if not isinstance(part, _BYTES):
                part.release()
        self._parts.clear()
        self._sent = self.held_bytes = self.held_files = 0

    @property
    def remaining_bytes(self) -> int:
        """Number of unsent bytes in all parts."""
        return sum(len(p) if isinstance(p, _BYTES) else p.length_bytes for p in self._parts) - self._sent

    def write(self, write_some: WriteSome) -> int:
        """Send parts with `write_some` until the socket is full or WRITE_BYTES_PER_EVENT are sent. Returns the number
        of bytes. Raises ShortFileError, OSError."""
        total = 0
        while self._parts and total < WRITE_BYTES_PER_EVENT:
            part = self._parts[0]
            size = len(part) if isinstance(part, _BYTES) else part.length_bytes
            offered = min(size - self._sent, WRITE_BYTES_PER_EVENT - total)
            try:
                count = write_some(part, self._sent, offered, len(self._parts) == 1)
            except (BlockingIOError, InterruptedError):
                break
            if count == 0 < offered:
                raise ShortFileError
            total += count
            self._sent += count
            if self._sent == size:
                self._sent = 0
                self._parts.popleft()
                if isinstance(part, _BYTES):
                    self.held_bytes -= size
                else:
                    self.held_files -= 1
                    part.release()
            elif count < offered:  # the socket is full
                break
        return total


def _read_if_small(part: Slice) -> bytes | Slice:
    """Return the bytes of a small slice, and release the slice. A slice that is too large or cannot be read is returned
    unchanged."""
    if part.length_bytes > GATHERED_BYTES_MAX:
        return part
    try:
        data = os.pread(part.fileno(), part.length_bytes, part.position)
    except OSError:
        return part
    if len(data) < part.length_bytes:
        return part
    part.release()
    return data
