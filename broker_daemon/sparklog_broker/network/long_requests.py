"""Requests with long headers: a turn for each, as memory allows for their decoded form.

A header's list of 100,000 partitions of 9 bytes each becomes objects of 560 bytes each; one wide character makes a name
of 65,000 bytes four times as large. `queued.max.request.bytes` counts frames as they arrive. A long header is therefore
decoded only in its turn, and the turn lasts until the answer is made. Requests that wait for other events (a fetch for
records, a write for replicas) and requests between brokers have turns of their own, so that long requests of clients do
not delay them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, suppress

from sparklog.errors import RequestTimedOutError

DECODED_BYTES_PER_BYTE = 32
"""Decoded bytes assumed per byte of a long header."""
PATIENCE_S = 20.0
"""Longest wait for a turn; then the request is refused. It also ends a mutual wait of two brokers."""


class LongRequests:
    """Gives out turns. `limit_bytes`: limit of the decoded requests of one kind; a single request may be larger.
    Event-loop thread only.
    """

    def __init__(self, limit_bytes: int, *, patience_s: float = PATIENCE_S) -> None:
        self._limit_bytes = limit_bytes
        self._patience_s = patience_s
        self._lines: dict[Hashable, _Line] = {}

    @asynccontextmanager
    async def turn(self, kind: Hashable, header_bytes: int) -> AsyncIterator[None]:
        """Wait for room among the requests of this `kind`, in order of arrival. Raises RequestTimedOutError."""
        line = self._lines.setdefault(kind, _Line(self._limit_bytes))
        size_bytes = header_bytes * DECODED_BYTES_PER_BYTE
        try:
            async with asyncio.timeout(self._patience_s):
                await line.enter(size_bytes)
        except TimeoutError:
            raise RequestTimedOutError(
                "too many requests with long lists are in progress: try again, or name fewer items per request"
            ) from None
        try:
            yield
        finally:
            line.leave(size_bytes)


class _Line:
    """The requests of one kind that have a turn, and those that wait, in order."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def _fits(self, size_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + size_bytes <= self._limit_bytes

    async def enter(self, size_bytes: int) -> None:
        if not self._waiting and self._fits(size_bytes):
            self._used_bytes += size_bytes
            return
        turn = asyncio.get_running_loop().create_future()
        place = (size_bytes, turn)
        self._waiting.append(place)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # granted at the moment of the cancellation
                self.leave(size_bytes)
            else:
                with suppress(ValueError):  # skipped since its cancellation
                    self._waiting.remove(place)
                self._let_in()  # the next request may be smaller
            raise

    def leave(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self._used_bytes += size_bytes
                turn.set_result(None)
