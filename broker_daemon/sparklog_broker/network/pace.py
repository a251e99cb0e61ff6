"""Long work on the event loop, in slices, so that small requests beside it hardly wait.

All long work together gets one slice of SLICE_S in each turn of the loop. A task that sees `due` return True awaits
`pause` and continues in its turn: one task per turn of the loop, in order of arrival. The length of a turn therefore
does not grow with the number of peers that request large answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

SLICE_S = 0.002
ITEMS_PER_LOOK = 32
"""Number of partitions, or other small items, between two looks at the clock."""

T = TypeVar("T")


class Pace:
    """Divides the loop's turns among long tasks. Event-loop thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._ends_at = 0.0
        self._has_begun = False
        """True while the turn's slice runs and the next turn is scheduled."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def due(self) -> bool:
        """True if this turn's slice is used up."""
        if not self._has_begun:
            self._begin()
        return self._clock() >= self._ends_at

    async def begin(self) -> None:
        """Wait if this turn's slice is used up; called before work that cannot be cut into slices."""
        if self.due():
            await self.pause()

    async def pause(self) -> None:
        """Wait for the caller's turn in a later turn of the loop."""
        turn = self._loop.create_future()
        self._waiting.append(turn)
        if not self._has_begun:
            self._begin()
        await turn
        self._begin()

    async def list_of(self, items: Iterable[T]) -> list[T]:
        """Make a list of `items` one by one, in slices."""
        found: list[T] = []
        for i, item in enumerate(items, 1):
            found.append(item)
            if i % ITEMS_PER_LOOK == 0 and self.due():
                await self.pause()
        return found

    def _begin(self) -> None:
        self._ends_at = self._clock() + SLICE_S
        if not self._has_begun:
            self._has_begun = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._has_begun = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled with its request
                turn.set_result(None)
                break
        if self._waiting:
            self._begin()
