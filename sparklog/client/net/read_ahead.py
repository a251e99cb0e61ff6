"""Received bytes of a connection's answers that no thread has taken yet."""

from __future__ import annotations

import socket
import struct
from typing import Any

READ_AHEAD_BYTES = 16 * 1024
"""Largest number of bytes that one call reads ahead: prefix, header and payload of a small answer. The first part of a
large answer, up to this size, is copied once more."""
READ_AHEAD_BYTES_MAX = 256 * 1024
"""Largest number of bytes read ahead of an answer for which no thread waits in `Connection.receive`."""
_LENGTH = struct.Struct("<I")


class ReadAhead:
    """Received bytes in their order. The first byte is the beginning of the next answer, which starts with its
    length."""

    __slots__ = ("_end", "_start", "buffer")

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_AHEAD_BYTES))
        self._start = self._end = 0

    @property
    def is_empty(self) -> bool:
        return self._start == self._end

    @property
    def missing_bytes(self) -> int:
        """Number of bytes that the next answer lacks or, until its length is here, that the length lacks. 0 or less:
        nothing is missing."""
        present = self._end - self._start
        if present < _LENGTH.size:
            return _LENGTH.size - present
        return int(_LENGTH.size + _LENGTH.unpack_from(self.buffer, self._start)[0] - present)

    @property
    def is_answer_large(self) -> bool:
        """True if the next answer has begun to come and is too large to be read ahead."""
        return self._end - self._start + self.missing_bytes > READ_AHEAD_BYTES_MAX

    def fill(self, sock: Any) -> bool:
        """Read as much of the next answer as has come, without waiting.

        Returns True if the rest needs no wait: the whole answer is here, or the connection is broken.
        """
        if self._start == self._end:
            self._start = self._end = 0
        while (missing := self.missing_bytes) > 0 and not self.is_answer_large:
            self._make_room(missing)
            try:
                count = sock.recv_into(self.buffer[self._end :], 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True
            if count == 0:
                return True
            self._end += count
        return missing <= 0

    def _make_room(self, size_bytes: int) -> None:
        if self._end + size_bytes <= len(self.buffer):
            return
        rest = self.buffer[self._start : self._end]
        if len(rest) + size_bytes > len(self.buffer):
            self.buffer = memoryview(bytearray(READ_AHEAD_BYTES_MAX))
        self.buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    def receive_into(self, view: memoryview, sock: Any) -> int:
        """Receive bytes from the socket, wait for the first, and copy as many as fit into `view`; the others stay here.
        Call it only if no bytes are here. Returns the number of copied bytes; 0 at the end of the connection.

        Raises the errors of the socket.
        """
        self._start, self._end = 0, sock.recv_into(self.buffer, READ_AHEAD_BYTES)
        return self.take_into(view)

    def take_into(self, view: memoryview) -> int:
        """Copy received bytes into `view`, as many as fit; return their number."""
        start = self._start
        count = min(len(view), self._end - start)
        view[:count] = self.buffer[start : start + count]
        self._start += count
        return count

    def take(self, size_bytes: int) -> bytes:
        """Return the next `size_bytes` bytes, which must be here already, as a copy that is aligned for Arrow."""
        start = self._start
        self._start = end = start + size_bytes
        return bytes(self.buffer[start:end])
