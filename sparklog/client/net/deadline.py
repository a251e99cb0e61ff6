"""The deadline of a call, over all of its requests."""

from __future__ import annotations

import time
from collections.abc import Callable

from sparklog.errors import RequestTimedOutError


class Deadline:
    """The moment `timeout_ms` after the creation. The successive requests of a call get the time that is left."""

    __slots__ = ("_at", "_clock", "_timeout_ms")

    def __init__(self, timeout_ms: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._at = clock() + timeout_ms / 1000

    @property
    def left_s(self) -> float:
        """The rest of the time in s; 0 after the deadline."""
        return max(0.0, self._at - self._clock())

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._at

    def left_ms(self, at_most_ms: int | None = None) -> int:
        """Return the time for the next request in ms, at least 1. Raises RequestTimedOutError after the deadline."""
        if self.is_over:
            raise RequestTimedOutError(
                f"not done within {self._timeout_ms:.0f} ms; the broker may be overloaded or stopped"
            )
        left = max(1, int(self.left_s * 1000))
        return left if at_most_ms is None else min(left, at_most_ms)
