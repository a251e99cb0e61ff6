"""Unread answers: the memory and files that they hold, and the connection that is closed when they hold too much.

An answer that the kernel does not take at once stays with its connection: bytes of memory, and slices of files, each of
which keeps a segment file open. All such answers together may hold half of the budget of requests, and a number of
slices. The reader with the largest product of time and amount is disconnected first. A peer that reads never ranks
high: its amount shrinks and its time is short. The last reader is never disconnected: its own limit bounds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from sparklog_broker.network.memory import MemoryBudget

log = logging.getLogger(__name__)

SHARE = 2
"""Divisor of the budget: unread answers may hold 1/SHARE of it, requests the rest."""
_MOMENT_S = 0.001
"""Added to every time, so that the amount decides between answers of the same moment."""


class Reader(Protocol):
    """A connection whose peer has not read all of its answer."""

    peer_name: str

    def close(self) -> None: ...


class _HeldAnswers:
    __slots__ = ("bytes", "files", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.bytes = self.files = 0


class UnreadAnswers:
    """Counts unread answers by reader, and disconnects readers. `files_max`: limit of file slices of all readers.
    Event-loop thread only.
    """

    def __init__(self, budget: MemoryBudget, files_max: int, clock: Callable[[], float]) -> None:
        self.bytes_max = budget.limit_bytes // SHARE
        self.files_max = files_max
        self.held_bytes = 0
        self.held_files = 0
        self._budget = budget
        self._clock = clock
        self._held: dict[Reader, _HeldAnswers] = {}

    def __len__(self) -> int:
        return len(self._held)

    def note(self, reader: Reader, size_bytes: int, files: int) -> None:
        """Note the amount that `reader` holds now (0 and 0: nothing). May close other readers, and this one."""
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
                "%s: disconnected: %s; this client holds %d bytes and %d file ranges and has read nothing for %.1f s",
                slowest.peer_name,
                why,
                held.bytes,
                held.files,
                self._clock() - held.since,
            )
            slowest.close()
            self.note(slowest, 0, 0)

    def _slowest(self, amount: Callable[[_HeldAnswers], int]) -> Reader:
        now = self._clock()
        return max(self._held, key=lambda r: (now - self._held[r].since + _MOMENT_S) * amount(self._held[r]))
