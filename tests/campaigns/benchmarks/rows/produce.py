"""Producing: batches, single records, compressed; to one broker, to a cluster, through TLS."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from tests.support.kafka import PRODUCER_SETTINGS, KafkaServer

from ..context import SINGLE, Context, measured
from ..results import Measurement
from ..secure_servers import PLAIN
from ..servers import SparklogServer
from .row import CONFLUENT, Row, row

PARTITIONS = 4
BATCH_BYTES = 1024 * 1024
COMPRESSED_BATCH_BYTES = 4 * BATCH_BYTES
"""Sparklog's sizes are before compression, Kafka's batch.size is after it: 1 MiB of Kafka's are 2 to 4 MiB of these
payloads."""
RECORDS = {100: 10_000_000, 1024: 2_000_000}
"""Records of a run, by the size of a value."""


def fill(
    context: Context,
    server: SparklogServer | KafkaServer,
    topic: str,
    records: int,
    value_bytes: int,
    batch_bytes: int = BATCH_BYTES,
    acks: str = "all",
) -> None:
    """Send records to a topic of either system."""
    if isinstance(server, KafkaServer):
        server.produce(topic, records, context.payload(value_bytes), {"acks": acks})
    else:
        arguments = batches(context, server, topic, records, value_bytes, batch_bytes)
        context.client("sparklog_send_batch", **arguments, acks=acks)


def batches(
    context: Context,
    server: SparklogServer,
    topic: str,
    records: int,
    value_bytes: int,
    batch_bytes: int = BATCH_BYTES,
    *,
    listener: str = PLAIN,
) -> dict[str, Any]:
    """Arguments of the client program `sparklog_send_batch`."""
    return {
        "bootstrap": server.address(listener),
        "topic": topic,
        "records": records,
        "payload": str(context.payload(value_bytes)),
        "batch_records": batch_bytes // value_bytes,
        "batch_size_bytes": batch_bytes,
        **server.client(listener),
    }


def produce(
    context: Context,
    *,
    peer: bool,
    value_bytes: int,
    records: int,
    where: str = SINGLE,
    acks: str = "all",
    compression: str = "none",
    columnar: bool = False,
    partitions: int = PARTITIONS,
    configs: Mapping[str, str] | None = None,
) -> Measurement:
    """Measure `send_batch` with one batch a call, or kafka-producer-perf-test; `configs` are the topic's."""
    server, count = context.server(peer, where), context.records(records)
    with server.topic(partitions, configs=configs) as topic:
        stored = lambda: server.topic_bytes(topic) / count  # noqa: E731
        if peer:
            settings = server.client(where) | {"acks": acks, "compression.type": compression}
            payload = context.payload(value_bytes)
            run = partial(server.produce, topic, count, payload, settings)
            return measured(server.pids, run, "records_per_s", stored)
        return context.measured_client(
            server,
            "records_per_s",
            "sparklog_send_batch",
            stored,
            **batches(context, server, topic, count, value_bytes, _batch_bytes(compression), listener=where),
            columnar=columnar,
            acks=acks,
            compression=compression,
        )


def _batch_bytes(compression: str) -> int:
    return BATCH_BYTES if compression == "none" else COMPRESSED_BATCH_BYTES


def beside_write(context: Context, *, peer: bool) -> Measurement:
    """Measure `send_batch` of 1 KiB, or a loop that writes the same bytes of values to new files and nothing else."""
    if not peer:
        return produce(context, peer=False, value_bytes=1024, records=RECORDS[1024])
    size = context.records(RECORDS[1024]) * 1024
    run = partial(context.client, "raw_write", directory=str(context.scratch / "raw"), size=size, files=PARTITIONS)
    found = measured(context.sparklog().pids, run, "bytes_per_s")
    return msgspec.structs.replace(found, value=found.value / 1024)


def send_single(context: Context, *, peer: bool, records: int) -> Measurement:
    """Measure `send`, or confluent-kafka's `produce`: one record a call."""
    server, count = context.server(peer), context.records(records)
    with server.topic(PARTITIONS) as topic:
        return context.measured_client(
            server,
            "records_per_s",
            "confluent_send" if peer else "sparklog_send",
            lambda: server.topic_bytes(topic) / count,
            topic=topic,
            records=count,
            payload=str(context.payload(100)),
            **(CONFLUENT_SETTINGS if peer else {"acks": "all", "linger_ms": 5}),
        )


def _text(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{k}={v}" for k, v in settings.items())


def _row(name: str, how: str, goal: float, value_bytes: int, columnar: bool = False, **more: Any) -> Row:
    title = f"produce {'100 B' if value_bytes == 100 else '1 KiB'}, {how}"
    given = "Arrow tables" if columnar else "lists of bytes"
    mib = _batch_bytes(more.get("compression", "none")) // 1024**2
    settings = {
        "records": f"{RECORDS[value_bytes]:,} of {value_bytes} bytes, {PARTITIONS} partitions, no fsync",
        "sparklog": f"send_batch of {given}, {mib} MiB each, batch.size.bytes={mib} MiB (before compression)",
        "Kafka": f"kafka-producer-perf-test --payload-file, {_text(PRODUCER_SETTINGS)}",
    }
    arguments = {"value_bytes": value_bytes, "records": RECORDS[value_bytes], "columnar": columnar, **more}
    return row(name, title, goal, partial(produce, **arguments), **settings, **more)


CONFLUENT_SETTINGS = {
    "batch.size": 1048576,
    "linger.ms": 5,
    "acks": "all",
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 131072,
}

ROWS = (
    _row("produce-100b-acks1", "batches, acks=1", 8, 100, acks="1"),
    _row("produce-100b-acksall", "batches, acks=all", 8, 100, acks="all"),
    _row("produce-100b-arrow", "Arrow tables, acks=all", 8, 100, columnar=True, acks="all"),
    _row("produce-1k-acks1", "batches, acks=1", 5, 1024, acks="1"),
    _row("produce-1k-acksall", "batches, acks=all", 5, 1024, acks="all"),
    row(
        "produce-1k-write", "produce 1 KiB, batches, acks=all, against a loop of write()", None, beside_write,
        peer="write() of the same bytes", loop=f"MiB after MiB to {PARTITIONS} new files",
    ),
    row(
        "produce-send-100b", "produce 100 B, one send() at a time from Python", 2,
        partial(send_single, records=2_000_000), peer=CONFLUENT,
        records=f"2,000,000 of 100 bytes, {PARTITIONS} partitions",
        sparklog="acks=all, linger.ms=5, batch.size.bytes=1 MiB, buffer.memory=128 MiB", confluent=_text(CONFLUENT_SETTINGS),
    ),
    *(
        _row(f"produce-{size}-{compression}", compression, 3, value_bytes, compression=compression)
        for size, value_bytes in (("100b", 100), ("1k", 1024))
        for compression in ("lz4", "zstd")
    ),
    row(
        "produce-fsync", "produce 1 KiB, fsync before every acknowledgement", 1.5,
        partial(produce, value_bytes=1024, records=400_000, configs={"flush.messages": "1"}),
        records=f"400,000 of 1,024 bytes, {PARTITIONS} partitions, batches of 1 MiB, acks=all",
        both="flush.messages=1 for the topic",
    ),
)  # fmt: skip
