"""Three brokers beside three nodes of Kafka: three replicas, two of which must have what is acknowledged."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import sparklog
from sparklog.client.local_cluster import SESSION_TIMEOUT_MS, LocalCluster
from sparklog.errors import SparklogError

from ..context import Context, environment, measured
from ..latency import VALUE_BYTES
from ..processes import MeasurementError, total_usage
from ..results import Measurement
from ..session_end import watched_session
from .produce import BATCH_BYTES, PARTITIONS
from .row import KAFKA, Row, at_least, at_most

GOAL = "the goal"
CREATE_TIMEOUT_MS = 300_000
RATE = 1_000
SECONDS = 20
WARM_UP_SECONDS = 3
GAP_SECONDS = 30.0
MANY = 2_000
FAILOVER_GOAL_S = 2.0
IDLE_GOAL_PERCENT = 10.0
SETTLE_S, IDLE_S = 15.0, 20.0
WAIT_S = 120.0
_REPLICAS = {"topics": "3 replicas, min.insync.replicas=2, acks=all"}


@contextlib.contextmanager
def _topic(cluster: LocalCluster, partitions: int) -> Iterator[str]:
    """A new topic, all of whose replicas are in sync."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with sparklog.Admin(cluster.bootstrap_servers, request_timeout_ms=CREATE_TIMEOUT_MS) as admin:
        configs = {"min.insync.replicas": 2}
        admin.create_topic(name, partitions=partitions, replication_factor=3, configs=configs)
        _until(lambda: all(len(p.isr) == 3 and p.leader >= 0 for p in admin.describe_topic(name).partition_details))
        yield name
        with contextlib.suppress(SparklogError):  # a broker may be missing: the cluster ends with the row
            admin.delete_topic(name)


