"""Which transactions of a partition are undecided, and which were aborted: pure, in memory.

`OpenTransactions` knows the first offset that a reader of committed records must not pass. `AbortedTransactions` finds
the aborted ones that a range of offsets may hold records of.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sparklog.log.producers import EndedTransaction


class AbortedTransaction(NamedTuple):
    """Transactional batches of this producer with base offsets in [first_offset, last_offset] are aborted; `last_offset`
    is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


class OpenTransactions:
    """Transactions by first offset: the open ones, and the decided ones whose marker is not below the high watermark.

    `first_unstable_offset` is replaced as a whole: reading it needs no lock. Who reads it together with the high
    watermark reads that first: a transaction is entered before the high watermark can pass it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._undecided: dict[int, int] = {}
        """First offset -> producer id, ascending: a new transaction begins at the log end."""
        self._unreplicated: deque[EndedTransaction] = deque()
        """Ascending by marker."""
        self._decided: dict[int, None] = {}
        self.first_unstable_offset: int | None = None

    def begin(self, producer_id: int, first_offset: int) -> None:
        with self._lock:
            self._undecided[first_offset] = producer_id
            self._refresh()

    def end(self, ended: EndedTransaction, *, replicated: bool = False) -> int:
        """A marker has been appended; returns the last stable offset that leaves. `replicated`: it is below the high
        watermark."""
        with self._lock:
            self._undecided.pop(ended.first_offset, None)
            if not replicated:
                self._unreplicated.append(ended)
                self._decided[ended.first_offset] = None
            self._refresh()
            return next(iter(self._undecided), ended.last_offset + 1)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Markers below it have taken effect."""
        if not self._unreplicated:
            return
        with self._lock:
            while self._unreplicated and self._unreplicated[0].last_offset < high_watermark:
                del self._decided[self._unreplicated.popleft().first_offset]
            self._refresh()

    def _refresh(self) -> None:
        first = next(iter(self._undecided), None)
        waiting = min(self._decided, default=None)
        self.first_unstable_offset = first if waiting is None or (first is not None and first < waiting) else waiting


class AbortedEntry(NamedTuple):
    """An aborted transaction as the index has it. `last_stable_offset`: the first offset of the oldest transaction that
    was still open when the marker came, else the offset behind the marker. All that end later begin at or above it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedTransactions:
    """Entries in the order of their markers: `last_offset` and `last_stable_offset` both ascend. 32 bytes each."""

    def __init__(self, entries: Iterable[AbortedEntry] = ()) -> None:
        self._columns = tuple(array("q") for _ in AbortedEntry._fields)
        for entry in entries:
            self.append(entry)

    def __len__(self) -> int:
        return len(self._columns[-1])

    def append(self, entry: AbortedEntry) -> None:
        """The marker must lie behind those of all entries."""
        for column, value in zip(self._columns, entry, strict=True):
            column.append(value)

    def entries(self, start_offset: int = 0, end_offset: int = 2**63 - 1) -> Iterator[AbortedEntry]:
        """Those whose marker lies in [start_offset, end_offset)."""
        columns = self._columns
        count = len(columns[-1])
        for i in range(bisect_left(columns[2], start_offset, 0, count), bisect_left(columns[2], end_offset, 0, count)):
            yield AbortedEntry(*(column[i] for column in columns))

    def between(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that may have records in [start_offset, end_offset), in the order of their markers.

        A marker lies behind its records, so the search goes forward from `start_offset`, up to the first entry that
        says that all behind it begin later.
        """
        producer_ids, first_offsets, last_offsets, stable_offsets = self._columns
        count = len(stable_offsets)
        found = []
        i = bisect_left(last_offsets, start_offset, 0, count)
        while i < count:
            if first_offsets[i] < end_offset:
                found.append(AbortedTransaction(producer_ids[i], first_offsets[i], last_offsets[i]))
            if stable_offsets[i] >= end_offset:
                break
            i += 1
        return found

    def truncate(self, end_offset: int) -> None:
        """Forgets the markers from `end_offset` on."""
        self._keep(0, bisect_left(self._columns[2], end_offset))

    def drop_below(self, start_offset: int) -> None:
        """Forgets the markers below `start_offset`."""
        self._keep(bisect_left(self._columns[2], start_offset), len(self))

    def _keep(self, start: int, stop: int) -> None:
        if start > 0 or stop < len(self):
            self._columns = tuple(column[start:stop] for column in self._columns)
