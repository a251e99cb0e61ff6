"""Figures of mirrors: the rate and the lag of a copy, beside MirrorMaker 2, and the failover to a copy.

`python -m tests.campaigns.benchmarks.mirror_figures` starts a Kafka (from Maven) and sparklog's brokers on this
machine. `--parts rate,lag,failover` measures some of the parts, `--scale 0.1` with a tenth of the records. Each program
is measured alone, one after the other; times of processors are those of the process that copies, and of the broker
that stores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.errors import SparklogError
from sparklog.types import TopicPartition
from tests.support.kafka import KafkaInstallation, KafkaServer
from tests.support.processes import Usage, usage

PARTS = ("rate", "lag", "failover")
PARTITIONS = 4
VALUE_BYTES = 1_000
RECORDS = 1_000_000
RATE, LAG_S, WARM_S = 5_000, 30, 10
"""Records per second, the time of the measurement in s, and of the load before it, in which programs warm up."""
FAILOVER_S = 20
WAIT_S = 600
MIB = 1 << 20
TOPIC = "events"
MIRROR_MAKER = """clusters = source, target
source.bootstrap.servers = {source}
target.bootstrap.servers = {target}
source->target.enabled = true
target->source.enabled = false
source->target.topics = {topic}
source->target.groups = none
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
tasks.max = 4
"""


class Copy:
    """A running copy: the ends of the topic there, and the processes that copy and store."""

    def __init__(
        self, ends: Callable[[], int], pids: dict[str, list[int]], consumer: Callable[[], Iterator[float]]
    ) -> None:
        """`consumer`: yields the lag in s of each record that arrives at the copy."""
        self.ends = ends
        self.pids = pids
        self.consumer = consumer

    def usage(self) -> dict[str, Usage]:
        """The use of the processes so far."""
        return {role: usage(*pids) for role, pids in self.pids.items()}


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill the process at the end of the block."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def kafka(installation: KafkaInstallation, directory: Path) -> Iterator[KafkaServer]:
    """A node of Kafka."""
    server = KafkaServer(installation, directory)
    server.start()
    try:
        yield server
    finally:
        server.stop(kill=True)


def kafka_end(server: KafkaServer) -> int:
    """Sum of the ends of the topic's partitions; 0 before it exists."""
    from confluent_kafka import Consumer, KafkaException
    from confluent_kafka import TopicPartition as KafkaPartition

    consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "ends", "log_level": 0})
    try:
        return sum(consumer.get_watermark_offsets(KafkaPartition(TOPIC, p), timeout=30)[1] for p in range(PARTITIONS))
    except KafkaException:
        return 0
    finally:
        consumer.close()


def kafka_lags(server: KafkaServer) -> Iterator[float]:
    """The lag of each record that arrives at a node of Kafka."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as KafkaPartition

    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "group.id": "lags",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([KafkaPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
    while True:
        for message in consumer.consume(500, 0.05):
            yield time.time() - float(bytes(message.value() or b"")[:20])


def sparklog_end(local: LocalBroker) -> int:
    """Sum of the ends of the topic's partitions."""
    with sparklog.Admin(local.bootstrap_servers) as admin:
        tps = dict.fromkeys((TopicPartition(TOPIC, p) for p in range(PARTITIONS)), "latest")
        return sum(one.offset for one in admin.list_offsets(tps).values())


def sparklog_lags(local: LocalBroker) -> Iterator[float]:
    """The lag of each record that arrives at a broker."""
    with sparklog.Consumer(local.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, p) for p in range(PARTITIONS)])
        while True:
            for record in consumer.poll(50):
                yield time.time() - float(bytes(record.value or b"")[:20])


@contextlib.contextmanager
def mirror_maker(installation: KafkaInstallation, source: KafkaServer, directory: Path) -> Iterator[Copy]:
    """MirrorMaker 2 from one node of Kafka to another."""
    with kafka(installation, directory / "target") as target:
        config = directory / "mm2.properties"
        config.write_text(
            MIRROR_MAKER.format(source=source.bootstrap_servers, target=target.bootstrap_servers, topic=TOPIC)
        )
        command = installation.mirror_maker(config)
        with (
            (directory / "mm2.log").open("wb") as log,
            ended(subprocess.Popen(command, stdout=log, stderr=log)) as made,
        ):
            pids = {"copy": [made.pid], "store": target.pids}
            yield Copy(lambda: kafka_end(target), pids, lambda: kafka_lags(target))


