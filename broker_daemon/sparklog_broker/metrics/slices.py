"""A thread's work in small slices, so that the event loop hardly waits for the interpreter's lock.

A thread that runs Python code keeps the lock until another has asked for it for `sys.getswitchinterval()`. The event
loop asks several times per request (after each system call), so a long scrape would slow down every request beside it.
Between slices the thread sleeps: the loop then waits for one slice at most, and seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

SLICE_S = 0.00025
PAUSE_S = 0.001
ITEMS_PER_LOOK = 8

T = TypeVar("T")


class Slices:
    """Of one scrape, on one thread. `rest` sleeps for that many seconds, or less."""

    def __init__(self, now_s: Callable[[], float], rest: Callable[[float], object]) -> None:
        self._now_s = now_s
        self._rest = rest
        self._left = ITEMS_PER_LOOK
        self._ends_s = now_s() + SLICE_S
        self.count = 1
        """Slices so far."""

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """`items`, with pauses between them."""
        for item in items:
            self._left -= 1
            if not self._left:
                self._left = ITEMS_PER_LOOK
                self.look()
            yield item

    def look(self) -> None:
        """Sleeps if the slice is used up."""
        if self._now_s() >= self._ends_s:
            self._rest(PAUSE_S)
            self._ends_s = self._now_s() + SLICE_S
            self.count += 1
