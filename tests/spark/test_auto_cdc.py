"""A keyed topic as the source of an Auto CDC flow of Spark's declarative pipelines, as far as the target goes along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sparklog

pytest.importorskip("pyspark", minversion="4.2")

SPECIFICATION = """\
name: accounts
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""
FLOW = """\
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.temporary_view
def changes() -> DataFrame:
    topic = spark.readStream.format("sparklog").option("subscribe", "accounts")
    return topic.option("startingOffsets", "earliest").option("includeMetadata", "true").load()


dp.create_streaming_table("accounts")
dp.create_auto_cdc_flow(
    target="accounts",
    source="changes",
    keys=["id"],
    sequence_by="_offset",
    apply_as_deletes="_op = 'd'",
    except_column_list=["_op", "_topic", "_partition", "_offset", "_timestamp"],
)
"""


@pytest.mark.nightly
def test_the_flow_is_accepted_and_a_target_without_merge_refused(tmp_path: Path) -> None:
    """The guide says so; a release of Spark that takes such a target makes it untrue."""
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "accounts.py").write_text(FLOW)
    (tmp_path / "spark-pipeline.yml").write_text(SPECIFICATION.format(storage=(tmp_path / "storage").as_uri()))
    with (
        sparklog.start_local(tmp_path / "data") as broker,
        sparklog.Admin(broker.bootstrap_servers) as admin,
        sparklog.Producer(broker.bootstrap_servers) as producer,
    ):
        admin.create_topic("accounts", schema="id BIGINT, name STRING, _op STRING", key_columns=["id"])
        producer.send_batch("accounts", [{"id": 1, "name": "a", "_op": "c"}, {"id": 1, "name": None, "_op": "d"}])
        producer.flush()
        done = subprocess.run(
            [str(Path(sys.executable).with_name("spark-pipelines")), "run"],
            cwd=tmp_path,
            env={**os.environ, "SPARKLOG_BOOTSTRAP_SERVERS": broker.bootstrap_servers},
            capture_output=True,
            text=True,
            check=False,
        )
    assert "AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE" in done.stdout, done.stdout[-3000:]
