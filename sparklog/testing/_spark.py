"""The Spark session of the test kit, with settings for tests that take seconds."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
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


LOCAL_SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
}
"""Settings of a session of this process that is also a server of Spark Connect, on a free port."""
SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"
REMOTE, HAS_LOCAL_SERVER, IS_CONNECT = "SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED"
"""PySpark's variables of a process that uses Spark Connect."""
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""PySpark's variable with the secret that a local server and its clients share."""


def start_session(more: Mapping[str, str]) -> Any:
    """Return the session of this process, started if there is none. SPARK_REMOTE in the environment names a server of
    Spark Connect, or local[2] for one of this process. `more`: settings that replace those of the kit."""
    from pyspark import __version__
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIFE)
    quick = dict(QUICK_QUERIES)
    if __version__.startswith("4.0."):
        name = "spark.sql.streaming.checkpointFileManagerClass"
        quick[name] = quick[name].replace(".checkpointing.", ".")
    remote = os.environ.get(REMOTE)
    if remote is None:
        return _configured(SparkSession.builder, FAST | quick | dict(more)).getOrCreate()
    if remote.startswith("local"):
        return _configured(_local_server(remote, more), quick | dict(more)).getOrCreate()
    return _configured(SparkSession.builder.remote(remote), quick | dict(more)).getOrCreate()


def _configured(builder: Any, settings: Mapping[str, str]) -> Any:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def _local_server(master: str, more: Mapping[str, str]) -> Any:
    """Start a server of Spark Connect in this process, and return the builder of its sessions. PySpark itself starts
    servers on one fixed port, which several workers of pytest-xdist cannot share."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    os.environ.setdefault(TOKEN, uuid.uuid4().hex)
    del os.environ[REMOTE]  # the server has a classic session
    try:
        server = _configured(
            SparkSession.builder, FAST | LOCAL_SERVER | {"spark.master": master} | dict(more)
        ).getOrCreate()
    finally:
        os.environ[REMOTE] = master
    service = getattr(getattr(server._jvm, SERVICE), "MODULE$")
    os.environ[HAS_LOCAL_SERVER] = os.environ[IS_CONNECT] = "1"
    return ConnectSession.builder.remote(f"sc://localhost:{service.localPort()}")
