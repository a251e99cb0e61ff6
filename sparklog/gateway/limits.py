"""The gateway's limits for clients, and the memory that their requests and answers share."""

from __future__ import annotations

import asyncio
from collections import deque

from msgspec import Struct

from sparklog.settings import MIB


class Limits(Struct, frozen=True):
    """Limits of one gateway."""

    connections: int = 10_000
    """Connections at once; one more is closed."""
    connections_per_host: int = 5_000
    """Connections at once from one address."""
    unknown_connections: int = 1_000
    """Connections at once whose clients have not authenticated, on listeners with SASL."""
    request_bytes: int = 100 * MIB
    """Largest PRODUCE request."""
    other_request_bytes: int = 4 * MIB
    """Largest request of another API."""
    unknown_request_bytes: int = 128 * 1024
    """Largest request before the authentication."""
    memory_bytes: int = 512 * MIB
    """Requests and answers of all clients together."""
    fetch_bytes: int = 32 * MIB
    """Largest answer to a fetch, but always one batch."""
    inflated_bytes: int = 128 * MIB
    """Largest batch without its compression."""
    pipelined: int = 8
    """PRODUCE requests of one connection in work at once."""
    idle_s: float = 600.0
    """A connection without a request is closed after this time."""
    read_s: float = 30.0
    """A request that is not complete after this time ends its connection."""
    write_s: float = 60.0
    """A client that does not read its answer for this time is disconnected."""
    authentication_s: float = 30.0
    """Time to authenticate, the TLS handshake included."""


class MemoryBudget:
    """Bytes that requests and answers may take together. Event-loop thread only."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self.used = 0
        """Bytes that are taken."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Take memory, waiting for it in the order of the calls. A request for more than the total is granted when
        nothing else is taken."""
        if not self._waiting and self._has_room(size):
            self.used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.free(size)
            raise

    def free(self, size: int) -> None:
        """Give memory back."""
        self.used -= size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.done():
                if not self._has_room(wanted):
                    return
                self.used += wanted
                turn.set_result(None)
            self._waiting.popleft()

    def _has_room(self, size: int) -> bool:
        return self.used + size <= self._total or self.used == 0
