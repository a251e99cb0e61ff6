"""The conversion of a sparklog cluster's fetch answer into batches at given offsets, pure.

A batch travels as it lies: its columns are neither decoded nor compressed again. Only its header changes: the producer
and the transaction are left out, the schema's id becomes that of the equal schema here, and the source's leader epoch
takes the place of the base sequence. So the checksum is computed again, after that of the source was verified.

Markers and batches of aborted transactions become batches without rows. A batch is decoded and written again in two
cases: it begins below the log end here, or it was compacted and has a delete horizon in place of its smallest
timestamp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.errors import CorruptBatchError, LeaderNotAvailableError
from sparklog.format.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_GZIP,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_OFFSET_COLUMN,
    ATTRIBUTE_SNAPPY,
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
    ProducerFields,
    encode_batch,
    iterate_batches,
    stamp_batch,
    write_producer_fields,
)
from sparklog.format.envelope_layout import is_envelope
from sparklog.format.offset_column import decode_rows, row_offsets, with_offset_column
from sparklog.format.packed_batch import compression_of_batch
from sparklog.format.schema import timestamp_bounds_ms
from sparklog.mirror.batches import SPAN_MAX
from sparklog.mirror.placing import OFFSET_MAX, Placed
from sparklog.mirror.rules import GAP_MAX, NO_EPOCH
from sparklog.mirror.source import ConversionTarget

_KEPT_ATTRIBUTES = ATTRIBUTE_OFFSET_COLUMN | ATTRIBUTE_LOG_APPEND_TIME | ATTRIBUTE_GZIP | ATTRIBUTE_SNAPPY


class AbortedBatches(NamedTuple):
    """An aborted transaction: the transactional batches of a producer that begin at `first` to `last`."""

    producer_id: int
    first: int
    last: int


class SourceBatches(NamedTuple):
    """The batches of a partition in a fetch answer of a sparklog cluster."""

    data: memoryview
    stable: int
    """The source's last stable offset, at which the conversion ends."""
    aborted: tuple[AbortedBatches, ...]
    schemas: Mapping[int, pa.Schema]
    """Schemas of the source's topic by id."""
    timestamp_column: str | None
    """Column with the event time of a typed topic's rows."""

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def place(self, position: int, target: ConversionTarget) -> Placed:
        """Return the batches from `position`, the log end here, on. Raises CorruptBatchError for an answer that
        contradicts itself; LeaderNotAvailableError for a schema that the source's or the own metadata do not have
        yet."""
        state = _Copying(position, self, target)
        for at, header in iterate_batches(self.data):
            if header.last_offset < position:
                continue  # the source sends whole batches, also those that end before the position
            state.check(header)
            if header.last_offset >= self.stable:
                break
            state.add(header, self.data[at : at + header.size_bytes])
        return state.placed()


