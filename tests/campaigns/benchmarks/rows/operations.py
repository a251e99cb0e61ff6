"""Starting, recovering, memory, many partitions; and how sparklog grows."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import sparklog
from tests.support.kafka import KafkaServer
from tests.support.processes import usage

from ..context import Context
from ..results import Measurement
from ..servers import SparklogServer
from .produce import PARTITIONS, fill, produce
from .row import row

RECOVERY_BYTES = 10_000_000_000
UNCLEAN_RECORDS = 100_000
GROWTH_BATCH_RECORDS = 64
GROWTH_REQUESTS = 5_000
ASKED_EVERY = 50
LOADED_RECORDS = 2_000_000
IDLE_S = 3.0
MANY = 1000
_VALUE_BYTES = 1024


@contextlib.contextmanager
def _started(directory: Path) -> Iterator[SparklogServer]:
    with sparklog.start_local(directory) as broker:
        yield SparklogServer(broker)


@contextlib.contextmanager
def _new_kafka(context: Context) -> Iterator[KafkaServer]:
    """A server that is not started yet, on an empty directory; the end of the block removes it."""
    server = KafkaServer(context.installation, context.directory("new-kafka"))
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.directory)


def _used(pids: list[int], value: float | None = None) -> Measurement:
    """A measurement of the servers as they are; without a value it is their resident memory in MB."""
    used = usage(*pids)
    given = used.rss_bytes / 1e6 if value is None else value
    return Measurement(value=given, server_cpu_s=used.cpu_s, server_rss_bytes=used.rss_bytes)


def start(context: Context, *, peer: bool) -> Measurement:
    """Measure a start on an empty directory, until a client has metadata."""
    if peer:
        with _new_kafka(context) as server:
            os.sync()
            seconds = server.start()
            return _used(server.pids, seconds)
    directory = context.scratch / "start"  # the broker makes it
    os.sync()
    begun = time.perf_counter()
    with _started(directory) as ours, ours.admin() as admin:
        admin.list_topics()
        found = _used(ours.pids, time.perf_counter() - begun)
    shutil.rmtree(directory)
    return found


def recovery(context: Context, *, peer: bool) -> Measurement:
    """Measure a start after kill -9 during writes, until a client knows the end of every partition."""
    name = f"recovery, {'Kafka' if peer else 'sparklog'}"
    records, unclean = context.records(RECOVERY_BYTES // _VALUE_BYTES), context.records(UNCLEAN_RECORDS)

    def make() -> tuple[Any, str]:
        context.need_disk(1.3 * context.scale * RECOVERY_BYTES)
        directory = context.directory("recovery")
        context.after_row(name, lambda: shutil.rmtree(directory, ignore_errors=True))
        if not peer:
            with _started(directory) as server:
                topic = server.create_topic(PARTITIONS)
                fill(context, server, topic, records, _VALUE_BYTES)
            return directory, topic
        kafka = KafkaServer(context.installation, directory)
        context.after_row(name, kafka.stop)
        kafka.start()
        topic = kafka.create_topic(PARTITIONS)
        fill(context, kafka, topic, records, _VALUE_BYTES, acks="1")
        kafka.stop()
        return kafka, topic

    made, topic = context.once(name, make)
    if peer:
        made.start()
        fill(context, made, topic, unclean, _VALUE_BYTES, acks="1")
        made.stop(kill=True)
        os.sync()
        begun = time.perf_counter()
        made.start()
        made.wait_for_partitions(topic, range(PARTITIONS))
        found = _used(made.pids, time.perf_counter() - begun)
        made.stop()
        return found
    broker = sparklog.start_local(made)
    fill(context, SparklogServer(broker), topic, unclean, _VALUE_BYTES)
    broker.kill()
    os.sync()
    begun = time.perf_counter()
    with _started(made) as server, server.admin() as admin:
        admin.list_offsets({sparklog.TopicPartition(topic, p): "latest" for p in range(PARTITIONS)})
        return _used(server.pids, time.perf_counter() - begun)


def memory(context: Context, *, peer: bool, loaded: bool) -> Measurement:
    """Measure resident memory a moment after the start, or after records have been written and read."""
    directory, records = context.directory("memory"), context.records(LOADED_RECORDS)
    with _new_kafka(context) if peer else _started(directory) as server:
        if isinstance(server, KafkaServer):
            server.start()
        if loaded:
            topic = server.create_topic(PARTITIONS)
            fill(context, server, topic, records, _VALUE_BYTES)
            if isinstance(server, KafkaServer):
                server.consume(topic, records)
            else:
                reading = {"bootstrap": server.bootstrap_servers, "topic": topic, "partitions": PARTITIONS}
                context.client("sparklog_consume", **reading, records=records)
        time.sleep(IDLE_S)
        found = _used(server.pids)
    shutil.rmtree(directory)
    return found


def stored(context: Context, *, peer: bool, compression: str) -> Measurement:
    """Measure bytes per record in the segment files."""
    found = produce(context, peer=peer, value_bytes=100, records=1_000_000, compression=compression)
    assert found.bytes_per_record is not None
    return Measurement(value=found.bytes_per_record)


def create(context: Context, *, peer: bool, partitions: int) -> Measurement:
    """Measure until a topic exists and a client knows the ends of some of its partitions."""
    asked, server = range(0, partitions, ASKED_EVERY), context.server(peer)
    os.sync()
    load = os.getloadavg()[0]
    begun = time.perf_counter()
    with server.topic(partitions, **({"wait": False} if peer else {})) as topic:
        if peer:
            server.wait_for_partitions(topic, asked)
        else:
            with server.admin() as admin:
                admin.list_offsets({sparklog.TopicPartition(topic, p): "latest" for p in asked})
        return Measurement(value=time.perf_counter() - begun, load_before=load)


# -- growth


def us_per_record(context: Context, *, partitions: int) -> Measurement:
    """Measure the time of a record of 100 bytes, in µs."""
    found = produce(context, peer=False, value_bytes=100, records=5_000_000, partitions=partitions)
    return msgspec.structs.replace(found, value=1e6 / found.value, bytes_per_record=None)


def random_fetch(context: Context, *, size_bytes: int) -> Measurement:
    """Measure fetches of 64 KiB at random offsets of a partition of this size, in µs."""
    records, server = context.records(size_bytes // _VALUE_BYTES), context.sparklog()
    batch_bytes = GROWTH_BATCH_RECORDS * _VALUE_BYTES

    def make() -> str:
        context.need_disk(1.3 * context.scale * size_bytes)
        topic = server.create_topic(1)
        context.after_row(f"growth {size_bytes}", lambda: server.delete_topic(topic))
        fill(context, server, topic, records, _VALUE_BYTES, batch_bytes)
        return topic

    arguments: dict[str, Any] = {"topic": context.once(f"growth {size_bytes}", make), "end_offset": records}
    return _requests(context, "random_fetches", **arguments, max_bytes=batch_bytes)


def _requests(context: Context, program: str, **arguments: Any) -> Measurement:
    """Measure requests one after the other: the median in µs."""
    return context.measured_client(context.sparklog(), "median_us", program, **arguments, count=GROWTH_REQUESTS)


_HEAP = {"Kafka": "-Xmx1g -Xms1g, its scripts' default"}

ROWS = (
    row("start", "start on an empty directory", 0.1, start, unit="s", until="a client has metadata"),
    row(
        "recovery", "start after kill -9, 10 GB", 0.1, recovery, unit="s",
        data=f"10 GB in {PARTITIONS} partitions, {UNCLEAN_RECORDS:,} records of 1 KiB just before the kill",
        until="a client knows the end of every partition",
    ),
    row("memory-idle", "resident memory, idle", 0.2, partial(memory, loaded=False), unit="MB", **_HEAP),
    row("memory-loaded", "resident memory after 2 GB written and read", 0.2, partial(memory, loaded=True), unit="MB", **_HEAP),
    *(
        row(
            f"disk-100b-{name}", f"bytes on disk per record of 100 B, {name}", 1, partial(stored, compression=name),
            unit="bytes", batches="1 MiB on both sides",
        )
        for name in ("none", "lz4", "zstd")
    ),
    row(
        "partitions-1000", "produce 100 B to 1,000 partitions", 10, partial(produce, value_bytes=100, partitions=MANY),
        ours={"peer": False, "records": 5_000_000}, theirs={"peer": True, "records": 1_000_000},
        records="5,000,000 (sparklog), 1,000,000 (Kafka), acks=all, batches as in produce-100b",
    ),
    row(
        "create-1000", "create a topic of 1,000 partitions", None, partial(create, partitions=MANY), unit="s",
        until=f"the ends of every {ASKED_EVERY}th partition are known",
    ),
    row(
        "growth-partitions", "produce to 2,000 partitions against 1", 1.2, us_per_record, unit="µs/record",
        peer="sparklog, 1 partition", ours={"partitions": 2000}, theirs={"partitions": 1}, records="5,000,000 of 100 bytes, acks=all",
    ),
    row(
        "growth-connections", "a tiny request with 5,000 connections against 10", 1.2, partial(_requests, program="many_connections"),
        unit="µs (median)", peer="sparklog, 10 connections", ours={"connections": 5000}, theirs={"connections": 10},
        requests=f"{GROWTH_REQUESTS:,} handshakes, each on the next connection",
    ),
    row(
        "growth-fetch", "a fetch at a random offset of 50 GB against 1 GB", 1.2, random_fetch, unit="µs (median)",
        peer="sparklog, 1 GB", ours={"size_bytes": 50_000_000_000}, theirs={"size_bytes": 1_000_000_000},
        requests=f"{GROWTH_REQUESTS:,} fetches of 64 KiB; 50 GB exceed the page cache of a small machine, and reads from the disk count",
    ),
)  # fmt: skip
