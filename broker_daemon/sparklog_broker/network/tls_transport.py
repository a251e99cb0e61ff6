"""A connection's socket with TLS. The event loop encrypts and decrypts small amounts of data, threads large amounts.

OpenSSL works on records of at most 16 KiB, one per call, on one thread at a time. While a thread uses the socket, the
loop reports no events of the socket, and `recv_into` and `write` raise BlockingIOError. When the thread has finished,
the event is reported, and a repetition of the call returns the thread's result.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from sparklog_broker.network.out_queue import OutQueue
from sparklog_broker.network.reply import Slice
from sparklog_broker.network.transport import SocketEvents, prepare

OFF_LOOP_BYTES = 64 * 1024
"""Smallest number of bytes that a thread encrypts or decrypts. For fewer bytes, the hand-over to a thread costs more
than it saves the loop."""
PIECE_BYTES = 128 * 1024
"""Size of the pieces in which a slice of a file is read and encrypted, in bytes."""

Job = Callable[[], int]


class TlsTransport:
    """The bytes of a socket after its handshake. `threads` decrypt and encrypt large frames."""

    def __init__(self, sock: ssl.SSLSocket, loop: asyncio.AbstractEventLoop, threads: Executor) -> None:
        prepare(sock)
        self.sock: socket.socket = sock
        self.events = SocketEvents(loop, sock, self._is_pending)
        self.close = sock.close
        self._tls = sock
        self._loop = loop
        self._threads = threads
        self._thread_works = False
        self._write_waits = False
        """True if `write` was called while a thread used the socket; it must be called again afterwards."""
        self._was_emptied = False
        """True if a thread has just received all bytes of the socket."""
        self._received: Job | None = None
        """Result of a thread that has received bytes, until `recv_into` returns it."""
        self._sent: Job | None = None
        """Result of a thread that has sent bytes, until `write` returns it."""
        self._at_end: Callable[[], None] | None = None

    def _is_pending(self) -> bool:
        """True if decrypted bytes, of OpenSSL or a thread, wait for the connection."""
        if self._received is not None:
            return True
        return self._tls._sslobj is not None and self._tls.pending() > 0  # type: ignore[attr-defined]

    def recv_into(self, room: bytearray | memoryview, /) -> int:
        if self._received is not None:
            received, self._received = self._received, None
            self._was_emptied = True
            return received()
        if self._thread_works:
            raise BlockingIOError
        was_emptied, self._was_emptied = self._was_emptied, False
        if len(room) < OFF_LOOP_BYTES:
            return self._receive(room)
        if was_emptied:  # a thread would find next to nothing
            raise BlockingIOError
        # a separate view: the caller may release its own before the thread ends
        self._on_thread(partial(self._fill, memoryview(room)[:]), is_read=True)
        raise BlockingIOError

    def write(self, queue: OutQueue) -> int:
        if self._sent is not None:
            sent, self._sent = self._sent, None
            return sent()
        if self._thread_works:
            self._write_waits = True
            raise BlockingIOError
        if queue.remaining_bytes < OFF_LOOP_BYTES:
            return queue.write(self._write_some)
        self._on_thread(partial(queue.write, self._write_some), is_read=False)
        raise BlockingIOError

    def when_idle(self, then: Callable[[], None]) -> None:
        self._at_end = then
        if not self._thread_works:
            then()

    def shutdown(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._tls.unwrap()
        self.sock.shutdown(socket.SHUT_WR)

    # -- the thread

    def _on_thread(self, job: Job, *, is_read: bool) -> None:
        future = self._loop.run_in_executor(self._threads, job)
        self._thread_works = True
        self.events.hold()
        future.add_done_callback(partial(self._on_back, is_read))

    def _on_back(self, is_read: bool, done: asyncio.Future[int]) -> None:
        self._thread_works = False
        # Ask for the exception, or asyncio reports it too.
        cause = _stopped() if done.cancelled() else done.exception()
        if self._at_end is not None:
            self._at_end()
            return
        try:
            self.events.let_go()
        except Exception as e:  # noqa: BLE001 - it becomes the connection's error
            cause = e
        result = done.result if cause is None else partial(_fail, cause)
        write_waits, self._write_waits = self._write_waits, False
        if is_read:
            self._received = result
        else:
            self._sent = result
        if write_waits or not is_read:  # writing goes first: a reply must not wait for a long request
            self.events.write_now()
        if is_read:
            self.events.read_now()  # later, if reading is paused or a thread sends

    # -- OpenSSL, on any thread

    def _receive(self, room: bytearray | memoryview) -> int:
        """Receive like a socket's `recv_into`. Raises BlockingIOError, OSError (including ssl.SSLError)."""
        try:
            return self._tls.recv_into(room)
        except ssl.SSLWantReadError as e:
            raise BlockingIOError from e

    def _fill(self, room: memoryview) -> int:
        """Receive until `room` is full or no bytes are left. Raises as `_receive` if nothing was received."""
        count = 0
        with room:
            while count < len(room):
                try:
                    more = self._receive(room[count:])
                except OSError:  # the next call raises it again
                    if not count:
                        raise
                    break
                if not more:
                    break
                count += more
        return count

    def _write_some(self, part: bytes | memoryview | Slice, start: int, count: int, is_last: bool) -> int:
        if isinstance(part, bytes | memoryview):
            return self._send(part[start : start + count])
        total = 0
        while total < count:
            # OpenSSL needs the same piece again if it was not taken; its size depends only on the position.
            at = start + total
            piece = os.pread(part.fileno(), min(PIECE_BYTES, part.length_bytes - at), part.position + at)
            if not piece:
                return total
            try:
                sent = self._send(piece)
            except BlockingIOError:
                if not total:
                    raise
                return total
            total += sent
            if sent < len(piece):
                return total
        return total

    def _send(self, data: bytes | memoryview) -> int:
        """Send as many bytes as the socket takes, and return their number. The caller must pass the remaining bytes
        again: part of them is encrypted already. Raises BlockingIOError if the socket takes none, OSError.
        """
        view = memoryview(data)
        sent = 0
        while sent < len(view):
            try:
                sent += self._tls.send(view[sent:])
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError) as e:
                if not sent:
                    raise BlockingIOError from e
                break
            except ssl.SSLError as e:  # the peer has disconnected, in one of several ways
                raise ConnectionResetError(errno.ECONNRESET, str(e)) from e
        return sent


def _stopped() -> OSError:
    return ConnectionResetError(errno.ECONNRESET, "the broker's threads have stopped")


def _fail(error: BaseException) -> int:
    raise error
