"""Encoding of record batches into the bytes that are sent and stored."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from sparklog.client.net.reused_memory import KEPT_BYTES_MAX, ReusedMemory
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.record_sizes import too_large
from sparklog.format.batch import ATTRIBUTE_LOG_APPEND_TIME, ATTRIBUTE_TRANSACTIONAL, encode_batch
from sparklog.format.packed_batch import PACKED_ROWS_MIN, encode_packed_batch
from sparklog.format.schema import timestamp_bounds_ms
from sparklog.format.small_batch import SmallRows, encode_small_batch
from sparklog.types import ProducerIdAndEpoch


class EncodedBatch(NamedTuple):
    """An encoded batch. `log_append_time`: True if the broker replaces its timestamps by the time of the append."""

    payload: memoryview
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    log_append_time: bool


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class BatchEncoder:
    """Encoder of rows in their topic's newest schema into batches. Thread-safe.

    `checksum=False`: the checksum is computed later, by `assign_producer`. `memory_bytes`: the size of all batches that
    exist at one time. The encoder keeps memory of this size and a quarter more for later batches.
    """

    def __init__(self, compression: str = "none", *, checksum: bool = True, memory_bytes: int = KEPT_BYTES_MAX) -> None:
        self._compression = compression
        self._checksum = checksum
        # a quarter more: sizes are rounded up, and batches that are being encoded need memory, too
        self._memory = ReusedMemory(memory_bytes + memory_bytes // 4)

    @property
    def compresses(self) -> bool:
        return self._compression != "none"

    def encode(self, batch: pa.RecordBatch, topic: TopicInfo) -> EncodedBatch:
        """Encode one batch of any size."""
        return self._encode(batch, topic, self._compression)

    def _encode(self, batch: pa.RecordBatch, topic: TopicInfo, compression: str) -> EncodedBatch:
        attributes = ATTRIBUTE_LOG_APPEND_TIME if topic.log_append_time else 0
        if topic.is_envelope and compression == "none" and batch.num_rows >= PACKED_ROWS_MIN:
            packed = encode_packed_batch(
                batch,
                schema_id=topic.schema_id,
                attributes=attributes,
                checksum=self._checksum,
                allocate=self._memory.take,
            )
            if packed is not None:
                payload, low, high = packed
                return EncodedBatch(payload, batch.num_rows, low, high, topic.log_append_time)
        column = "timestamp" if topic.is_envelope else topic.timestamp_column
        if column is None:
            low = high = now_ms()
        else:
            low, high = timestamp_bounds_ms(batch.column(batch.schema.get_field_index(column)), now_ms())
        payload = encode_batch(
            batch,
            schema_id=topic.schema_id,
            min_timestamp_ms=low,
            max_timestamp_ms=high,
            compression=compression,
            attributes=attributes,
            checksum=self._checksum,
            allocate=self._memory.take,
        )
        return EncodedBatch(payload, batch.num_rows, low, high, topic.log_append_time)

    def encode_small(
        self,
        rows: SmallRows,
        topic: TopicInfo,
        identity: ProducerIdAndEpoch | None,
        base_sequence: int,
        *,
        transactional: bool,
    ) -> EncodedBatch:
        """Encode a few envelope rows without compression, together with the producer's fields: `identity` (None: no
        idempotence), `base_sequence` and `transactional`."""
        attributes = ATTRIBUTE_LOG_APPEND_TIME if topic.log_append_time else 0
        identity_fields = (-1, -1, -1)
        if identity is not None:
            identity_fields = (identity.producer_id, identity.producer_epoch, base_sequence)
            attributes |= ATTRIBUTE_TRANSACTIONAL if transactional else 0
        payload = encode_small_batch(rows, topic.schema_id, attributes, *identity_fields)
        stamps = rows.timestamps_us
        return EncodedBatch(payload, len(rows.values), min(stamps) // 1000, max(stamps) // 1000, topic.log_append_time)

    def encode_whole(self, batch: pa.RecordBatch, topic: TopicInfo) -> EncodedBatch:
        """Encode rows that fit the topic's limit without compression. If compression makes them larger than the limit,
        they are encoded without it."""
        encoded = self.encode(batch, topic)
        return encoded if len(encoded.payload) <= topic.max_message_bytes else self._encode(batch, topic, "none")

    def encode_within(self, batch: pa.RecordBatch, topic: TopicInfo) -> Iterator[EncodedBatch]:
        """Encode rows into one batch, or into several if one batch would exceed the topic's limit.

        Raises MessageTooLargeError for a single row above the limit.
        """
        encoded = self.encode(batch, topic)
        if len(encoded.payload) <= topic.max_message_bytes:
            yield encoded
        elif batch.num_rows == 1:
            raise too_large(topic.name, len(encoded.payload), topic.max_message_bytes)
        else:
            half = batch.num_rows // 2
            yield from self.encode_within(batch.slice(0, half), topic)
            yield from self.encode_within(batch.slice(half), topic)
