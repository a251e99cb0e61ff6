"""Producing: batches, single records, compressed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..context import Context, measured
from ..kafka import PRODUCER_SETTINGS
from ..results import Measurement
from .row import CONFLUENT, KAFKA, Row, at_least

PARTITIONS = 4
BATCH_BYTES = 1024 * 1024
COMPRESSED_BATCH_BYTES = 4 * BATCH_BYTES
"""Ours count before compression, Kafka's batch.size after it: 1 MiB of the latter are 2 to 4 MiB of these payloads."""
_KAFKA_SETTINGS = ", ".join(f"{k}={v}" for k, v in PRODUCER_SETTINGS.items())


def _batch_bytes(compression: str) -> int:
    return BATCH_BYTES if compression == "none" else COMPRESSED_BATCH_BYTES


def send_batch(
    context: Context,
    *,
    value_bytes: int,
    records: int,
    acks: str = "all",
    compression: str = "none",
    columnar: bool = False,
    partitions: int = PARTITIONS,
    configs: Mapping[str, str] | None = None,
) -> Measurement:
    """`send_batch` with a batch at a time; `configs` are the topic's."""
    count = context.records(records)
    batch_bytes = _batch_bytes(compression)
    with context.topic(partitions, configs=configs) as topic:
        return measured(
            context.broker.pid,
            lambda: context.client(
                "sparklog_send_batch",
                bootstrap=context.broker.bootstrap_servers,
                topic=topic,
                records=count,
                payload=str(context.payload(value_bytes)),
                batch_records=batch_bytes // value_bytes,
                columnar=columnar,
                acks=acks,
                compression=compression,
                batch_size_bytes=batch_bytes,
            ),
            lambda r: r["records_per_s"],
            lambda: context.topic_bytes(topic) / count,
        )


def perf_test(
    context: Context,
    *,
    value_bytes: int,
    records: int,
    acks: str = "all",
    compression: str = "none",
    partitions: int = PARTITIONS,
    configs: Mapping[str, str] | None = None,
) -> Measurement:
    """kafka-producer-perf-test; `configs` are the topic's."""
    count, kafka = context.records(records), context.kafka
    settings = {"acks": acks, "compression.type": compression}
    with kafka.topic(partitions, configs) as topic:
        return measured(
            kafka.pid,
            lambda: kafka.produce(topic, count, context.payload(value_bytes), settings),
            lambda r: r["records_per_s"],
            lambda: kafka.topic_bytes(topic) / count,
        )


def raw_write(context: Context, *, value_bytes: int, records: int) -> Measurement:
    """As many bytes of values, written to new files in MiB by a loop that does nothing else: what the page cache
    takes."""
    count = context.records(records)
    directory = context.scratch / "raw-write"
    return measured(
        context.broker.pid,
        lambda: context.client("raw_write", directory=str(directory), bytes=count * value_bytes, files=PARTITIONS),
        lambda r: count / r["seconds"],
    )


def send_single(context: Context, *, records: int) -> Measurement:
    """`send`, one record at a time."""
    count = context.records(records)
    with context.topic(PARTITIONS) as topic:
        return measured(
            context.broker.pid,
            lambda: context.client(
                "sparklog_send",
                bootstrap=context.broker.bootstrap_servers,
                topic=topic,
                records=count,
                payload=str(context.payload(100)),
                acks="all",
                linger_ms=5,
            ),
            lambda r: r["records_per_s"],
            lambda: context.topic_bytes(topic) / count,
        )


def confluent_single(context: Context, *, records: int) -> Measurement:
    """confluent-kafka's `produce`, one record at a time."""
    count, kafka = context.records(records), context.kafka
    with kafka.topic(PARTITIONS) as topic:
        return measured(
            kafka.pid,
            lambda: context.client(
                "confluent_send",
                bootstrap=kafka.bootstrap_servers,
                topic=topic,
                records=count,
                payload=str(context.payload(100)),
                **_CONFLUENT,
            ),
            lambda r: r["records_per_s"],
            lambda: kafka.topic_bytes(topic) / count,
        )


