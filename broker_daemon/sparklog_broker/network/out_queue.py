"""What is still to be sent on a connection: bytes, and slices of files: small ones go with the bytes, the kernel
copies others."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterable

from sparklog_broker.network.reply import Slice

WRITE_BYTES_PER_EVENT = 8 * 1024 * 1024
"""A fast reader must not keep the loop to itself."""
GATHERED_BYTES_MAX = 16 * 1024
"""Up to this much goes out with one call: each call wakes the peer, which costs more than the copy."""
_BYTES = (bytes, memoryview)


class ShortFileError(Exception):
    """A file ends before the slice that was announced; the connection must be closed, for nothing may be padded."""


class OutQueue:
    """Parts in the order they are sent; a slice is released as soon as it is sent, or with `clear`."""

    __slots__ = ("_parts", "_sent", "held_bytes", "held_files")

    def __init__(self) -> None:
        self._parts: deque[bytes | memoryview | Slice] = deque()
        self._sent = 0
        """Bytes of the first part that have been sent."""
        self.held_bytes = 0
        """Memory of the parts that have not been sent completely."""
        self.held_files = 0
        """Slices of files among them."""

    def __bool__(self) -> bool:
        return bool(self._parts)

    def extend(self, parts: Iterable[bytes | memoryview | Slice]) -> None:
        """Takes over `parts`. Small ones are put together, slices of files among them read for that."""
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
        """Gives up what is not sent."""
        for part in self._parts:
            if not isinstance(part, _BYTES):
                part.release()
        self._parts.clear()
        self._sent = self.held_bytes = self.held_files = 0

    def write(self, sock: socket.socket) -> int:
        """Sends what the non-blocking socket takes, up to a limit; returns how many bytes. Raises ShortFileError,
        OSError."""
        total = 0
        while self._parts and total < WRITE_BYTES_PER_EVENT:
            part = self._parts[0]
            size = len(part) if isinstance(part, _BYTES) else part.length_bytes
            asked = min(size - self._sent, WRITE_BYTES_PER_EVENT - total)
            try:
                count = self._write_some(sock, part, asked)
            except (BlockingIOError, InterruptedError):
                break
            if count == 0 < asked:
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
            elif count < asked:  # the socket is full
                break
        return total

    def _write_some(self, sock: socket.socket, part: bytes | memoryview | Slice, count: int) -> int:
        if isinstance(part, _BYTES):
            # With more to follow, the kernel waits for it: header and data travel together.
            return sock.send(part[self._sent : self._sent + count], socket.MSG_MORE if len(self._parts) > 1 else 0)
        return os.sendfile(sock.fileno(), part.fileno(), part.position + self._sent, count)


def _read_if_small(part: Slice) -> bytes | Slice:
    """Its bytes, and then it is released; or itself: too much, or not to be read, which sending it will find too."""
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
