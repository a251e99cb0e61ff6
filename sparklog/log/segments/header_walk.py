"""Iteration over the batch headers of a file, without the batches' bodies and without a check of checksums."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import HEADER_READ_BYTES, METADATA_BYTES_MAX, PREFIX_BYTES, BatchHeader, decode_header
from sparklog.format.segment import PositionedRead

_READ_AHEAD_BYTES = 8192
"""Size of one read: it covers the headers of several small batches, and wastes little before a large batch's body."""


def header_at(read: PositionedRead, position: int, end: int) -> BatchHeader:
    """Return the header of the batch at `position`; `end` is the end of all batches. Raises CorruptBatchError."""
    return next(walk_headers(read, position, end))[1]


def walk_headers(read: PositionedRead, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the batches in [position, end). Raises CorruptBatchError."""
    start, data = position, b""
    while position < end:
        at = position - start
        if at + min(HEADER_READ_BYTES, end - position) > len(data):
            start, at, data = position, 0, read(position, min(_READ_AHEAD_BYTES, end - position))
        if at + PREFIX_BYTES > len(data):
            raise CorruptBatchError(f"no batch at position {position}, batches should continue to {end}")
        needed = PREFIX_BYTES + struct.unpack_from("<i", data, at + 4)[0]
        if len(data) - at < needed <= min(end - position, PREFIX_BYTES + METADATA_BYTES_MAX):
            start, at, data = position, 0, read(position, needed)  # metadata of many columns
        header = decode_header(data, at, available_bytes=end - position)
        yield position, header
        position += header.size_bytes
