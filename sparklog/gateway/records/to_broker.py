"""Conversion of Kafka's batches into batches of an envelope topic.

One batch becomes one batch, so that offsets, sequence numbers and the detection of duplicates work as the producer
expects.
"""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import InvalidRequestError
from sparklog.format.batch import (
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    assign_producer,
    encode_batch,
)
from sparklog.format.packed_batch import encode_packed_batch
from sparklog.format.schema import timestamp_bounds_ms
from sparklog.format.small_batch import SmallRows, encode_small_batch
from sparklog.gateway.records.small import SMALL_RECORDS_MAX, SmallRecords, read_small
from sparklog.kafka.records import compression
from sparklog.kafka.records.batch_v2 import BatchV2
from sparklog.kafka.records.compression import STORED, STORED_ATTRIBUTES
from sparklog.kafka.records.decode import TIMESTAMP_MS_MAX, decode_records
from sparklog.kafka.records.errors import keyless, places

RECORDS_MAX = 1_000_000


def broker_batch(head: BatchV2, data: memoryview, topic: TopicInfo, inflated_bytes_max: int) -> memoryview:
    """Return the batch in the broker's format. `inflated_bytes_max`: largest size of the records after decompression,
    in bytes. Raises CorruptBatchError; InvalidRecordError: The topic does not accept some of the records;
    InvalidRequestError; InvalidTimestampError; MessageTooLargeError."""
    check_head(head)
    raw: Any = data if head.codec == compression.NONE else compression.decompress(head.codec, data, inflated_bytes_max)
    stored = stored_compression(head, topic)
    if head.record_count <= SMALL_RECORDS_MAX and stored == "none":
        small = read_small(bytes(raw), head.record_count, head.base_timestamp_ms)
        payload = None if small is None else _small_batch(head, small, topic)
        if payload is not None:
            return payload
    rows = decode_records(raw, head.record_count, head.base_timestamp_ms)
    del raw  # the rows are copies
    return envelope_batch(head, rows, topic, stored)


def check_head(head: BatchV2) -> None:
    """Raise InvalidRequestError for a batch that no producer sends."""
    if head.is_control:
        raise InvalidRequestError("a producer sends no control batches")
    if not 0 < head.record_count <= RECORDS_MAX:
        raise InvalidRequestError(f"a batch of {head.record_count} records; 1 to {RECORDS_MAX} are allowed")
    if head.last_offset_delta != head.record_count - 1:
        raise InvalidRequestError(
            f"a batch of {head.record_count} records with the last offset {head.last_offset_delta}: offsets are dense"
        )
    if head.producer_id >= 0 and (head.producer_epoch < 0 or head.base_sequence < 0):
        raise InvalidRequestError("a producer's id comes with its epoch and a sequence number")


def batch_attributes(head: BatchV2, topic: TopicInfo) -> int:
    """Return the attributes of the stored batch."""
    append_time = ATTRIBUTE_LOG_APPEND_TIME if topic.log_append_time else 0
    codec = STORED_ATTRIBUTES.get(codec_of(head, topic), 0)
    return append_time | codec | (ATTRIBUTE_TRANSACTIONAL if head.is_transactional else 0)


def stored_compression(head: BatchV2, topic: TopicInfo) -> str:
    """Return the name of the stored batch's compression."""
    return STORED[codec_of(head, topic)]


def codec_of(head: BatchV2, topic: TopicInfo) -> int:
    """Return Kafka's number of the compression in which Kafka's clients get the batch, by the topic's
    `compression.type`."""
    codec = compression.codec_of_topic(topic.compression_type)
    return head.codec if codec is None else codec


def _small_batch(head: BatchV2, records: SmallRecords, topic: TopicInfo) -> memoryview | None:
    """Return the batch, encoded without Arrow; None if a record needs Arrow (null values, keys of some records only,
    unusual timestamps). Raises InvalidRecordError."""
    stamps = records.timestamps_ms
    has_keys = records.keys[0] is not None
    if (
        None in records.values
        or any((key is not None) != has_keys for key in records.keys)
        or min(stamps) < 0
        or max(stamps) > TIMESTAMP_MS_MAX
    ):
        return None
    if topic.is_compacted and not has_keys:
        raise keyless(topic.name, range(len(records.keys)))
    rows = SmallRows(records.values, records.keys if has_keys else None, [ms * 1000 for ms in stamps])  # type: ignore[arg-type]
    return encode_small_batch(
        rows, topic.schema_id, batch_attributes(head, topic), head.producer_id, head.producer_epoch, head.base_sequence
    )


def envelope_batch(head: BatchV2, rows: pa.RecordBatch, topic: TopicInfo, stored: str) -> memoryview:
    """Return a batch of `rows` in the broker's format. `stored`: name of its compression. Raises InvalidRecordError."""
    keys = rows.column(0)
    if topic.is_compacted and keys.null_count:
        raise keyless(topic.name, places(keys.is_null()))
    attributes = batch_attributes(head, topic)
    packed = None
    if stored == "none":
        packed = encode_packed_batch(rows, schema_id=topic.schema_id, attributes=attributes, checksum=False)
    if packed is not None:
        payload = packed.payload
    else:
        low, high = timestamp_bounds_ms(rows.column(3), time.time_ns() // 1_000_000)
        payload = encode_batch(
            rows,
            schema_id=topic.schema_id,
            min_timestamp_ms=low,
            max_timestamp_ms=high,
            compression=stored,
            attributes=attributes,
            checksum=False,
        )
    assign_producer(
        payload,
        producer_id=head.producer_id,
        producer_epoch=head.producer_epoch,
        base_sequence=head.base_sequence,
        transactional=head.is_transactional,
    )
    return payload
