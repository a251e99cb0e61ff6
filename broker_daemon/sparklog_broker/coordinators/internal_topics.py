"""The topics with the broker's own state: compacted envelope topics that only coordinators write.

A topic is created at its first write. The partition of a key is CRC-32(key) mod the number of partitions, which never
changes. A replay returns a partition's records in order; the last record of a key is its value, and null deletes the
key.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow.lib import StringBuilder

from sparklog.environment.clock import Clock
from sparklog.errors import InvalidConfigError, InvalidTopicError, TopicAlreadyExistsError
from sparklog.format.batch import (
    ATTRIBUTE_COMMIT,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
    encode_batch,
    iterate_batches,
    verify_checksum,
)
from sparklog.format.offset_column import decode_rows, row_offsets
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.format.small_batch import ROWS_MAX, SmallRows, decode_small_batch, encode_small_batch
from sparklog.log.model.log_config import AppendInfo
from sparklog.log.partition_log import PartitionLog
from sparklog.metadata.store import ENVELOPE_SCHEMA_ID, Topic, TopicSpec
from sparklog.types import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    SCHEMAS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from sparklog_broker.cluster.topics import Topics
from sparklog_broker.config import BrokerConfig
from sparklog_broker.partitions.appender import Appender, Write
from sparklog_broker.partitions.io_threads import IoThreads
from sparklog_broker.partitions.partition import Partition

SEGMENT_BYTES = 16 * 1024 * 1024
"""Size of a segment in bytes. The active segment is never compacted, so each load of a partition also replays up to
this size of outdated records.
"""
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""Largest batch in bytes. The decision of a shared transaction names all committed participants, for which the default
of a topic is too small.
"""
INTERNAL_CONFIGS: Mapping[str, Mapping[str, int | float | str | bool]] = {
    name: {
        "cleanup.policy": "compact",
        "segment.bytes": SEGMENT_BYTES,
        "max.message.bytes": MESSAGE_BYTES_MAX,
        "message.timestamp.type": "CreateTime",
    }
    for name in sorted(INTERNAL_TOPICS)
}
"""Settings of each internal topic at its creation."""
APPEND_TIMEOUT_MS = 30_000
REPLAY_BYTES = 256 * 1024
"""Size of a piece of a replay in bytes, which the event loop processes at once."""

Record = tuple[bytes, bytes | None]
"""Key and value; a value of None deletes the key."""


class Producer(NamedTuple):
    """The transactional producer of an append."""

    producer_id: int
    producer_epoch: int


class ReplayedRecord(NamedTuple):
    """One record of a partition. `key` is None in a marker, which ends the transaction of `header.producer_id`."""

    offset: int
    key: bytes | None
    value: bytes | None
    header: BatchHeader

    @property
    def is_marker(self) -> bool:
        return bool(self.header.attributes & ATTRIBUTE_CONTROL)

    @property
    def is_commit(self) -> bool:
        """True if the marker commits the transaction."""
        return bool(self.header.attributes & ATTRIBUTE_COMMIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.header.attributes & ATTRIBUTE_TRANSACTIONAL)


class InternalTopic:
    """An internal topic on one broker. Event-loop thread only."""

    def __init__(
        self, name: str, config: BrokerConfig, clock: Clock, topics: Topics, appender: Appender, io: IoThreads
    ) -> None:
        self.name = name
        self._config = config
        self._clock = clock
        self._topics = topics
        self._served = topics.partitions
        self._appender = appender
        self._io = io
        self._making = asyncio.Lock()

    @property
    def exists(self) -> bool:
        return self.name in self._served.topics

    @property
    def partitions(self) -> int:
        """Number of partitions; before the topic's creation, the configured number."""
        topic = self._served.topics.get(self.name)
        if topic is not None:
            return topic.partitions
        counts = {
            TRANSACTION_STATE_TOPIC: self._config.transaction_state_log_num_partitions,
            CONSUMER_OFFSETS_TOPIC: self._config.offsets_topic_num_partitions,
            SCHEMAS_TOPIC: 1,
        }
        return counts[self.name]

    def partition_for(self, key: str) -> int:
        """Return the number of the partition for `key`: a group id or a transactional id."""
        return zlib.crc32(key.encode()) % self.partitions

    async def ensure(self) -> Topic:
        """Return the topic, and create it if it does not exist. Raises the errors of `Topics.create_internal`."""
        async with self._making:
            topic = self._served.topics.get(self.name)
            if topic is not None:
                return topic
            try:
                return await self._topics.create_internal(
                    TopicSpec(self.name, self.partitions, configs=INTERNAL_CONFIGS[self.name])
                )
            except TopicAlreadyExistsError:
                return self._served.topics[self.name]

    async def append(
        self, partition: int, records: Sequence[Record], *, producer: Producer | None = None
    ) -> AppendInfo:
        """Append `records` as one batch, and return when the batch is below the high watermark. With `producer`, the
        records belong to its open transaction, or begin one. Raises StorageError, StorageFullError,
        RequestTimedOutError (the batch is kept or lost), InvalidProducerEpochError (the transaction has ended), and
        the errors of `ensure` and `partition_of`.
        """
        await self.ensure()
        batch = encode_records(records, self._clock.now_ms(), producer)
        where = self.partition_of(partition)
        leader_epoch = where.replicas.leader_epoch

        def run(log: PartitionLog) -> AppendInfo:
            return log.appender.append_internal(batch, leader_epoch=leader_epoch)

        write = Write(where, where.log, run, len(batch), leader_epoch)
        (outcome,) = await self._appender.append_each([write], replicated_within_ms=APPEND_TIMEOUT_MS)
        if not isinstance(outcome, AppendInfo):
            raise outcome
        return outcome

    async def make_durable(self, partition: int) -> None:
        """Fsync all earlier appends to a partition. Raises StorageError, StorageFullError, and the errors of
        `partition_of`."""
        where = self.partition_of(partition)
        await self._io.run(where.thread, where.log.flusher.flush)

    async def replay(self, partition: int, from_offset: int = 0) -> AsyncIterator[list[ReplayedRecord]]:
        """Yield the records from `from_offset` on, below the high watermark that the partition has at the call. The
        lists are in order; I/O threads read and decode them. If the topic does not exist yet, yield nothing.

        Raises StorageError, LogCorruptError, CorruptBatchError, and the errors of `partition_of`.
        """
        if not self.exists:
            return
        where = self.partition_of(partition)
        log = where.log
        offset, end = max(log.log_start_offset, from_offset), log.high_watermark
        while offset < end:
            records, offset = await self._io.run(self._io.idlest(), _ReplayStep(log, offset, end))
            yield records

    def leader_of(self, partition: int) -> int:
        """Return the broker id of a partition's leader, as far as this broker knows; -1 if the partition has no leader
        or does not exist."""
        partition_log = self._served.find(TopicPartition(self.name, partition))
        return -1 if partition_log is None else partition_log.replicas.leader

    def partition_of(self, partition: int) -> Partition:
        """Return a partition that this broker leads. Raises UnknownTopicOrPartitionError, NotLeaderError."""
        return self._served.get(self.name, partition)


