"""Limits of unread replies: the connections whose replies hold too much memory or too many files are closed.

A reply that the kernel does not take at once stays with its connection, as bytes of memory and slices of files, each of
which keeps a segment file open. All unread replies together are allowed half of the request budget, and a limited
number of slices. Beyond that, the connection with the largest product of amount and time is closed first; the time
counts from the moment when the connection got an unread reply. A connection whose peer reads has a low product, because
the amount shrinks and the time is short. The last connection with an unread reply stays open, because a single reply
has a limit of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from sparklog.environment.memory_budget import MemoryBudget

log = logging.getLogger(__name__)

SHARE = 2
"""Divisor of the request budget: unread replies hold at most 1/SHARE of it."""
_MOMENT_S = 0.001
"""Added to every time, in s, so that the amount decides between replies of the same time."""


class Reader(Protocol):
    """A connection whose peer has not read the whole reply."""

    peer_name: str

    def close(self) -> None: ...


class _HeldAnswers:
    __slots__ = ("bytes", "files", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.bytes = self.files = 0


class SendBacklog:
    """Adds up the bytes and file slices of each connection's unread replies. If the sum over all connections is too
    large, closes the slowest connections. `files_max`: largest number of file slices of all connections together.
    Event-loop thread only.
    """

    def __init__(
        self, budget: MemoryBudget, files_max: int, clock: Callable[[], float], bytes_max: int | None = None
    ) -> None:
        """`bytes_max`: largest size of all unread answers together; None: 1/SHARE of the budget."""
        self.bytes_max = budget.limit_bytes // SHARE if bytes_max is None else bytes_max
        self.files_max = files_max
        self.held_bytes = 0
        self.held_files = 0
        self._budget = budget
        self._clock = clock
        self._held: dict[Reader, _HeldAnswers] = {}

    def __len__(self) -> int:
        return len(self._held)

    def record(self, reader: Reader, size_bytes: int, files: int) -> None:
        """Record the amount that `reader` holds now; 0 and 0 if all is sent. If unread replies hold too much, close
        readers, perhaps including `reader`."""
        held = self._held.get(reader)
        if held is None:
            if not size_bytes and not files:
                return
            held = self._held[reader] = _HeldAnswers(self._clock())
        more_bytes, more_files = size_bytes - held.bytes, files - held.files
        held.bytes, held.files = size_bytes, files
        self.held_bytes += more_bytes
        self.held_files += more_files
        if not size_bytes and not files:
            del self._held[reader]
        if more_bytes > 0:
            self._budget.take(more_bytes)
        elif more_bytes < 0:
            self._budget.release(reader, -more_bytes)
        if more_bytes > 0 or more_files > 0:
            self._cut_slowest()

    def _cut_slowest(self) -> None:
        while len(self._held) > 1:
            if self.held_bytes > self.bytes_max:
                slowest, why = self._slowest(lambda h: h.bytes), f"unread answers hold {self.held_bytes} bytes"
            elif self.held_files > self.files_max:
                slowest, why = self._slowest(lambda h: h.files), f"unread answers hold {self.held_files} file ranges"
            else:
                return
            held = self._held[slowest]
            log.info(
                "%s: disconnected: %s; this client holds %d bytes and %d file ranges, the oldest for %.1f s",
                slowest.peer_name,
                why,
                held.bytes,
                held.files,
                self._clock() - held.since,
            )
            slowest.close()
            self.record(slowest, 0, 0)

    def _slowest(self, amount: Callable[[_HeldAnswers], int]) -> Reader:
        now = self._clock()
        return max(self._held, key=lambda r: (now - self._held[r].since + _MOMENT_S) * amount(self._held[r]))
