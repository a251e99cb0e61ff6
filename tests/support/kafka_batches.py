"""Batches as a Kafka broker stores them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.gateway.records.encode import encode_records
from sparklog.kafka.records import compression
from sparklog.kafka.records.batch_v2 import CONTROL, TRANSACTIONAL, write_batch

COMMIT, ABORT = struct.pack(">hh", 0, 1), struct.pack(">hh", 0, 0)


def kafka_batch(
    offsets: Sequence[int],
    *,
    base: int | None = None,
    last: int | None = None,
    codec: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
    base_sequence: int = -1,
    epoch: int = 5,
    keys: Sequence[bytes | None] | None = None,
    values: Sequence[bytes | None] | None = None,
    headers: Any = None,
    max_timestamp_ms: int = 1_000,
) -> bytes:
    """A batch with a record at each of `offsets`. `headers`: of each record."""
    base = offsets[0] if base is None else base
    last = offsets[-1] if last is None else last
    rows = [
        {
            "key": b"k%d" % o if keys is None else keys[i],
            "value": b"v%d" % o if values is None else values[i],
            "headers": headers,
            "timestamp": None,
        }
        for i, o in enumerate(offsets)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=ENVELOPE_SCHEMA)
    parts: list[Any] = list(encode_records(batch, np.array(offsets) - base, np.arange(len(offsets)))) if rows else []
    if codec:
        parts = [compression.compress(codec, parts)]
    return b"".join(
        write_batch(
            parts,
            base_offset=base,
            leader_epoch=epoch,
            attributes=codec | attributes,
            last_offset_delta=last - base,
            base_timestamp_ms=0,
            max_timestamp_ms=max_timestamp_ms,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=base_sequence,
            record_count=len(offsets),
        )
    )


def marker(offset: int, producer_id: int, key: bytes, epoch: int = 5) -> bytes:
    """A control batch that ends a transaction. `key`: COMMIT or ABORT."""
    control = TRANSACTIONAL | CONTROL
    return kafka_batch([offset], attributes=control, producer_id=producer_id, keys=[key], epoch=epoch)