class _ReplayStep:
    """Reads and decodes the next piece of a log, on an I/O thread."""

    def __init__(self, log: PartitionLog, offset: int, end: int) -> None:
        self._log = log
        self._offset = offset
        self._end = end

    def __call__(self) -> tuple[list[ReplayedRecord], int]:
        piece = self._log.reader.read(self._offset, REPLAY_BYTES)
        if piece is None:  # compaction has removed everything up to the end
            return [], self._end
        try:
            data, next_offset = piece.read(), piece.next_offset
        finally:
            piece.release()
        records: list[ReplayedRecord] = []
        for position, header in iterate_batches(data, verify=False):
            if header.base_offset >= self._end:
                break
            verify_checksum(data, position, header)  # `decode` checks the rest
            message = memoryview(data)[position : position + header.size_bytes]
            records += decode(message, header, self._log.config.inflated_bytes_max)
        return [r for r in records if r.offset >= self._offset], next_offset


def decode(data: memoryview, header: BatchHeader, inflated_bytes_max: int) -> list[ReplayedRecord]:
    """Decode the records of one batch, or its marker. `data` is the whole batch. The caller has verified its checksum.
    Raises CorruptBatchError."""
    if header.attributes & ATTRIBUTE_CONTROL:
        return [ReplayedRecord(header.base_offset, None, None, header)]
    small = decode_small_batch(data, 0, header) if header.is_dense else None
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    if small is not None and small.keys is not None:
        keys, values, offsets = small.keys, small.values, None
    else:
        rows, offsets = decode_rows(data, ENVELOPE_SCHEMA, header, [0, 1], inflated_bytes_max=inflated_bytes_max)
        keys, values = rows.column(0).to_pylist(), rows.column(1).to_pylist()
    numbers = row_offsets(header, offsets).tolist()
    return [ReplayedRecord(o, k, v, header) for o, k, v in zip(numbers, keys, values, strict=True)]


def _binary(values: Iterable[bytes | None]) -> pa.Array:
    """Return an Arrow array of byte strings. `pa.array` would import pandas to check its input, and stop the event loop
    for 0.3 s."""
    builder = StringBuilder()
    builder.append_values(values)
    return builder.finish().view(pa.binary())


def encode_records(records: Sequence[Record], now_ms: int, producer: Producer | None = None) -> memoryview:
    """Encode the records as one batch of an envelope topic."""
    attributes = 0 if producer is None else ATTRIBUTE_TRANSACTIONAL
    identity = (-1, -1) if producer is None else producer
    rows = len(records)
    values = [value for _, value in records if value is not None]
    if len(values) == rows <= ROWS_MAX:  # three times as fast to replay
        small = SmallRows(values, [key for key, _ in records], [now_ms * 1000] * rows)
        return encode_small_batch(small, ENVELOPE_SCHEMA_ID, attributes, *identity)
    stamps = pa.py_buffer(np.full(rows, now_ms * 1000, np.int64))
    columns = [
        _binary(key for key, _ in records),
        _binary(value for _, value in records),
        pa.nulls(rows, ENVELOPE_SCHEMA.field("headers").type),
        pa.Array.from_buffers(ENVELOPE_SCHEMA.field("timestamp").type, rows, [None, stamps]),
    ]
    return encode_batch(
        pa.record_batch(columns, schema=ENVELOPE_SCHEMA),
        schema_id=ENVELOPE_SCHEMA_ID,
        min_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
        attributes=attributes,
        producer_id=identity[0],
        producer_epoch=identity[1],
    )


def check_not_internal(topic: str, action: str) -> None:
    """Raise InvalidTopicError for a topic that only the broker is allowed to write, create or delete."""
    if topic in INTERNAL_TOPICS:
        raise InvalidTopicError(f"topic {topic!r} is internal: it can be read, but not {action}")


def check_internal_configs(topic: str, configs: Mapping[str, object | None]) -> None:
    """Raise InvalidConfigError for a change to a setting on which an internal topic's coordinator depends."""
    fixed = sorted({"cleanup.policy", "message.timestamp.type", "max.message.bytes"} & set(configs))
    if topic in INTERNAL_TOPICS and fixed:
        raise InvalidConfigError(f"topic {topic!r} is internal: {', '.join(fixed)} cannot be changed")
