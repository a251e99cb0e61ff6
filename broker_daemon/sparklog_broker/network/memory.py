"""The memory of requests and answers: `queued.max.request.bytes` for all connections together.

Memory of requests is reserved as bytes arrive, not when they are announced, so the budget may run out in the middle of
a frame. If half-read frames held every reservation, none of them could finish. One owner at a time may therefore exceed
the limit: the first that would have to wait. The excess is at most one frame, plus the small frames (a waiting fetch, a
metadata request), which are counted but never held up. Unread answers are counted too (`take`); their bound is in
unread_answers.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

SMALL_BYTES = 16 * 1024


class MemoryBudget:
    """Counts reserved bytes and queues the owners that have to wait. Event-loop thread only."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
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
        """Reserve `size_bytes` for `owner`, and return True. If they do not fit, return False, and call `resume` once
        at the time of a new attempt.
        """
        fits = self.used_bytes + size_bytes <= self.limit_bytes or size_bytes <= SMALL_BYTES
        if not fits and self._exempt is not owner:
            if self._exempt is not None:
                self._waiting.append((owner, resume))
                return False
            self._exempt = owner
        self.used_bytes += size_bytes
        return True

    def take(self, size_bytes: int) -> None:
        """Count memory that is in use already; `release` gives it back."""
        self.used_bytes += size_bytes

    def release(self, owner: object, size_bytes: int) -> None:
        """Give back `size_bytes` of `owner`, and wake the queue."""
        self.used_bytes -= size_bytes
        if self._exempt is owner:
            self._exempt = None
        # All are woken: each reserves again, and those that still do not fit queue up in the same order.
        if self._waiting and (self._exempt is None or self.used_bytes < self.limit_bytes):
            waiting, self._waiting = self._waiting, deque()
            for _, resume in waiting:
                resume()

    def forget(self, owner: object) -> None:
        """Remove `owner` from the queue."""
        self._waiting = deque(w for w in self._waiting if w[0] is not owner)
