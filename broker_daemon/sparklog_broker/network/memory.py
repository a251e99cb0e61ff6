"""The memory of requests and replies: `queued.max.request.bytes` for all connections together.

Memory for a request is reserved as bytes arrive, so the budget can run out in the middle of a frame. If incomplete
frames held all memory, none of them could be completed. Therefore one owner at a time is allowed to exceed the limit:
the first owner that would have to wait. The excess is at most one frame, plus small frames (such as a fetch), which are
counted but never wait. Unread replies are counted too (`take`); `unread_answers.py` limits them.
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

    def take(self, size_bytes: int) -> None:
        """Count memory that is in use already, without a limit. `release` subtracts it again."""
        self.used_bytes += size_bytes

    def release(self, owner: object, size_bytes: int) -> None:
        """Subtract `size_bytes` of `owner`, and let the waiting owners try again."""
        self.used_bytes -= size_bytes
        if self._exempt is owner:
            self._exempt = None
        # All owners try again; those that still do not fit are queued in the same order.
        if self._waiting and (self._exempt is None or self.used_bytes < self.limit_bytes):
            waiting, self._waiting = self._waiting, deque()
            for _, resume in waiting:
                resume()

    def forget(self, owner: object) -> None:
        """Remove `owner` from the queue."""
        self._waiting = deque(w for w in self._waiting if w[0] is not owner)
