"""A topic's Delta table in Spark: every row once, in batches and in streams, across merges and deletion vectors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark_sparklog.delta import latest_changes

import sparklog
from sparklog.lake.worker.worker import LakeWorker
from sparklog.types import TopicPartition

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
def test_spark_reads_the_delta_table(tmp_path: Path) -> None:
    with (
        sparklog.start_local(tmp_path / "data", settings={"lake.worker.enable": False}) as broker,
        sparklog.Admin(broker.bootstrap_servers) as admin,
    ):
        admin.create_topic("trips", partitions=2, schema="n BIGINT")
        admin.enable_lake("trips", location=str(tmp_path / "table"))
        arguments = [broker.bootstrap_servers, str(tmp_path / "table"), str(tmp_path), "trips"]
        command = [sys.executable, "-m", "tests.spark.lake_reader", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "sent": 2_400,
        "rows": 2_400,
        "distinct": 2_400,
        "streamed": 2_400,
        "streamed_distinct": 2_400,
        "problems": "",
        "after": 2_408,
        "history": 2_408,
        "deleted": 0,
        "read_table": 2_408,
    }


def test_a_stream_and_a_batch_across_the_seam(spark: Any, tmp_path: Path, topic_name: Callable[[str], str]) -> None:
    """One checkpoint below and above the table's end, with a log that was cut."""
    topic = topic_name("seam")
    with (
        sparklog.start_local(tmp_path / "data", settings={"lake.worker.enable": False}) as broker,
        sparklog.Admin(broker.bootstrap_servers) as admin,
        sparklog.Producer(broker.bootstrap_servers) as producer,
    ):
        address = broker.bootstrap_servers
        admin.create_topic(topic, partitions=2, schema="id BIGINT, n BIGINT", key_columns=["id"])
        admin.enable_lake(topic, location=str(tmp_path / "table"))
        worker = LakeWorker(address)

        def send(start: int) -> None:
            producer.send_batch(topic, [{"id": n % 40, "n": n} for n in range(start, start + 200)])
            producer.flush()

        def stream() -> None:
            reader = spark.readStream.format("sparklog").option("sparklog.bootstrap.servers", address)
            frame = reader.option("subscribe", topic).option("startingOffsets", "history")
            writer = frame.option("maxOffsetsPerTrigger", 150).load().writeStream.format("parquet")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            writer.start(str(tmp_path / "out")).awaitTermination()

        send(0)
        assert worker.run_once([topic]) == {}
        admin.delete_records({TopicPartition(topic, p): -1 for p in range(2)})
        send(200)
        stream()
        send(400)
        assert worker.run_once([topic]) == {}
        admin.delete_records({TopicPartition(topic, p): -1 for p in range(2)})
        stream()
        worker.close()
        found = sorted(r.n for r in spark.read.parquet(str(tmp_path / "out")).collect())
        assert found == list(range(600))
        history = sparklog.history(spark, topic, bootstrap_servers=address)
        assert sorted(r.n for r in history.collect()) == list(range(600))
        latest = sparklog.latest(spark, topic, bootstrap_servers=address)
        assert sorted(r.n for r in latest.collect()) == list(range(560, 600))
        dotted = topic_name("dotted")
        admin.create_topic(dotted, 1, schema="`a.b` BIGINT, `c``d` BIGINT, __place INT", key_columns=["a.b"])
        producer.send_batch(dotted, [{"a.b": n % 2, "c`d": n, "__place": 7} for n in range(4)])
        producer.flush()
        latest = sparklog.latest(spark, dotted, bootstrap_servers=address)
        assert sorted(tuple(r) for r in latest.collect()) == [(0, 2, 7), (1, 3, 7)]
        floating = topic_name("floating")
        admin.create_topic(floating, 2, schema="k DOUBLE, n BIGINT, _op STRING", key_columns=["k"])
        bits = np.array([0, 1 << 63, 0x7FF8 << 48, 0xFFF8 << 48, 0x3FF0 << 48, 0], np.uint64)
        operations = ["c"] * 5 + ["d"]
        producer.send_batch(floating, pa.table({"k": bits.view(float), "n": np.arange(6), "_op": operations}))
        producer.flush()
        latest = sparklog.latest(spark, floating, bootstrap_servers=address)
        assert sorted(r.n for r in latest.collect()) == [3, 4], "0.0 deletes -0.0, and NaN is one key"


def test_the_last_changes_of_columns_with_any_names(spark: Any) -> None:
    columns = "`a.b` INT, _last STRING, `c``d` INT, _change_type STRING, _commit_version BIGINT, _commit_timestamp INT"
    changes = [(1, "x", 1, "insert", 1, 0), (1, "x", 2, "update_postimage", 2, 0), (2, "y", 3, "delete", 1, 0)]
    newest = latest_changes(spark.createDataFrame(changes, columns), ["a.b", "_last"])
    assert sorted(map(tuple, newest.collect())) == [(1, "x", 2), (2, "y", None)]
