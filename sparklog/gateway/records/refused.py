"""The records of a client's batch that a typed topic refuses, as rows of its refused topic. Pure.

The producer has counted the refused records: they have sequence numbers and offsets. So the stored batch spans all
offsets of the client's batch. Its rows come first, and the offsets behind them are a gap. The refused records have the
offsets of the gap, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import MessageTooLargeError
from sparklog.format.batch import ATTRIBUTE_LOG_APPEND_TIME, encode_batch
from sparklog.kafka.records.varints import Array
from sparklog.metadata.refused_topics import REASON_CHARS_MAX, REFUSED_SCHEMA, refused_topic
from sparklog.protocol.refused_messages import STORED_BYTES_MAX
from sparklog.settings import MIB

PIECE_BYTES = MIB
"""Size of refused records in bytes after which the next ones are in another batch."""
RECORD_BYTES_MAX = STORED_BYTES_MAX - MIB
"""Largest refused record in bytes. The rest of a request is for the reason and the batch's form."""
COMPRESSION = "zstd"


class RefusedRecords(NamedTuple):
    """The refused records of one batch."""

    records: pa.RecordBatch
    """Rows of an envelope topic."""
    reasons: list[str]
    first_delta: int
    """Offset of the first record, as a distance from the batch's first offset."""

    @property
    def size_bytes(self) -> int:
        return int(self.records.nbytes) + sum(map(len, self.reasons))


class ConvertedBatch(NamedTuple):
    """A batch in the broker's format."""

    payload: memoryview
    offsets: int
    """Number of offsets that the batch spans."""
    refused: RefusedRecords | None = None
    """Records that are not in the batch."""

    @property
    def size_bytes(self) -> int:
        return len(self.payload) + (0 if self.refused is None else self.refused.size_bytes)


class RefusedPlace(NamedTuple):
    """The place of a client's batch in the log, and the form of the refused topic's batches."""

    partition: int
    base_offset: int
    client_id: str
    schema_id: int
    has_append_time: bool
    now_ms: int


def refused_records(topic: str, records: pa.RecordBatch, reasons: dict[int, str]) -> RefusedRecords:
    """Return the refused records of a batch. `reasons`: reason by the index of the record, ascending. Raises
    MessageTooLargeError: One is too large for the refused topic."""
    chosen = records.take(pa.array(list(reasons), pa.int64()))
    sizes = _sizes(chosen)
    if sizes.max() > RECORD_BYTES_MAX:
        at = int(sizes.argmax())
        index, reason = list(reasons.items())[at]
        raise MessageTooLargeError(
            f"record {index} does not fit the topic {topic!r} ({reason:.{REASON_CHARS_MAX}}), and has {sizes[at]} bytes; "
            f"at most {RECORD_BYTES_MAX} bytes can go to {refused_topic(topic)!r}: send smaller records"
        )
    texts = [reason[:REASON_CHARS_MAX] for reason in reasons.values()]
    return RefusedRecords(chosen, texts, records.num_rows - len(texts))


def refused_topic_batches(refused: RefusedRecords, place: RefusedPlace) -> Iterator[bytes]:
    """Yield batches for the refused topic."""
    sizes = _sizes(refused.records) + [len(reason) for reason in refused.reasons]
    piece = (np.cumsum(sizes) - sizes) // PIECE_BYTES
    starts = [*np.flatnonzero(np.diff(piece, prepend=-1)).tolist(), len(sizes)]
    for first, end in pairwise(starts):
        yield _encoded(refused, place, first, end)


def _encoded(refused: RefusedRecords, place: RefusedPlace, first: int, end: int) -> bytes:
    count = end - first
    offset = place.base_offset + refused.first_delta + first
    columns = [
        pa.array(np.full(count, place.partition, np.int32)),
        pa.array(np.arange(offset, offset + count)),
        *refused.records.slice(first, count).columns,
        pa.array(refused.reasons[first:end], pa.string()),
        pa.array([place.client_id] * count, pa.string()),
        pa.nulls(count, pa.int64()),
    ]
    batch = encode_batch(
        pa.RecordBatch.from_arrays(columns, schema=REFUSED_SCHEMA),
        schema_id=place.schema_id,
        min_timestamp_ms=place.now_ms,
        max_timestamp_ms=place.now_ms,
        compression=COMPRESSION,
        attributes=ATTRIBUTE_LOG_APPEND_TIME if place.has_append_time else 0,
    )
    return bytes(batch)


def _sizes(records: pa.RecordBatch) -> Array:
    """Return the bytes of keys, values and headers of each record, int64."""
    headers = records.column(2)
    sizes: Array = _lengths(records.column(0)) + _lengths(records.column(1))
    entries = headers.flatten()
    np.add.at(
        sizes,
        np.asarray(pc.list_parent_indices(headers)),
        _lengths(entries.field(0)) + _lengths(entries.field(1)),
    )
    return sizes


def _lengths(column: Any) -> Array:
    return np.asarray(pc.fill_null(pc.binary_length(column), 0)).astype(np.int64)
