"""Recognizes the batches of aborted transactions, which a reader with `read_committed` leaves out.

The broker's answer ends at the last stable offset and contains the aborted ranges that overlap with its records. A
reader need not remember earlier answers, and can begin anywhere, even in the middle of a transaction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from sparklog.errors import InvalidConfigError
from sparklog.format.batch import ATTRIBUTE_TRANSACTIONAL, BatchHeader
from sparklog.protocol.messages import AbortedRange
from sparklog.types import ISOLATION_LEVELS


def isolation_of(level: str) -> int:
    """Return READ_UNCOMMITTED or READ_COMMITTED. Raises InvalidConfigError."""
    if not isinstance(level, str) or level not in ISOLATION_LEVELS:
        raise InvalidConfigError(f"isolation level {level!r:.200}: use one of {', '.join(ISOLATION_LEVELS)}")
    return ISOLATION_LEVELS[level]


class AbortedOffsets:
    """The aborted ranges of one answer, by producer. `AbortedOffsets(())` leaves nothing out."""

    __slots__ = ("_by_producer",)

    def __init__(self, ranges: Iterable[AbortedRange]) -> None:
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        for r in ranges:
            self._by_producer.setdefault(r.producer_id, []).append((r.first_offset, r.last_offset))
        for offsets in self._by_producer.values():
            offsets.sort()

    def covers(self, header: BatchHeader) -> bool:
        """True if the batch belongs to an aborted transaction: the batch is transactional, and an aborted range of its
        producer contains its base offset. The ranges of one producer do not overlap."""
        if not self._by_producer or not header.attributes & ATTRIBUTE_TRANSACTIONAL:
            return False
        ranges = self._by_producer.get(header.producer_id)
        if ranges is None:
            return False
        before = bisect_right(ranges, (header.base_offset, 2**63))
        return before > 0 and header.base_offset <= ranges[before - 1][1]


NO_ABORTED = AbortedOffsets(())
