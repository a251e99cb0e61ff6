"""The Spark session of the test kit, with settings for tests that take seconds."""

from __future__ import annotations

import os
from typing import Any

FAST = {
    "spark.master": "local[2]",
    "spark.app.name": "sparklog-testing",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Settings of a new JVM."""
QUICK_QUERIES = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings of a session, which Spark Connect can set, too."""
SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that lives for minutes: it compiles half as much."""


def start_session() -> Any:
    """Return the session of this process, started if there is none. SPARK_REMOTE in the environment names a server of
    Spark Connect, or local[2] for one of this process."""
    from pyspark import __version__
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIFE)
    quick = dict(QUICK_QUERIES)
    if __version__.startswith("4.0."):
        name = "spark.sql.streaming.checkpointFileManagerClass"
        quick[name] = quick[name].replace(".checkpointing.", ".")
    builder = SparkSession.builder
    remote = os.environ.get("SPARK_REMOTE")
    if remote is None:
        for name, value in FAST.items():
            builder = builder.config(name, value)
    else:
        builder = builder.remote(remote)
    for name, value in quick.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
