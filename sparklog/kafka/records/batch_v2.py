"""The head of a Kafka record batch, version 2 (big-endian)::

offset  size  field
0       8     base offset i64
8       4     batch length i32: bytes after this field
12      4     partition leader epoch i32
16      1     magic i8, 2
17      4     CRC-32C u32 of all that follows
21      2     attributes i16: 0-2 compression, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
23      4     last offset delta i32
27      8     base timestamp i64, ms
35      8     max timestamp i64, ms
43      8     producer id i64, -1: none
51      2     producer epoch i16
53      4     base sequence i32
57      4     record count i32
61            records, compressed together
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparklog.errors import CorruptBatchError, InvalidRequestError
from sparklog.format.checksum import crc32c
from sparklog.kafka.records.errors import MalformedBatchError

_HEAD = struct.Struct(">qiibI")
_BODY = struct.Struct(">hiqqqhii")
_CRC_AT = 17
_CRC_FROM = 21
HEAD_BYTES = 61
_LENGTH_FROM = 12
MAGIC = 2
assert _HEAD.size == _CRC_FROM and _CRC_FROM + _BODY.size == HEAD_BYTES

COMPRESSION = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class BatchV2(NamedTuple):
    """The decoded head of a batch."""

    base_offset: int
    length_bytes: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch."""
        return _LENGTH_FROM + self.length_bytes

    @property
    def codec(self) -> int:
        """Kafka's number of the compression."""
        return self.attributes & COMPRESSION

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True if the batch is a transaction's marker."""
        return bool(self.attributes & CONTROL)


def read_head(data: memoryview, position: int = 0) -> BatchV2:
    """Decode the head at `position`, and check it and the batch's checksum.

    Raises CorruptBatchError for a wrong checksum, MalformedBatchError, or InvalidRequestError for a message set in the
    format before Kafka 0.11.
    """
    remaining = len(data) - position
    if remaining >= _CRC_FROM and data[position + 16] != MAGIC:
        raise InvalidRequestError(
            f"message format {data[position + 16]}: this gateway takes format 2, which Kafka's clients send since 0.11"
        )
    if remaining < HEAD_BYTES:
        raise MalformedBatchError(f"{remaining} bytes are no record batch")
    head = BatchV2(*_HEAD.unpack_from(data, position), *_BODY.unpack_from(data, position + _CRC_FROM))
    if not HEAD_BYTES - _LENGTH_FROM <= head.length_bytes <= remaining - _LENGTH_FROM:
        raise MalformedBatchError(f"a batch of {head.length_bytes} bytes, the request has {remaining - _LENGTH_FROM}")
    crc = crc32c(data[position + _CRC_FROM : position + head.size_bytes])
    if crc != head.crc:
        raise CorruptBatchError(f"checksum is {crc:08x}, the batch says {head.crc:08x}")
    if head.record_count < 0 or head.last_offset_delta < 0:
        raise MalformedBatchError(f"a batch with {head.record_count} records, last offset {head.last_offset_delta}")
    if head.producer_id < 0:
        # KafkaJS sends epoch and sequence number 0 without an id: they mean nothing
        return head._replace(producer_epoch=-1, base_sequence=-1)
    return head


def iterate_batches(data: memoryview) -> Iterator[tuple[BatchV2, memoryview]]:
    """Yield the head and the records of each batch in `data`. Raises as `read_head`."""
    position = 0
    while position < len(data):
        head = read_head(data, position)
        yield head, data[position + HEAD_BYTES : position + head.size_bytes]
        position += head.size_bytes


def write_batch(
    records: Sequence[bytes | bytearray | memoryview],
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> list[bytes | bytearray | memoryview]:
    """Return a batch as parts: its head, then `records`."""
    body = _BODY.pack(
        attributes,
        last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    crc = crc32c(body)
    size = HEAD_BYTES - _LENGTH_FROM
    for part in records:
        crc = crc32c(part, crc)
        size += len(part)
    return [_HEAD.pack(base_offset, size, leader_epoch, MAGIC, crc) + body, *records]
