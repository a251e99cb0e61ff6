"""Three brokers beside three nodes of Kafka: three replicas, min.insync.replicas=2."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType

from sparklog.client.local_cluster import SESSION_TIMEOUT_MS
from sparklog.metadata.cluster_znodes import BROKER_IDS
from tests.support.processes import MeasurementError, usage

from ..context import CLUSTER, Context, started_client
from ..results import Measurement
from ..servers import WAIT_S, until
from .latency import acknowledged
from .produce import produce
from .row import Row, row

GOAL = "the goal"
GAP_SECONDS = 30.0
MANY = 2_000
FAILOVER_GOAL_S = 2.0
IDLE_GOAL_PERCENT = 10.0
SETTLE_S, IDLE_S = 15.0, 20.0


def _partitions(context: Context) -> int:
    return max(30, round(MANY * min(1.0, context.scale)))


# -- without a leader


def _gap(program: str, bootstrap: str, topic: str, end_leader: Callable[[], object]) -> Measurement:
    arguments = {"bootstrap": bootstrap, "topic": topic, "seconds": GAP_SECONDS}
    with started_client(program, GAP_SECONDS + WAIT_S, **arguments) as result:
        time.sleep(1)
        end_leader()
        found = result()
    return Measurement(value=found["gap_s"], extra=found)


def gap(context: Context, *, peer: bool, kill: bool) -> Measurement:
    """Measure the longest time between two acknowledgements, while the partition's leader ends."""
    server = context.server(peer, CLUSTER)
    with server.topic(1) as topic:
        if peer:
            leader = server.admin().list_topics(topic, timeout=WAIT_S).topics[topic].partitions[0].leader
            end = partial(server.end_node, leader, kill=kill)
            found = _gap("confluent_gaps", server.bootstrap_servers, topic, end)
            server.start_node(leader)
            time.sleep(SETTLE_S)
            return found
        with server.admin() as admin:
            leader = admin.describe_topic(topic).partition_details[0].leader
        broker = next(b for b in server.brokers if b.broker_id == leader)
        found = _gap("sparklog_gaps", server.bootstrap_servers, topic, broker.kill if kill else broker.stop)
        broker.start()
    return found


# -- many partitions


@contextlib.contextmanager
def watched_session(hosts: str, broker_id: int) -> Iterator[Callable[[float], float]]:
    """Watch a broker's ephemeral node in ZooKeeper. A session does not end one timeout after a kill: the last heartbeat
    was earlier, and ZooKeeper rounds up to its ticks. `hosts`: with the cluster's path.

    Yields a function that waits for the end, at most the given seconds, and returns its time on the monotonic clock.
    Raises MeasurementError if the broker is not registered, or the session does not end.
    """
    events: queue.SimpleQueue[tuple[object, float]] = queue.SimpleQueue()
    client = KazooClient(hosts=hosts)
    client.start(WAIT_S)

    def wait(timeout_s: float) -> float:
        with contextlib.suppress(queue.Empty):
            kind, at = events.get(timeout=timeout_s)
            if kind == EventType.DELETED:  # else the node was changed
                return at
        raise MeasurementError(f"the session of broker {broker_id} has not ended within {timeout_s:g} s")

    try:
        path = f"{BROKER_IDS}/{broker_id}"
        if client.exists(path, watch=lambda event: events.put((event.type, time.monotonic()))) is None:
            raise MeasurementError(f"broker {broker_id} is not registered in ZooKeeper")
        yield wait
    finally:
        client.stop()
        client.close()


def failover(context: Context, *, peer: bool) -> Measurement:
    """Measure from the end of a killed broker's session until all partitions have leaders; the peer is the goal."""
    if peer:
        return Measurement(value=FAILOVER_GOAL_S)
    server, count = context.sparklog(CLUSTER), _partitions(context)
    with server.topic(count) as topic:
        victim = server.brokers[1]
        others = ",".join(b.bootstrap_servers for b in server.brokers if b is not victim)
        with (
            watched_session(server.local.zookeeper_connect, victim.broker_id) as session,  # type: ignore[union-attr]
            server.admin(others) as admin,
        ):

            def all_led() -> bool:
                details = admin.describe_topic(topic).partition_details
                return all(p.leader not in (-1, victim.broker_id) for p in details)

            victim.kill()
            killed = time.monotonic()
            ended = session(WAIT_S)
            until(all_led)
            led = time.monotonic()
        victim.start()
    return Measurement(
        value=led - ended, extra={"partitions": count, "since_kill_s": led - killed, "session_end_s": ended - killed}
    )


def idle(context: Context, *, peer: bool) -> Measurement:
    """Measure the percentage of a core that three idle brokers take for their replicas; the peer is the goal."""
    if peer:
        return Measurement(value=IDLE_GOAL_PERCENT)
    server, count = context.sparklog(CLUSTER), _partitions(context)
    with server.topic(count):
        time.sleep(SETTLE_S)
        before = usage(*server.pids)
        time.sleep(IDLE_S)
        after = usage(*server.pids)
    percent = 100 * (after.cpu_s - before.cpu_s) / IDLE_S
    return Measurement(value=percent, server_rss_bytes=after.rss_bytes, extra={"partitions": count})


def memory(context: Context, *, peer: bool) -> Measurement:
    """Measure the resident memory of the brokers, without ZooKeeper, after records have been produced."""
    produced = produce(context, peer=peer, value_bytes=1024, records=500_000, where=CLUSTER)
    assert produced.server_rss_bytes is not None
    return msgspec.structs.replace(produced, value=produced.server_rss_bytes / 1e6)


_TOPICS = {"topics": "3 replicas, min.insync.replicas=2, acks=all"}
_SESSIONS = {"sessions": f"sparklog {SESSION_TIMEOUT_MS / 1_000:g} s (a local cluster's), Kafka 9 s (its default)"}
_GAP = "three brokers: time without acknowledgements after"

ROWS: tuple[Row, ...] = (
    *(
        row(
            f"cluster-produce-{name}", f"three brokers: produce {title}", 3,
            partial(produce, value_bytes=size, records=records, where=CLUSTER), **_TOPICS,
        )
        for name, title, size, records in (("100b", "100 B", 100, 4_000_000), ("1kib", "1 KiB", 1024, 500_000))
    ),
    row(
        "cluster-acknowledged", "three brokers: p99 of an acknowledgement at 1,000/s", 0.2,
        partial(acknowledged, rate=1_000, partitions=1, where=CLUSTER), unit="ms", linger="0 ms", **_TOPICS,
    ),
    row("cluster-kill-leader", f"{_GAP} kill -9 of a leader", 0.5, partial(gap, kill=True), unit="s", **_TOPICS, **_SESSIONS),
    row("cluster-stop-leader", f"{_GAP} SIGTERM of a leader", 0.5, partial(gap, kill=False), unit="s", **_TOPICS, **_SESSIONS),
    row("cluster-failover", "three brokers: failover of 2,000 partitions after the session's end", 1, failover, unit="s", peer=GOAL, **_TOPICS),
    row("cluster-idle", "three brokers: idle with 2,000 partitions", 1, idle, unit="% of a core", peer=GOAL, **_TOPICS),
    row(
        "cluster-memory", "three brokers: memory after producing 1 KiB", 0.25, memory, unit="MB",
        counted="the brokers, without ZooKeeper", **_TOPICS,
    ),
)  # fmt: skip
