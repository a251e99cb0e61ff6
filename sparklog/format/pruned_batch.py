"""Batches with some of their columns, for readers that need no others.

A pruned batch is a batch as `batch.py` describes it: prefix, metadata with the log's header, body. Its body has the
buffers of some columns, in their order; the buffers of other columns have the length 0. The header's fields
`body_length_bytes` and `crc32c` are those of the pruned batch, and its other fields those of the whole batch. So a
reader checks and decodes a pruned batch as a whole one, provided that it decodes no other column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.format.batch import (
    ATTRIBUTE_OFFSET_COLUMN,
    PREFIX_BYTES,
    BatchHeader,
    ProducerFields,
    message_of,
    stamp_batch,
    write_fields_of_parts,
)
from sparklog.format.body_layout import layout_of_schema
from sparklog.format.flat import replace_buffers
from sparklog.format.offset_column import with_offset_column

SAVED_SHARE_MIN = 8
"""A batch stays whole if less than 1 / SAVED_SHARE_MIN of it would be left out."""


class PrunedBatch(NamedTuple):
    """A pruned batch in parts."""

    head: bytes
    """Prefix and metadata."""
    ranges: tuple[tuple[int, int], ...]
    """The body: ranges [start, end) of the whole batch, ascending."""

    @property
    def size_bytes(self) -> int:
        return len(self.head) + sum(end - start for start, end in self.ranges)


def prune_batch(data: memoryview, header: BatchHeader, schema: pa.Schema, columns: Sequence[int]) -> PrunedBatch | None:
    """Return the one batch in `data` with the columns of these indexes, ascending; None if hardly anything would be
    left out, or if the reader needs the other columns' bytes to find the number of rows sound (`BodyLayout.check`). The
    batch's checksum has been verified. `schema`: that of the batch, without the column of offsets, which is always
    kept. Raises CorruptBatchError."""
    indexes = list(columns)
    if header.attributes & ATTRIBUTE_OFFSET_COLUMN:
        indexes.append(len(schema))
        schema = with_offset_column(schema)
    message = message_of(data, 0, header)
    layout = layout_of_schema(schema)
    layout.check(message, None)
    kept = layout.buffers_of(indexes)
    kept = kept[message.buffers[kept, 1] > 0]
    padded = (message.buffers[kept, 1] + 7) & -8
    body_bytes = int(padded.sum())
    if (header.body_length_bytes - body_bytes) * SAVED_SHARE_MIN < header.size_bytes:
        return None
    if message.compression == "none" and layout.is_longer_than_allowed(message.nodes, indexes, body_bytes):
        return None
    head_bytes = PREFIX_BYTES + header.metadata_length_bytes
    buffers = np.zeros_like(message.buffers)
    buffers[kept, 0] = np.cumsum(padded) - padded
    buffers[kept, 1] = message.buffers[kept, 1]
    ranges = _joined(message.buffers[kept, 0] + head_bytes, padded)
    head = memoryview(bytearray(data[:head_bytes]))
    replace_buffers(head[PREFIX_BYTES:], buffers, body_bytes)
    fields = ProducerFields._make(header[4:14])._replace(body_length_bytes=body_bytes)
    parts = [data[start:end] for start, end in ranges]
    crc = write_fields_of_parts(head, header.stamp_position, fields, parts)
    stamp_batch(
        head,
        0,
        header._replace(crc=crc),
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        append_time_ms=header.append_time_ms,
    )
    return PrunedBatch(bytes(head), tuple(ranges))


def _joined(starts: np.ndarray, lengths: np.ndarray) -> list[tuple[int, int]]:
    """Return the ranges with adjacent ones joined."""
    ranges: list[tuple[int, int]] = []
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        if ranges and ranges[-1][1] == start:
            ranges[-1] = ranges[-1][0], start + length
        else:
            ranges.append((start, start + length))
    return ranges
