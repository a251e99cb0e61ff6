"""The memory that clients can make the gateway hold: one budget in shares.

Each share has holders of one kind, and waits of one kind, so that no holder of a share waits for itself:

    share        held                                       until
    requests     bytes of requests                          the answer is complete; the client sends the rest
    lists        decoded requests with many entries         the answer is encoded
    answers      large answers of the broker                the answer is encoded
    inflated     decompressed batches                       the conversion ends
    converted    converted batches of PRODUCE               the broker has taken them
    unread       large answers                              the client has read them
    groups       members of groups                          they leave
    sessions     partitions of fetch sessions               the session or its connection ends

Requests and answers of a few kilobytes are counted but never wait. Only two shares wait for clients: while others wait
for `requests` or `unread`, the gateway disconnects the clients that do not send or read (`partial_requests.py`).

An answer to a fetch takes at most 1/ANSWER_SHARE of the free memory in `unread`, or a single batch. So clients that do
not read leave memory for the others, whose answers only become smaller. Clients that do not read are also disconnected
while more than half of `unread` is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from sparklog.environment.memory_budget import MemoryBudget
from sparklog.environment.partial_requests import PartialRequest, PartialRequests
from sparklog.gateway.limits import Limits
from sparklog.log.model.inflated_memory import InflatedMemory

PROGRESS_BYTES = 64 * 1024
"""Bytes that a client has to send or read in `Limits.stall_s` while other clients wait for memory."""
LOOKS_PER_STALL = 4
"""Number of checks for slow clients in `Limits.stall_s`."""
ANSWER_SHARE = 32
"""Divisor of the free memory for answers: one answer to a fetch takes at most 1/ANSWER_SHARE of it."""
ENTRY_BYTES = 1_536
"""Assumed memory in bytes of one entry of a request, with its result."""


class GatewayMemory:
    """The shares of one gateway. Event-loop thread only, except for `inflated`."""

    def __init__(self, limits: Limits) -> None:
        self.requests = MemoryBudget(limits.memory_bytes, _new_turn)
        self.lists = MemoryBudget(limits.list_bytes, _new_turn)
        self.answers = MemoryBudget(limits.broker_answer_bytes, _new_turn)
        self.inflated = InflatedMemory(limits.conversion_bytes)
        self.converted = MemoryBudget(limits.converted_bytes, _new_turn)
        self.unread = MemoryBudget(limits.unread_bytes, _new_turn)
        self.groups = MemoryBudget(limits.group_bytes)
        self.fetch_sessions = MemoryBudget(limits.fetch_session_bytes)

    @property
    def answer_bytes_max(self) -> int:
        """Largest size in bytes of the next answer to a fetch, beyond a single batch."""
        return max(self.unread.limit_bytes - self.unread.used_bytes, 0) // ANSWER_SHARE

    @property
    def limit_bytes(self) -> int:
        """Sum of all shares in bytes."""
        return sum(share.limit_bytes for share in self._shares()) + self.inflated.limit_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that are held now."""
        return sum(share.used_bytes for share in self._shares()) + self.inflated.held_bytes

    def _shares(self) -> Iterable[MemoryBudget]:
        waiting = self.requests, self.lists, self.answers, self.converted, self.unread
        return *waiting, self.groups, self.fetch_sessions


def _new_turn() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


class SlowClient(Protocol):
    """The parts of a session that `SlowClients` uses."""

    @property
    def partial_request(self) -> PartialRequest | None: ...
    @property
    def half_answer(self) -> PartialRequest | None: ...
    @property
    def peer_name(self) -> str: ...
    def close(self) -> None: ...


class _Reader:
    """A session as a reader of its answer."""

    __slots__ = ("_session", "partial_request")

    def __init__(self, session: SlowClient, half: PartialRequest) -> None:
        self._session = session
        self.partial_request: PartialRequest | None = half

    @property
    def peer_name(self) -> str:
        return self._session.peer_name

    def close(self) -> None:
        self._session.close()


class SlowClients:
    """Disconnects clients that do not send or read while other clients wait for their memory."""

    def __init__(self, memory: GatewayMemory, stall_s: float) -> None:
        self._senders = PartialRequests(memory.requests, stall_s, "memory of requests")
        self._readers = PartialRequests(
            memory.unread, stall_s, "memory of answers", short_from_bytes=memory.unread.limit_bytes // 2
        )
        self._memory = memory

    @property
    def cut_count(self) -> int:
        """Number of clients that were disconnected."""
        return self._senders.cut_count + self._readers.cut_count

    def check(self, sessions: Callable[[], Iterable[SlowClient]], now_s: float) -> None:
        """Disconnect slow clients if others wait. Called LOOKS_PER_STALL times in `stall_s`."""
        self._senders.check(sessions() if self._memory.requests.waiting_count else (), now_s)
        readers = sessions() if self._readers.is_short else ()
        self._readers.check([_Reader(s, half) for s in readers if (half := s.half_answer) is not None], now_s)


class Progress:
    """The progress of a client with a request or an answer. `now_s`: the present time in s."""

    __slots__ = ("_marked_bytes", "_progress_s", "begun_s", "held_bytes", "is_waiting")

    def __init__(self, now_s: float) -> None:
        self.begun_s = self._progress_s = now_s
        self.held_bytes = 0
        """Reserved bytes."""
        self.is_waiting = False
        """True while the client cannot go on because the gateway waits for memory."""
        self._marked_bytes = 0

    def wait(self) -> None:
        """Note that the gateway waits for memory."""
        self.is_waiting = True

    def go_on(self, waited_s: float, now_s: float) -> None:
        """Note the end of a wait of `waited_s`."""
        self.is_waiting = False
        self.begun_s += waited_s
        self._progress_s = now_s

    def state(self, done_bytes: int, now_s: float) -> PartialRequest | None:
        """Return the state after `done_bytes`; None if the client holds no memory, or waits for memory itself."""
        if done_bytes - self._marked_bytes >= PROGRESS_BYTES:
            self._marked_bytes, self._progress_s = done_bytes, now_s
        if self.is_waiting or not self.held_bytes:
            return None
        return PartialRequest(done_bytes, self.held_bytes, self.begun_s, self._progress_s)


class HeldRequest:
    """The bytes of one request, with their memory in the share `requests`; `share` None: it holds nothing."""

    __slots__ = ("_share", "data", "is_cut", "size_bytes")

    def __init__(self, share: MemoryBudget | None = None) -> None:
        self._share = share
        self.data = memoryview(b"")
        self.is_cut = False
        """True if the request is too large, so that `data` has its beginning alone."""
        self.size_bytes = 0

    async def add(self, size_bytes: int) -> None:
        """Reserve memory for further bytes, and wait until they fit."""
        assert self._share is not None
        await self._share.acquire(self, size_bytes)
        self.size_bytes += size_bytes

    def release(self) -> None:
        """Drop the bytes. Handlers call it before they wait for other clients with a copy of the request."""
        self.data = memoryview(b"")
        size_bytes, self.size_bytes = self.size_bytes, 0
        if self._share is not None and size_bytes:
            self._share.release(self, size_bytes)
