"""Turns for requests with long headers, so that their decoded forms fit into memory.

Decoding multiplies the size: each of 100,000 partitions takes 9 bytes in a header and 560 bytes as an object, and one
wide character makes a name of 65,000 bytes four times as large. `queued.max.request.bytes` counts only received frames.
A long header is therefore decoded only in its turn, which lasts until the reply is complete. Requests that wait for
other events (a fetch for records, a write for replicas) and requests between brokers have separate turns, so that long
requests of clients do not delay them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, suppress

from sparklog.errors import RequestTimedOutError

DECODED_BYTES_PER_BYTE = 32
"""Assumed number of decoded bytes per byte of a long header."""
PATIENCE_S = 20.0
"""Longest wait for a turn, in s; then the request is refused. This also ends a deadlock of two brokers."""


class LongRequests:
    """Grants turns. `limit_bytes`: largest sum of the decoded requests of one kind; a single request can be larger.
    Event-loop thread only.
    """

    def __init__(self, limit_bytes: int, *, patience_s: float = PATIENCE_S) -> None:
        self._limit_bytes = limit_bytes
        self._patience_s = patience_s
        self._lines: dict[Hashable, _Line] = {}

    @asynccontextmanager
    async def turn(self, kind: Hashable, header_bytes: int) -> AsyncIterator[None]:
        """Wait until the requests of this `kind` have room for one more, in order of arrival. Raises
        RequestTimedOutError.
        """
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
    """The requests of one kind: those with a turn, and those that wait, in order."""

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
            if turn.done() and not turn.cancelled():  # granted just before the cancellation
                self.leave(size_bytes)
            else:
                with suppress(ValueError):  # `_let_in` may have removed it
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
