"""Common parts of the client's tests beside the fake broker: batches in its log, topics, records read."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from sparklog.client.consumer.consumer import Consumer
from sparklog.client.net.topic_info import TopicInfo
from sparklog.format.batch import decode_batch, encode_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.types import Record, TopicPartition
from tests.unit.client.fake_broker import FakeBroker

TP0 = TopicPartition("events", 0)


def fill(fake: FakeBroker, batches: int, rows: int = 10, partition: int = 0, compression: str = "none") -> None:
    """`batches` batches whose values are their offsets."""
    for _ in range(batches):
        first = fake.end(("events", partition))
        stamps = pa.array(range(first * 1000, (first + rows) * 1000, 1000), pa.int64()).cast(ENVELOPE_SCHEMA.types[3])
        values = pa.array([b"%d" % (first + i) for i in range(rows)])
        keys, headers = pa.nulls(rows, pa.binary()), pa.nulls(rows, ENVELOPE_SCHEMA.types[2])
        batch = pa.record_batch([keys, values, headers, stamps], schema=ENVELOPE_SCHEMA)
        bounds: dict[str, Any] = {"min_timestamp_ms": first, "max_timestamp_ms": first + rows - 1}
        fake.append(bytearray(encode_batch(batch, schema_id=1, compression=compression, **bounds)), partition=partition)


def drain(consumer: Consumer, count: int, **how: Any) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + 60
    while len(records) < count and time.monotonic() < deadline:
        records += consumer.poll(200, **how)
    return records


def stored(fake: FakeBroker, partition: int = 0) -> list[bytes]:
    batches = fake.logs[("events", partition)]
    return [v for b in batches for v in decode_batch(b, ENVELOPE_SCHEMA).column("value").to_pylist()]


def info(schema: pa.Schema | None = None, partitions: int = 4, keys: tuple[str, ...] = (), **configs: Any) -> TopicInfo:
    kind = "envelope" if schema is None else "typed"
    at = "at" if schema is not None and "at" in schema.names else None
    given = {k.replace("_", "."): v for k, v in configs.items()}
    return TopicInfo("t", "id", kind, partitions, 1, {1: schema or ENVELOPE_SCHEMA}, keys, at, given, 0, ())
