"""Reads a topic's Delta table with Spark and delta-spark, in a process of its own: prints counts as JSON.

python -m tests.spark.lake_reader BOOTSTRAP_SERVERS TABLE DIRECTORY TOPIC
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import sparklog
from sparklog.lake.worker.worker import LakeWorker


def session() -> Any:
    """A session with Delta."""
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    return configure_spark_with_delta_pip(builder).getOrCreate()


def main(address: str, table: str, directory: str, topic: str) -> dict[str, Any]:
    """Read the table as a batch and as a stream, while commits, merges and deletions go on."""
    spark = session()
    worker = LakeWorker(address)
    out, checkpoint = str(Path(directory, "out")), str(Path(directory, "checkpoint"))

    def stream() -> None:
        query = (
            spark.readStream.format("delta")
            .option("ignoreDeletes", "true")
            .option("ignoreChanges", "true")
            .load(table)
            .writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(out)
        )
        query.awaitTermination()

    sent = 0
    with sparklog.Producer(address) as producer:
        for turn in range(12):
            for partition in range(2):
                producer.send_batch(topic, pa.table({"n": range(sent, sent + 100)}), partition=partition)
                sent += 100
            producer.flush()
            assert worker.run_once([topic]) == {}
            if turn in (3, 11):
                stream()
    frame = spark.read.format("delta").load(table)
    found: dict[str, Any] = {
        "sent": sent,
        "rows": frame.count(),
        "distinct": frame.select("_partition", "_offset").distinct().count(),
        "streamed": spark.read.parquet(out).count(),
        "streamed_distinct": spark.read.parquet(out).select("_partition", "_offset").distinct().count(),
    }
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE n = 7")
    spark.sql(f"OPTIMIZE delta.`{table}`")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE n = 8")
    with sparklog.Producer(address) as producer:
        producer.send_batch(topic, pa.table({"n": range(sent, sent + 10)}), partition=0)
    assert worker.run_once([topic]) == {}
    with sparklog.Admin(address) as admin:
        found["problems"] = admin.describe_lake(topic).error
    found["after"] = spark.read.format("delta").load(table).count()
    history = sparklog.history(spark, topic, bootstrap_servers=address)
    found["history"] = history.count()
    found["deleted"] = history.where("n IN (7, 8)").count()
    found["read_table"] = sparklog.read_table(address, topic, history=True).num_rows
    worker.close()
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
