"""A replicated topic as a Delta table: leaders and coordinators move, and each row is there once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import sparklog
from sparklog.client.local_cluster import LocalCluster
from sparklog.lake.worker.verify import verify_lake
from tests.support.waiting import until

pytestmark = [pytest.mark.nightly, pytest.mark.crash]


def test_leaders_move_and_retention_waits_on_all_replicas(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path / "data", brokers=3) as cluster:
        assert isinstance(cluster, LocalCluster)
        address = cluster.bootstrap_servers
        with sparklog.Admin(address) as admin:
            configs = {"min.insync.replicas": 2}
            admin.create_topic("trips", partitions=3, schema="n BIGINT", replication_factor=3, configs=configs)
            admin.enable_lake("trips", location=str(tmp_path / "table"), interval_ms=300)
            sent = 0
            with sparklog.Producer(address, transactional_id="load") as producer:
                producer.init_transactions()
                for broker in cluster.brokers:
                    for _ in range(5):
                        with producer.transaction():
                            for partition in range(3):
                                producer.send_batch("trips", pa.table({"n": [sent]}), partition=partition)
                        sent += 1
                    broker.kill()
                    with producer.transaction():
                        for partition in range(3):
                            producer.send_batch("trips", pa.table({"n": [sent]}), partition=partition)
                    sent += 1
                    broker.start()
                    until(lambda: all(len(p.isr) == 3 for p in admin.describe_topic("trips").partition_details))
            until(lambda: admin.describe_lake("trips").lag == 0, within_s=120)
            found = DeltaTable(tmp_path / "table")
            numbers = found.to_pyarrow_table().column("n").to_pylist()
            assert sorted(numbers) == sorted(3 * list(range(sent)))
            for version in range(found.version() + 1):
                numbers = DeltaTable(tmp_path / "table", version=version).to_pyarrow_table().column("n").to_pylist()
                assert all(numbers.count(n) == 3 for n in numbers), version
            assert verify_lake(admin, "trips").problems == []
