"""Consuming: Arrow batches, single records, and what a plain sendfile loop can do."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from ..context import Context, measured
from ..processes import MeasurementError
from ..results import Measurement
from .produce import BATCH_BYTES, PARTITIONS
from .row import CONFLUENT, KAFKA, Row, at_least

FETCH_BYTES = 10 * 1024 * 1024
RAW_CHUNK_BYTES = 8 * 1024 * 1024
RAW_FILE_BYTES_MAX = 1024 * 1024 * 1024

_SENDFILE_LOOP = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
file, chunk = os.open(sys.argv[1], os.O_RDONLY), int(sys.argv[2])
while True:
    client, _ = server.accept()
    at = end = 0
    while client.recv(1):
        end += chunk
        while at < end:
            at += os.sendfile(client.fileno(), file, at, end - at)
    client.close()
"""


def filled_topic(context: Context, value_bytes: int, records: int) -> str:
    """A topic of ours with `records` records, filled once per campaign."""

    def fill() -> str:
        topic = context.create_topic(PARTITIONS)
        context.client(
            "sparklog_send_batch",
            bootstrap=context.broker.bootstrap_servers,
            topic=topic,
            records=records,
            payload=str(context.payload(value_bytes)),
            batch_records=BATCH_BYTES // value_bytes,
            columnar=False,
        )
        return topic

    return context.once(f"sparklog topic {value_bytes} {records}", fill)


def filled_kafka_topic(context: Context, value_bytes: int, records: int) -> str:
    """The same in Kafka."""

    def fill() -> str:
        topic = f"filled-{value_bytes}-{records}"
        context.kafka.create_topic(topic, PARTITIONS)
        context.kafka.produce(topic, records, context.payload(value_bytes), {"acks": "all"})
        return topic

    return context.once(f"kafka topic {value_bytes} {records}", fill)


def consume(
    context: Context,
    *,
    value_bytes: int,
    records: int,
    program: str = "sparklog_consume",
    filled: int = 0,
    local_read: str = "auto",
) -> Measurement:
    """`poll_batches` or `poll`, from a topic of `filled` records (default: as many as are read)."""
    count = context.records(records)
    topic = filled_topic(context, value_bytes, context.records(filled or records))
    result = measured(
        context.broker.pid,
        lambda: context.client(
            program,
            bootstrap=context.broker.bootstrap_servers,
            topic=topic,
            partitions=PARTITIONS,
            records=count,
            max_partition_fetch_bytes=FETCH_BYTES,
            local_read=local_read,
        ),
        lambda r: r["records_per_s"],
    )
    if result.extra["value_bytes"] != value_bytes * result.extra["records"]:
        raise MeasurementError(f"{result.extra['value_bytes']:.0f} bytes came, not {value_bytes} a record")
    return result


def perf_test(context: Context, *, value_bytes: int, records: int) -> Measurement:
    """kafka-consumer-perf-test."""
    count = context.records(records)
    topic = filled_kafka_topic(context, value_bytes, count)
    return measured(context.kafka.pid, lambda: context.kafka.consume(topic, count), lambda r: r["records_per_s"])


def confluent(context: Context, *, value_bytes: int, records: int, filled: int) -> Measurement:
    """confluent-kafka's `consume`."""
    count = context.records(records)
    topic = filled_kafka_topic(context, value_bytes, context.records(filled))
    return measured(
        context.kafka.pid,
        lambda: context.client(
            "confluent_consume",
            bootstrap=context.kafka.bootstrap_servers,
            topic=topic,
            partitions=PARTITIONS,
            records=count,
            **{"max.partition.fetch.bytes": FETCH_BYTES},
        ),
        lambda r: r["records_per_s"],
    )


def consume_bytes(context: Context, *, value_bytes: int, records: int) -> Measurement:
    """`poll_batches` through the socket in bytes of the log per second, to set beside a plain sendfile."""
    found = consume(context, value_bytes=value_bytes, records=records, local_read="off")
    topic = filled_topic(context, value_bytes, context.records(records))
    per_record = context.topic_bytes(topic) / context.records(records)
    return Measurement(
        value=found.value * per_record / 1e6,
        client_cpu_s=found.client_cpu_s,
        server_cpu_s=found.server_cpu_s,
        client_rss_bytes=found.client_rss_bytes,
        server_rss_bytes=found.server_rss_bytes,
        load_before=found.load_before,
        extra=found.extra,
    )