class _Copying:
    """The batches so far."""

    def __init__(self, position: int, source: SourceBatches, target: ConversionTarget) -> None:
        self._position = position
        self._source = source
        self._target = target
        self._next_offset = position
        self._epoch = NO_EPOCH
        self._batches: list[memoryview] = []
        self._records = 0
        self._aborted: dict[int, list[AbortedBatches]] = {}
        for one in source.aborted:
            self._aborted.setdefault(one.producer_id, []).append(one)
        self._ids: dict[int, int] = {}

    def check(self, header: BatchHeader) -> None:
        """Raise CorruptBatchError for a batch that cannot follow."""
        if header.last_offset > OFFSET_MAX:
            raise CorruptBatchError(
                f"the source's batch ends at offset {header.last_offset}, at most {OFFSET_MAX} exist"
            )
        if header.base_offset < self._next_offset and self._next_offset != self._position:
            raise CorruptBatchError(
                f"the source's batch at offset {header.base_offset} follows one that ends at {self._next_offset}"
            )

    def add(self, header: BatchHeader, data: memoryview) -> None:
        schema_id = self._id_here(header.schema_id)
        self._skip_to(header.base_offset, schema_id, header.leader_epoch)
        if self._is_dropped(header):
            self._skip_to(header.next_offset, schema_id, header.leader_epoch)
            return
        if header.base_offset < self._position or header.attributes & ATTRIBUTE_DELETE_HORIZON:
            count, batch = self._written_again(header, data, schema_id)
        else:
            count, batch = header.record_count, _with_header(header, data, schema_id)
        self._batches.append(batch)
        self._records += count
        self._next_offset, self._epoch = header.next_offset, header.leader_epoch

    def placed(self) -> Placed:
        gap = self._next_offset - self._position - self._records
        return Placed(tuple(self._batches), self._next_offset, self._epoch, self._records, gap)

    def _is_dropped(self, header: BatchHeader) -> bool:
        """Return True for a marker, and for a batch of an aborted transaction."""
        if header.attributes & ATTRIBUTE_CONTROL:
            return True
        return bool(header.attributes & ATTRIBUTE_TRANSACTIONAL) and any(
            one.first <= header.base_offset <= one.last for one in self._aborted.get(header.producer_id, ())
        )

    def _id_here(self, source_id: int) -> int:
        """Return the id of the equal schema here. Raises LeaderNotAvailableError."""
        if source_id not in self._ids:
            schema = self._source.schemas.get(source_id)
            found = [
                number for number, one in self._target.schemas.items() if schema is not None and one.equals(schema)
            ]
            if not found:
                raise LeaderNotAvailableError(
                    f"the records have schema {source_id} of the source, which the topic here gets soon"
                )
            self._ids[source_id] = found[0]
        return self._ids[source_id]

    def _skip_to(self, end: int, schema_id: int, epoch: int) -> None:
        """Add batches without rows up to offset `end`."""
        if end - self._next_offset > GAP_MAX:
            raise CorruptBatchError(
                f"a gap from offset {self._next_offset} to {end}; at most {GAP_MAX} offsets are skipped at once"
            )
        while self._next_offset < end:
            last = min(self._next_offset + SPAN_MAX, end - 1)
            self._batches.append(gap_batch(self._target.schemas[schema_id], schema_id, self._next_offset, last, epoch))
            self._next_offset, self._epoch = last + 1, epoch

    def _written_again(self, header: BatchHeader, data: memoryview, schema_id: int) -> tuple[int, memoryview]:
        """Return the number of rows and the batch with the rows from the position on. Raises CorruptBatchError."""
        schema = self._target.schemas[schema_id]
        rows, offsets = decode_rows(data, schema, header, inflated_bytes_max=self._target.inflated_bytes_max)
        numbers = row_offsets(header, offsets)
        if header.base_offset < self._position:
            first = int(np.searchsorted(numbers, self._position))
            rows, numbers = rows.slice(first), numbers[first:]
        placed = pa.RecordBatch.from_arrays(
            [*rows.columns, pa.array(numbers, pa.int64())], schema=with_offset_column(schema)
        )
        base_offset = max(header.base_offset, self._position)
        return len(numbers), encode_batch(
            placed,
            schema_id=schema_id,
            min_timestamp_ms=self._smallest_time_ms(header, rows),
            max_timestamp_ms=header.max_timestamp_ms,
            compression=compression_of_batch(data),
            attributes=ATTRIBUTE_OFFSET_COLUMN | (header.attributes & _KEPT_ATTRIBUTES),
            base_sequence=header.leader_epoch,
            base_offset=base_offset,
            append_time_ms=header.append_time_ms,
            last_offset_delta=header.last_offset - base_offset,
        )

    def _smallest_time_ms(self, header: BatchHeader, rows: pa.RecordBatch) -> int:
        name = "timestamp" if is_envelope(rows.schema) else self._source.timestamp_column
        if name not in rows.schema.names or not rows.num_rows:
            return header.max_timestamp_ms
        low_ms, _ = timestamp_bounds_ms(rows.column(name), header.max_timestamp_ms)
        return min(low_ms, header.max_timestamp_ms)


def gap_batch(schema: pa.Schema, schema_id: int, first: int, last: int, epoch: int) -> memoryview:
    """Return a batch without rows that spans the offsets `first` to `last`. Like a marker it has no column of offsets,
    so that it stands in one segment with the batches around it."""
    return encode_batch(
        pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema),
        schema_id=schema_id,
        min_timestamp_ms=-1,
        max_timestamp_ms=-1,
        base_sequence=epoch,
        base_offset=first,
        last_offset_delta=last - first,
    )


def _with_header(header: BatchHeader, data: memoryview, schema_id: int) -> memoryview:
    """Return a copy of the batch with the header of a mirrored one."""
    copy = memoryview(bytearray(data))
    fields = ProducerFields(
        header.attributes & _KEPT_ATTRIBUTES,
        schema_id,
        header.record_count,
        header.last_offset_delta,
        header.min_timestamp_ms,
        header.max_timestamp_ms,
        -1,
        -1,
        header.leader_epoch,
        header.body_length_bytes,
    )
    crc = write_producer_fields(copy, header.stamp_position, fields)
    stamp_batch(
        copy,
        0,
        header._replace(crc=crc),
        base_offset=header.base_offset,
        leader_epoch=0,
        append_time_ms=header.append_time_ms,
    )
    return copy
