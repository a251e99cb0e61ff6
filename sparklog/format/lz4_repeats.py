"""LZ4 frames of 8 repeated bytes, written without an LZ4 library.

An LZ4 library would have to read all the bytes to find the repetition. The frames of this module do not depend on a
library's version, so a reader recognises them. A frame (lz4_Frame_format.md) is::

    header      magic 0x184D2204, flags 0x60 (version 1, independent blocks), 0x40 (blocks of 64 KiB), their checksum
    blocks      u32 size, then two sequences (lz4_Block_format.md). The first has the 8 bytes as literals, and a match
                with the 8 bytes before for all but the last 5 bytes. The second has these 5 bytes, because a block
                ends with literals. A last block that is too small for a match is stored uncompressed
    end mark    u32 0
"""

from __future__ import annotations

import struct
from functools import lru_cache

PATTERN_BYTES = 8
_HEADER = bytes.fromhex("04224d18604082")
_END = bytes(4)
_BLOCK_BYTES = 64 * 1024
_U32 = struct.Struct("<I")
_STORED = 1 << 31
"""Bit of a block's size that marks an uncompressed block."""
_MATCHED_BYTES_MIN = 20
"""Smallest block with a match: a match begins at least 12 bytes before the block's end."""
_LITERALS_LAST = 5
_MATCH_MIN = 4
_PATTERN_AT = len(_HEADER) + 5


def repeated(pattern: bytes, size_bytes: int) -> bytes:
    """Return the frame whose content is `pattern` (8 bytes), repeated up to `size_bytes` bytes."""
    blocks, rest = divmod(size_bytes, _BLOCK_BYTES)
    return _HEADER + (_block(pattern, _BLOCK_BYTES) * blocks if blocks else b"") + _block(pattern, rest) + _END


def pattern_of(frame: bytes, size_bytes: int) -> bytes | None:
    """Return the repeated 8 bytes if `repeated` has written this frame for `size_bytes`. Returns None for any other
    frame, which an LZ4 library must read."""
    pattern = frame[_PATTERN_AT : _PATTERN_AT + PATTERN_BYTES]
    return pattern if len(pattern) == PATTERN_BYTES and frame == repeated(pattern, size_bytes) else None


def _block(pattern: bytes, size: int) -> bytes:
    if size < _MATCHED_BYTES_MIN:
        return _U32.pack(size | _STORED) + (pattern * 3)[:size] if size else b""
    before, between = _sequences(size)
    last = (size - _LITERALS_LAST) % PATTERN_BYTES
    return before + pattern + between + (pattern * 2)[last : last + _LITERALS_LAST]


@lru_cache(maxsize=32)
def _sequences(size: int) -> tuple[bytes, bytes]:
    """Return the bytes of a block before its 8 literal bytes, and the bytes between these and the last 5 bytes."""
    match = size - PATTERN_BYTES - _LITERALS_LAST - _MATCH_MIN
    more = b"" if match < 15 else b"\xff" * ((match - 15) // 255) + bytes([(match - 15) % 255])
    token = bytes([PATTERN_BYTES << 4 | min(match, 15)])
    between = PATTERN_BYTES.to_bytes(2, "little") + more + bytes([_LITERALS_LAST << 4])
    return _U32.pack(len(token) + PATTERN_BYTES + len(between) + _LITERALS_LAST) + token, between
