"""The codecs of Kafka's batches: none, gzip, snappy (raw and in xerial's frames), lz4 and zstd.

A batch can be an attack, so decompression stops with an error above `inflated_bytes_max`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sparklog.errors import CorruptBatchError, MessageTooLargeError
from sparklog.format.batch import ATTRIBUTE_GZIP, ATTRIBUTE_SNAPPY

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_TOPIC_CODECS = {"uncompressed": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
STORED = ("none", "zstd", "lz4", "lz4", "zstd")
"""Name of the stored batch's compression, by Kafka's number of the compression that Kafka's clients get."""
STORED_ATTRIBUTES = {GZIP: ATTRIBUTE_GZIP, SNAPPY: ATTRIBUTE_SNAPPY}
"""Attributes of the stored batch, by Kafka's number of the codecs that Arrow does not have."""
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16
_LENGTH = struct.Struct(">i")
_SNAPPY = pa.Codec("snappy")
_GZIP_WINDOW = 31
_CODECS = {GZIP: pa.Codec("gzip", 1), ZSTD: pa.Codec("zstd", 1)}
_LZ4_BLOCK = pa.Codec("lz4_raw")
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_HEAD: bytes = pa.Codec("lz4").compress(b"", asbytes=True)[:7]
"""Head of an LZ4 frame whose blocks are independent of each other, and have _LZ4_BLOCK_BYTES at most."""
_LZ4_SIZE = struct.Struct("<I")
_LZ4_IS_PLAIN = 1 << 31
"""Bit in the size of a block that is not compressed."""
_LZ4_END = bytes(4)
_XERIAL_VERSIONS = struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 64 * 1024
_RATIO_MAX = {GZIP: 1032, SNAPPY: 22, LZ4: 255}
"""Largest ratio between the decompressed and the compressed size, by the codec; zstd has no such bound."""


def decompress(codec: int, data: memoryview, inflated_bytes_max: int) -> Any:
    """Decompress the records of a batch; return a buffer. `codec`: Kafka's number, not NONE.

    Raises CorruptBatchError, or MessageTooLargeError for more than `inflated_bytes_max` bytes.
    """
    try:
        if codec == GZIP:
            return _gunzip(data, inflated_bytes_max)
        if codec == SNAPPY:
            return _unsnap(data, inflated_bytes_max)
        if codec in (LZ4, ZSTD):
            with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), NAMES[codec]) as stream:
                content = stream.read_buffer(inflated_bytes_max + 1)
            if content.size > inflated_bytes_max:
                raise too_large(inflated_bytes_max)
            return content
    except (OSError, pa.ArrowInvalid, zlib.error, struct.error, EOFError) as e:
        raise CorruptBatchError(f"the records cannot be decompressed with {NAMES[codec]}: {e}") from e
    raise CorruptBatchError(f"a batch with the unknown compression {codec}; Kafka has {', '.join(NAMES)}")


def inflated_bound(codec: int, size_bytes: int, inflated_bytes_max: int) -> int:
    """Return an upper bound of the bytes that `decompress` returns for `size_bytes` of compressed data."""
    ratio = _RATIO_MAX.get(codec)
    return inflated_bytes_max if ratio is None else min(ratio * size_bytes, inflated_bytes_max)


def compress(codec: int, parts: Sequence[Any]) -> bytes:
    """Compress the joined `parts`. `codec`: Kafka's number, not NONE."""
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    if codec == SNAPPY:
        return _snap(data)
    if codec == LZ4:
        return _lz4_frame(data)
    compressed: bytes = _CODECS[codec].compress(data, asbytes=True)
    return compressed


def codec_of_topic(compression_type: str) -> int | None:
    """Return Kafka's number of a topic's `compression.type`; None for "producer"."""
    return _TOPIC_CODECS.get(compression_type)


def _snap(data: Any) -> bytes:
    """Compress data with snappy in xerial's frames, as Kafka's producers do."""
    view = memoryview(data)
    parts: list[bytes] = [_XERIAL, _XERIAL_VERSIONS]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = _SNAPPY.compress(pa.py_buffer(view[start : start + _XERIAL_BLOCK_BYTES]), asbytes=True)
        parts += [_LENGTH.pack(len(block)), block]
    return b"".join(parts)


def _lz4_frame(data: Any) -> bytes:
    """Compress data into an LZ4 frame with independent blocks. Java's clients read no others, and Arrow's own frames
    have dependent blocks if there is more than one."""
    view = memoryview(data)
    parts: list[Any] = [_LZ4_HEAD]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block = _LZ4_BLOCK.compress(pa.py_buffer(plain), asbytes=True)
        if len(block) < len(plain):
            parts += [_LZ4_SIZE.pack(len(block)), block]
        else:
            parts += [_LZ4_SIZE.pack(len(plain) | _LZ4_IS_PLAIN), plain]
    parts.append(_LZ4_END)
    return b"".join(parts)


def _gunzip(data: memoryview, inflated_bytes_max: int) -> bytes:
    """Decompress all members of a gzip stream."""
    pieces: list[bytes] = []
    room = inflated_bytes_max
    rest: Any = data
    while len(rest):
        inflater = zlib.decompressobj(_GZIP_WINDOW)
        part = inflater.decompress(rest, room + 1)
        room -= len(part)
        if room < 0:
            raise too_large(inflated_bytes_max)
        if not inflater.eof:
            raise EOFError("the stream is cut off")
        pieces.append(part)
        rest = inflater.unused_data
    return b"".join(pieces)


def _unsnap(data: memoryview, inflated_bytes_max: int) -> Any:
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _unsnap_block(data, inflated_bytes_max)
    parts, room, position = [], inflated_bytes_max, _XERIAL_HEAD_BYTES
    while position < len(data):
        (size,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if not 0 < size <= len(data) - position:
            raise EOFError(f"a block of {size} bytes, {len(data) - position} are left")
        parts.append(_unsnap_block(data[position : position + size], room))
        room -= len(parts[-1])
        position += size
    return b"".join(parts)


def _unsnap_block(data: memoryview, inflated_bytes_max: int) -> Any:
    size = shift = 0
    for byte in bytes(data[:5]):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise EOFError("the block has no length")
    if size > inflated_bytes_max:
        raise too_large(inflated_bytes_max)
    return _SNAPPY.decompress(pa.py_buffer(data), size) if size else b""


def too_large(inflated_bytes_max: int) -> MessageTooLargeError:
    """Return the error for a batch of more than `inflated_bytes_max` decompressed bytes."""
    return MessageTooLargeError(
        f"the batch takes more than {inflated_bytes_max} bytes without its compression: send smaller batches"
    )
