"""The `.columns` object of a copied segment. It has the places of each batch's columns, and a checksum for each of
their buffers. So a reader of some columns fetches only these columns, and still checks all bytes that it gets.

::

    offset  size    field
    0       8       magic "SLRV\\0\\0\\0\\1"
    8       4       batches u32 (n)
    12      4       buffers u32 (b) of each batch: all have the segment's schema
    16      8 n     position i64 of each batch in the .arrow object
    ..      4 n     size u32 of each batch's Arrow prefix and metadata
    ..      4 n b   crc32c u32 of each buffer, batch by batch, as it is stored (compressed or not)
    ..              prefix and metadata of each batch, back to back: the first bytes of the batch as it is

All little-endian. The copy's metadata has the size and the CRC32C of the whole object. The object is left out if it
would be large in relation to the segment (tiny batches); a reader then fetches whole batches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import PREFIX_BYTES, BatchHeader, decode_header, message_of
from sparklog.format.body_layout import layout_of_schema
from sparklog.format.checksum import crc32c
from sparklog.format.flat import record_batch_message
from sparklog.format.segment import PositionedRead
from sparklog.log.tiering.layout import COLUMNS_SUFFIX, object_name
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.log.tiering.state import RemoteSegmentMetadata

_HEAD = struct.Struct("<8sII")
_MAGIC = b"SLRV\0\0\0\1"
METADATA_SHARE_MAX = 8
"""The object is left out if the batches' metadata are larger than the segment's batches divided by this."""
COALESCE_BYTES = 16 * 1024
"""Ranges with a smaller gap between them are fetched as one range."""
GROUP_BYTES = 16 * 1024 * 1024
"""Batches are fetched together, in one request, once their wanted columns have this size."""


class Message(NamedTuple):
    """A batch with some of its columns. `data` is as large as the whole batch; the bytes of the remaining columns are
    zero."""

    header: BatchHeader
    data: pa.Buffer


def encode_columns(
    read: PositionedRead,
    positions: np.ndarray,
    metadata_lengths: np.ndarray,
    data_end: int,
    *,
    share_max: int = METADATA_SHARE_MAX,
) -> bytes | None:
    """Return the content of the object for a segment whose batches begin at `positions` and end at `data_end`. Returns
    None for a segment without batches, if the batches' metadata are more than 1 / `share_max` of the batches, or if the
    batches have different numbers of buffers.

    Raises CorruptBatchError.
    """
    sizes = metadata_lengths.astype(np.int64) + PREFIX_BYTES
    if not len(positions) or int(sizes.sum()) * share_max > data_end - int(positions[0]):
        return None
    checksums: list[np.ndarray] = []
    heads: list[bytes] = []
    ends = [*positions[1:].tolist(), data_end]
    for position, size, end in zip(positions.tolist(), sizes.tolist(), ends, strict=True):
        batch = memoryview(read(position, end - position))
        head = bytes(batch[:size])
        body = batch[size:]
        buffers = record_batch_message(head[PREFIX_BYTES:]).buffers
        checksums.append(np.array([crc32c(body[o : o + n]) for o, n in buffers.tolist()], "<u4"))
        heads.append(head)
        if len(checksums[-1]) != len(checksums[0]):
            return None
    return b"".join(
        (
            _HEAD.pack(_MAGIC, len(positions), len(checksums[0])),
            positions.astype("<i8").tobytes(),
            sizes.astype("<u4").tobytes(),
            np.concatenate(checksums).tobytes(),
            *heads,
        )
    )


class _Batch(NamedTuple):
    position: int
    head: memoryview
    header: BatchHeader
    checksums: np.ndarray


class ColumnReader:
    """Reader of some columns of one remote segment. It does not access the store before `read`."""

    def __init__(self, store: ObjectStore, segment: RemoteSegmentMetadata, schema: pa.Schema) -> None:
        """Create a reader. `schema`: the schema that the segment was written with."""
        self._store = store
        self._segment = segment
        self._schema = schema

    @property
    def can_read(self) -> bool:
        """True if the copy has the object that this reader needs."""
        return object_name(self._segment.base_offset, COLUMNS_SUFFIX) in self._segment.objects

    def read(self, start_offset: int, end_offset: int, columns: Sequence[int]) -> Iterator[Message]:
        """Yield the batches with offsets in [start_offset, end_offset), with only the `columns` (indexes into the
        schema). All fetched bytes are checked. Raises RemoteStorageError, CorruptBatchError."""
        layout = layout_of_schema(self._schema)
        numbers = layout.buffers_of(columns)
        group: list[tuple[_Batch, np.ndarray]] = []
        held = 0
        for batch in self._batches(start_offset, end_offset, layout.buffer_count):
            message = message_of(batch.head, 0, batch.header)
            layout.check(message, None)
            buffers = message.buffers
            group.append((batch, buffers))
            held += int(buffers[numbers, 1].sum())
            if held >= GROUP_BYTES:
                yield from self._fetch(group, numbers)
                group, held = [], 0
        yield from self._fetch(group, numbers)

    def _batches(self, start_offset: int, end_offset: int, buffer_total: int) -> Iterator[_Batch]:
        name = object_name(self._segment.base_offset, COLUMNS_SUFFIX)
        data = memoryview(self._store.read(f"{self._segment.prefix}/{name}", self._segment.objects[name]))
        misfit = f"{self._store.url}/{self._segment.prefix}/{name} does not fit the segment"
        try:
            magic, count, width = _HEAD.unpack_from(data, 0)
            if magic != _MAGIC or width != buffer_total:
                raise CorruptBatchError(f"{misfit}'s schema")
            at = _HEAD.size
            positions = np.frombuffer(data, "<i8", count, at).tolist()
            sizes = np.frombuffer(data, "<u4", count, at + 8 * count).tolist()
            checksums = np.frombuffer(data, "<u4", count * width, at + 12 * count).reshape(count, width)
        except (struct.error, ValueError) as e:
            raise CorruptBatchError(f"{misfit}: it is too short") from e
        at += 12 * count + 4 * count * width
        for i in range(count):
            head = data[at : at + sizes[i]]
            at += sizes[i]
            header = decode_header(head, available_bytes=self._segment.data_end - positions[i])
            if len(head) != PREFIX_BYTES + header.metadata_length_bytes or positions[i] < self._segment.data_position:
                raise CorruptBatchError(f"{misfit}: batch {i} has an impossible position")
            if header.base_offset >= end_offset:
                return
            if header.next_offset > start_offset:
                yield _Batch(positions[i], head, header, checksums[i])

    def _fetch(self, group: list[tuple[_Batch, np.ndarray]], numbers: np.ndarray) -> Iterator[Message]:
        """Fetch the buffers `wanted` of the batches in `group` with one request, and yield the batches."""
        if not group:
            return
        key = f"{self._segment.prefix}/{object_name(self._segment.base_offset, '.arrow')}"
        starts, lengths = [], []
        for batch, buffers in group:
            starts.append(buffers[numbers, 0] + (batch.position + len(batch.head)))
            lengths.append(buffers[numbers, 1])
        ranges = coalesce(np.concatenate(starts), np.concatenate(lengths))
        parts = self._store.read_ranges(key, ranges) if ranges else []
        firsts = np.array([start for start, _ in ranges], np.int64)
        for (batch, _), at, sizes in zip(group, starts, lengths, strict=True):
            data = np.zeros(batch.header.size_bytes, np.uint8)  # the kernel gives no memory for untouched pages
            view = memoryview(data)  # type: ignore[arg-type]
            view[: len(batch.head)] = batch.head
            for number, position, size in zip(numbers.tolist(), at.tolist(), sizes.tolist(), strict=True):
                if not size:
                    continue
                i = int(np.searchsorted(firsts, position, "right")) - 1
                piece = memoryview(parts[i])[position - ranges[i][0] :][:size]
                if crc32c(piece) != int(batch.checksums[number]):
                    raise CorruptBatchError(
                        f"{self._store.url}/{key} is damaged: a column of the batch at offset "
                        f"{batch.header.base_offset} does not have its original checksum"
                    )
                place = position - batch.position
                view[place : place + size] = piece
            yield Message(batch.header, pa.py_buffer(data))


def coalesce(starts: np.ndarray, lengths: np.ndarray, gap_bytes: int = COALESCE_BYTES) -> list[tuple[int, int]]:
    """Return ascending ranges [start, end) that cover all [starts[i], starts[i] + lengths[i]). Empty ranges are left
    out, and ranges with a gap of less than `gap_bytes` are joined."""
    filled = lengths > 0
    starts, ends = starts[filled], (starts + lengths)[filled]
    order = np.argsort(starts, kind="stable")
    ranges: list[tuple[int, int]] = []
    for start, end in zip(starts[order].tolist(), ends[order].tolist(), strict=True):
        if ranges and start - ranges[-1][1] < gap_bytes:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        else:
            ranges.append((start, end))
    return ranges
