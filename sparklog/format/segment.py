"""The segment file: an Arrow IPC file whose record batches are sparklog batches.

Name: the 20-digit base offset with the ending ``.arrow``. Layout::

    offset  size  part
    0       8     "ARROW1" and two zero bytes
    8       s     schema message; its custom metadata have the key "sparklog" with JSON:
                  {"topic", "topic_id", "partition", "base_offset", "schema_id", "format": 1}
    8+s     …     batches, back to back (sparklog.format.batch)
    --- the rest only once the segment is sealed ---
    e       8     end-of-stream mark FF FF FF FF 00 00 00 00
    e+8     f     footer flatbuffer: version, schema, list of blocks (position, metadata length, body length)
    e+8+f   4     f as i32
    e+12+f  6     "ARROW1"

No CRC covers head and footer. The head is compared with the file's name and the metadata store. The footer is derived
from the batches, and rebuilt if it is missing or insane. Each batch has its own CRC. An active segment has no footer; a
sealed segment is un-sealed for further appends by cutting the file at ``e``.

A scan from the front ends in one of three ways (`ScanEnd`):

- END: the file's last byte, or the end-of-stream mark, follows a good batch;
- TORN: after the last good batch is a tail that a crashed append can leave (half a batch, zeros, garbage);
- CORRUPT: after bad bytes is an intact batch or an intact footer, which a crashed append cannot leave.

Only a torn tail is ever cut without an operator's consent.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from sparklog.errors import CorruptBatchError, LogCorruptError
from sparklog.format.batch import (
    HEADER_KEY,
    HEADER_MARK,
    HEADER_READ_BYTES,
    METADATA_BYTES_MAX,
    PREFIX_BYTES,
    BatchHeader,
    TruncatedBatchError,
    decode_header,
    verify_batch,
)
from sparklog.format.flat import Bytes, root_table, table_field

MAGIC = b"ARROW1"
HEAD_MAGIC = MAGIC + b"\0\0"
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
SUFFIX = ".arrow"
FORMAT = 1
"""Version of the segment's layout."""
TAIL = struct.Struct("<i6s")
HEAD_BYTES_MAX = 8 * 1024 * 1024
_HEAD_READ_BYTES = 8 * 1024
"""Size of the first read of a segment's head. It contains nearly every head, and a start reads the head of every
segment."""
FOOTER_BYTES_MAX = 1 << 30
_SEARCH_STEP_BYTES = 1 << 20  # a multiple of 8
_SEARCH_BYTES_MAX = 1 << 30  # read for candidates, all together

_BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("pad", "<i4"), ("body", "<i8")])
"""File.fbs: struct Block { offset: long; metaDataLength: int; bodyLength: long; }"""

_BLOCKS_POSITION = 40
"""Position of the first block in this module's footers; the number of blocks is before it."""

PositionedRead = Callable[[int, int], bytes]
"""Function read(position, size_bytes) that returns up to size_bytes bytes, fewer only at the end of the file."""


class SegmentInfo(NamedTuple):
    """Partition, base offset and schema of a segment, as its head has them."""

    topic: str
    topic_id: str
    partition: int
    base_offset: int
    schema_id: int


class SegmentHead(NamedTuple):
    """A decoded head: the first batch begins at `data_position`."""

    schema: pa.Schema
    info: SegmentInfo
    data_position: int


class ScanEnd(Enum):
    """End of a segment's scan."""

    END = "end"
    TORN = "torn tail"
    CORRUPT = "corrupt"


class ScanResult(Struct, frozen=True):
    """The result of a scan. `position`: the first byte after the last good batch. `reason` is empty for END."""

    end: ScanEnd
    position: int
    reason: str = ""


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}{SUFFIX}"


def parse_segment_name(name: str) -> int | None:
    """Return the base offset in a segment's file name; None for the name of another file."""
    stem = name.removesuffix(SUFFIX)
    if not (name.endswith(SUFFIX) and len(stem) == 20 and stem.isascii() and stem.isdigit()):
        return None
    base_offset = int(stem)
    return base_offset if base_offset < 2**63 else None


def _with_info(schema: pa.Schema, info: SegmentInfo) -> pa.Schema:
    return schema.with_metadata({HEADER_KEY: json.dumps({**info._asdict(), "format": FORMAT}).encode()})


def encode_head(schema: pa.Schema, info: SegmentInfo) -> bytes:
    """Return the head of a new segment: the first bytes of its file."""
    return HEAD_MAGIC + bytes(_with_info(schema, info).serialize())


