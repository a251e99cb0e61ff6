"""Transactions that span brokers in a snapshot of a cluster: all of each, or nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.source.catalog import Catalog

import sparklog
from sparklog.client.admin.offset_snapshot import snapshot_offsets
from sparklog.client.local_zookeeper import has_java
from sparklog.client.net.cluster import cluster as cluster_of
from sparklog.client.net.retry import RetryPolicy
from sparklog.types import READ_COMMITTED, TopicPartition
from tests.support.waiting import until_reached

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper"),
]

PARTITIONS = 6


def test_a_snapshot_has_whole_transactions(tmp_path: Path) -> None:
    """Every transaction writes one record to each partition, so in a snapshot all partitions end alike; also while a
    leader and coordinator dies."""
    with sparklog.start_local(tmp_path, brokers=3) as cluster, sparklog.Admin(cluster.bootstrap_servers) as admin:
        assert isinstance(cluster, sparklog.LocalCluster)
        admin.create_topic("events", partitions=PARTITIONS)
        until_reached(
            lambda: len({p.leader for p in admin.describe_topic("events").partition_details}) == 3, "three leaders"
        )
        ending = threading.Event()
        committed: list[int] = []
        failed: list[BaseException] = []

        def commit(name: str) -> None:
            try:
                with sparklog.Producer(cluster.bootstrap_servers, transactional_id=name) as producer:
                    producer.init_transactions()
                    while not ending.is_set():
                        producer.begin_transaction()
                        for p in range(PARTITIONS):
                            producer.send("events", value=name.encode(), partition=p)
                        producer.commit_transaction()
                        committed.append(1)
            except BaseException as e:  # noqa: BLE001 - the test raises it
                failed.append(e)

        threads = [threading.Thread(target=commit, args=("alone",))]
        for thread in threads:
            thread.start()
        shared, seen = cluster_of(cluster.bootstrap_servers), set()
        try:
            until_reached(lambda: bool(committed), "a transaction")
            for number in range(60):
                if number == 30:
                    asks = admin.describe_topic("events").partition_details[0].leader  # who is asked for snapshots
                    next(b for b in cluster.brokers if b.broker_id == asks).kill()
                asked = [
                    snapshot_offsets(
                        shared,
                        f"snapshot-{number}",
                        ["events"],
                        TopicPartition("events", p),
                        READ_COMMITTED,
                        RetryPolicy(),
                    )
                    for p in range(PARTITIONS)
                ]
                ends = [end for _, end in asked]
                catalog = Catalog(ClusterAddress(cluster.bootstrap_servers), 30_000, READ_COMMITTED)
                extents = catalog.extents([TopicPartition("events", p) for p in range(PARTITIONS)])
                streamed = [extent.end for extent in extents.values()]
                assert len(set(streamed)) == 1, f"micro-batch {number} shows a part of a transaction: {streamed}"
                table = sparklog.read_table(cluster.bootstrap_servers, "events", columns=["value"])
                assert table.num_rows % PARTITIONS == 0, f"table {number} shows a part of a transaction"
                assert len(set(ends)) == 1, f"snapshot {number} shows a part of a transaction: {ends}"
                seen.add(ends[0])
            more = len(committed) + 3
            until_reached(lambda: bool(failed) or len(committed) >= more, "transactions after the snapshots")
        finally:
            ending.set()
            for thread in threads:
                thread.join(60)
        if failed:
            raise failed[0]
        assert len(seen) > 5, "it went on while snapshots were taken"
