"""Batches at given offsets: rows with a column of their offsets, and batches without rows, which are gaps.

A batch has the source's leader epoch in the field of the base sequence, which it does not need: it has no producer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.errors import CorruptBatchError, MessageTooLargeError
from sparklog.format.batch import ATTRIBUTE_OFFSET_COLUMN, decode_header, encode_batch, message_of
from sparklog.format.body_layout import INFLATED_BYTES_MAX, stated_bytes
from sparklog.format.json_size import ROW_JSON_BYTES_MAX, bound_of, require_json_rows
from sparklog.format.offset_column import with_offset_column
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.kafka.records import compression
from sparklog.kafka.records.decode import NO_TIMESTAMP_MS
from sparklog.metadata.store import ENVELOPE_SCHEMA_ID
from sparklog.mirror.rules import GAP_MAX, NO_EPOCH

SPAN_MAX = 2**31 - 1
"""Largest number of offsets that one batch spans, less one."""
BYTES_MAX = 2**31 - 1


class BatchPlace(NamedTuple):
    """The offsets that a batch spans, and the facts of its source."""

    first: int
    last: int
    epoch: int
    """The source's leader epoch."""
    bounds_ms: Sequence[int]
    """Smallest and largest timestamp."""
    codec: int
    """Kafka's number of the compression."""


class PlacedWriter:
    """Writer of the batches of one topic."""

    def __init__(
        self,
        schema: pa.Schema,
        schema_id: int,
        batch_bytes_max: int = BYTES_MAX,
        inflated_bytes_max: int = INFLATED_BYTES_MAX,
    ) -> None:
        """`batch_bytes_max`, `inflated_bytes_max`: limits of the topic, above which batches are split."""
        self.schema = schema
        self._schema_id = schema_id
        self._batch_bytes_max = batch_bytes_max
        self._inflated_bytes_max = inflated_bytes_max
        self._with_offsets = with_offset_column(schema)

    def batch(self, rows: pa.RecordBatch, offsets: Any, place: BatchPlace) -> memoryview:
        """Return one batch. `offsets`: offset of each row, within `place`."""
        placed = pa.RecordBatch.from_arrays([*rows.columns, pa.array(offsets, pa.int64())], schema=self._with_offsets)
        return encode_batch(
            placed,
            schema_id=self._schema_id,
            min_timestamp_ms=place.bounds_ms[0],
            max_timestamp_ms=place.bounds_ms[1],
            compression=compression.STORED[place.codec],
            attributes=ATTRIBUTE_OFFSET_COLUMN | compression.STORED_ATTRIBUTES.get(place.codec, 0),
            base_sequence=max(place.epoch, NO_EPOCH),
            base_offset=place.first,
            last_offset_delta=place.last - place.first,
        )

    def split(self, rows: pa.RecordBatch, offsets: np.ndarray, place: BatchPlace) -> tuple[list[memoryview], list[int]]:
        """Return batches within the topic's limits, and the offsets of rows that exceed a limit alone: their batches
        are left out, so that the result has a hole there."""
        batch = self.batch(rows, offsets, place)
        if self._fits(batch, rows):
            return [batch], []
        if len(offsets) == 1:
            return [], [int(offsets[0])]
        half = len(offsets) // 2
        cut = int(offsets[half])
        low, too_large = self.split(rows.slice(0, half), offsets[:half], place._replace(last=cut - 1))
        high, more = self.split(rows.slice(half), offsets[half:], place._replace(first=cut))
        return low + high, too_large + more

    def _fits(self, batch: memoryview, rows: pa.RecordBatch) -> bool:
        """Return True if the broker accepts the batch."""
        header = decode_header(batch)
        message = message_of(batch, 0, header)
        stated = stated_bytes(message, batch[header.size_bytes - header.body_length_bytes :])
        if len(batch) > self._batch_bytes_max or stated > self._inflated_bytes_max:
            return False
        if bound_of(message, self._with_offsets, stated + header.body_length_bytes) > ROW_JSON_BYTES_MAX:
            try:
                require_json_rows(rows)
            except MessageTooLargeError:
                return False
        return True

    def gap(self, first: int, end: int, epoch: int) -> tuple[memoryview, ...]:
        """Return batches without rows that span the offsets [first, end). Raises CorruptBatchError for more than
        GAP_MAX."""
        if end - first > GAP_MAX:
            raise CorruptBatchError(
                f"a gap from offset {first} to {end}; at most {GAP_MAX} offsets are skipped at once"
            )
        no_rows = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in self.schema], schema=self.schema)
        batches = []
        while first < end:
            last = min(first + SPAN_MAX, end - 1)
            place = BatchPlace(first, last, epoch, (NO_TIMESTAMP_MS, NO_TIMESTAMP_MS), compression.NONE)
            batches.append(self.batch(no_rows, np.empty(0, np.int64), place))
            first = last + 1
        return tuple(batches)


ENVELOPE_WRITER = PlacedWriter(ENVELOPE_SCHEMA, ENVELOPE_SCHEMA_ID)
"""Writer of envelope topics, whose batches are as large as those of the source."""
