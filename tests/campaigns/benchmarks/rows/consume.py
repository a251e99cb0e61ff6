"""Consuming: Arrow batches, single records, and a plain sendfile loop beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tests.support.processes import MeasurementError

from ..context import SINGLE, Context, measured
from ..results import Measurement
from .produce import PARTITIONS, RECORDS, fill
from .row import CONFLUENT, Row, row

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


def filled_topic(context: Context, peer: bool, value_bytes: int, records: int, where: str = SINGLE) -> str:
    """A topic of `records` records, filled once per campaign."""
    server = context.server(peer, where)

    def make() -> str:
        topic: str = server.create_topic(PARTITIONS)
        fill(context, server, topic, records, value_bytes)
        return topic

    return context.once(f"topic {value_bytes} {records} at {server.bootstrap_servers}", make)


def consume(
    context: Context,
    *,
    peer: bool,
    value_bytes: int,
    records: int,
    where: str = SINGLE,
    program: str = "sparklog_consume",
    local_read: str = "auto",
) -> Measurement:
    """Measure `poll_batches` or another program of sparklog, or kafka-consumer-perf-test."""
    server, count = context.server(peer, where), context.records(records)
    topic = filled_topic(context, peer, value_bytes, count, where)
    if peer:
        return measured(server.pids, lambda: server.consume(topic, count, where), "records_per_s")
    result = context.measured_client(
        server,
        "records_per_s",
        program,
        bootstrap=server.address(where),
        topic=topic,
        partitions=PARTITIONS,
        records=count,
        max_partition_fetch_bytes=FETCH_BYTES,
        local_read=local_read,
        **server.client(where),
    )
    return _checked(result, value_bytes)


def consume_single(context: Context, *, peer: bool, records: int, filled: int = 10_000_000) -> Measurement:
    """Measure `poll`, or confluent-kafka's `consume`, on a topic of `filled` records of 100 bytes."""
    server = context.server(peer)
    fetch: dict[str, Any] = {"max.partition.fetch.bytes" if peer else "max_partition_fetch_bytes": FETCH_BYTES}
    result = context.measured_client(
        server,
        "records_per_s",
        "confluent_consume" if peer else "sparklog_poll",
        topic=filled_topic(context, peer, 100, context.records(filled)),
        partitions=PARTITIONS,
        records=context.records(records),
        **fetch,
    )
    return _checked(result, 100)


def _checked(result: Measurement, value_bytes: int) -> Measurement:
    if result.extra["value_bytes"] != value_bytes * result.extra["records"]:
        raise MeasurementError(f"{result.extra['value_bytes']:.0f} bytes came, not {value_bytes} a record")
    return result


def beside_sendfile(context: Context, *, peer: bool, records: int = RECORDS[1024]) -> Measurement:
    """Measure `poll_batches` through the socket, or a plain loop of sendfile, in MB of the log per second."""
    if peer:
        return raw_sendfile(context, total_bytes=records * 1024)
    found = consume(context, peer=False, value_bytes=1024, records=records, local_read="off")
    count = context.records(records)
    per_record = context.sparklog().topic_bytes(filled_topic(context, False, 1024, count)) / count
    return msgspec.structs.replace(found, value=found.value * per_record / 1e6)


def raw_sendfile(context: Context, *, total_bytes: int) -> Measurement:
    """Measure a process that sends a file with `os.sendfile`, in MB/s; the receiver does not look at the bytes."""
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
    arguments = {"port": port, "total_bytes": total, "chunk_bytes": RAW_CHUNK_BYTES}
    return measured([process.pid], lambda: context.client("raw_receive", **arguments), "mb_per_s")


def _batches(name: str, how: str, goal: float, value_bytes: int, local_read: str) -> Row:
    ways = {"auto": "files mapped (local.read=auto, the default)", "off": "through the socket (local.read=off)"}
    return row(
        name,
        f"consume {how}",
        goal,
        partial(consume, value_bytes=value_bytes, records=RECORDS[value_bytes], local_read=local_read),
        records=f"{RECORDS[value_bytes]:,} of {value_bytes} bytes, {PARTITIONS} partitions, page cache warm",
        sparklog=f"poll_batches, {ways[local_read]}, max.partition.fetch.bytes=10 MiB, checksums verified",
        Kafka="through the socket, kafka-consumer-perf-test --fetch-size 10485760, its fetch.nMsg.sec",
    )


ROWS = (
    _batches("consume-100b", "100 B, Arrow batches", 5, 100, "auto"),
    _batches("consume-1k", "1 KiB, Arrow batches", 2, 1024, "auto"),
    _batches("consume-100b-socket", "100 B, Arrow batches, socket", 5, 100, "off"),
    _batches("consume-1k-socket", "1 KiB, Arrow batches, socket", 2, 1024, "off"),
    row(
        "consume-1k-sendfile", "consume 1 KiB against a raw sendfile loop", 0.85, beside_sendfile, unit="MB/s",
        peer="sendfile loop", sparklog="poll_batches through the socket (local.read=off)",
        loop="os.sendfile of 8 MiB chunks from the page cache, recv_into one buffer",
    ),
    row(
        "consume-records", "consume 100 B, one record at a time in Python", 1,
        partial(consume_single, records=2_000_000), peer=CONFLUENT,
        records=f"2,000,000 of 100 bytes, {PARTITIONS} partitions; every value is looked at",
        sparklog="poll(), files mapped, 500 records at most, max.partition.fetch.bytes=10 MiB",
        confluent="consume(500), max.partition.fetch.bytes=10 MiB",
    ),
)  # fmt: skip
