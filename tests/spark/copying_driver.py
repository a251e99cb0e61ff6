"""A driver that copies a topic until its query ends: `python -m tests.spark.copying_driver SERVERS SOURCE TARGET
CHECKPOINT`.

Prints the query's error at its end.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(bootstrap_servers: str, source: str, target: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    servers = {"sparklog.bootstrap.servers": bootstrap_servers}
    rows = spark.readStream.format("sparklog").options(**servers, subscribe=source, startingOffsets="earliest").load()
    writer = rows.select("value").writeStream.format("sparklog").options(**servers, topic=target)
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="200 milliseconds").start()
    try:
        query.awaitTermination()
    except Exception as e:  # noqa: BLE001  whatever it is, the test looks at it
        print(f"ended with {e}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