def raw_sendfile(context: Context, *, total_bytes: int) -> Measurement:
    """A process that sends a file's chunks with `os.sendfile`, and one that receives them into one buffer."""
    total = max(RAW_CHUNK_BYTES, min(round(total_bytes * context.scale), RAW_FILE_BYTES_MAX))
    total -= total % RAW_CHUNK_BYTES

    def start() -> tuple[subprocess.Popen[str], int]:
        path = Path(context.scratch, f"raw-{total}")
        with path.open("wb") as file:
            for _ in range(total // RAW_CHUNK_BYTES):
                file.write(os.urandom(RAW_CHUNK_BYTES))
        command = [sys.executable, "-c", _SENDFILE_LOOP, str(path), str(RAW_CHUNK_BYTES)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        context.stack.callback(process.wait)
        context.stack.callback(process.kill)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    process, port = context.once(f"raw sendfile {total}", start)
    return measured(
        process.pid,
        lambda: context.client("raw_receive", port=port, total_bytes=total, chunk_bytes=RAW_CHUNK_BYTES),
        lambda r: r["bytes_per_s"] / 1e6,
    )


def _batches(name: str, title: str, goal: float, value_bytes: int, records: int, *, local_read: str = "auto") -> Row:
    way = (
        "same-host mmap (local.read=auto, the default)"
        if local_read == "auto"
        else "through the socket (local.read=off)"
    )
    return Row(
        name,
        title,
        KAFKA,
        "records/s",
        at_least(goal),
        partial(consume, value_bytes=value_bytes, records=records, local_read=local_read),
        partial(perf_test, value_bytes=value_bytes, records=records),
        {
            "records": f"{records:,} of {value_bytes} bytes, {PARTITIONS} partitions, page cache warm",
            "sparklog": f"poll_batches, {way}, max.partition.fetch.bytes=10 MiB, checksums verified",
            "Kafka": "through the socket, kafka-consumer-perf-test --fetch-size 10485760, its fetch.nMsg.sec (without the rebalance)",
        },
    )


ROWS = (
    _batches("consume-100b", "consume 100 B, Arrow batches", 5, 100, 10_000_000),
    _batches("consume-1k", "consume 1 KiB, Arrow batches", 2, 1024, 2_000_000),
    _batches("consume-100b-socket", "consume 100 B, Arrow batches, socket", 5, 100, 10_000_000, local_read="off"),
    _batches("consume-1k-socket", "consume 1 KiB, Arrow batches, socket", 2, 1024, 2_000_000, local_read="off"),
    Row(
        "consume-1k-sendfile",
        "consume 1 KiB against a raw sendfile loop",
        "sendfile loop",
        "MB/s",
        at_least(0.85),
        partial(consume_bytes, value_bytes=1024, records=2_000_000),
        partial(raw_sendfile, total_bytes=2_000_000 * 1024),
        {
            "sparklog": "poll_batches through the socket (local.read=off)",
            "sendfile loop": "os.sendfile of 8 MiB chunks from the page cache, recv_into one buffer, nothing is looked at",
        },
    ),
    Row(
        "consume-records",
        "consume 100 B, one record at a time in Python",
        CONFLUENT,
        "records/s",
        at_least(1),
        partial(consume, value_bytes=100, records=2_000_000, program="sparklog_poll", filled=10_000_000),
        partial(confluent, value_bytes=100, records=2_000_000, filled=10_000_000),
        {
            "records": f"2,000,000 of 100 bytes, {PARTITIONS} partitions; every value is looked at",
            "sparklog": "poll(), same-host mmap (local.read=auto, the default), 500 records at most, max.partition.fetch.bytes=10 MiB",
            "confluent-kafka": "consume(500), max.partition.fetch.bytes=10 MiB",
        },
    ),
)
