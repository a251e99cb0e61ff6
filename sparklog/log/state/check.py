"""Checks of batches before an append, and the choice of their segment. The only side effect is the stamp, which is
written into the batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa

from sparklog.errors import (
    CorruptBatchError,
    InvalidRequestError,
    InvalidTimestampError,
    MessageTooLargeError,
    UnknownSchemaError,
)
from sparklog.format.batch import (
    ATTRIBUTE_GZIP,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_OFFSET_COLUMN,
    ATTRIBUTE_SNAPPY,
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
    decode_header,
    iterate_batches,
    message_of,
    stamp_batch,
    verify_checksum,
)
from sparklog.format.body_layout import INFLATED_BYTES_MAX, InflatedSizeError, stated_bytes
from sparklog.format.envelope_layout import I64, template
from sparklog.format.offset_column import check_new_rows
from sparklog.format.offset_index import RELATIVE_OFFSET_MAX
from sparklog.format.producer_snapshot import ProducedBatch
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.log.model.log_config import AppendInfo, LogConfig
from sparklog.log.segments.batch_times import roll_time_ms
from sparklog.log.segments.segment import LogSegment, PlacedBatch
from sparklog.log.segments.stored_schema import SchemaOf

NO_PRODUCER = (-1, -1, -1)
INFLATED_PER_WRITTEN = 4
"""Number of bytes whose decompression and check take about as long as writing one byte to the operating system's
memory."""
APPEND_TIME_MS_MAX = (2**63 - 1) // 1000
"""Largest append time that is a timestamp in µs, too."""
GAP_OFFSETS_MAX = 1_000_000
"""Largest number of offsets that a batch with a gap spans: the records of a batch of Kafka's clients."""
_ALLOWED_ATTRIBUTES = ATTRIBUTE_LOG_APPEND_TIME | ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_GZIP | ATTRIBUTE_SNAPPY
_PLACED_ATTRIBUTES = ATTRIBUTE_OFFSET_COLUMN | ATTRIBUTE_LOG_APPEND_TIME | ATTRIBUTE_GZIP | ATTRIBUTE_SNAPPY


def check_payload(
    view: memoryview,
    config: LogConfig,
    schema_of: SchemaOf,
    now_ms: int,
    inflated: InflatedMemory,
    *,
    internal: bool = False,
    converted: bool = False,
) -> list[tuple[int, BatchHeader]]:
    """Check that each of the batches that fill `view` is allowed in the log, and that readers can decode it; return
    (position, header) of the batches. `inflated`: budget for the memory of decompressed batches. `internal`: the broker
    has encoded the batches, so size and content are not checked, and a producer can leave out sequence numbers.
    `converted`: the gateway has converted the batches from Kafka's format and has compared their size there with
    `max.message.bytes`, so only their decompressed size is checked. They can end in a gap, the offsets of records that
    the gateway has refused; without rows they are a gap.

    Raises CorruptBatchError, MessageTooLargeError, UnknownSchemaError, InvalidTimestampError, InvalidRequestError.
    """
    batches = []
    for position, header in iterate_batches(view, verify=False):
        verify_checksum(view, position, header)
        if header.size_bytes > config.max_message_bytes and not internal and not converted:
            raise MessageTooLargeError(
                f"a batch of {header.size_bytes} bytes; the topic's max.message.bytes is {config.max_message_bytes}: "
                f"send smaller batches (batch.size.bytes) or raise it"
            )
        _check_header(header, config, internal=internal)
        _check_span(header, may_end_in_gap=converted)
        _check_timestamp(header, config, now_ms)
        schema = _schema_for(header, schema_of)
        if not internal:
            _check_rows(view, position, header, schema, config, inflated)
        batches.append((position, header))
    if not batches:
        raise InvalidRequestError("the append has no batch")
    return batches


