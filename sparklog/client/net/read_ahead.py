"""What has been read of a connection's answers before anybody takes them."""

from __future__ import annotations

import socket
import struct
from typing import Any

READ_AHEAD_BYTES = 16 * 1024
"""Prefix, header and payload of a small answer come with one call; of a large one this much is copied once more."""
READ_AHEAD_BYTES_MAX = 256 * 1024
"""What is read ahead of an answer that nobody waits for with `Connection.receive`."""
_LENGTH = struct.Struct("<I")


class ReadAhead:
    """Bytes in the order in which they came; the first belong to the next answer, which begins with its length."""

    __slots__ = ("_end", "_start", "buffer")

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_AHEAD_BYTES))
        self._start = self._end = 0

    @property
    def is_empty(self) -> bool:
        return self._start == self._end

    @property
    def missing_bytes(self) -> int:
        """How many bytes of the next answer, or of its length, have not been read; 0 or less: none."""
        there = self._end - self._start
        if there < _LENGTH.size:
            return _LENGTH.size - there
        return int(_LENGTH.size + _LENGTH.unpack_from(self.buffer, self._start)[0] - there)

    @property
    def is_answer_large(self) -> bool:
        """Whether the next answer has begun to come, and is too large to be read ahead."""
        return self._end - self._start + self.missing_bytes > READ_AHEAD_BYTES_MAX

    def fill(self, sock: Any) -> bool:
        """Reads what has come of the next answer, without waiting. Whether nobody has to wait for the rest: all of it
        is there, or the connection is broken."""
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
        """Waits for more, when nothing is here, and gives what `view` has room for; how many bytes, 0 at the end of the
        connection. Raises what the socket raises."""
        self._start, self._end = 0, sock.recv_into(self.buffer, READ_AHEAD_BYTES)
        return self.take_into(view)

    def take_into(self, view: memoryview) -> int:
        """Gives what is here, as far as `view` has room; how many bytes."""
        start = self._start
        count = min(len(view), self._end - start)
        view[:count] = self.buffer[start : start + count]
        self._start += count
        return count

    def take(self, size_bytes: int) -> bytes:
        """So many bytes, which are here, as bytes of their own, which are aligned as Arrow wants it."""
        start = self._start
        self._start = end = start + size_bytes
        return bytes(self.buffer[start:end])
