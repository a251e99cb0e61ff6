"""A connection's socket: its events on the loop, and its unencrypted bytes. `tls_transport` has the encrypted form."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Protocol

from sparklog_broker.network.out_queue import OutQueue
from sparklog_broker.network.reply import Slice


class SocketEvents:
    """Calls `on_readable` and `on_writable` while reading or writing is resumed and the socket is not held.

    `pending` returns True if the transport has bytes to read although the socket is not readable; None if it never has.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, pending: Callable[[], bool] | None = None
    ) -> None:
        self.is_reading = False
        self.is_writing = False
        self._loop = loop
        self._fd = sock.fileno()
        self._pending = pending
        self._is_held = False
        self._looks_again = False
        self._readable: Callable[[], None] = _no_action
        self._on_readable: Callable[[], None] = _no_action
        self._on_writable: Callable[[], None] = _no_action

    def start(self, on_readable: Callable[[], None], on_writable: Callable[[], None]) -> None:
        """Set the functions to call. No event is reported before `resume_reading` or `resume_writing`."""
        self._readable, self._on_writable = on_readable, on_writable
        self._on_readable = on_readable if self._pending is None else self.read_now

    def resume_reading(self) -> None:
        """Report readability from now on. Raises OSError, MemoryError."""
        if not self._is_held:
            self._loop.add_reader(self._fd, self._on_readable)
        self.is_reading = True
        self._look_for_pending()

    def pause_reading(self) -> None:
        if self.is_reading:
            self._loop.remove_reader(self._fd)
            self.is_reading = False

    def resume_writing(self) -> None:
        """Report writability from now on. Raises OSError, MemoryError."""
        if not self._is_held:
            self._loop.add_writer(self._fd, self._on_writable)
        self.is_writing = True

    def pause_writing(self) -> None:
        if self.is_writing:
            self._loop.remove_writer(self._fd)
            self.is_writing = False

    def hold(self) -> None:
        """Report no events until `let_go`."""
        self._is_held = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)

    def let_go(self) -> None:
        """Report events again. Raises OSError, MemoryError."""
        self._is_held = False
        if self.is_reading:
            self._loop.add_reader(self._fd, self._on_readable)
        if self.is_writing:
            self._loop.add_writer(self._fd, self._on_writable)
        self._look_for_pending()

    def read_now(self) -> None:
        """Call `on_readable` if reading is not paused, and again in each turn of the loop while bytes are pending."""
        if self.is_reading and not self._is_held:
            self._readable()
            self._look_for_pending()

    def write_now(self) -> None:
        self._on_writable()

    def _look_for_pending(self) -> None:
        if self._pending is None or self._looks_again or self._is_held or not self.is_reading or not self._pending():
            return
        self._looks_again = True
        self._loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        self.read_now()


class Transport(Protocol):
    """The bytes of one connection. Event-loop thread only."""

    sock: socket.socket
    events: SocketEvents

    def recv_into(self, room: bytearray | memoryview, /) -> int:
        """Receive bytes into `room`, and return their number; 0 if the peer has ended its side. Raises BlockingIOError
        if there are no bytes yet, OSError.
        """

    def write(self, queue: OutQueue) -> int:
        """Send as much of `queue` as the socket takes, and return the number of bytes. Raises ShortFileError, OSError,
        and BlockingIOError if the caller must leave the queue unchanged until `on_writable` is called.
        """

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call `then` as soon as no thread uses the buffers of `recv_into` and `write`, possibly at once. Events are no
        longer reported."""

    def shutdown(self) -> None:
        """End the sending side, so that the peer can distinguish the end from a lost connection. Raises OSError."""

    def close(self) -> None:
        """Close the socket."""


class PlainTransport:
    """A socket without TLS. The kernel copies slices of files."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        prepare(sock)
        self.sock = sock
        self.events = SocketEvents(loop, sock)
        self.recv_into = sock.recv_into
        self.close = sock.close

    def write(self, queue: OutQueue) -> int:
        return queue.write(self._write_some)

    def _write_some(self, part: bytes | memoryview | Slice, start: int, count: int, is_last: bool) -> int:
        if isinstance(part, bytes | memoryview):
            # MSG_MORE: the kernel waits for the next part, so that header and data travel together.
            return self.sock.send(part[start : start + count], 0 if is_last else socket.MSG_MORE)
        return os.sendfile(self.sock.fileno(), part.fileno(), part.position + start, count)

    def when_idle(self, then: Callable[[], None]) -> None:
        then()

    def shutdown(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)


def prepare(sock: socket.socket) -> None:
    """Make `sock` non-blocking, and let it send small pieces without delay."""
    sock.setblocking(False)
    with contextlib.suppress(OSError):  # not a TCP socket: nothing to switch off
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _no_action() -> None:
    """Ignore an event that is reported before `start`."""
