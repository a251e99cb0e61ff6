"""The conversion of a source's fetch answer into batches at given offsets, pure.

One batch of the source becomes one batch here, with the same offsets: each row has its offset in a column, and the
batch spans the offsets without records before it and behind its last row. Markers, records of aborted transactions and
removed records so become gaps. If the answer ends with such offsets, a batch without rows spans them, so that the log
end here reaches the source's last stable offset.

With a typed topic as the target, the values become columns (`typed.py`). Records that do not fit are gaps, too, and
rows of the topic's refused records.

The answer can be hostile. Each batch is checked before it is decoded; a decompressed batch has a limit, and only one is
in memory at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.errors import (
    CorruptBatchError,
    InvalidTimestampError,
    MessageTooLargeError,
    UnsupportedVersionError,
)
from sparklog.format.schema import ENVELOPE_SCHEMA, TIMESTAMP_TYPE, timestamp_bounds_ms
from sparklog.kafka.records import compression
from sparklog.kafka.records.batch_v2 import HEAD_BYTES, LOG_APPEND_TIME, MAGIC, BatchV2, read_head
from sparklog.kafka.records.decode import NO_TIMESTAMP_MS, TIMESTAMP_MS_MAX, decode_placed_records
from sparklog.mirror.batches import ENVELOPE_WRITER, SPAN_MAX, BatchPlace
from sparklog.mirror.rules import NO_EPOCH
from sparklog.mirror.typed import NO_REFUSALS, Refusals, TypedConversion

RECORDS_MAX = 1_000_000
OFFSET_MAX = 2**62
"""Largest offset of a record; no log gets there."""
_PREFIX = struct.Struct(">qi")
_MAGIC_AT = 16
_MARKER = struct.Struct(">hh")
_ABORT = 0
_NO_ROWS = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in ENVELOPE_SCHEMA], schema=ENVELOPE_SCHEMA)


class AbortedTransaction(NamedTuple):
    """A transaction of the source that was aborted, as the fetch answer lists it."""

    producer_id: int
    first_offset: int


class Placed(NamedTuple):
    """Batches at given offsets."""

    batches: tuple[memoryview, ...]
    next_offset: int
    """Offset after the last batch."""
    epoch: int
    """The source's leader epoch of the last batch; NO_EPOCH without a batch."""
    records: int
    """Number of records."""
    gap: int
    """Number of offsets without a record here."""
    refused: Refusals = NO_REFUSALS
    """Records that do not fit a typed topic."""

    @property
    def size_bytes(self) -> int:
        """Size of the batches in bytes."""
        return sum(map(len, self.batches))


def place(
    data: memoryview,
    position: int,
    stable: int,
    aborted: Iterable[AbortedTransaction],
    inflated_bytes_max: int,
    now_ms: int,
    typed: TypedConversion | None = None,
) -> Placed:
    """Convert the records of a partition in a fetch answer. `position`: log end here, at which the first batch begins.
    `stable`: the source's last stable offset, at which the conversion ends. `aborted`: the answer's list.
    `inflated_bytes_max`: largest decompressed size of a batch. `now_ms`: time of records without a timestamp. `typed`:
    conversion into the columns of a typed topic; None: the target is an envelope topic.

    Raises CorruptBatchError, MessageTooLargeError, InvalidRecordError, InvalidTimestampError, MalformedBatchError, and
    UnsupportedVersionError for message formats 0 and 1. The errors name the offset.
    """
    state = _Placing(position, typed)
    undecided = _AbortedProducers(aborted)
    for head, records in _whole_batches(data, position):
        if head.base_offset < 0 or head.base_offset + head.last_offset_delta > OFFSET_MAX:
            raise CorruptBatchError(
                f"the source's batch at offset {head.base_offset} spans {head.last_offset_delta + 1} offsets; offsets "
                f"are 0 to {OFFSET_MAX}"
            )
        if head.base_offset + head.last_offset_delta < position:
            continue  # the source sends whole batches, also those that begin before the position
        if head.base_offset < state.next_offset and state.next_offset != position:
            raise CorruptBatchError(
                f"the source's batch at offset {head.base_offset} follows one that ends at {state.next_offset}"
            )
        if head.base_offset + head.last_offset_delta >= stable:
            break
        if undecided.drops(head, records):
            state.skip(head)
            continue
        rows, offsets = _rows(head, records, inflated_bytes_max)
        kept = offsets >= position
        if not kept.all():
            rows, offsets = rows.filter(pa.array(kept)), offsets[kept]
        state.add(head, rows, offsets, now_ms)
        if typed is not None and typed.has_stopped:
            break
    return state.finish()


