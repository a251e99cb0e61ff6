"""The gateway's limits for clients, and the budgets of memory for their requests and answers."""

from __future__ import annotations

import asyncio
from collections import deque

from msgspec import Struct

from sparklog.settings import MIB


class Limits(Struct, frozen=True):
    """Limits of one gateway."""

    connections: int = 10_000
    """Connections at once. The gateway closes a further one."""
    connections_per_host: int = 5_000
    """Connections at once from one address."""
    unknown_connections: int = 1_000
    """Connections at once, on listeners with SASL, whose clients have not authenticated yet."""
    request_bytes: int = 100 * MIB
    """Largest PRODUCE request in bytes."""
    other_request_bytes: int = 100 * MIB
    """Largest request of any other API in bytes."""
    unknown_request_bytes: int = 128 * 1024
    """Largest request in bytes before the client has authenticated."""
    memory_bytes: int = 512 * MIB
    """Memory for the requests and large answers of all clients together, in bytes."""
    conversion_bytes: int = 1024 * MIB
    """Memory for the decompression and conversion of all clients' batches together, in bytes."""
    converted_bytes: int = 512 * MIB
    """Memory for converted batches of all clients together until they are sent, in bytes."""
    fetch_bytes: int = 32 * MIB
    """Largest answer to a fetch in bytes. A single batch is answered even if it is larger."""
    inflated_bytes: int = 128 * MIB
    """Largest size of a batch after decompression, in bytes."""
    pipelined: int = 8
    """PRODUCE requests of one connection that are processed at once."""
    idle_s: float = 600.0
    """Longest time between two requests; then the gateway closes the connection."""
    read_s: float = 30.0
    """Longest time until a request has arrived completely; then the gateway closes the connection."""
    write_s: float = 60.0
    """Longest time until the client has taken an answer; then the gateway closes the connection."""
    authentication_s: float = 30.0
    """Longest time until the client has authenticated, including the TLS handshake."""


class MemoryBudget:
    """The memory that requests and answers may take together. Event-loop thread only."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self.used = 0
        """Bytes that are taken now."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Take `size` bytes. Calls wait for free memory in their order. A size above the total is granted when nothing
        else is taken."""
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

    def add(self, size: int) -> None:
        """Take `size` bytes without waiting. Later calls of `take` wait for them."""
        self.used += size

    def free(self, size: int) -> None:
        """Give back `size` bytes, and wake up waiting calls."""
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
