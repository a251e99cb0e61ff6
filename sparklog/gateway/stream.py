"""One client's socket on the event loop. Large requests are received directly into their own memory.

asyncio's streams copy each byte several times, and wake the reader for each 64 KiB. For requests of 1 MiB this takes
more time than the conversion of their records.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import numpy as np

AHEAD_BYTES = 64 * 1024
"""Largest number of bytes that are received before a reader asks for them."""
TCP_ESTABLISHED = 1
"""State of a connection, in the kernel's TCP_INFO, of which no side has ended."""


class ClientStream(asyncio.BufferedProtocol):
    """A client's socket for one reader at a time. Event-loop thread only."""

    def __init__(self, on_connected: Callable[[ClientStream], None]) -> None:
        self._on_connected = on_connected
        self._transport: asyncio.Transport
        self._ahead: memoryview | None = None
        """Received bytes for which no reader has asked; None: there are none."""
        self._start = self._end = 0
        """Start and end of the bytes in `_ahead`."""
        self._target: memoryview | None = None
        """The view that a waiting reader wants filled; None: bytes go to `_ahead`."""
        self._filled = 0
        self._awaited_bytes = 0
        """Number of bytes in `_ahead` for which a reader waits."""
        self._arrival: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        """Done when the client has taken enough data; None while writing is possible."""
        self._failure: Exception | None = None
        """The error of reads after the client has ended its side, or the connection broke."""
        self._is_lost = self._is_closed = self._is_paused = False
        self.on_ended: Callable[[], None] | None = None
        """Called once when the client has ended its side, or the connection is closed or broken."""

    # --- for the session

    def get_extra_info(self, name: str) -> Any:
        """Return the transport's extra information `name`, as in asyncio."""
        return self._transport.get_extra_info(name)

    async def read_into(self, view: memoryview) -> None:
        """Wait until `view` is filled with received bytes. Raises IncompleteReadError at the end of the connection,
        OSError if it broke."""
        filled = self._take(view)
        missing = len(view) - filled
        if not missing:
            return
        if self._failure is not None:
            raise self._failure
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            if missing > AHEAD_BYTES:
                self._target, self._filled = view, filled
                await self._arrival
            else:
                self._awaited_bytes = missing
                await self._arrival
                self._take(view[filled:])
        finally:
            self._target = self._arrival = None
            self._awaited_bytes = 0

    def _take(self, view: memoryview) -> int:
        """Copy bytes that have been received ahead into `view`. Returns their number."""
        if self._ahead is None:
            return 0
        size = min(len(view), self._end - self._start)
        view[:size] = self._ahead[self._start : self._start + size]
        self._start += size
        if self._start == self._end:
            was_full = self._end == len(self._ahead)
            self._ahead, self._start, self._end = None, 0, 0
            if was_full:
                self._is_paused = False
                self._transport.resume_reading()
        return size

    def look_for_end(self) -> None:
        """Call `on_ended` if the client has ended the connection while no bytes are received, because the client has
        sent much more than the reader has asked for: the event loop then reports no end."""
        if self._is_paused and self.on_ended is not None:
            state = self._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
            if state[0] != TCP_ESTABLISHED:
                self._report_end()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data. The transport holds the bytes that the socket does not accept yet. Raises OSError after
        `close`, and if the connection has ended."""
        if self._is_closed:
            raise ConnectionAbortedError("the gateway has closed the connection")
        if self._is_lost:
            raise ConnectionResetError("the connection has ended")
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait while the transport holds too much data that the client has not taken. Raises OSError if the connection
        has ended."""
        if self._is_lost:
            raise ConnectionResetError("the connection has ended")
        if self._drained is not None:
            await asyncio.shield(self._drained)

    @property
    def has_pending_requests(self) -> bool:
        """True if the client has ended the connection, and the gateway has received bytes before that, which no reader
        has taken yet."""
        return self._is_lost and not self._is_closed and self.pending_bytes > 0

    @property
    def pending_bytes(self) -> int:
        """Number of received bytes for which the reader still waits or has not asked."""
        return self._filled if self._target is not None else self._end - self._start

    def abort(self) -> None:
        """Close the connection at once, without the held data."""
        self._transport.abort()

    def close(self) -> None:
        """Close the connection after the held data is sent. A waiting reader gets an error at once: with TLS, the
        transport first waits for the client's end."""
        self._fail(ConnectionAbortedError("the gateway has closed the connection"))
        if not self._is_closed:  # a TLS transport that is closed twice cannot be used any more
            self._is_closed = True
            self._transport.close()

    # --- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the connection is open; called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes; called by asyncio. An idle connection allocates this memory only when
        bytes arrive."""
        if self._target is not None:
            return self._target[self._filled :]
        if self._ahead is None:
            self._ahead = np.empty(AHEAD_BYTES, np.uint8).data  # not filled with zeros
        return self._ahead[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes; called by asyncio."""
        if self._target is not None:
            self._filled += nbytes
            if self._filled == len(self._target):
                self._target = None
                self._arrive()
            return
        self._end += nbytes
        if self._ahead is not None and self._end == len(self._ahead):
            self._is_paused = True
            self._transport.pause_reading()
        if self._awaited_bytes and self._end - self._start >= self._awaited_bytes:
            self._awaited_bytes = 0
            self._arrive()

    def eof_received(self) -> bool:
        """Note that the client sends no more requests. Returns True without TLS, so that the client can still receive
        answers."""
        self._fail(asyncio.IncompleteReadError(b"", None))
        return self._transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended; called by asyncio."""
        self._is_lost = True
        self._fail(exc or asyncio.IncompleteReadError(b"", None))
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_exception(ConnectionResetError("the connection has ended"))
            drained.exception()  # nobody may wait for it any more

    def pause_writing(self) -> None:
        """Pause writing, because the transport holds much data that the client has not taken."""
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Resume writing, because the client has taken enough data."""
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._report_end()
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_exception(self._failure)

    def _report_end(self) -> None:
        on_ended, self.on_ended = self.on_ended, None
        if on_ended is not None:
            on_ended()

    def _arrive(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