def decode_head(read: PositionedRead) -> SegmentHead:
    """Read a segment's head. Raises LogCorruptError if the file is not a segment, TruncatedBatchError if it is cut."""
    first = read(0, _HEAD_READ_BYTES)
    if len(first) < len(HEAD_MAGIC) + PREFIX_BYTES:
        raise TruncatedBatchError(f"{len(first)} bytes are not a segment head")
    if first[: len(HEAD_MAGIC)] != HEAD_MAGIC:
        raise LogCorruptError("the file does not begin as an Arrow file")
    data_position = _data_position(first)
    if data_position is None:
        raise LogCorruptError("the schema message has an impossible length")
    head = first if len(first) >= data_position else read(0, data_position)
    if len(head) < data_position:
        raise TruncatedBatchError("the file ends inside its schema message")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(head[len(HEAD_MAGIC) : data_position]))
        list(schema.names)  # raises if one is not UTF-8
        info = _parse_info((schema.metadata or {})[HEADER_KEY])
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, RecursionError) as e:
        raise LogCorruptError(f"the segment's head cannot be read: {e}") from e
    return SegmentHead(schema.remove_metadata(), info, data_position)


def _data_position(head: Bytes) -> int | None:
    """Return the position of the first batch, from the length of the schema message; None if the length is
    impossible."""
    continuation, length = struct.unpack_from("<Ii", head, len(HEAD_MAGIC))
    if continuation != 0xFFFFFFFF or not 0 < length <= HEAD_BYTES_MAX or length % 8:
        return None
    return len(HEAD_MAGIC) + PREFIX_BYTES + int(length)


def _parse_info(text: bytes) -> SegmentInfo:
    facts = json.loads(text)
    if facts["format"] != FORMAT:
        raise ValueError(f"its format is {facts['format']!r}, this version reads {FORMAT}: use a newer sparklog")
    for name in ("topic", "topic_id"):
        if not isinstance(facts[name], str):
            raise TypeError(f"{name} is {facts[name]!r}")
    for name in ("partition", "base_offset", "schema_id"):
        if type(facts[name]) is not int or not 0 <= facts[name] < 2**63:
            raise TypeError(f"{name} is {facts[name]!r}")
    return SegmentInfo(*(facts[f] for f in SegmentInfo._fields))


def encode_seal(
    schema: pa.Schema, info: SegmentInfo, positions: np.ndarray, metadata_lengths: np.ndarray, end: int
) -> bytes:
    """Return the bytes that seal a segment: the end-of-stream mark and the footer.

    PyArrow writes no footer for messages that it has not written itself. So the footer of an empty file supplies the
    Schema table, and a new root (Footer table, block list) is put in front of that footer."""
    sink = pa.BufferOutputStream()
    pa.ipc.new_file(sink, _with_info(schema, info)).close()
    empty = sink.getvalue().to_pybytes()
    length, _ = TAIL.unpack_from(empty, len(empty) - TAIL.size)
    old = empty[len(empty) - TAIL.size - length : len(empty) - TAIL.size]
    root = root_table(old)
    (version,) = struct.unpack_from("<h", old, table_field(old, root, 0))
    schema_field = table_field(old, root, 1)
    schema_table = schema_field + struct.unpack_from("<I", old, schema_field)[0]
    count = len(positions)
    old_position = _BLOCKS_POSITION + _BLOCK.itemsize * count
    blocks = np.zeros(count, _BLOCK)
    blocks["offset"] = positions
    blocks["metadata"] = np.asarray(metadata_lengths) + PREFIX_BYTES
    blocks["body"] = np.append(positions[1:], end) - positions - blocks["metadata"] if count else 0
    front = bytearray(_BLOCKS_POSITION)
    struct.pack_into("<I", front, 0, 16)  # root: the Footer table at 16
    struct.pack_into("<6H", front, 4, 12, 16, 12, 4, 0, 8)  # vtable: version at 12, schema at 4, recordBatches at 8
    struct.pack_into("<i", front, 16, 16 - 4)
    struct.pack_into("<I", front, 20, old_position + schema_table - 20)
    struct.pack_into("<I", front, 24, 36 - 24)
    struct.pack_into("<h", front, 28, version)
    struct.pack_into("<I", front, 36, count)
    footer: bytes = bytes(front) + blocks.tobytes() + old
    return END_OF_STREAM + footer + TAIL.pack(len(footer), MAGIC)


class SealedBlocks(NamedTuple):
    """The content of a footer."""

    positions: np.ndarray
    """Position of each batch."""
    metadata_lengths: np.ndarray
    """Length of each batch's metadata."""
    data_end: int
    """Position of the end-of-stream mark."""


