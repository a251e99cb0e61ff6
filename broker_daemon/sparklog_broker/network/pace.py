"""Long work on the event loop, in slices, so that small requests beside it hardly wait.

In each turn of the loop all long works together get one slice of SLICE_S. Who asks `due` and is told so calls `pause`
and goes on when it is its turn: one work per turn of the loop, in the order they came. So a turn does not grow with
the number of peers that ask for much.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

SLICE_S = 0.002
ITEMS_PER_LOOK = 32
"""So many partitions, or other small things, are worked at between two looks at the clock."""

T = TypeVar("T")


class Pace:
    """Event-loop thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._ends_at = 0.0
        self._begun = False
        """Whether the turn's slice has begun: the next turn is scheduled."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def due(self) -> bool:
        """Whether this turn's slice is used up."""
        if not self._begun:
            self._begin()
        return self._clock() >= self._ends_at

    async def begin(self) -> None:
        """Waits if this turn's slice is used up: before work that cannot be cut into slices."""
        if self.due():
            await self.pause()

    async def pause(self) -> None:
        """Returns in a later turn of the loop, when it is the caller's."""
        turn = self._loop.create_future()
        self._waiting.append(turn)
        if not self._begun:
            self._begin()
        await turn
        self._begin()

    async def list_of(self, items: Iterable[T]) -> list[T]:
        """`items`, which are made one by one, in slices."""
        found: list[T] = []
        for i, item in enumerate(items, 1):
            found.append(item)
            if i % ITEMS_PER_LOOK == 0 and self.due():
                await self.pause()
        return found

    def _begin(self) -> None:
        self._ends_at = self._clock() + SLICE_S
        if not self._begun:
            self._begun = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._begun = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled with its request
                turn.set_result(None)
                break
        if self._waiting:
            self._begin()
