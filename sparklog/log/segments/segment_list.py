"""A log's segments at one moment, and their common properties."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from sparklog.log.segments.segment import LogSegment
from sparklog.log.segments.view import SegmentView


class SegmentList(NamedTuple):
    """Segments in offset order. A list is never changed, only replaced, so readers need no lock.

    `bases[i]`: base offset of `all[i]`. `bytes_before[i]`: bytes of batches in the segments before `all[i]`.
    """

    bases: list[int]
    all: list[SegmentView]
    bytes_before: list[int]

    @classmethod
    def of(cls, segments: Sequence[SegmentView]) -> SegmentList:
        before = [0]
        for segment in segments:
            before.append(before[-1] + segment.data_bytes)
        return cls([s.base_offset for s in segments], list(segments), before[:-1])

    @property
    def last(self) -> SegmentView | None:
        return self.all[-1] if self.all else None

    @property
    def active(self) -> LogSegment | None:
        """The last segment, which takes appends; None without a segment, or if the last one is in the object store."""
        last = self.last
        return last if isinstance(last, LogSegment) else None

    @property
    def local(self) -> list[LogSegment]:
        """The segments with local files; they follow the segments that are only in the object store."""
        return [s for s in self.all if isinstance(s, LogSegment)]

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self.bytes_before[-1] + self.all[-1].data_bytes if self.all else 0

    def from_offset(self, offset: int) -> list[SegmentView]:
        """Return the segments from the one whose offset range contains `offset` on; all if `offset` is before them."""
        return self.all[max(0, bisect_right(self.bases, offset) - 1) :]

    def holding(self, offset: int) -> SegmentView:
        """Return the segment with the batch that holds `offset`. In a gap, this is the segment with the next batch
        after `offset`; without such a batch, the last segment."""
        i = max(0, bisect_right(self.bases, offset) - 1)  # a repair can have dropped the first segments
        while i + 1 < len(self.all) and (offset >= self.all[i].next_offset or not self.all[i].data_bytes):
            i += 1
        return self.all[i]

    def bytes_between(self, start_offset: int, end_offset: int) -> int:
        """Estimate the bytes of batches in [start_offset, end_offset), which must not be empty, from the indexes.
        Returns at least 1, or 0 if a gap at the log end holds all these offsets. O(log n)."""
        if not self.all[-1].data_bytes and not any(
            s.next_offset > start_offset and s.data_bytes for s in self.all[-3:]
        ):
            return 0  # a repair could not save the records up to the log end
        return max(1, self._bytes_below(end_offset) - self._bytes_below(start_offset))

    def _bytes_below(self, offset: int) -> int:
        i = bisect_right(self.bases, offset) - 1
        return self.bytes_before[i] + self.all[i].bytes_before(offset) if i >= 0 else 0
