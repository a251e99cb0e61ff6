"""The memory that peers can make a process hold, as a budget of bytes.

A request is counted as its bytes arrive, so the budget can run out in the middle of a frame. If incomplete frames held
all memory, none of them could be completed. Therefore one owner at a time is allowed to exceed the limit: the first
owner that would have to wait. The excess is at most one frame, plus small frames (such as a fetch), which are counted
but never wait. Unread answers are counted too (`take`); `send_backlog.py` limits them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

SMALL_BYTES = 16 * 1024


class MemoryBudget:
    """Counts reserved bytes and queues the owners that have to wait. Event-loop thread only."""

    def __init__(self, limit_bytes: int, new_turn: Callable[[], Any] | None = None) -> None:
        """`new_turn` returns a future of the event loop, for `acquire` and `held`."""
        self.limit_bytes = limit_bytes
        self._new_turn = new_turn
        self.used_bytes = 0
        self._exempt: object | None = None
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def first_waiting(self) -> object | None:
        """The owner at the head of the queue; None if the queue is empty."""
        return self._waiting[0][0] if self._waiting else None

    def reserve(self, owner: object, size_bytes: int, resume: Callable[[], None]) -> bool:
        """Reserve `size_bytes` for `owner`, and return True. If they do not fit, return False; `resume` is called once
        when the owner should try again.
        """
        fits = self.used_bytes + size_bytes <= self.limit_bytes or size_bytes <= SMALL_BYTES
        if not fits and self._exempt is not owner:
            if self._exempt is not None:
                self._waiting.append((owner, resume))
                return False
            self._exempt = owner
        self.used_bytes += size_bytes
        return True

    async def acquire(self, owner: object, size_bytes: int) -> None:
        """Reserve `size_bytes` for `owner`, and wait until they fit. The caller gives them back with `release`."""
        assert self._new_turn is not None
        while True:
            turn = self._new_turn()
            if self.reserve(owner, size_bytes, partial(_end, turn)):
                return
            try:
                await turn
            except BaseException:
                self.forget(owner)
                raise

    @asynccontextmanager
    async def held(self, owner: object, size_bytes: int) -> AsyncIterator[None]:
        """Wait for `size_bytes`, and hold them for `owner` inside the context."""
        await self.acquire(owner, size_bytes)
        try:
            yield
        finally:
            self.release(owner, size_bytes)

    def take(self, size_bytes: int) -> None:
        """Count memory that is in use already, without a limit. `release` subtracts it again."""
        self.used_bytes += size_bytes

    def release(self, owner: object, size_bytes: int, *, is_done: bool = True) -> None:
        """Subtract `size_bytes` of `owner`, and let the waiting owners try again. `is_done` False: the owner still
        holds memory, and stays the one that may exceed the limit."""
        self.used_bytes -= size_bytes
        if self._exempt is owner and is_done:
            self._exempt = None
        # All owners try again; those that still do not fit are queued in the same order.
        if self._waiting and (self._exempt is None or self.used_bytes < self.limit_bytes):
            waiting, self._waiting = self._waiting, deque()
            for _, resume in waiting:
                resume()

    def forget(self, owner: object) -> None:
        """Remove `owner` from the queue."""
        self._waiting = deque(w for w in self._waiting if w[0] is not owner)


def _end(turn: Any) -> None:
    if not turn.done():
        turn.set_result(None)
