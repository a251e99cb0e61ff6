"""Work of a thread in small slices, so that the event loop hardly waits for the interpreter's lock.

A thread that runs Python code keeps the lock until another thread has waited `sys.getswitchinterval()` for it. The
event loop needs the lock several times per request (after each system call), so a long scrape would slow down
concurrent requests. The thread therefore sleeps between slices: the loop then waits for one slice at most, and rarely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

SLICE_S = 0.00025
PAUSE_S = 0.001
ITEMS_PER_LOOK = 8

T = TypeVar("T")


class Slices:
    """The slices of one scrape, on one thread. `rest(seconds)` sleeps for at most this time."""

    def __init__(self, now_s: Callable[[], float], rest: Callable[[float], object]) -> None:
        self._now_s = now_s
        self._rest = rest
        self._remaining = ITEMS_PER_LOOK
        self._ends_s = now_s() + SLICE_S
        self.count = 1
        """Number of slices so far."""

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield `items`, with pauses in between."""
        for item in items:
            self._remaining -= 1
            if not self._remaining:
                self._remaining = ITEMS_PER_LOOK
                self.check()
            yield item

    def check(self) -> None:
        """Sleep for PAUSE_S if the slice is used up."""
        if self._now_s() >= self._ends_s:
            self._rest(PAUSE_S)
            self._ends_s = self._now_s() + SLICE_S
            self.count += 1
