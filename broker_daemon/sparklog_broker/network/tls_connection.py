"""A connection with TLS. What is small is decrypted and encrypted on the event loop, what is large on a thread.

While a thread works on the connection nobody else does: the loop does not look at its socket, and what it is asked to
do meanwhile (write, close) is done when the thread is back, which takes milliseconds, as the socket does not block.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from sparklog_broker.network.connection import Connection, State
from sparklog_broker.network.out_queue import ShortFileError
from sparklog_broker.network.reply import Reply
from sparklog_broker.network.tls_socket import TlsOutQueue, TlsSocket

log = logging.getLogger(__name__)

T = TypeVar("T")

OFF_LOOP_BYTES = 64 * 1024
"""As much takes the loop 50 to 100 µs; a thread costs it about half of that."""


class TlsConnection(Connection):
    """As `Connection`, on a socket whose TLS handshake is done. `threads`: where large frames are worked on."""

    _sock: Any

    def __init__(self, sock: ssl.SSLSocket, *, threads: Executor, **rest: Any) -> None:
        self._threads = threads
        self._thread_works = False
        self._answer_waits = False
        self._look_again = False
        super().__init__(TlsSocket(sock), **rest)  # type: ignore[arg-type]
        self._out: TlsOutQueue = TlsOutQueue()

    # -- reading

    def _resume_reading(self) -> None:
        super()._resume_reading()
        self._note_pending()

    def _on_readable(self) -> None:
        if self._thread_works:
            self._loop.remove_reader(self._fd)  # it is watched again when the thread is back
            return
        super()._on_readable()
        self._note_pending()

    def _note_pending(self) -> None:
        """What OpenSSL has decrypted already makes no socket readable."""
        if self._reader_on and not self._look_again and not self._thread_works and self._sock.pending():
            self._look_again = True
            self._loop.call_soon(self._on_pending)

    def _on_pending(self) -> None:
        self._look_again = False
        if self._reader_on:
            self._on_readable()

    def _read(self) -> None:
        frame = self._reading
        if frame is None or frame.prefix.body_bytes - frame.received < OFF_LOOP_BYTES:
            super()._read()
            return
        if frame.received == frame.reserved and not self._grow(frame):
            return
        room = frame.view(frame.received, frame.reserved)

        def fill() -> tuple[int, bool]:
            with room:
                return _fill(self._sock, room)

        self._on_thread(fill, self._filled, self._read_failed)

    def _read_failed(self, error: ShortFileError | OSError) -> None:
        log.debug("%s: reading failed: %s; disconnecting", self.peer_name, error)
        self.close()

    def _filled(self, outcome: tuple[int, bool]) -> None:
        count, ended = outcome
        frame = self._reading
        if frame is None or ended:
            self.close()
            return
        frame.received += count
        self._note_progress(count)
        if frame.received == frame.prefix.body_bytes:
            self._end_frame(frame)

    # -- writing

    def _send(self, reply: Reply | None) -> None:
        self._answer_waits = self._thread_works
        super()._send(reply)

    def _on_writable(self) -> None:
        if self._thread_works:
            if self._writer_on:
                self._loop.remove_writer(self._fd)  # as above
            return
        super()._on_writable()

    def _write(self) -> None:
        if self._out.left_bytes < OFF_LOOP_BYTES:
            super()._write()
            return
        self._on_thread(lambda: self._out.write(self._sock), self._wrote, self._write_failed)

    def _write_failed(self, error: ShortFileError | OSError) -> None:
        if isinstance(error, ssl.SSLError):  # the peer is gone, in one of several ways
            log.debug("%s: sending failed: %s; disconnecting", self.peer_name, error)
            self.close()
        else:
            super()._write_failed(error)

    # -- the thread

    def _on_thread(
        self, job: Callable[[], T], then: Callable[[T], None], failed: Callable[[ShortFileError | OSError], None]
    ) -> None:
        self._thread_works = True
        if self._reader_on:
            self._loop.remove_reader(self._fd)
        if self._writer_on:
            self._loop.remove_writer(self._fd)
        future = self._loop.run_in_executor(self._threads, job)
        future.add_done_callback(lambda done: self._thread_back(done, then, failed))

    def _thread_back(
        self, done: asyncio.Future[T], then: Callable[[T], None], failed: Callable[[ShortFileError | OSError], None]
    ) -> None:
        self._thread_works = False
        if self._is_closed:
            self._release()
            return
        if done.cancelled():
            self.close()
            return
        answer_waits, self._answer_waits = self._answer_waits, False
        try:
            if self._reader_on:
                self._loop.add_reader(self._fd, self._on_readable)
            if self._writer_on:
                self._loop.add_writer(self._fd, self._on_writable)
            error = done.exception()
            if isinstance(error, ShortFileError | OSError):
                failed(error)
            elif error is not None:
                raise error
            else:
                then(done.result())
        except Exception as e:  # noqa: BLE001 - as everywhere: half a frame must not be followed by the rest
            self._fail(e)
        if answer_waits and not self._is_closed:
            self._on_writable()
        self._note_pending()

    @property
    def _is_closed(self) -> bool:
        return self._state is State.CLOSED

    def _release(self) -> None:
        if not self._thread_works:  # else when it is back: it uses the socket and the buffers
            super()._release()


def _fill(sock: TlsSocket, room: memoryview) -> tuple[int, bool]:
    """How many bytes have come, and whether the peer has ended. Raises OSError."""
    count = 0
    while count < len(room):
        try:
            more = sock.recv_into(room[count:])
        except (BlockingIOError, InterruptedError):
            break
        if not more:
            return count, True
        count += more
    return count, False
