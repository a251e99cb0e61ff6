"""The checksum that ends the offset index and the time index.

The CRC-32C (u32 little-endian) covers the segment's base offset (i64 little-endian), which is not in the file, and all
bytes before the checksum. So the checksum of a damaged or cut index, of another segment's index, or of an index of a
release without checksums does not fit.
"""

from __future__ import annotations

import struct

from sparklog.format.checksum import crc32c

CHECKSUM_BYTES = 4


def index_checksum(base_offset: int, content: bytes) -> bytes:
    """Return the checksum, 4 bytes, of `content`, an index of the segment that begins at `base_offset`."""
    return struct.pack("<I", crc32c(content, crc32c(struct.pack("<q", base_offset))))


def entries_in(size_bytes: int, entry_bytes: int, trailer_bytes: int) -> int:
    """Return the number of whole entries in an index file of `size_bytes` that ends with checksums of `trailer_bytes`
    bytes."""
    return max(0, size_bytes - trailer_bytes) // entry_bytes


def without_checksum(base_offset: int, data: bytes) -> bytes | None:
    """Return the bytes before the checksum that ends `data`, or None if the checksum does not fit."""
    content = data[:-CHECKSUM_BYTES]
    return content if data[-CHECKSUM_BYTES:] == index_checksum(base_offset, content) else None
