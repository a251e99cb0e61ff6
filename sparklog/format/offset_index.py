"""The offset index: the positions of a sparse set of batches of one segment.

File ``<20-digit base offset>.index``, little-endian, n entries and their checksum::

    offset  size  field
    8·i     4     relative_offset u32: the batch's base offset minus the segment's base offset
    8·i+4   4     position u32: the batch's position in the segment file
    8·n     4     crc32c u32 of all entries (`index_checksum.py`)

Both columns are strictly increasing. A batch gets an entry if the batches since the last entry have more than
`index.interval.bytes` bytes; the first batch needs no entry. To find offset o: take the entry with the largest
relative_offset <= o - base (or the first batch), then walk batch headers forward.

Example: a segment with base offset 1000 whose second batch begins at offset 1050 and position 70,000 has the entry
(50, 70000). The file is written when the segment is sealed, and checked at the first lookup. If the file is missing,
damaged or insane nothing is lost: the index is rebuilt from the segment's batch headers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from sparklog.format.index_checksum import CHECKSUM_BYTES, index_checksum, without_checksum

SUFFIX = ".index"
ENTRY = np.dtype([("relative_offset", "<u4"), ("position", "<u4")])
TRAILER_BYTES = CHECKSUM_BYTES
RELATIVE_OFFSET_MAX = 2**32 - 1


class OffsetEntry(NamedTuple):
    """One entry: a batch's base offset relative to the segment's base offset, and the batch's position in the file."""

    relative_offset: int
    position: int


def trailer(base_offset: int, entries: bytes) -> bytes:
    """Return the checksum at the end of the file, for the bytes of all entries."""
    return index_checksum(base_offset, entries)


class OffsetIndex:
    """The index in memory: 8 bytes per entry. One thread can append while other threads look up offsets."""

    __slots__ = ("_positions", "_relative_offsets")

    def __init__(self) -> None:
        self._relative_offsets = array("I")
        self._positions = array("I")

    def __len__(self) -> int:
        return len(self._relative_offsets)

    @property
    def size_bytes(self) -> int:
        """Size of the entries, in bytes, without the checksum."""
        return len(self) * ENTRY.itemsize

    def append(self, relative_offset: int, position: int) -> None:
        """Add an entry. Both values must be larger than those of the last entry."""
        self._positions.append(position)  # first: a reader that sees the offset must find the position
        self._relative_offsets.append(relative_offset)

    def floor(self, relative_offset: int) -> OffsetEntry | None:
        """Return the last entry whose offset is at most `relative_offset`; None if all entries are above it."""
        i = bisect_right(self._relative_offsets, relative_offset) - 1
        return OffsetEntry(self._relative_offsets[i], self._positions[i]) if i >= 0 else None

    def floor_position(self, position: int) -> OffsetEntry | None:
        """Return the last entry whose position is at most `position`; None if all entries are above it."""
        i = bisect_right(self._positions, position, 0, len(self._relative_offsets)) - 1
        return OffsetEntry(self._relative_offsets[i], self._positions[i]) if i >= 0 else None

    def last(self) -> OffsetEntry | None:
        return OffsetEntry(self._relative_offsets[-1], self._positions[-1]) if self._relative_offsets else None

    def truncate(self, relative_offset: int) -> None:
        """Drop the entries of batches that begin at `relative_offset` or beyond."""
        keep = bisect_right(self._relative_offsets, relative_offset - 1)
        del self._relative_offsets[keep:]
        del self._positions[keep:]

    def encode(self, base_offset: int) -> bytes:
        """Return the file's bytes, for the segment that begins at `base_offset`."""
        entries = np.empty(len(self), ENTRY)
        entries["relative_offset"] = np.array(self._relative_offsets, np.uint32)
        entries["position"] = np.array(self._positions, np.uint32)
        content = entries.tobytes()
        return content + trailer(base_offset, content)


def decode_offset_index(
    data: bytes, *, base_offset: int, batch_positions: np.ndarray, relative_offset_end: int
) -> OffsetIndex | None:
    """Return the index in `data`. Returns None if the checksum does not fit, the last entry is cut, or the entries do
    not increase, lie beyond the segment or name positions without a batch.

    `batch_positions`: the positions of the segment's batches, ascending, from its footer. `relative_offset_end`: the
    offset after the segment's last record, relative to `base_offset`.
    """
    content = without_checksum(base_offset, data)
    if content is None or len(content) % ENTRY.itemsize:
        return None
    entries = np.frombuffer(content, ENTRY)
    offsets, positions = entries["relative_offset"], entries["position"]
    if len(entries) and (
        not (np.diff(offsets.astype(np.int64)) > 0).all()
        or not (np.diff(positions.astype(np.int64)) > 0).all()
        or int(offsets[-1]) >= relative_offset_end
        or not np.isin(positions, batch_positions).all()
    ):
        return None
    index = OffsetIndex()
    index._relative_offsets.frombytes(offsets.astype("=u4").tobytes())
    index._positions.frombytes(positions.astype("=u4").tobytes())
    return index