def check_placed(
    view: memoryview, config: LogConfig, schema_of: SchemaOf, inflated: InflatedMemory, base_offset: int
) -> list[tuple[int, BatchHeader]]:
    """Check that the batches that fill `view` have offsets of their own, which follow `base_offset` without a hole
    between batches, and that readers can decode them; return (position, header) of the batches. Their sizes and
    timestamps are those of records that another log has accepted, so only the decompressed sizes are checked.

    Raises CorruptBatchError, MessageTooLargeError, UnknownSchemaError, InvalidRequestError.
    """
    batches = []
    for position, header in iterate_batches(view, verify=False):
        verify_checksum(view, position, header)
        _check_placed_header(header, base_offset)
        _check_rows(view, position, header, _schema_for(header, schema_of), config, inflated)
        batches.append((position, header))
        base_offset = header.next_offset
    if not batches:
        raise InvalidRequestError("the append has no batch")
    return batches


def _check_placed_header(header: BatchHeader, base_offset: int) -> None:
    if header.attributes & ~_PLACED_ATTRIBUTES:
        raise InvalidRequestError(f"a batch at given offsets cannot have attributes {header.attributes:#x}")
    if not header.attributes & ATTRIBUTE_OFFSET_COLUMN and not (header.is_dense or header.record_count == 0):
        raise InvalidRequestError(
            f"a batch of {header.record_count} records without a column of offsets spans "
            f"{header.last_offset_delta + 1} offsets"
        )
    if header.base_offset != base_offset:
        raise InvalidRequestError(
            f"a batch at given offsets begins at {header.base_offset}, the offset before it is {base_offset - 1}"
        )
    if header.last_offset_delta < 0:
        raise InvalidRequestError("a batch at given offsets spans no offset")
    if (header.producer_id, header.producer_epoch) != (-1, -1) or header.base_sequence < -1:
        raise InvalidRequestError(f"a batch at given offsets has no producer, but producer id {header.producer_id}")
    if header.min_timestamp_ms > header.max_timestamp_ms:
        raise InvalidRequestError(
            f"a batch whose smallest timestamp {header.min_timestamp_ms} is above its largest {header.max_timestamp_ms}"
        )
    if header.attributes & ATTRIBUTE_LOG_APPEND_TIME and not 0 <= header.append_time_ms <= APPEND_TIME_MS_MAX:
        raise InvalidRequestError(
            f"a batch at given offsets has the append time {header.append_time_ms} ms; at most {APPEND_TIME_MS_MAX} ms are "
            "allowed"
        )


def _schema_for(header: BatchHeader, schema_of: SchemaOf) -> pa.Schema:
    try:
        return schema_of(header.schema_id)
    except KeyError as e:
        raise UnknownSchemaError(
            f"the topic has no schema {header.schema_id}: it was changed, or deleted and created again, after the "
            "client read its metadata; send the records again"
        ) from e