def _until(condition: Callable[[], bool]) -> None:
    """Raises MeasurementError."""
    deadline = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(SparklogError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise MeasurementError(f"the cluster has not come to rest within {WAIT_S:.0f} s")
        time.sleep(0.02)


def _pids(cluster: LocalCluster) -> list[int]:
    return [broker.pid for broker in cluster.brokers]


# -- producing


def produce(context: Context, *, value_bytes: int, records: int) -> Measurement:
    count, cluster = context.records(records), context.cluster
    with _topic(cluster, PARTITIONS) as topic:
        arguments: dict[str, Any] = {
            "bootstrap": cluster.bootstrap_servers,
            "topic": topic,
            "records": count,
            "payload": str(context.payload(value_bytes)),
            "batch_records": BATCH_BYTES // value_bytes,
            "columnar": False,
            "acks": "all",
            "batch_size_bytes": BATCH_BYTES,
        }
        return measured(
            _pids(cluster), lambda: context.client("sparklog_send_batch", **arguments), lambda r: r["records_per_s"]
        )


def kafka_produce(context: Context, *, value_bytes: int, records: int) -> Measurement:
    count, kafka = context.records(records), context.kafka_cluster
    with kafka.topic(PARTITIONS) as topic:
        return measured(
            kafka.pids,
            lambda: kafka.produce(topic, count, context.payload(value_bytes), {"acks": "all"}),
            lambda r: r["records_per_s"],
        )


def acknowledged(context: Context) -> Measurement:
    """p99 until a record is acknowledged, one partition."""
    seconds, cluster = max(2, round(SECONDS * context.scale)) + WARM_UP_SECONDS, context.cluster
    with _topic(cluster, 1) as topic:
        return measured(
            _pids(cluster),
            lambda: context.client(
                "sparklog_acknowledged",
                bootstrap=cluster.bootstrap_servers,
                topic=topic,
                rate=RATE,
                count=RATE * seconds,
                skip=RATE * WARM_UP_SECONDS,
                value_bytes=VALUE_BYTES,
            ),
            lambda r: r["p99_ms"],
        )


def kafka_acknowledged(context: Context) -> Measurement:
    seconds, kafka = max(2, round(SECONDS * context.scale)) + WARM_UP_SECONDS, context.kafka_cluster
    settings = {"acks": "all", "linger.ms": "0"}
    with kafka.topic(1) as topic:
        return measured(
            kafka.pids,
            lambda: kafka.produce(topic, RATE * seconds, context.payload(VALUE_BYTES), settings, rate=RATE),
            lambda r: r["p99_ms"],
        )


# -- without a leader


def _gap(program: str, bootstrap: str, topic: str, end_leader: Callable[[], None]) -> Measurement:
    arguments = {"bootstrap": bootstrap, "topic": topic, "seconds": GAP_SECONDS}
    command = [sys.executable, "-m", "tests.benchmarks.client", program, json.dumps(arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as client:
        try:
            assert client.stdout is not None
            if client.stdout.readline().strip() != "running":
                raise MeasurementError("nothing was acknowledged in the first place")
            time.sleep(1)
            end_leader()
            found = json.loads(client.stdout.read().splitlines()[-1])
        finally:
            client.kill()
    return Measurement(value=found["gap_s"], extra=found)


def gap(context: Context, *, kill: bool) -> Measurement:
    """The longest time between two acknowledgements when the partition's leader ends."""
    cluster = context.cluster
    with _topic(cluster, 1) as topic:
        with sparklog.Admin(cluster.bootstrap_servers) as admin:
            leader = admin.describe_topic(topic).partition_details[0].leader
        broker = next(b for b in cluster.brokers if b.broker_id == leader)
        found = _gap("sparklog_gaps", cluster.bootstrap_servers, topic, broker.kill if kill else partial(_stop, broker))
        broker.start()
    return found


def _stop(broker: Any) -> None:
    broker.stop()


def kafka_gap(context: Context, *, kill: bool) -> Measurement:
    kafka = context.kafka_cluster
    with kafka.topic(1) as topic:
        (leader,) = kafka.leaders(topic)
        end = kafka.kill_node if kill else kafka.stop_node
        found = _gap("confluent_gaps", kafka.bootstrap_servers, topic, partial(end, leader))
        kafka.start_node(leader)
        time.sleep(SETTLE_S)
    return found


# -- many partitions


def failover(context: Context) -> Measurement:
    """From the end of the session of a broker that was killed until all partitions have leaders again."""
    cluster = context.cluster
    count = max(30, round(MANY * min(1.0, context.scale)))
    with _topic(cluster, count) as topic:
        victim = cluster.brokers[1]
        asked = ",".join(b.bootstrap_servers for b in cluster.brokers if b is not victim)
        with (
            watched_session(cluster.zookeeper_connect, victim.broker_id) as session,
            sparklog.Admin(asked, request_timeout_ms=CREATE_TIMEOUT_MS) as admin,
        ):

            def all_led() -> bool:
                details = admin.describe_topic(topic).partition_details
                return all(p.leader not in (-1, victim.broker_id) for p in details)

            victim.kill()
            killed = time.monotonic()
            ended = session.wait(WAIT_S)
            _until(all_led)
            led = time.monotonic()
        victim.start()
    return Measurement(
        value=led - ended,
        extra={"partitions": count, "since_kill_s": led - killed, "session_end_s": ended - killed},
    )


def idle(context: Context) -> Measurement:
    """Percent of a core that three brokers take while nothing happens to the replicas they have."""
    cluster = context.cluster
    count = max(30, round(MANY * min(1.0, context.scale)))
    with _topic(cluster, count):
        time.sleep(SETTLE_S)
        before = total_usage(_pids(cluster))
        time.sleep(IDLE_S)
        after = total_usage(_pids(cluster))
    percent = 100 * (after.cpu_s - before.cpu_s) / IDLE_S
    return Measurement(value=percent, server_rss_bytes=after.rss_bytes, extra={"partitions": count})


def memory(context: Context) -> Measurement:
    """Resident memory of the brokers (without ZooKeeper) after records have been produced."""
    produced = produce(context, value_bytes=1024, records=500_000)
    used = total_usage(_pids(context.cluster)).rss_bytes
    with_zookeeper = used + total_usage([context.cluster.zookeeper.pid]).rss_bytes
    return Measurement(
        value=used / 1e6, server_rss_bytes=used, extra=produced.extra | {"with_zookeeper_mb": with_zookeeper / 1e6}
    )


def kafka_memory(context: Context) -> Measurement:
    produced = kafka_produce(context, value_bytes=1024, records=500_000)
    used = total_usage(context.kafka_cluster.pids).rss_bytes
    return Measurement(value=used / 1e6, server_rss_bytes=used, extra=produced.extra)


def _fixed(context: Context, *, value: float) -> Measurement:
    return Measurement(value=value)


_SESSIONS = {"sessions": f"sparklog {SESSION_TIMEOUT_MS / 1_000:g} s (a local cluster's), Kafka 9 s (its default)"}

ROWS: tuple[Row, ...] = (
    *(
        Row(
            f"cluster-produce-{name}",
            f"three brokers: produce {title}",
            KAFKA,
            "records/s",
            at_least(3.0),
            partial(produce, value_bytes=size, records=records),
            partial(kafka_produce, value_bytes=size, records=records),
            _REPLICAS,
        )
        for name, title, size, records in (("100b", "100 B", 100, 4_000_000), ("1kib", "1 KiB", 1024, 500_000))
    ),
    Row(
        "cluster-acknowledged",
        "three brokers: p99 of an acknowledgement at 1,000/s",
        KAFKA,
        "ms",
        at_most(0.2),
        acknowledged,
        kafka_acknowledged,
        _REPLICAS | {"linger": "0 ms"},
    ),
    *(
        Row(
            f"cluster-{name}-leader",
            f"three brokers: time without acknowledgements after {title} of a leader",
            KAFKA,
            "s",
            at_most(0.5),
            partial(gap, kill=kill),
            partial(kafka_gap, kill=kill),
            _REPLICAS | _SESSIONS,
        )
        for name, title, kill in (("kill", "kill -9", True), ("stop", "SIGTERM", False))
    ),
    Row(
        "cluster-failover",
        "three brokers: failover of 2,000 partitions after the session's end",
        GOAL,
        "s",
        at_most(1.0),
        failover,
        partial(_fixed, value=FAILOVER_GOAL_S),
        _REPLICAS,
    ),
    Row(
        "cluster-idle",
        "three brokers: idle with 2,000 partitions",
        GOAL,
        "% of a core",
        at_most(1.0),
        idle,
        partial(_fixed, value=IDLE_GOAL_PERCENT),
        _REPLICAS,
    ),
    Row(
        "cluster-memory",
        "three brokers: memory after producing 1 KiB",
        KAFKA,
        "MB",
        at_most(0.25),
        memory,
        kafka_memory,
        _REPLICAS | {"counted": "the brokers, without ZooKeeper"},
    ),
)