def _row(
    name: str, title: str, goal: float, value_bytes: int, records: int, columnar: bool = False, **more: Any
) -> Row:
    size: dict[str, Any] = {"value_bytes": value_bytes, "records": records}
    given = "Arrow tables" if columnar else "lists of bytes"
    batch_mib = _batch_bytes(more.get("compression", "none")) // (1024 * 1024)
    return Row(
        name,
        title,
        KAFKA,
        "records/s",
        at_least(goal),
        partial(send_batch, **size, **more, columnar=columnar),
        partial(perf_test, **size, **more),
        {
            "records": f"{records:,} of {value_bytes} bytes, {PARTITIONS} partitions, no fsync",
            "sparklog": f"send_batch of {given}, {batch_mib} MiB each, batch.size.bytes={batch_mib} MiB (before compression)",
            "Kafka": f"kafka-producer-perf-test --payload-file, {_KAFKA_SETTINGS}",
        }
        | {k: str(v) for k, v in more.items()},
    )


_CONFLUENT = {
    "batch.size": 1048576,
    "linger.ms": 5,
    "acks": "all",
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 131072,
}

_SYNCED: dict[str, Any] = {"value_bytes": 1024, "records": 400_000, "configs": {"flush.messages": "1"}}

ROWS = (
    _row("produce-100b-acks1", "produce 100 B, batches, acks=1", 8, 100, 10_000_000, acks="1"),
    _row("produce-100b-acksall", "produce 100 B, batches, acks=all", 8, 100, 10_000_000, acks="all"),
    _row("produce-100b-arrow", "produce 100 B, Arrow tables, acks=all", 8, 100, 10_000_000, columnar=True, acks="all"),
    _row("produce-1k-acks1", "produce 1 KiB, batches, acks=1", 5, 1024, 2_000_000, acks="1"),
    _row("produce-1k-acksall", "produce 1 KiB, batches, acks=all", 5, 1024, 2_000_000, acks="all"),
    Row(
        "produce-1k-write",
        "produce 1 KiB, batches, acks=all, against a loop of write()",
        "write() of the same bytes",
        "records/s",
        None,
        partial(send_batch, value_bytes=1024, records=2_000_000, acks="all"),
        partial(raw_write, value_bytes=1024, records=2_000_000),
        {
            "records": f"2,000,000 of 1,024 bytes, {PARTITIONS} partitions; the loop writes MiB after MiB to {PARTITIONS} new files"
        },
    ),
    Row(
        "produce-send-100b",
        "produce 100 B, one send() at a time from Python",
        CONFLUENT,
        "records/s",
        at_least(2),
        partial(send_single, records=2_000_000),
        partial(confluent_single, records=2_000_000),
        {
            "records": f"2,000,000 of 100 bytes, {PARTITIONS} partitions",
            "sparklog": "acks=all, linger.ms=5, batch.size.bytes=1 MiB, buffer.memory=128 MiB",
            "confluent-kafka": ", ".join(f"{k}={v}" for k, v in _CONFLUENT.items()),
        },
    ),
    _row("produce-100b-lz4", "produce 100 B, lz4", 3, 100, 10_000_000, compression="lz4"),
    _row("produce-100b-zstd", "produce 100 B, zstd", 3, 100, 10_000_000, compression="zstd"),
    _row("produce-1k-lz4", "produce 1 KiB, lz4", 3, 1024, 2_000_000, compression="lz4"),
    _row("produce-1k-zstd", "produce 1 KiB, zstd", 3, 1024, 2_000_000, compression="zstd"),
    Row(
        "produce-fsync",
        "produce 1 KiB, fsync before every acknowledgement",
        KAFKA,
        "records/s",
        at_least(1.5),
        partial(send_batch, **_SYNCED),
        partial(perf_test, **_SYNCED),
        {
            "records": f"400,000 of 1,024 bytes, {PARTITIONS} partitions, batches of 1 MiB, acks=all",
            "both": "flush.messages=1 for the topic",
        },
    ),
)
