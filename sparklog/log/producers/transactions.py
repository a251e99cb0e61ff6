"""The undecided and the aborted transactions of a partition: pure, in memory.

`OpenTransactions` has the first offset that a reader of committed records must not pass. `AbortedTransactions` finds
the aborted transactions that can have records in a range of offsets.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from sparklog.format.batch import ATTRIBUTE_TRANSACTIONAL, BatchHeader
from sparklog.format.producer_snapshot import ProducerState
from sparklog.format.txn_index import AbortedEntry
from sparklog.log.producers.states import EndedTransaction


class AbortedTransaction(NamedTuple):
    """The transactional batches of this producer with base offsets in [first_offset, last_offset] are aborted.
    `last_offset` is the offset of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class OpenTransactions:
    """Transactions by first offset: the open ones, and the decided ones whose marker is not below the high watermark.

    `first_unstable_offset` is replaced as a whole: reading it needs no lock. Code that reads it together with the high
    watermark reads the high watermark first, because a transaction is entered before the high watermark can pass it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._undecided: dict[int, int] = {}
        """First offset -> producer id, ascending: a new transaction begins at the log end."""
        self._unreplicated: deque[tuple[int, int]] = deque()
        """(first offset, marker offset) of the decided transactions whose marker is not below the high watermark, in
        the order of the markers."""
        self._decided: dict[int, None] = {}
        self.first_unstable_offset: int | None = None

    def begin(self, producer_id: int, first_offset: int) -> None:
        with self._lock:
            self._undecided[first_offset] = producer_id
            self._refresh()

    def end(self, ended: EndedTransaction, *, replicated: bool = False) -> int:
        """End a transaction whose marker was written. Returns the first offset of the oldest open transaction, or the
        offset after the marker if none is open. `replicated`: the marker is below the high watermark."""
        with self._lock:
            self._undecided.pop(ended.first_offset, None)
            if not replicated:
                self._unreplicated.append((ended.first_offset, ended.last_offset))
                self._decided[ended.first_offset] = None
            self._refresh()
            return next(iter(self._undecided), ended.last_offset + 1)

    def resume(self, states: Iterable[ProducerState], waiting: Iterable[tuple[int, int]]) -> None:
        """Resume from a snapshot. `waiting`: the property `waiting` at the time of the snapshot."""
        with self._lock:
            opened = sorted((s.transaction_first_offset, s.producer_id) for s in states)
            self._undecided = {first: producer_id for first, producer_id in opened if first >= 0}
            self._unreplicated = deque(sorted(waiting, key=lambda w: w[1]))
            self._decided = {first: None for first, _ in self._unreplicated}
            self._refresh()

    @property
    def waiting(self) -> list[tuple[int, int]]:
        """(first offset, marker offset) of the decided transactions whose marker is not below the high watermark."""
        return list(self._unreplicated)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget the decided transactions whose marker is below the new high watermark, and refresh
        `first_unstable_offset`."""
        if not self._unreplicated:
            return
        with self._lock:
            while self._unreplicated and self._unreplicated[0][1] < high_watermark:
                del self._decided[self._unreplicated.popleft()[0]]
            self._refresh()

    def _refresh(self) -> None:
        first = next(iter(self._undecided), None)
        waiting = min(self._decided, default=None)
        self.first_unstable_offset = first if waiting is None or (first is not None and first < waiting) else waiting


class AbortedTransactions:
    """Aborted transactions in the order of their markers: `last_offset` and `last_stable_offset` both ascend. An entry
    takes 32 bytes."""

    def __init__(self, entries: Iterable[AbortedEntry] = ()) -> None:
        self._columns = tuple(array("q") for _ in AbortedEntry._fields)
        for entry in entries:
            self.append(entry)

    def __len__(self) -> int:
        return len(self._columns[-1])

    def append(self, entry: AbortedEntry) -> None:
        """Append an entry, whose marker must lie after the markers of all entries."""
        for column, value in zip(self._columns, entry, strict=True):
            column.append(value)

    def entries(self, start_offset: int = 0, end_offset: int = 2**63 - 1) -> Iterator[AbortedEntry]:
        """Yield the entries whose marker lies in [start_offset, end_offset)."""
        columns = self._columns
        count = len(columns[-1])
        for i in range(bisect_left(columns[2], start_offset, 0, count), bisect_left(columns[2], end_offset, 0, count)):
            yield AbortedEntry(*(column[i] for column in columns))

    def between(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that can have records in [start_offset, end_offset), in the order of their
        markers.

        A marker lies after its records, so the search goes forward from `start_offset`. It ends at the first entry
        whose last stable offset is not below `end_offset`: the transactions of all later entries begin after the range.
        """
        producer_ids, first_offsets, last_offsets, stable_offsets = self._columns
        count = len(stable_offsets)
        entries = []
        i = bisect_left(last_offsets, start_offset, 0, count)
        while i < count:
            if first_offsets[i] < end_offset:
                entries.append(AbortedTransaction(producer_ids[i], first_offsets[i], last_offsets[i]))
            if stable_offsets[i] >= end_offset:
                break
            i += 1
        return entries

    def end_with_at_most(self, count_max: int, start_offset: int, end_offset: int) -> int:
        """Return the largest end, at most `end_offset`, such that at most `count_max` abort markers lie between
        `start_offset` and the end. For this range, `between` returns the transactions of these markers, and at most one
        more of each producer, which is still open at the end. O(log n)."""
        last_offsets = self._columns[2]
        last = bisect_left(last_offsets, start_offset) + count_max - 1
        return min(end_offset, last_offsets[last] + 1) if last < len(last_offsets) else end_offset

    def retain(self, start_offset: int, end_offset: int, markers: Container[int]) -> None:
        """Forget the entries whose marker is in [start_offset, end_offset), but not in `markers` (offsets)."""
        kept = [e for e in self.entries() if not start_offset <= e.last_offset < end_offset or e.last_offset in markers]
        self._columns = AbortedTransactions(kept)._columns

    def truncate(self, end_offset: int) -> None:
        """Forget the entries whose marker is at or above `end_offset`."""
        self._keep(0, bisect_left(self._columns[2], end_offset))

    def drop_below(self, start_offset: int) -> None:
        """Forget the entries whose marker is below `start_offset`."""
        self._keep(bisect_left(self._columns[2], start_offset), len(self))

    def _keep(self, start: int, stop: int) -> None:
        if start > 0 or stop < len(self):
            self._columns = tuple(column[start:stop] for column in self._columns)


class AbortedRanges:
    """A set of aborted transactions, with a test if a batch belongs to one of them."""

    def __init__(self, transactions: Iterable[AbortedTransaction] = ()) -> None:
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first_offset, last_offset in sorted(transactions):
            self._by_producer.setdefault(producer_id, []).append((first_offset, last_offset))

    def covers(self, header: BatchHeader) -> bool:
        """Return True if the batch belongs to one of the aborted transactions."""
        if not header.attributes & ATTRIBUTE_TRANSACTIONAL or header.producer_id not in self._by_producer:
            return False
        ranges = self._by_producer[header.producer_id]
        i = bisect_right(ranges, (header.base_offset, 2**63)) - 1
        return i >= 0 and header.base_offset <= ranges[i][1]