def decode_seal(read: PositionedRead, file_size_bytes: int) -> SealedBlocks | None:
    """Return the block list of a sealed segment; None if the file has no sane footer.

    In a sane footer, the blocks fill the file from the end of the head to the end-of-stream mark.
    """
    if file_size_bytes < len(HEAD_MAGIC) + PREFIX_BYTES + len(END_OF_STREAM) + TAIL.size:
        return None
    head = read(0, len(HEAD_MAGIC) + PREFIX_BYTES)
    tail = read(file_size_bytes - TAIL.size, TAIL.size)
    if len(head) < len(HEAD_MAGIC) + PREFIX_BYTES or len(tail) < TAIL.size:
        return None
    data_position = _data_position(head)
    length, magic = TAIL.unpack(tail)
    data_end = file_size_bytes - TAIL.size - length - len(END_OF_STREAM)
    if data_position is None or magic != MAGIC or not 40 <= length <= FOOTER_BYTES_MAX or data_end < data_position:
        return None
    footer = read(data_end, len(END_OF_STREAM) + length)
    if len(footer) < len(END_OF_STREAM) + length or footer[: len(END_OF_STREAM)] != END_OF_STREAM:
        return None
    footer = footer[len(END_OF_STREAM) :]
    try:
        field = table_field(footer, root_table(footer), 3)
        vector = field + struct.unpack_from("<I", footer, field)[0] if field else 0
        count = struct.unpack_from("<I", footer, vector)[0] if field else 0
        if vector + 4 + count * _BLOCK.itemsize > len(footer):
            return None
    except (struct.error, IndexError):
        return None
    blocks = np.frombuffer(footer, _BLOCK, count, vector + 4) if count else np.zeros(0, _BLOCK)
    starts = np.append(blocks["offset"], np.int64(data_end))
    lengths = blocks["metadata"] + blocks["body"]
    sane = (blocks["metadata"] > PREFIX_BYTES) & (blocks["body"] >= 0) & (starts[:-1] + lengths == starts[1:])
    if int(starts[0]) != data_position or not sane.all():
        return None
    return SealedBlocks(starts[:-1].astype(np.int64), blocks["metadata"] - PREFIX_BYTES, data_end)


def seal_position(read: PositionedRead, file_size_bytes: int) -> int | None:
    """Return the position of a sealed segment's end-of-stream mark; None if the file's last bytes are not the end of a
    footer, or the mark is not before the footer. The footer itself is not read."""
    if file_size_bytes < len(HEAD_MAGIC) + PREFIX_BYTES + len(END_OF_STREAM) + TAIL.size:
        return None
    tail = read(file_size_bytes - TAIL.size, TAIL.size)
    length, magic = TAIL.unpack(tail) if len(tail) == TAIL.size else (0, b"")
    data_end = file_size_bytes - TAIL.size - length - len(END_OF_STREAM)
    if magic != MAGIC or not 40 <= length <= FOOTER_BYTES_MAX or data_end < len(HEAD_MAGIC) + PREFIX_BYTES:
        return None
    return data_end if read(data_end, len(END_OF_STREAM)) == END_OF_STREAM else None


def last_block_position(read: PositionedRead, data_position: int, data_end: int) -> int | None:
    """Return the position of a sealed segment's last batch, reading only the last block of the footer. Returns None if
    the segment has no batch, the block does not end at `data_end`, or `encode_seal` has not written the footer."""
    footer = data_end + len(END_OF_STREAM)
    front = read(footer, _BLOCKS_POSITION)
    if len(front) < _BLOCKS_POSITION or front[:4] != struct.pack("<I", 16):
        return None
    (count,) = struct.unpack_from("<I", front, _BLOCKS_POSITION - 4)
    entry = read(footer + _BLOCKS_POSITION + _BLOCK.itemsize * (count - 1), _BLOCK.itemsize) if count else b""
    if len(entry) < _BLOCK.itemsize:
        return None
    block = np.frombuffer(entry, _BLOCK)[0]
    position = int(block["offset"])
    if position < data_position or position + int(block["metadata"]) + int(block["body"]) != data_end:
        return None
    return position


def scan(
    read: PositionedRead,
    position: int,
    end: int,
    visit: Callable[[int, BatchHeader], None],
    *,
    next_offset: int,
    verify: bool = True,
    trusted_below: int = 0,
) -> ScanResult:
    """Walk the batches from `position` to `end`, and call `visit(position, header)` for each good batch. `end`:
    position at which the scan ends, usually the size of the file. `next_offset`: smallest allowed base offset of the
    first batch. `verify`: True to check the CRC of the batches; False to read only their headers. `trusted_below`: of
    batches whose offsets are all below this offset, only the headers are read."""
    while position < end:
        head = read(position, min(HEADER_READ_BYTES, end - position))
        if head[: len(END_OF_STREAM)] == END_OF_STREAM:
            if _intact_data_follow(read, position, end, next_offset, seal_counts=False):
                return ScanResult(ScanEnd.CORRUPT, position, "an end-of-stream mark in the middle")
            return ScanResult(ScanEnd.END, position)
        try:
            header = read_header(read, position, end, head)
            if header.base_offset < next_offset:
                raise CorruptBatchError(f"base offset {header.base_offset} where {next_offset} or more is expected")
            if verify and header.next_offset > trusted_below:
                verify_batch(read(position, header.size_bytes), 0, header)
        except CorruptBatchError as e:
            corrupt = _intact_data_follow(read, position, end, next_offset)
            return ScanResult(ScanEnd.CORRUPT if corrupt else ScanEnd.TORN, position, str(e))
        visit(position, header)
        next_offset = header.next_offset
        position += header.size_bytes
    return ScanResult(ScanEnd.END, position)


