"""A TLS connection as a socket that does not block, for `TlsConnection`; and what still has to be sent on one.

OpenSSL decrypts and encrypts records of at most 16 KiB, one per call. What it has decrypted and nobody has taken is in
its own buffer, so the socket does not become readable for it: `pending`.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from typing import Any

from sparklog_broker.network.out_queue import OutQueue
from sparklog_broker.network.reply import Slice

PIECE_BYTES = 128 * 1024
"""A slice of a file is read, and encrypted, in pieces of this size."""


class TlsSocket:
    """Wraps an `ssl.SSLSocket` whose handshake is done. One thread at a time."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        self._sock.setblocking(flag)

    def setsockopt(self, *option: Any) -> None:
        self._sock.setsockopt(*option)

    def getsockname(self) -> Any:
        return self._sock.getsockname()

    def getpeername(self) -> Any:
        return self._sock.getpeername()

    def pending(self) -> bool:
        """Whether something can be read although the socket is not readable."""
        return self._sock._sslobj is not None and self._sock.pending() > 0  # type: ignore[attr-defined]

    def recv_into(self, room: Any) -> int:
        """As a socket's. Raises BlockingIOError, OSError (ssl.SSLError is one)."""
        try:
            return self._sock.recv_into(room)
        except ssl.SSLWantReadError as e:
            raise BlockingIOError from e

    def send_all(self, data: bytes | memoryview) -> int:
        """Sends what the socket takes. Raises BlockingIOError if that is nothing, OSError. What was not taken has to be
        given again: part of it is encrypted already."""
        view = memoryview(data)
        sent = 0
        while sent < len(view):
            try:
                sent += self._sock.send(view[sent:])
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError) as e:
                if not sent:
                    raise BlockingIOError from e
                break
        return sent

    def shutdown(self, how: int) -> None:
        """Says that nothing more will come, so that the peer can tell it from a cut."""
        with contextlib.suppress(OSError, ValueError):
            self._sock.unwrap()
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()


class TlsOutQueue(OutQueue):
    """Slices are read from their files, for the kernel cannot encrypt them."""

    __slots__ = ()

    @property
    def left_bytes(self) -> int:
        """Of all parts."""
        whole = sum(p.length_bytes if not isinstance(p, bytes | memoryview) else len(p) for p in self._parts)
        return whole - self._sent

    def _write_some(self, sock: Any, part: bytes | memoryview | Slice, count: int) -> int:
        if isinstance(part, bytes | memoryview):
            return int(sock.send_all(part[self._sent : self._sent + count]))
        total = 0
        while total < count:
            # the same piece again if it was not taken: its size depends on the position alone
            at = self._sent + total
            piece = os.pread(part.fileno(), min(PIECE_BYTES, part.length_bytes - at), part.position + at)
            if not piece:
                return total
            try:
                sent: int = sock.send_all(piece)
            except BlockingIOError:
                if not total:
                    raise
                return total
            total += sent
            if sent < len(piece):
                return total
        return total
