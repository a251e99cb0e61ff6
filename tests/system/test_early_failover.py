"""Real brokers: a broker that is gone is replaced before its ZooKeeper session ends; one that only stops is not."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import sparklog
from sparklog.client.local_cluster import start_cluster
from sparklog.client.local_zookeeper import has_java
from sparklog.metadata.cluster_znodes import BROKER_IDS
from tests.support.waiting import until_reached

pytestmark = pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")

SESSION_MS = 40_000
"""ZooKeeper's longest session: no part of a failover waits for its end."""
SETTINGS = {"zookeeper.session.timeout.ms": SESSION_MS, "replica.lag.time.max.ms": 2 * SESSION_MS}
STOPPED_S = 2.0


def test_the_leader_and_controller_is_replaced_within_its_session(tmp_path: Path) -> None:
    with (
        start_cluster(3, tmp_path, settings=SETTINGS, timeout_s=120) as cluster,
        sparklog.Admin(cluster.bootstrap_servers) as admin,
        sparklog.Producer(cluster.bootstrap_servers, acks="all") as producer,
    ):
        admin.create_topic("t", partitions=3, replication_factor=3, configs={"min.insync.replicas": 2})

        def controller() -> int:
            return admin.describe_cluster().controller_id

        def partitions() -> list[tuple[int, list[int]]]:
            return [(p.leader, sorted(p.isr)) for p in admin.describe_topic("t").partition_details]

        def store() -> None:
            for future in [producer.send("t", b"x", partition=p) for p in range(3)]:
                future.result(60)

        until_reached(lambda: all(isr == [1, 2, 3] for _, isr in partitions()), "all replicas are in sync")
        store()
        before = controller(), partitions()
        victim = next(b for b in cluster.brokers if b.broker_id == before[0])
        others = [b for b in cluster.brokers if b is not victim]

        os.kill(victim.pid, signal.SIGSTOP)
        continues_at = time.monotonic() + STOPPED_S
        with sparklog.Admin(",".join(b.bootstrap_servers for b in others)) as admin_of_others:
            while time.monotonic() < continues_at:
                assert all(p.isr for p in admin_of_others.describe_topic("t").partition_details)
        os.kill(victim.pid, signal.SIGCONT)
        store()
        assert (controller(), partitions()) == before
        assert not [b.broker_id for b in others if "do not reach" in b.log]

        victim.kill()
        store()
        registered = KazooClient(hosts=cluster.zookeeper_connect)
        registered.start(60)
        try:
            until_reached(lambda: controller() not in (-1, victim.broker_id), "another controller")
            assert registered.exists(f"{BROKER_IDS}/{victim.broker_id}"), "its session has not ended"
            assert all(leader != victim.broker_id for leader, _ in partitions())
        finally:
            registered.stop()
            registered.close()
