"""The cost of a micro-batch's checkpoint files on a local disk: Spark's own file manager and the published one, side
by side.

    python -m tests.benchmarks.spark_checkpoints [--triggers 30] [--rounds 2]

A source and a sink that do nothing, without state and with state in eight partitions. The managers take turns in one
session; the first triggers of each stint do not count. Printed are medians over all stints, in ms, and how many
processes and threads the machine started meanwhile for a trigger.
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

from ..spark_settings import CHECKPOINT_FILES, published_settings

PHASES = ("triggerExecution", "addBatch", "walCommit", "commitOffsets")
WARM_UP = 5
PUBLISHED = published_settings()[CHECKPOINT_FILES]
MANAGERS = {"Spark's own": PUBLISHED.replace("FileSystemBased", "FileContextBased"), "published": PUBLISHED}
STATE_PARTITIONS = 8


def session() -> Any:
    """A Spark session that keeps the progress of all triggers."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.streaming.numRecentProgressUpdates", "10000")
    return builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR").getOrCreate()


def wait_for_triggers(query: Any, count: int) -> None:
    """Wait until the query has had that many triggers. Raises the error that ended it."""
    while len(query.recentProgress) < count:
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.05)


def started() -> int:
    """Processes and threads that this machine has started since it booted."""
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("processes "))


def stint(spark: Any, directory: Path, triggers: int, *, state: bool) -> tuple[list[dict[str, int]], float]:
    """Run one query: durations (ms by phase) of its triggers, and processes and threads started for each of them."""
    frame = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1000, numPartitions=1).load()
    if state:
        frame = frame.selectExpr("value % 100 as key").groupBy("key").count()
    writer = frame.writeStream.outputMode("complete" if state else "append").format("noop")
    query = writer.option("checkpointLocation", str(directory)).start()
    try:
        wait_for_triggers(query, WARM_UP)
        first, before = len(query.recentProgress), started()
        wait_for_triggers(query, first + triggers)
        progress = query.recentProgress
        return [dict(p["durationMs"]) for p in progress[first:]], (started() - before) / (len(progress) - first)
    finally:
        query.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    spark = session()
    spark.sparkContext.setLogLevel("OFF")  # a query that is stopped in the middle of a batch is an error to Spark
    spark.conf.set("spark.sql.shuffle.partitions", STATE_PARTITIONS)
    print(f"{'':>12} {'state':>6}", *(f"{p:>17}" for p in PHASES), f"{'started/trigger':>17}")
    with tempfile.TemporaryDirectory() as directory:
        for state in (False, True):
            found: dict[str, list[dict[str, int]]] = {name: [] for name in MANAGERS}
            starts: dict[str, list[float]] = {name: [] for name in MANAGERS}
            for turn in range(arguments.rounds):
                for name, manager in MANAGERS.items():
                    spark.conf.set(CHECKPOINT_FILES, manager)
                    checkpoint = Path(directory, f"{state}-{turn}-{name[:3]}")
                    durations, each = stint(spark, checkpoint, arguments.triggers, state=state)
                    found[name] += durations
                    starts[name].append(each)
            for name, durations in found.items():
                medians = (statistics.median(d.get(p, 0) for d in durations) for p in PHASES)
                print(
                    f"{name:>12} {state!s:>6}",
                    *(f"{m:17.0f}" for m in medians),
                    f"{statistics.median(starts[name]):17.1f}",
                )
    spark.stop()


if __name__ == "__main__":
    main()