@contextlib.contextmanager
def mirror(source: str) -> Iterator[Copy]:
    """sparklog's mirror from `source`, an address as `--source` takes it."""
    with sparklog.start_local(settings={"mirror.worker.enable": False}) as target:
        with sparklog.Admin(target.bootstrap_servers) as admin:
            admin.create_mirror("figures", source=source, topics=TOPIC)
        command = [
            sys.executable,
            "-m",
            "sparklog.cli",
            "mirror",
            "run",
            "--bootstrap-servers",
            target.bootstrap_servers,
        ]
        with ended(subprocess.Popen(command, stdout=subprocess.DEVNULL)) as worker:
            pids = {"copy": [worker.pid], "store": [target.pid]}
            yield Copy(lambda: sparklog_end(target), pids, lambda: sparklog_lags(target))


def fill(bootstrap_servers: str, records: int) -> None:
    """Produce records as fast as possible, with Kafka's protocol. They begin with the time, as those of `lag`."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "batch.size": MIB, "log_level": 0})
    value = f"{time.time():<20.6f}".encode() + os.urandom(VALUE_BYTES // 2 - 10).hex().encode()
    for i in range(records):
        while True:
            try:
                producer.produce(TOPIC, value, partition=i % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(WAIT_S)


def rate(name: str, copy: Copy, records: int) -> None:
    """Print the rate at which a copy of `records` is made, and its processor time."""
    began_s, before = time.monotonic(), copy.usage()
    first_s, first = 0.0, 0
    while (end := copy.ends()) < records:
        if end and not first:
            first_s, first, before = time.monotonic(), end, copy.usage()
        if time.monotonic() - began_s > WAIT_S:
            print(f"{name:<28} ended after {end} of {records} records")
            return
        time.sleep(0.05)
    seconds, size = time.monotonic() - first_s, (records - first) * VALUE_BYTES / 1e9
    used = {role: one.cpu_s - before[role].cpu_s for role, one in copy.usage().items()}
    print(
        f"{name:<28} {size / max(seconds, 1e-9):6.3f} GB/s  copy {used['copy'] / size:6.2f} CPU s/GB  "
        f"store {used['store'] / size:6.2f} CPU s/GB  memory {copy.usage()['copy'].rss_bytes // MIB} MiB",
        flush=True,
    )


def lag(name: str, copy: Copy, source: KafkaServer) -> None:
    """Print percentiles of the time from a record's production to its arrival at the copy's consumer."""
    from confluent_kafka import Producer

    before, began_s = kafka_end(source), time.monotonic()
    while copy.ends() < before:  # the records of the copies before
        if time.monotonic() - began_s > WAIT_S:
            print(f"{name:<28} ended after {copy.ends()} of {before} records")
            return
        time.sleep(0.1)
    lags: list[float] = []
    arrivals = copy.consumer()
    done = threading.Event()

    def receive() -> None:
        for one in arrivals:
            if time.time() - one >= measured_from_s:
                lags.append(one)
            if done.is_set():
                return

    measured_from_s = time.time()
    threading.Thread(target=receive, daemon=True).start()
    settings = {"bootstrap.servers": source.bootstrap_servers, "linger.ms": 5, "log_level": 0}
    producer = Producer({**settings, "queue.buffering.max.messages": RATE * (LAG_S + WARM_S)})
    began_s = time.monotonic()
    for tick in range((LAG_S + WARM_S) * 100):
        if tick == WARM_S * 100:
            lags.clear()
        for i in range(RATE // 100):
            value = f"{time.time():<20.6f}".encode().ljust(100, b".")
            producer.produce(TOPIC, value, partition=i % PARTITIONS)
        producer.poll(0)
        time.sleep(max(0.0, began_s + (tick + 1) / 100 - time.monotonic()))
    producer.flush(WAIT_S)
    began_s = time.monotonic()
    while len(lags) < RATE * LAG_S and time.monotonic() - began_s < LAG_S:
        time.sleep(0.1)
    done.set()
    figures = " ".join(f"p{p} {1000 * np.percentile(lags, p):7.1f} ms" for p in (50, 99))
    print(f"{name:<28} {len(lags)} records  {figures}", flush=True)


def failover() -> None:
    """Kill a broker under load, promote its copy, and print what was lost and how long it took."""
    with sparklog.start_local() as source, sparklog.start_local() as target:
        with sparklog.Admin(source.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        with sparklog.Admin(target.bootstrap_servers) as admin:
            admin.create_mirror("copy", source=f"sparklog://{source.bootstrap_servers}", topics=TOPIC)
            acknowledged: list[float] = []
            producer = sparklog.Producer(source.bootstrap_servers, delivery_timeout_ms=1_000, request_timeout_ms=500)
            began_s = time.monotonic()
            killed_s = 0.0
            for tick in range(FAILOVER_S * 100):
                table = pa.table({"value": [os.urandom(50)] * (RATE // 100)})
                sent = producer.send_batch(TOPIC, table)
                sent.add_done_callback(
                    lambda f: acknowledged.append(time.monotonic()) if f.exception() is None else None
                )
                time.sleep(max(0.0, began_s + (tick + 1) / 100 - time.monotonic()))
                if tick == FAILOVER_S * 80:
                    os.kill(source.pid, signal.SIGKILL)
                    killed_s = time.monotonic()
                    break
            with contextlib.suppress(SparklogError):
                producer.close()
            count = len(acknowledged) * (RATE // 100)
            promoted = admin.promote_mirror("copy", now=True)
            with sparklog.Producer(target.bootstrap_servers, linger_ms=0) as writer:
                writer.send(TOPIC, b"first").result(WAIT_S)
            written_s = time.monotonic()
            end = sparklog_end(target) - 1
            print(
                f"failover of {promoted[0]}: {count} records acknowledged, {end} at the copy, lost {count - end} "
                f"({1000 * (count - end) / RATE:.0f} ms); {written_s - killed_s:.2f} s from the kill to the first write "
                "at the copy, with a promotion at once",
                flush=True,
            )


def main() -> None:
    """Measure the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    parts = args.parts.split(",")
    records = int(RECORDS * args.scale)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if {"rate", "lag"} & set(parts):
            installation = KafkaInstallation()
            installation.install()
            for number, measures_lag in enumerate(part == "lag" for part in ("rate", "lag") if part in parts):
                with kafka(installation, directory / f"source{number}") as source:
                    from confluent_kafka.cimpl import NewTopic

                    source.admin().create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
                    source.wait_for_partitions(TOPIC, range(PARTITIONS))
                    fill(source.bootstrap_servers, PARTITIONS if measures_lag else records)
                    copies: dict[str, Any] = {
                        "MirrorMaker 2, from Kafka": lambda s=source, n=number: mirror_maker(
                            installation, s, _new_directory(directory / f"mm2-{n}")
                        ),
                        "sparklog, from Kafka": lambda s=source: mirror(f"kafka://{s.bootstrap_servers}"),
                    }
                    for title, make in copies.items():
                        with make() as copy:
                            if measures_lag:
                                lag(title, copy, source)
                            else:
                                rate(title, copy, records)
            if "rate" in parts:
                with sparklog.start_local(kafka=True) as local:
                    with sparklog.Admin(local.bootstrap_servers) as admin:
                        admin.create_topic(TOPIC, PARTITIONS)
                    assert local.kafka_bootstrap_servers
                    fill(local.kafka_bootstrap_servers, records)
                    with mirror(f"sparklog://{local.bootstrap_servers}") as copy:
                        rate("sparklog, from sparklog", copy, records)
        if "failover" in parts:
            failover()


def _new_directory(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


if __name__ == "__main__":
    main()