def work_bytes(payload: memoryview) -> int:
    """Estimate the work of checking and appending the batches that fill `payload`, in written bytes. A batch counts
    with its size, or with 1 / INFLATED_PER_WRITTEN of its stated decompressed size if this is more. If the payload is
    damaged, the result is at least its length."""
    form = template("none")
    position = size = 0
    try:
        while position < len(payload):
            head = bytes(payload[position : position + len(form.head)])
            if form.fits(head):  # most small batches
                total_bytes = len(head) + max(I64.unpack_from(head, form.layout.body_length)[0], 0)
                stated = 0
            else:
                header = decode_header(payload, position)
                message = message_of(payload, position, header)
                total_bytes = header.size_bytes
                body = payload[position + total_bytes - header.body_length_bytes : position + total_bytes]
                stated = stated_bytes(message, body)
            position += total_bytes
            size += max(total_bytes, stated // INFLATED_PER_WRITTEN)
    except CorruptBatchError:
        return max(size, len(payload))
    return size


def _check_rows(
    view: memoryview,
    position: int,
    header: BatchHeader,
    schema: pa.Schema,
    config: LogConfig,
    inflated: InflatedMemory,
) -> None:
    bytes_max = inflated.batch_bytes_max(config.inflated_bytes_max)
    try:
        check_new_rows(view, position, header, schema, bytes_max, inflated.hold)
    except InflatedSizeError as e:
        bound = (
            "the topic's max.message.bytes times max.message.inflated.ratio"
            if bytes_max == config.inflated_bytes_max
            else f"the broker's queued.max.inflated.bytes, never more than {INFLATED_BYTES_MAX}"
        )
        raise MessageTooLargeError(
            f"a batch of {header.size_bytes} bytes: {e} ({bound}): send smaller batches (batch.size.bytes) or raise it"
        ) from e
    except CorruptBatchError as e:
        raise CorruptBatchError(f"a batch of {header.record_count} records does not fit the topic's schema: {e}") from e


def _check_timestamp(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    ahead_ms = header.max_timestamp_ms - now_ms
    if ahead_ms > config.timestamp_after_max_ms and not config.log_append_time:
        raise InvalidTimestampError(
            f"a record's timestamp {header.max_timestamp_ms} is {ahead_ms} ms ahead of the broker's clock, the topic's "
            f"message.timestamp.after.max.ms is {config.timestamp_after_max_ms}: correct the clock or the timestamp, "
            "or raise the setting"
        )


def _check_header(header: BatchHeader, config: LogConfig, *, internal: bool) -> None:
    if header.attributes & ~_ALLOWED_ATTRIBUTES:
        raise InvalidRequestError(f"a client cannot append a batch with attributes {header.attributes:#x}")
    if bool(header.attributes & ATTRIBUTE_LOG_APPEND_TIME) != config.log_append_time:
        expected = "LogAppendTime" if config.log_append_time else "CreateTime"
        raise InvalidRequestError(f"the topic's message.timestamp.type is {expected}, but the batch has the other type")
    if header.min_timestamp_ms > header.max_timestamp_ms:
        raise InvalidRequestError(
            f"a batch whose smallest timestamp {header.min_timestamp_ms} is above its largest {header.max_timestamp_ms}"
        )
    producer = header.producer_id, header.producer_epoch, header.base_sequence
    if producer != NO_PRODUCER and min(producer[: 2 if internal else 3]) < 0:
        raise InvalidRequestError(
            f"a batch with a producer id needs an epoch and a sequence number, but has {producer}"
        )
    if header.producer_id < 0 and header.attributes & ATTRIBUTE_TRANSACTIONAL:
        raise InvalidRequestError("a transactional batch needs a producer id")


def _check_span(header: BatchHeader, *, may_end_in_gap: bool) -> None:
    """Check that a batch spans as many offsets as it has records. `may_end_in_gap`: it can span more, for refused
    records, which the producer has counted. Raises InvalidRequestError."""
    records, offsets = header.record_count, header.last_offset_delta + 1
    if may_end_in_gap and 0 <= records <= offsets and 1 <= offsets <= GAP_OFFSETS_MAX:
        return
    if records < 1 or offsets != records:
        raise InvalidRequestError(f"a batch of {records} records cannot have last offset delta {offsets - 1}")


def without_repeated(
    view: memoryview, batches: Sequence[tuple[int, BatchHeader]], originals: Sequence[ProducedBatch | None]
) -> tuple[memoryview, list[tuple[int, BatchHeader]]]:
    """Return the payload without the batches that the log has already, and (position, header) of the remaining batches.

    `originals`: for each batch, its first append; None for a new batch."""
    kept, new = [], bytearray()
    for (position, header), original in zip(batches, originals, strict=True):
        if original is None:
            kept.append((len(new), header))
            new += view[position : position + header.size_bytes]
    return memoryview(new), kept


def with_repeated(
    appended: AppendInfo | None, batches: Sequence[PlacedBatch], originals: Sequence[ProducedBatch | None]
) -> AppendInfo:
    """Return the result for a payload of repeated and new batches. A repeated batch counts with the offsets of its
    first append (`originals`). `appended` and `batches`: the result and the batches of the append of the new batches;
    None and empty if all batches are repeated."""
    new = iter(batches)
    bounds, times = [], []
    for original in originals:
        header = next(new).header if original is None else None
        if header is not None:
            bounds.append((header.base_offset, header.last_offset))
        elif original is not None:
            bounds.append((original.base_offset, original.last_offset))
            times.append(original.append_time_ms)
    dense = all(a[1] + 1 == b[0] for a, b in pairwise(bounds))
    return AppendInfo(
        bounds[0][0],
        max(last for _, last in bounds),
        times[-1] if appended is None else appended.append_time_ms,
        0 if appended is None else appended.batch_count,
        0 if appended is None else appended.record_count,
        () if dense else tuple(base for base, _ in bounds),
        appended is None,
        0 if appended is None else appended.size_bytes,
    )


def stamp_payload(
    view: memoryview,
    batches: Sequence[tuple[int, BatchHeader]],
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int,
    *,
    keeps_times: bool = False,
) -> list[PlacedBatch]:
    """Stamp the batches with consecutive offsets from `base_offset` on, and return their headers with the stamps.
    `keeps_times`: True to leave the append times that are the timestamps of a batch's records."""
    placed = []
    for position, header in batches:
        is_kept = keeps_times and header.attributes & ATTRIBUTE_LOG_APPEND_TIME
        time_ms = header.append_time_ms if is_kept else append_time_ms
        stamp_batch(view, position, header, base_offset=base_offset, leader_epoch=leader_epoch, append_time_ms=time_ms)
        stamped = header._replace(base_offset=base_offset, leader_epoch=leader_epoch, append_time_ms=time_ms)
        placed.append(PlacedBatch(position, stamped))
        base_offset = stamped.next_offset
    return placed


def fits(
    segment: LogSegment,
    header: BatchHeader,
    pending_bytes: int,
    config: LogConfig,
    first_timestamp_ms: int | None = None,
) -> bool:
    """Return True if a batch can be appended to `segment`, after `pending_bytes` of batches that are not yet written;
    False if it needs a new segment.

    A batch needs a new segment in these cases: its schema is another; only one of the segment and the batch is
    compacted; the segment has gaps of a repair; `segment.bytes` would be exceeded; the batch is more than `segment.ms`
    newer than the segment's first batch (`first_timestamp_ms` if the first batch is not yet written); the index is
    full; the batch's offset is too far from the segment's for the index. A batch larger than `segment.bytes` gets a
    segment of its own.
    """
    is_compacted = bool(header.attributes & ATTRIBUTE_OFFSET_COLUMN)
    if segment.compacted != is_compacted or segment.has_gaps or header.schema_id != segment.info.schema_id:
        return False
    if not segment.data_bytes and not pending_bytes:
        return True
    if segment.end.position + pending_bytes + header.size_bytes > config.segment_bytes:
        return False
    first = segment.first_timestamp_ms if segment.first_timestamp_ms is not None else first_timestamp_ms
    if first is not None and roll_time_ms(header) - first > config.segment_ms:
        return False
    if header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
        return False
    return segment.indexes.offsets.size_bytes < config.segment_index_bytes


def fitting(segment: LogSegment, batches: Sequence[PlacedBatch], first: int, config: LogConfig) -> int:
    """Return the number of batches, from index `first` on, that can be appended to `segment` together. The batch at
    `first` must fit."""
    pending = batches[first].header.size_bytes
    first_timestamp_ms = roll_time_ms(batches[first].header)
    count = 1
    for batch in batches[first + 1 :]:
        if not fits(segment, batch.header, pending, config, first_timestamp_ms):
            break
        pending += batch.header.size_bytes
        count += 1
    return count
