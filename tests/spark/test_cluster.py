"""Spark on three real brokers: exactly once, while any broker dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.client.local_cluster import LocalCluster
from sparklog.client.local_zookeeper import has_java

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper"),
]

FAST = {"zookeeper.session.timeout.ms": 6_000, "replica.lag.time.max.ms": 10_000}
ROWS = 20_000
ROUNDS = 4


def test_a_stream_from_topic_to_topic_through_failovers(spark: Any, tmp_path: Path) -> None:
    with sparklog.start_local(brokers=3, settings=FAST) as cluster:
        assert isinstance(cluster, LocalCluster)
        servers = cluster.bootstrap_servers
        with sparklog.Admin(servers) as admin:
            for topic in ("source", "sink"):
                admin.create_topic(topic, partitions=6, replication_factor=3, configs={"min.insync.replicas": 2})
        stream = spark.readStream.format("sparklog").option("kafka.bootstrap.servers", servers)
        query = (
            stream.option("subscribe", "source")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", ROWS // 4)
            .load()
            .select("value")
            .writeStream.format("sparklog")
            .option("kafka.bootstrap.servers", servers)
            .option("topic", "sink")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            for number in range(ROUNDS):
                rows = spark.range(number * ROWS, (number + 1) * ROWS).selectExpr("cast(id AS string) AS value")
                writer = rows.write.format("sparklog").option("kafka.bootstrap.servers", servers).mode("append")
                writer.option("topic", "source").save()
                victim = cluster.brokers[number % 3]
                if number % 2:
                    victim.stop()
                else:
                    victim.kill()
                victim.start()
            query.processAllAvailable()
            assert query.exception() is None
        finally:
            query.stop()
        for topic in ("source", "sink"):
            read = spark.read.format("sparklog").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
            values = read.load().selectExpr("cast(cast(value AS string) AS long) AS value")
            assert values.count() == values.distinct().count() == ROUNDS * ROWS
