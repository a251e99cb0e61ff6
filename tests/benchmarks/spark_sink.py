"""What a micro-batch costs: the same query into nothing, with acks=all, and exactly once, side by side.

    python -m tests.benchmarks.spark_sink [--triggers 30] [--rounds 3] [--rows 4000]

Four tasks write to four partitions each. The kinds take turns, so that a busy machine is busy for all of them; the
first triggers of each stint (Python workers start) do not count. Printed are medians over all stints, in ms.
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

import sparklog

PARTITIONS = 4
WARM_UP = 5
PHASES = ("triggerExecution", "addBatch", "walCommit", "commitOffsets")
KINDS = {
    "noop": {},
    "acks=all": {"sparklog.delivery.guarantee": "at-least-once"},
    "exactly once": {"sparklog.delivery.guarantee": "exactly-once"},
}


def session() -> Any:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def wait_for_triggers(query: Any, count: int) -> None:
    """Returns when the query has had so many. Raises what has ended it."""
    while len(query.recentProgress) < count:
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.05)


def stint(spark: Any, servers: str, kind: str, directory: Path, triggers: int, rows: int) -> list[dict[str, int]]:
    """Runs one query for `triggers` triggers; returns the durations (ms by phase) of each."""
    frame = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=rows, numPartitions=PARTITIONS)
        .load()
        .selectExpr("cast(value as string) as value", f"int(value % {PARTITIONS}) as partition")
    )
    writer = frame.writeStream.option("checkpointLocation", str(directory))
    if kind == "noop":
        writer = writer.format("noop")
    else:
        writer = writer.format("sparklog").options(topic="sink", **KINDS[kind])
        writer = writer.option("sparklog.bootstrap.servers", servers)
    query = writer.start()
    try:
        wait_for_triggers(query, triggers + WARM_UP)
        return [dict(p["durationMs"]) for p in query.recentProgress[WARM_UP : triggers + WARM_UP]]
    finally:
        query.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4000, help="per trigger")
    arguments = parser.parse_args()
    spark = session()
    found: dict[str, list[dict[str, int]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as directory, sparklog.start_local(Path(directory) / "data") as broker:
        with sparklog.Admin(broker.bootstrap_servers) as admin:
            admin.create_topic("sink", partitions=PARTITIONS)
        for turn in range(arguments.rounds):
            for kind in KINDS:
                checkpoint = Path(directory) / f"{kind}-{turn}"
                servers = broker.bootstrap_servers
                found[kind] += stint(spark, servers, kind, checkpoint, arguments.triggers, arguments.rows)
        spark.stop()
    print(f"{'median ms of ' + str(len(found['noop'])):>20}", *(f"{p:>17}" for p in PHASES))
    for kind, durations in found.items():
        print(f"{kind:>20}", *(f"{statistics.median(d.get(p, 0) for d in durations):17.0f}" for p in PHASES))


if __name__ == "__main__":
    main()
