"""The time index: the largest timestamp so far, at a sparse set of points of one segment.

File ``<20-digit base offset>.timeindex``, little-endian, n entries and two checksums::

    offset  size  field
    12·i    8     timestamp_ms i64: the largest timestamp of all batches so far
    12·i+8  4     relative_offset u32: base offset of the first batch with it, minus the segment's base offset
    12·n    4     last_crc32c u32 of the last entry alone, if there is one (`index_checksum.py`)
    12·n+4  4     crc32c u32 of everything before it (`index_checksum.py`)

Both columns are strictly increasing: an entry is added together with an offset-index entry, and once more when the
segment is sealed, but only if the timestamp has grown since the last entry. So the batch that an entry names is the
first batch of the segment with a timestamp as large as the entry's, and the last entry of a sealed segment has the
segment's largest timestamp.

Example: batches at offsets 0, 10, 20 with largest timestamps 100, 300, 200 give, when sealed, the entry (300, 10). The
file is written when the segment is sealed. It is checked as a whole at the first lookup, and before that its last entry
alone. If the file is missing, damaged or insane, the index is rebuilt, together with the offset index, from the
segment's batch headers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from sparklog.format.index_checksum import CHECKSUM_BYTES, index_checksum, without_checksum

SUFFIX = ".timeindex"
ENTRY = np.dtype([("timestamp_ms", "<i8"), ("relative_offset", "<u4")])
assert ENTRY.itemsize == 12
TRAILER_BYTES = 2 * CHECKSUM_BYTES
LAST_ENTRY_BYTES = ENTRY.itemsize + TRAILER_BYTES
"""Size of the last entry and the checksums, at the end of a file with at least one entry."""


class TimeEntry(NamedTuple):
    """One entry: the largest timestamp so far, and the relative base offset of the first batch with this timestamp."""

    timestamp_ms: int
    relative_offset: int


def trailer(base_offset: int, entries: bytes) -> bytes:
    """Return the two checksums at the end of the file, for the bytes of all entries."""
    last = index_checksum(base_offset, entries[-ENTRY.itemsize :])
    return last + index_checksum(base_offset, entries + last)


class TimeIndex:
    """The index in memory: 12 bytes per entry. One thread can append while other threads look up timestamps."""

    __slots__ = ("_relative_offsets", "_timestamps")

    def __init__(self) -> None:
        self._timestamps = array("q")
        self._relative_offsets = array("I")

    def __len__(self) -> int:
        return len(self._timestamps)

    def append_if_later(self, timestamp_ms: int, relative_offset: int) -> None:
        """Add an entry if the timestamp is larger than the last entry's."""
        if not self._timestamps or timestamp_ms > self._timestamps[-1]:
            self._relative_offsets.append(relative_offset)  # first: see OffsetIndex.append
            self._timestamps.append(timestamp_ms)

    def ceiling(self, timestamp_ms: int) -> TimeEntry | None:
        """Return the first entry with at least this timestamp; None if the timestamps of all entries are smaller."""
        i = bisect_left(self._timestamps, timestamp_ms)
        return TimeEntry(self._timestamps[i], self._relative_offsets[i]) if i < len(self._timestamps) else None

    def last(self) -> TimeEntry | None:
        return TimeEntry(self._timestamps[-1], self._relative_offsets[-1]) if self._timestamps else None

    def truncate(self, relative_offset: int) -> None:
        """Drop the entries of batches that begin at `relative_offset` or beyond."""
        keep = bisect_left(self._relative_offsets, relative_offset)
        del self._timestamps[keep:]
        del self._relative_offsets[keep:]

    def encode(self, base_offset: int) -> bytes:
        """Return the file's bytes, for the segment that begins at `base_offset`."""
        entries = np.empty(len(self), ENTRY)
        entries["timestamp_ms"] = np.array(self._timestamps, np.int64)
        entries["relative_offset"] = np.array(self._relative_offsets, np.uint32)
        content = entries.tobytes()
        return content + trailer(base_offset, content)


def decode_last_entry(data: bytes, *, base_offset: int, relative_offset_end: int) -> TimeEntry | None:
    """Return the last entry of a file. `data`: the file's last LAST_ENTRY_BYTES bytes. Returns None if the bytes are
    fewer or damaged, or the entry's offset is not below `relative_offset_end`, which is described at
    `decode_time_index`."""
    if len(data) != LAST_ENTRY_BYTES:
        return None
    entry = without_checksum(base_offset, data[:-CHECKSUM_BYTES])
    if entry is None:
        return None
    timestamp_ms, relative_offset = np.frombuffer(entry, ENTRY)[0].item()
    return TimeEntry(timestamp_ms, relative_offset) if relative_offset < relative_offset_end else None


def decode_time_index(data: bytes, *, base_offset: int, relative_offset_end: int) -> TimeIndex | None:
    """Return the index in `data`. Returns None if the last checksum does not fit, the last entry is cut, or the entries
    do not increase or lie beyond the segment.

    `relative_offset_end`: the offset after the segment's last record, relative to `base_offset`. The index of a segment
    with records must have at least one entry, that of an empty segment none.
    """
    content = without_checksum(base_offset, data)
    if content is None or len(content) % ENTRY.itemsize != CHECKSUM_BYTES:
        return None
    entries = np.frombuffer(content[:-CHECKSUM_BYTES], ENTRY)
    timestamps, offsets = entries["timestamp_ms"], entries["relative_offset"].astype(np.int64)
    if bool(len(entries)) != (relative_offset_end > 0):
        return None
    if (
        len(entries)
        and (
            not (timestamps[1:] > timestamps[:-1]).all()  # not np.diff: it may overflow
            or not (offsets[1:] > offsets[:-1]).all()
            or int(offsets[-1]) >= relative_offset_end
        )
    ):
        return None
    index = TimeIndex()
    index._timestamps.frombytes(timestamps.astype("=i8").tobytes())
    index._relative_offsets.frombytes(offsets.astype("=u4").tobytes())
    return index
