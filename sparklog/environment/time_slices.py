"""Long work on the event loop, in slices, so that small requests hardly wait.

In each turn of the loop, all long work together gets one slice of SLICE_S. A task that gets True from `due` awaits
`pause`. In each turn one paused task continues, in order of arrival. The length of a turn therefore does not grow with
the number of clients that request long replies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

SLICE_S = 0.002
ITEMS_PER_LOOK = 32
"""Number of items, such as partitions, between two checks of the clock."""

T = TypeVar("T")


class Loop(Protocol):
    """The methods of an event loop that `LoopTimeSlices` uses."""

    def create_future(self) -> Any: ...
    def call_soon(self, callback: Callable[[], None], /) -> Any: ...


class LoopTimeSlices:
    """Divides the loop's turns among long tasks. Event-loop thread only."""

    def __init__(self, loop: Loop, *, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._ends_at = 0.0
        self._has_begun = False
        """True from the begin of a slice until the loop's next turn."""
        self._waiting: deque[Any] = deque()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def due(self) -> bool:
        """True if the slice of this turn is used up."""
        if not self._has_begun:
            self._begin()
        return self._clock() >= self._ends_at

    async def begin(self) -> None:
        """Wait if the slice of this turn is used up. Called before work that cannot be divided."""
        if self.due():
            await self.pause()

    async def pause(self) -> None:
        """Wait until a later turn of the loop has a slice for the caller."""
        turn = self._loop.create_future()
        self._waiting.append(turn)
        if not self._has_begun:
            self._begin()
        await turn
        self._begin()

    async def list_of(self, items: Iterable[T]) -> list[T]:
        """Return a list of `items`, which are produced one by one, in slices."""
        collected: list[T] = []
        for i, item in enumerate(items, 1):
            collected.append(item)
            if i % ITEMS_PER_LOOK == 0 and self.due():
                await self.pause()
        return collected

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