class _Placing:
    """The batches so far. Offsets without a record wait for the next batch with rows, which spans them."""

    def __init__(self, position: int, typed: TypedConversion | None) -> None:
        self.next_offset = position
        self._typed = typed
        self._writer = ENVELOPE_WRITER if typed is None else typed.writer
        self._written = position
        """End of the batches; the offsets up to `next_offset` wait."""
        self._epoch = NO_EPOCH
        self._batches: list[memoryview] = []
        self._records = 0
        self._first = position

    def skip(self, head: BatchV2) -> None:
        self._skip_to(head.base_offset + head.last_offset_delta + 1, head.leader_epoch)

    def _skip_to(self, end: int, epoch: int) -> None:
        self.next_offset, self._epoch = end, epoch

    def add(self, head: BatchV2, rows: pa.RecordBatch, offsets: Any, now_ms: int) -> None:
        if not len(offsets):
            self.skip(head)
            return
        last = head.base_offset + head.last_offset_delta
        if last - self._written > SPAN_MAX:
            self._batches += self._writer.gap(self._written, head.base_offset, head.leader_epoch)
            self._written = head.base_offset
        bounds = timestamp_bounds_ms(rows.column(3), now_ms)
        place = BatchPlace(self._written, last, head.leader_epoch, bounds, head.codec)
        if self._typed is None:
            batches, count = [self._writer.batch(rows, offsets, place)], len(offsets)
        else:
            batches, count, last = self._typed.convert(rows, offsets, place)
        if batches:
            self._batches += batches
            self._records += count
            self._written = last + 1
        if last >= self.next_offset:
            self._skip_to(last + 1, head.leader_epoch)

    def finish(self) -> Placed:
        self._batches += self._writer.gap(self._written, self.next_offset, self._epoch)
        gap = self.next_offset - self._first - self._records
        refused = NO_REFUSALS if self._typed is None else self._typed.refusals(self.next_offset, self._epoch)
        return Placed(tuple(self._batches), self.next_offset, self._epoch, self._records, gap, refused)


class _AbortedProducers:
    """The producers whose records are dropped, as the batches of an answer pass by, in the order of their offsets."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._producers: set[int] = set()

    def drops(self, head: BatchV2, records: memoryview) -> bool:
        """Return True if the batch is a marker, or belongs to an aborted transaction. Raises CorruptBatchError."""
        while self._waiting and self._waiting[-1].first_offset <= head.base_offset + head.last_offset_delta:
            self._producers.add(self._waiting.pop().producer_id)
        if head.is_control:
            if _is_abort(head, records):
                self._producers.discard(head.producer_id)
            return True
        return head.is_transactional and head.producer_id in self._producers


def _is_abort(head: BatchV2, records: memoryview) -> bool:
    """Return True if the control batch is the marker of an aborted transaction. Other control batches are passed
    over."""
    if head.codec != compression.NONE or head.record_count < 1:
        return False
    rows, _ = decode_placed_records(records, head.record_count, head.base_timestamp_ms)
    key = rows.column(0)[0].as_py() or b""
    return len(key) >= _MARKER.size and _MARKER.unpack_from(key)[1] == _ABORT


def _whole_batches(data: memoryview, position: int) -> Iterator[tuple[BatchV2, memoryview]]:
    """Yield the head and the records of each batch in `data`; a last batch that the answer cuts is left out."""
    at = 0
    while len(data) - at >= HEAD_BYTES:
        base_offset, length = _PREFIX.unpack_from(data, at)
        if data[at + _MAGIC_AT] != MAGIC:
            raise UnsupportedVersionError(
                f"the records at offset {base_offset} have message format {data[at + _MAGIC_AT]}, from before Kafka "
                "0.11: copy the topic at the source with a current producer, or begin the mirror behind them"
            )
        if 0 <= length <= SPAN_MAX and at + _PREFIX.size + length > len(data):
            break
        head = read_head(data, at)
        yield head, data[at + HEAD_BYTES : at + head.size_bytes]
        at += head.size_bytes
    if not at and len(data):
        raise MessageTooLargeError(f"the batch at offset {position} is longer than the source's answer")


def _rows(head: BatchV2, records: memoryview, inflated_bytes_max: int) -> tuple[pa.RecordBatch, Any]:
    """Return the rows and their offsets. Raises CorruptBatchError and errors of records."""
    where = f"the source's batch at offset {head.base_offset}"
    if head.record_count > RECORDS_MAX or head.record_count > head.last_offset_delta + 1:
        raise CorruptBatchError(f"{where} states {head.record_count} records in {head.last_offset_delta + 1} offsets")
    if not head.record_count:
        return _NO_ROWS, np.empty(0, np.int64)
    raw: Any = records
    if head.codec != compression.NONE:
        raw = compression.decompress(head.codec, records, inflated_bytes_max)
    elif len(records) > inflated_bytes_max:
        raise MessageTooLargeError(f"{where} has {len(records)} bytes; at most {inflated_bytes_max} are allowed")
    rows, deltas = decode_placed_records(raw, head.record_count, head.base_timestamp_ms)
    if deltas[0] < 0 or deltas[-1] > head.last_offset_delta or not (deltas[1:] > deltas[:-1]).all():
        raise CorruptBatchError(f"{where}: the offsets of its records do not ascend within the batch")
    if head.attributes & LOG_APPEND_TIME:
        if not NO_TIMESTAMP_MS <= head.max_timestamp_ms <= TIMESTAMP_MS_MAX:
            raise InvalidTimestampError(
                f"{where} has the append time {head.max_timestamp_ms} ms; at most {TIMESTAMP_MS_MAX} ms are allowed"
            )
        rows = rows.set_column(3, ENVELOPE_SCHEMA.field(3), _same_times(head.max_timestamp_ms, head.record_count))
    return rows, deltas + head.base_offset


def _same_times(timestamp_ms: int, count: int) -> pa.Array:
    if timestamp_ms == NO_TIMESTAMP_MS:
        return pa.nulls(count, TIMESTAMP_TYPE)
    return pa.array(np.full(count, timestamp_ms * 1000, np.int64), pa.int64()).cast(TIMESTAMP_TYPE)
