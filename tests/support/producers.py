"""Batches of producers, for the tests of idempotence and transactions."""

from __future__ import annotations

import pyarrow as pa

from sparklog.format.batch import ATTRIBUTE_TRANSACTIONAL, encode_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.model.log_config import AppendInfo
from sparklog.log.partition_log import PartitionLog

_TIMESTAMP = ENVELOPE_SCHEMA.field("timestamp").type


def produced(
    producer_id: int,
    sequence: int,
    *,
    rows: int = 1,
    epoch: int = 0,
    transactional: bool = False,
    value: bytes = b"v",
    key: bytes | None = b"k",
) -> bytearray:
    """One encoded batch of `rows` records."""
    rows_of = {
        "key": pa.array([key] * rows, pa.binary()),
        "value": pa.array([value] * rows, pa.binary()),
        "headers": pa.nulls(rows, ENVELOPE_SCHEMA.field("headers").type),
        "timestamp": pa.array([1000] * rows, pa.int64()).cast(_TIMESTAMP),
    }
    return bytearray(
        encode_batch(
            pa.record_batch([rows_of[name] for name in ENVELOPE_SCHEMA.names], schema=ENVELOPE_SCHEMA),
            schema_id=1,
            min_timestamp_ms=1,
            max_timestamp_ms=1,
            attributes=ATTRIBUTE_TRANSACTIONAL if transactional else 0,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


def send(log: PartitionLog, *batches: bytearray) -> AppendInfo:
    """Appends the batches as one payload; everything is below the high watermark then."""
    info = log.appender.append(bytearray(b"".join(batches)))
    log.raise_high_watermark(log.log_end_offset)
    return info


def send_in_transaction(
    log: PartitionLog, producer_id: int, sequence: int, *, epoch: int = 0, rows: int = 1, value: bytes = b"v"
) -> AppendInfo:
    """Verifies if need be, and appends one transactional batch."""
    guard = log.appender.begin_verification(producer_id, epoch)
    payload = produced(producer_id, sequence, rows=rows, epoch=epoch, transactional=True, value=value)
    info = log.appender.append(payload, guard=guard)
    log.raise_high_watermark(log.log_end_offset)
    return info


def end(
    log: PartitionLog,
    producer_id: int,
    epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int = 0,
    keeps_epoch: bool = False,
    started_ms: int = -1,
) -> AppendInfo:
    """Appends a marker with this (the bumped) epoch."""
    info = log.appender.append_marker(
        producer_id, epoch, coordinator_epoch, commit=commit, keeps_epoch=keeps_epoch, started_ms=started_ms
    )
    log.raise_high_watermark(log.log_end_offset)
    return info
