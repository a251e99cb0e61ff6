"""Requests with long headers: so many at once as there is memory for what they become when they are decoded.

Of a header's list of 100,000 partitions, 9 bytes each, objects of 560 bytes each are made; one wide character makes
a name of 65,000 bytes four times as large. `queued.max.request.bytes` counts frames as they have arrived. So a long
header is decoded only when it is its turn, and the turn lasts until the answer is made. Requests that wait for others
(a fetch for records, a write for replicas) and those of brokers among themselves have turns of their own: nobody
keeps them waiting by asking for much.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, suppress

from sparklog.errors import RequestTimedOutError

DECODED_BYTES_PER_BYTE = 32
"""What one byte of a long header is taken to become."""
PATIENCE_S = 20.0
"""So long a request waits for its turn, then it is refused: also where two brokers would wait for each other."""


class LongRequests:
    """Event-loop thread only. `limit_bytes`: of the decoded requests of one kind; a single one may be larger."""

    def __init__(self, limit_bytes: int, *, patience_s: float = PATIENCE_S) -> None:
        self._limit_bytes = limit_bytes
        self._patience_s = patience_s
        self._lines: dict[Hashable, _Line] = {}

    @asynccontextmanager
    async def turn(self, kind: Hashable, header_bytes: int) -> AsyncIterator[None]:
        """Waits until there is room among those of its `kind`, in the order they came. Raises RequestTimedOutError."""
        line = self._lines.setdefault(kind, _Line(self._limit_bytes))
        size_bytes = header_bytes * DECODED_BYTES_PER_BYTE
        try:
            async with asyncio.timeout(self._patience_s):
                await line.enter(size_bytes)
        except TimeoutError:
            raise RequestTimedOutError(
                "too many requests with long lists are being answered: try again, or name fewer things at once"
            ) from None
        try:
            yield
        finally:
            line.leave(size_bytes)


class _Line:
    """Who is in, and who waits, in order."""

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
            if turn.done() and not turn.cancelled():  # its turn came at the same moment
                self.leave(size_bytes)
            else:
                with suppress(ValueError):  # it has been passed over since it was cancelled
                    self._waiting.remove(place)
                self._let_in()  # who waits behind it may be smaller
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
