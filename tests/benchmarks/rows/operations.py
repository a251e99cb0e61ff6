"""Starting, recovering, memory, many partitions; and how sparklog grows."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import sparklog
from sparklog.client.local import LocalBroker

from ..context import Context, measured
from ..kafka import KafkaServer
from ..processes import usage
from ..results import Measurement
from .produce import BATCH_BYTES, PARTITIONS, perf_test, send_batch
from .row import KAFKA, Row, at_least, at_most

RECOVERY_BYTES = 10_000_000_000
UNCLEAN_RECORDS = 100_000
GROWTH_BATCH_RECORDS = 64
GROWTH_REQUESTS = 5_000
ASKED_EVERY = 50
LOADED_RECORDS = 2_000_000
IDLE_S = 3.0
_VALUE_BYTES = 1024


# -- start


def start(context: Context) -> Measurement:
    """Until a client has got metadata, on an empty directory."""
    directory = context.scratch / "start-sparklog"
    os.sync()
    begun = time.perf_counter()
    with sparklog.start_local(directory) as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
        admin.list_topics()
        seconds = time.perf_counter() - begun
        used = usage(broker.pid)
    shutil.rmtree(directory)
    return Measurement(value=seconds, server_cpu_s=used.cpu_s, server_rss_bytes=used.rss_bytes)


def kafka_start(context: Context) -> Measurement:
    with _new_kafka(context, "start-kafka") as server:
        os.sync()
        seconds = server.start()
        used = usage(server.pid)
    return Measurement(value=seconds, server_cpu_s=used.cpu_s, server_rss_bytes=used.rss_bytes)


@contextlib.contextmanager
def _new_kafka(context: Context, name: str) -> Iterator[KafkaServer]:
    """A server that is not started yet, on an empty directory that is removed afterwards."""
    server = KafkaServer(context.installation, context.scratch / name)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.directory)


# -- recovery


def _fill(context: Context, broker: LocalBroker, records: int) -> None:
    context.client(
        "sparklog_send_batch",
        bootstrap=broker.bootstrap_servers,
        topic="filled",
        records=records,
        payload=str(context.payload(_VALUE_BYTES)),
        batch_records=BATCH_BYTES // _VALUE_BYTES,
        columnar=False,
    )


def recovery(context: Context) -> Measurement:
    """After kill -9 while records were coming: until a client knows every partition's end."""

    def fill() -> Path:
        directory = context.scratch / "recovery-sparklog"
        context.need_disk(1.3 * context.scale * RECOVERY_BYTES)
        context.after_row("recovery sparklog", lambda: shutil.rmtree(directory, ignore_errors=True))
        with sparklog.start_local(directory) as broker:
            with sparklog.Admin(broker.bootstrap_servers) as admin:
                admin.create_topic("filled", partitions=PARTITIONS)
            _fill(context, broker, context.records(RECOVERY_BYTES // _VALUE_BYTES))
        return directory

    directory = context.once("recovery sparklog", fill)
    broker = sparklog.start_local(directory)
    _fill(context, broker, context.records(UNCLEAN_RECORDS))
    broker.kill()
    os.sync()
    begun = time.perf_counter()
    with sparklog.start_local(directory) as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
        admin.list_offsets({sparklog.TopicPartition("filled", p): "latest" for p in range(PARTITIONS)})
        seconds = time.perf_counter() - begun
        used = usage(broker.pid)
    return Measurement(value=seconds, server_cpu_s=used.cpu_s, server_rss_bytes=used.rss_bytes)


def kafka_recovery(context: Context) -> Measurement:
    def fill() -> KafkaServer:
        server = KafkaServer(context.installation, context.scratch / "recovery-kafka")
        context.need_disk(1.3 * context.scale * RECOVERY_BYTES)
        context.after_row("recovery kafka", lambda: shutil.rmtree(server.directory, ignore_errors=True))
        context.after_row("recovery kafka", server.stop)
        server.start()
        server.create_topic("filled", PARTITIONS)
        server.produce(
            "filled", context.records(RECOVERY_BYTES // _VALUE_BYTES), context.payload(_VALUE_BYTES), {"acks": "1"}
        )
        server.stop()
        return server

    server = context.once("recovery kafka", fill)
    server.start()
    server.produce("filled", context.records(UNCLEAN_RECORDS), context.payload(_VALUE_BYTES), {"acks": "1"})
    server.kill()
    os.sync()
    begun = time.perf_counter()
    server.start()
    server.wait_for_partitions("filled", range(PARTITIONS))
    seconds = time.perf_counter() - begun
    used = usage(server.pid)
    server.stop()
    return Measurement(value=seconds, server_cpu_s=used.cpu_s, server_rss_bytes=used.rss_bytes)


# -- memory


def memory(context: Context, *, loaded: bool) -> Measurement:
    """Resident memory in MB, a moment after the start or after records have been written and read."""
    directory = context.scratch / "memory-sparklog"
    with sparklog.start_local(directory) as broker:
        if loaded:
            with sparklog.Admin(broker.bootstrap_servers) as admin:
                admin.create_topic("filled", partitions=PARTITIONS)
            records = context.records(LOADED_RECORDS)
            _fill(context, broker, records)
            reading = {"bootstrap": broker.bootstrap_servers, "topic": "filled", "partitions": PARTITIONS}
            context.client("sparklog_consume", **reading, records=records)
        time.sleep(IDLE_S)
        used = usage(broker.pid)
    shutil.rmtree(directory)
    return Measurement(value=used.rss_bytes / 1e6, server_cpu_s=used.cpu_s, server_rss_bytes=used.rss_bytes)


def kafka_memory(context: Context, *, loaded: bool) -> Measurement:
    with _new_kafka(context, "memory-kafka") as server:
        server.start()
        if loaded:
            records = context.records(LOADED_RECORDS)
            server.create_topic("filled", PARTITIONS)
            server.produce("filled", records, context.payload(_VALUE_BYTES), {"acks": "all"})
            server.consume("filled", records)
        time.sleep(IDLE_S)
        used = usage(server.pid)
    return Measurement(value=used.rss_bytes / 1e6, server_cpu_s=used.cpu_s, server_rss_bytes=used.rss_bytes)


# -- disk


def stored(context: Context, *, peer: bool, compression: str) -> Measurement:
    """Bytes per record in the segment files."""
    measure = perf_test if peer else send_batch
    found = measure(context, value_bytes=100, records=1_000_000, compression=compression)
    assert found.bytes_per_record is not None
    return Measurement(value=found.bytes_per_record)


def create(context: Context, *, partitions: int) -> Measurement:
    """Seconds until a topic is made and the ends of some of its partitions are known."""
    os.sync()
    load = os.getloadavg()[0]
    begun = time.perf_counter()
    with context.topic(partitions) as topic, sparklog.Admin(context.broker.bootstrap_servers) as admin:
        admin.list_offsets({sparklog.TopicPartition(topic, p): "latest" for p in range(0, partitions, ASKED_EVERY)})
        return Measurement(value=time.perf_counter() - begun, load_before=load)


def kafka_create(context: Context, *, partitions: int) -> Measurement:
    os.sync()
    load = os.getloadavg()[0]
    kafka = context.kafka
    begun = time.perf_counter()
    with kafka.topic(partitions, wait=False) as topic:
        kafka.wait_for_partitions(topic, range(0, partitions, ASKED_EVERY))
        return Measurement(value=time.perf_counter() - begun, load_before=load)


# -- growth


def _seconds_per_million(context: Context, *, partitions: int) -> Measurement:
    found = send_batch(context, value_bytes=100, records=5_000_000, partitions=partitions)
    return Measurement(
        value=1e6 / found.value,
        client_cpu_s=found.client_cpu_s,
        server_cpu_s=found.server_cpu_s,
        server_rss_bytes=found.server_rss_bytes,
        load_before=found.load_before,
    )


def _random_fetch(context: Context, *, size_bytes: int) -> Measurement:
    """Fetches of 64 KiB at random offsets of a partition of this size, in µs."""
    records = context.records(size_bytes // _VALUE_BYTES)

    def fill() -> str:
        context.need_disk(1.3 * context.scale * size_bytes)
        topic = context.create_topic(1)
        context.after_row(f"growth {size_bytes}", lambda: context.delete_topic(topic))
        context.client(
            "sparklog_send_batch",
            bootstrap=context.broker.bootstrap_servers,
            topic=topic,
            records=records,
            payload=str(context.payload(_VALUE_BYTES)),
            batch_records=GROWTH_BATCH_RECORDS,
            columnar=False,
            batch_size_bytes=GROWTH_BATCH_RECORDS * _VALUE_BYTES,
        )
        return topic

    topic = context.once(f"growth {size_bytes}", fill)
    return measured(
        context.broker.pid,
        lambda: context.client(
            "random_fetches",
            bootstrap=context.broker.bootstrap_servers,
            topic=topic,
            end_offset=records,
            count=GROWTH_REQUESTS,
            max_bytes=GROWTH_BATCH_RECORDS * _VALUE_BYTES,
        ),
        lambda r: r["median_us"],
    )


def _connections(context: Context, *, connections: int) -> Measurement:
    return measured(
        context.broker.pid,
        lambda: context.client(
            "many_connections",
            bootstrap=context.broker.bootstrap_servers,
            connections=connections,
            count=GROWTH_REQUESTS,
        ),
        lambda r: r["median_us"],
    )


def _disk(compression: str) -> Row:
    return Row(
        f"disk-100b-{compression}",
        f"bytes on disk per record of 100 B, {compression}",
        KAFKA,
        "bytes",
        at_most(1.0),
        partial(stored, peer=False, compression=compression),
        partial(stored, peer=True, compression=compression),
        {"batches": "1 MiB on both sides"},
    )


_MANY = 1000

ROWS = (
    Row("start", "start on an empty directory", KAFKA, "s", at_most(0.1), start, kafka_start, {"until": "a client has got metadata"}),
    Row(
        "recovery", "start after kill -9, 10 GB", KAFKA, "s", at_most(0.1), recovery, kafka_recovery,
        {"data": f"10 GB in {PARTITIONS} partitions, {UNCLEAN_RECORDS:,} records of 1 KiB just before the kill", "until": "a client knows the end of every partition"},
    ),
    Row("memory-idle", "resident memory, idle", KAFKA, "MB", at_most(0.2), partial(memory, loaded=False), partial(kafka_memory, loaded=False), {"Kafka": "-Xmx1g -Xms1g, its scripts' default"}),
    Row("memory-loaded", "resident memory after 2 GB written and read", KAFKA, "MB", at_most(0.2), partial(memory, loaded=True), partial(kafka_memory, loaded=True), {"Kafka": "-Xmx1g -Xms1g, its scripts' default"}),
    _disk("none"),
    _disk("lz4"),
    _disk("zstd"),
    Row(
        "partitions-1000", "produce 100 B to 1,000 partitions", KAFKA, "records/s", at_least(10),
        partial(send_batch, value_bytes=100, records=5_000_000, partitions=_MANY),
        partial(perf_test, value_bytes=100, records=1_000_000, partitions=_MANY),
        {"records": "5,000,000 (sparklog), 1,000,000 (Kafka), acks=all, batches as in produce-100b"},
    ),
    Row(
        "create-1000", "create a topic of 1,000 partitions", KAFKA, "s", None,
        partial(create, partitions=_MANY), partial(kafka_create, partitions=_MANY), {"until": "the ends of every 50th partition are known"},
    ),
    Row(
        "growth-partitions", "produce to 2,000 partitions against 1", "sparklog, 1 partition", "µs/record", at_most(1.2),
        partial(_seconds_per_million, partitions=2000), partial(_seconds_per_million, partitions=1),
        {"records": "5,000,000 of 100 bytes, acks=all"},
    ),
    Row(
        "growth-connections", "a tiny request with 5,000 connections against 10", "sparklog, 10 connections", "µs (median)", at_most(1.2),
        partial(_connections, connections=5000), partial(_connections, connections=10),
        {"requests": f"{GROWTH_REQUESTS:,} handshakes, each on the next connection"},
    ),
    Row(
        "growth-fetch", "a fetch at a random offset of 50 GB against 1 GB", "sparklog, 1 GB", "µs (median)", at_most(1.2),
        partial(_random_fetch, size_bytes=50_000_000_000), partial(_random_fetch, size_bytes=1_000_000_000),
        {"requests": f"{GROWTH_REQUESTS:,} fetches of 64 KiB; 50 GB do not fit into this machine's page cache, what is read from disk counts"},
    ),
)  # fmt: skip
