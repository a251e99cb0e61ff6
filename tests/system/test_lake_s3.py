"""A topic as a Delta table in an object store: conditional writes, two workers, reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import sparklog
from sparklog.environment import fault_points
from sparklog.lake.worker.verify import verify_lake
from sparklog.lake.worker.worker import LakeWorker
from tests.support.s3 import s3_bucket

BUCKET = "lake"
ZONE = "a b/ü=100%"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a bucket's prefix; the credentials are in the environment."""
    with s3_bucket(BUCKET) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}/tables"


def test_a_table_in_an_object_store(topic: str, s3: str, tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path / "data", settings={"lake.worker.enable": False}) as local:
        address = local.bootstrap_servers
        with sparklog.Admin(address) as own, sparklog.Producer(address) as producer:
            own.create_topic(topic, partitions=2, schema="n BIGINT, zone STRING")
            own.enable_lake(topic, location=f"{s3}/{topic}", partition_by=["zone"])
            worker, other = LakeWorker(address), LakeWorker(address)
            sent = 0

            def send() -> None:
                nonlocal sent
                for partition in range(2):
                    producer.send_batch(
                        topic, pa.table({"n": range(sent, sent + 50), "zone": [ZONE] * 50}), partition=partition
                    )
                    sent += 50
                producer.flush()

            def overtake() -> None:
                send()
                assert other.run_once([topic]) == {}

            for _ in range(10):
                send()
                assert worker.run_once([topic]) == {}
            send()
            fault_points.call_at("lake.before-commit", overtake)
            try:
                assert "another worker has committed" in worker.run_once([topic])[topic]
            finally:
                fault_points.disarm()
            assert worker.run_once([topic]) == {}
            rows = DeltaTable(f"{s3}/{topic}").to_pyarrow_table()
            assert sorted(rows.column("n").to_pylist()) == list(range(sent))
            assert rows.column("zone").unique().to_pylist() == [ZONE]
            assert len(DeltaTable(f"{s3}/{topic}").file_uris()) < 20  # small files were merged
            assert verify_lake(own, topic).problems == []
            assert sparklog.read_table(address, topic, history=True).num_rows == sent
            worker.close()
            other.close()
