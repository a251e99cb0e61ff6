"""A broker that is stopped keeps its connections and says nothing: clients go on as soon as it has left the cluster."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.local_zookeeper import has_java
from tests.support.waiting import until_reached
from tests.system.cluster_processes import ClusterProcesses

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper"),
]

LONG_MS = 900_000
"""Longer than the test may take: nobody can have waited for it."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    made = ClusterProcesses(tmp_path)
    yield made
    made.close()


def test_clients_go_on_when_a_broker_is_silent(cluster: ClusterProcesses) -> None:
    """For every leadership and coordinator: each broker is stopped in turn."""
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values())
    tps = [TopicPartition("events", p) for p in range(3)]
    cluster.create(1, "events", 3, min_insync_replicas=2)
    with (
        Admin(bootstrap, request_timeout_ms=LONG_MS) as admin,
        Producer(bootstrap, request_timeout_ms=LONG_MS, delivery_timeout_ms=2 * LONG_MS) as producer,
        Consumer(
            bootstrap,
            group_id="readers",
            auto_offset_reset="earliest",
            request_timeout_ms=LONG_MS,
            default_api_timeout_ms=LONG_MS,
            local_read="off",
        ) as consumer,
    ):
        consumer.assign(tps)
        found: list[bytes] = []

        def round_trip(value: bytes) -> None:
            """A record for each partition is written and read, its offset looked up, and a commit made."""
            expected = len(found) + len(tps)
            for tp in tps:
                producer.send("events", value=value, partition=tp.partition).result(300)
            until_reached(
                lambda: found.extend(r.value or b"" for r in consumer.poll(200)) or len(found) >= expected, "records"
            )
            assert found[-3:] == [value] * 3
            assert sum(o.offset for o in admin.list_offsets(dict.fromkeys(tps, "latest")).values()) == expected
            consumer.commit()

        for broker in cluster.ports:
            until_reached(lambda: cluster.in_sync("events", 3, asked=1), "in-sync replicas")
            round_trip(b"before %d" % broker)
            process = cluster.processes[broker].process
            process.send_signal(signal.SIGSTOP)
            try:
                round_trip(b"while %d is silent" % broker)
            finally:
                process.send_signal(signal.SIGCONT)
        assert len(found) == 18
