"""A driver that writes to a topic and does not come to an end: `python -m tests.spark.killed_write SERVERS TOPIC`.

One task has written, the other one sleeps; so nothing is heard of either until the driver is killed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession


def sleepy(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        if batch.column(0)[0].as_py() > 0:
            time.sleep(600)
        yield batch


def main(bootstrap_servers: str, topic: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    rows = spark.range(0, 2, 1, 2).mapInArrow(sleepy, "id long").selectExpr("cast(id as string) as value")
    options = {"sparklog.bootstrap.servers": bootstrap_servers, "topic": topic}
    rows.write.format("sparklog").mode("append").options(**options).save()


if __name__ == "__main__":
    main(*sys.argv[1:])
