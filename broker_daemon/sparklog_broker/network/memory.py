"""The memory that requests and answers may take: `queued.max.request.bytes` for all connections together.

Memory of requests is reserved as bytes arrive, not as they are announced, so a frame can run out of budget in the
middle. If every reservation belonged to a half-read frame, nobody could go on; therefore one owner at a time may
exceed the limit: the first that would have to wait. The overshoot is at most one frame, plus the small frames (a
waiting fetch, a metadata request), which are counted but never held up. Answers that their peers do not read are
counted too (`take`); what bounds them is in unread_answers.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

SMALL_BYTES = 16 * 1024


class MemoryBudget:
    """Counts reserved bytes and queues those who have to wait. Event-loop thread only."""

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
        """Whose turn is next; None: nobody waits."""
        return self._waiting[0][0] if self._waiting else None

    def reserve(self, owner: object, size_bytes: int, resume: Callable[[], None]) -> bool:
        """Whether `owner` has got `size_bytes`. If not, `resume` is called once when it is worth trying again."""
        fits = self.used_bytes + size_bytes <= self.limit_bytes or size_bytes <= SMALL_BYTES
        if not fits and self._exempt is not owner:
            if self._exempt is not None:
                self._waiting.append((owner, resume))
                return False
            self._exempt = owner
        self.used_bytes += size_bytes
        return True

    def take(self, size_bytes: int) -> None:
        """Counts memory that is there already; to be given back with `release`."""
        self.used_bytes += size_bytes

    def release(self, owner: object, size_bytes: int) -> None:
        """Gives back all that `owner` holds."""
        self.used_bytes -= size_bytes
        if self._exempt is owner:
            self._exempt = None
        # All are woken: each reserves again, and those who still do not fit queue up in the same order.
        if self._waiting and (self._exempt is None or self.used_bytes < self.limit_bytes):
            waiting, self._waiting = self._waiting, deque()
            for _, resume in waiting:
                resume()

    def forget(self, owner: object) -> None:
        """Removes `owner` from the queue."""
        self._waiting = deque(w for w in self._waiting if w[0] is not owner)
