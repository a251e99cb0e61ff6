"""The driver of a pipeline sparklog -> Spark -> sparklog, as a process that is killed.

    python -m tests.campaigns.torture.spark_driver '<Pipeline as JSON>'

It copies a topic until its standard input is closed, then the remaining records, and ends. A query that fails is
started again from its checkpoint in the same session: tasks of the failed run may still be writing then.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.spark_settings import published_settings

FAILED_IN_A_ROW_MAX = 20
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "700m",
    "spark.python.authenticate.socketTimeout": "300s",  # a worker may start slowly beside other work
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@dataclass(frozen=True)
class Pipeline:
    """The copied topic, and the size of its batches. `sink`: more options of the sink."""

    bootstrap_servers: str
    source_topic: str
    sink_topic: str
    checkpoint: str
    records_per_batch: int
    sink: dict[str, str]

    def as_argument(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def start(spark: Any, pipeline: Pipeline, *, to_the_end: bool) -> Any:
    """The query; with `to_the_end` it ends when all that is there has been copied."""
    servers = {"sparklog.bootstrap.servers": pipeline.bootstrap_servers}
    read = spark.readStream.format("sparklog").options(**servers).option("subscribe", pipeline.source_topic)
    read = read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(pipeline.records_per_batch))
    frame = read.load().select("key", "value")
    write = (
        frame.writeStream.format("sparklog").options(**servers, **pipeline.sink).option("topic", pipeline.sink_topic)
    )
    write = write.option("checkpointLocation", pipeline.checkpoint)
    return (write.trigger(availableNow=True) if to_the_end else write).start()


def serve(start: Callable[[Any, bool], Any]) -> int:
    """Run a query until standard input is closed, then the rest, and return the exit status.

    Args:
        start: Starts the query in a session; True ends it when all that is there has been read.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,4]").appName("sparklog-torture")
    for name, value in (published_settings() | QUIET).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    stopping = threading.Event()
    running: list[Any] = []

    def wait_for_the_end() -> None:
        while os.read(0, 1):
            pass
        stopping.set()
        for query in running:
            query.stop()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    failed = 0
    while True:
        to_the_end = stopping.is_set()
        query = start(spark, to_the_end)
        running[:] = [query]
        if stopping.is_set() and not to_the_end:
            query.stop()
        try:
            query.awaitTermination()
        except Exception as e:  # noqa: BLE001  whatever a kill has led to; it is the checkpoint that counts
            print(f"query failed: {str(e)[:2000]}", file=sys.stderr, flush=True)
            failed = failed + 1 if query.lastProgress is None else 1
            if failed > FAILED_IN_A_ROW_MAX:
                return 1
            continue
        if to_the_end:
            return 0


def main() -> int:
    pipeline = Pipeline(**json.loads(sys.argv[1]))
    return serve(lambda spark, to_the_end: start(spark, pipeline, to_the_end=to_the_end))


if __name__ == "__main__":
    sys.exit(main())
