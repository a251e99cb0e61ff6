"""The Spark session's process, seen from the harness."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.spark_settings import published_settings
from tests.support.kafka import SPARK_VERSION, KafkaInstallation
from tests.support.processes import MeasurementError

from .context import ROOT, environment
from .spark_child import RESULT

START_TIMEOUT_S = 300.0
COMMAND_TIMEOUT_S = 900.0


# both sources run with the settings that users are advised to set
CONFIGS = published_settings() | {
    "spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    # Spark's resolver is not given this one: it is put beside as a file
    "spark.jars.excludes": "org.apache.spark:spark-token-provider-kafka-0-10_2.13",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
DELTA_CONFIGS = {
    "spark.jars.packages": f"{CONFIGS['spark.jars.packages']},{DELTA_PACKAGE}",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # 50 tasks to read the log of a small table are for a cluster
}
"""Settings of a session that writes Delta tables, too."""


class SparkProcess:
    """`local[2]` with both sources. Raises MeasurementError for an error of the session."""

    def __init__(self, installation: KafkaInstallation, directory: Path, more: Mapping[str, str] | None = None) -> None:
        configs = (
            CONFIGS
            | dict(more or {})
            | {
                "spark.jars": str(installation.token_jar()),
                "spark.sql.warehouse.dir": str(directory / "spark-warehouse"),
                "spark.local.dir": str(directory / "spark-local"),
            }
        )
        self._log = directory / "spark.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.campaigns.benchmarks.spark_child", json.dumps(configs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=environment(),
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._receive(START_TIMEOUT_S)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def call(self, operation: str, **arguments: Any) -> dict[str, float]:
        """Run one of `spark_child.Session`'s methods."""
        assert self._process.stdin is not None
        command = json.dumps({"operation": operation, "arguments": arguments})
        try:
            self._process.stdin.write(command.encode() + b"\n")
            self._process.stdin.flush()
        except OSError as e:
            raise MeasurementError(f"Spark is gone: {self._last_output()}") from e
        return self._receive(COMMAND_TIMEOUT_S)

    def stop(self) -> None:
        """End the session; a second call does nothing."""
        try:
            self._process.communicate(timeout=60)
        except (subprocess.TimeoutExpired, ValueError):
            self._process.kill()
            self._process.wait()

    def _receive(self, timeout_s: float) -> dict[str, float]:
        assert self._process.stdout is not None
        timer = threading.Timer(timeout_s, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                text = line.decode(errors="replace")
                if text.startswith(RESULT):  # others are lines of the JVM
                    answer: dict[str, Any] = json.loads(text.removeprefix(RESULT))
                    if "error" in answer:
                        raise MeasurementError(str(answer["error"]))
                    return answer
        finally:
            timer.cancel()
        self._process.wait()
        raise MeasurementError(f"Spark ended, or did not answer for {timeout_s:.0f} s: {self._last_output()}")

    def _last_output(self) -> str:
        return self._log.read_text(errors="replace")[-1500:]
