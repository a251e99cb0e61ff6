"""The cost of a micro-batch's checkpoint files on a local disk: Spark's own file manager and the published one.

    python -m tests.campaigns.benchmarks.spark_checkpoints [--triggers 30] [--rounds 2]

A source and a sink that do nothing, without state and with state in eight partitions. The managers take turns in one
session; the first triggers of each turn do not count. Prints medians in ms, and the number of processes and threads
that the machine started for a trigger.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.spark_settings import CHECKPOINT_FILES, published_settings

PUBLISHED = published_settings()[CHECKPOINT_FILES]
MANAGERS = {"Spark's own": PUBLISHED.replace("FileSystemBased", "FileContextBased"), "published": PUBLISHED}
PHASES = ("triggerExecution", "addBatch", "walCommit", "commitOffsets")
WARM_UP = 5
STATE_PARTITIONS = 8


def started() -> int:
    """Processes and threads that this machine has started since it booted."""
    return int(Path("/proc/stat").read_text(encoding="ascii").partition("\nprocesses ")[2].split()[0])


def wait_for_triggers(query: Any, count: int) -> None:
    """Wait until the query has had that many triggers. Raises the error that ended it."""
    while len(query.recentProgress) < count:
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.05)


def turn(spark: Any, directory: str, triggers: int, *, state: bool) -> list[dict[str, float]]:
    """Run one query: durations of its triggers in ms, by phase, with the processes started for each."""
    frame = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1000, numPartitions=1).load()
    if state:
        frame = frame.selectExpr("value % 100 as key").groupBy("key").count()
    writer = frame.writeStream.outputMode("complete" if state else "append").format("noop")
    query = writer.option("checkpointLocation", directory).start()
    try:
        wait_for_triggers(query, WARM_UP)
        first, before = len(query.recentProgress), started()
        wait_for_triggers(query, first + triggers)
        progress = query.recentProgress
        each = (started() - before) / (len(progress) - first)
        return [{**p["durationMs"], "started": each} for p in progress[first:]]
    finally:
        query.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.streaming.numRecentProgressUpdates", "10000")
    spark = builder.config("spark.sql.shuffle.partitions", str(STATE_PARTITIONS)).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")  # a query that is stopped in the middle of a batch is an error to Spark
    print(f"{'':>12} {'state':>6}", *(f"{p:>17}" for p in (*PHASES, "started/trigger")))
    for state in (False, True):
        found: dict[str, list[dict[str, float]]] = {name: [] for name in MANAGERS}
        for _ in range(arguments.rounds):
            for name, manager in MANAGERS.items():
                spark.conf.set(CHECKPOINT_FILES, manager)
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
                    found[name] += turn(spark, directory, arguments.triggers, state=state)
        for name, durations in found.items():
            medians = (statistics.median(d.get(p, 0) for d in durations) for p in (*PHASES, "started"))
            print(f"{name:>12} {state!s:>6}", *(f"{m:17.1f}" for m in medians))
    spark.stop()


if __name__ == "__main__":
    main()