def read_header(read: PositionedRead, position: int, end: int, head: bytes) -> BatchHeader:
    """Decode the header of the batch at `position`. `head`: the first bytes at this position; if the metadata are
    longer, more bytes are read. Raises CorruptBatchError."""
    if len(head) >= PREFIX_BYTES:
        needed = PREFIX_BYTES + struct.unpack_from("<i", head, 4)[0]
        if len(head) < needed <= end - position and needed <= HEAD_BYTES_MAX:
            head = read(position, needed)
    return decode_header(head, 0, available_bytes=end - position)


def _intact_data_follow(
    read: PositionedRead, position: int, end: int, next_offset: int, *, seal_counts: bool = True
) -> bool:
    """Return True if an intact batch, or with `seal_counts` an intact footer, lies after the bad bytes at `position`.

    A crash during an append leaves nothing intact after the append's position. So the result distinguishes a damaged
    batch in the middle of a log from a damaged tail. The value of a record can contain the bytes of a batch. These
    count, too, if their offset fits; the log is then not cut, which is the safe error.
    """
    if seal_counts and decode_seal(read, end) is not None:
        return True
    try:
        return next_intact_batch(read, position, end, next_offset=next_offset) is not None
    except LogCorruptError:  # bytes made to look like batches: do not cut
        return True


def next_intact_batch(read: PositionedRead, position: int, end: int, *, next_offset: int = 0) -> int | None:
    """Return the position of the first intact batch after the bad bytes at `position` with a base offset of at least
    `next_offset`; None if there is no such batch.

    Raises LogCorruptError if more than _SEARCH_BYTES_MAX bytes would be read to check places that look like a batch.
    """
    budget = _SEARCH_BYTES_MAX
    marks = _find_all(read, position + PREFIX_BYTES, end)
    for at, metadata_length in _candidates(read, position + 8, end) if len(marks) else ():
        behind = np.searchsorted(marks, at + PREFIX_BYTES)
        if behind == len(marks) or marks[behind] >= at + PREFIX_BYTES + metadata_length:
            continue
        budget -= max(metadata_length, HEADER_READ_BYTES)
        if budget < 0:
            raise LogCorruptError(f"behind position {position} too many bytes look like batches but are not")
        try:
            header = read_header(read, at, end, read(at, min(HEADER_READ_BYTES, end - at)))
            if header.base_offset < next_offset:
                continue
            budget -= header.size_bytes
            verify_batch(read(at, header.size_bytes), 0, header)
        except CorruptBatchError:
            continue
        return at
    return None


def _find_all(read: PositionedRead, start: int, end: int) -> np.ndarray:
    """Return the positions of all header marks in [start, end), ascending."""
    positions: list[int] = []
    overlap = len(HEADER_MARK) - 1
    for chunk_position in range(start, end, _SEARCH_STEP_BYTES):
        chunk = read(chunk_position, min(_SEARCH_STEP_BYTES + overlap, end - chunk_position))
        at = chunk.find(HEADER_MARK)
        while at >= 0:
            positions.append(chunk_position + at)
            at = chunk.find(HEADER_MARK, at + 1)
    return np.array(positions, np.int64)


def _candidates(read: PositionedRead, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (position, metadata length) of every place at which a batch could begin: a multiple of 8 bytes after
    `start`, with a plausible prefix."""
    for chunk_position in range(start, end - 7, _SEARCH_STEP_BYTES):
        chunk = read(chunk_position, min(_SEARCH_STEP_BYTES, end - chunk_position))
        words = np.frombuffer(chunk, "<u4", len(chunk) // 8 * 2).reshape(-1, 2)
        lengths = words[:, 1]
        plausible = (words[:, 0] == 0xFFFFFFFF) & (lengths > 0) & (lengths <= METADATA_BYTES_MAX) & (lengths % 8 == 0)
        for i in np.flatnonzero(plausible).tolist():
            yield chunk_position + 8 * i, int(lengths[i])
