"""The Spark side: the session, the two streaming queries, and what is read back through Spark.

    flights ──► departure delay per origin and hour ──► topic delay-by-origin-hour ──► Delta table
            (query 1: watermark, append)                                     (query 2)

Nothing is registered: PySpark finds the data source by itself as soon as sparklog is installed.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from .feed import CLOCK, FLIGHTS, RESULT
from .jvm import Jvm, JvmStartError

WATERMARK_DELAY = dt.timedelta(days=2)
"""The feed sends a day when the one before is acknowledged, so no flight is ever later than one day."""
JVM_START_TIMEOUT_S = 60.0
DELTA_TIMEOUT_S = 90.0
"""How long Delta's jars may take to be downloaded (once per machine); after that the demo goes on with Parquet."""
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
TABLE_TRIGGER = "2 seconds"


class QueryFailedError(Exception):
    """Spark failed; the message is its reason in short, the log has all of it."""


F = TypeVar("F", bound=Callable[..., Any])


def told_in_short(method: F) -> F:
    """Spark's errors as QueryFailedError, put into words while the JVM that knows them is still there."""

    @functools.wraps(method)
    def wrapped(self: SparkJob, *args: Any) -> Any:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            return method(self, *args)
        except (Py4JError, PySparkException) as e:
            raise QueryFailedError(f"{first_lines(str(e))} (log: {self.log})") from e

    return wrapped  # type: ignore[return-value]


@dataclass
class Progress:
    """What query 1 has done so far, from Spark's own progress reports."""

    batches: int = 0
    flights_read: int = 0
    clock_read: int = 0
    late_rows: int = 0
    best_rows_per_s: float = 0.0
    _seen: set[int] = field(default_factory=set, repr=False)

    def add(self, report: dict[str, Any]) -> None:
        """Takes one progress report into account, once."""
        offsets = report["sources"][0]["endOffset"]
        offsets = json.loads(offsets) if isinstance(offsets, str) else offsets
        if offsets:
            self.flights_read = sum(offsets.get(FLIGHTS, {}).values())
            self.clock_read = sum(offsets.get(CLOCK, {}).values())
        # a report of an idle trigger repeats the number of the batch before
        if report["batchId"] in self._seen or not report.get("durationMs", {}).get("addBatch"):
            return
        self._seen.add(report["batchId"])
        self.batches += 1
        self.late_rows += sum(o["numRowsDroppedByWatermark"] for o in report["stateOperators"])
        if report["numInputRows"]:
            self.best_rows_per_s = max(self.best_rows_per_s, report["processedRowsPerSecond"])


class SparkJob:
    """Spark from start to stop. Its methods block and belong to one thread; `stop` may be called from any."""

    def __init__(self, folder: Path, *, delta: bool, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._delta = delta
        self._say = say
        self._jvm: Jvm | None = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self.log = folder / "logs" / "spark.log"
        self.progress = Progress()
        self.session: Any = None
        self._aggregate: Any = None
        self._table: Any = None

    @property
    def table_format(self) -> str:
        """`delta`, or `parquet` where Delta was not wanted or not to be had. Known when the session is there."""
        return "delta" if self._delta else "parquet"

    @property
    def table_path(self) -> Path:
        return self._folder / f"{RESULT}.{self.table_format}"

    def shell_command(self) -> str:
        """A shell that can open the table."""
        if not self._delta:
            return "pyspark"
        confs = " ".join(f"--conf {name}={value}" for name, value in DELTA_SETTINGS.items())
        return f"pyspark --packages {delta_package()} {confs}"

    def table_expression(self, path: str) -> str:
        """What to type there."""
        return f"spark.read.format('{self.table_format}').load('{path}').orderBy('mean_delay_min').show()"

    # --- session --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the JVM and the session; without Delta where its jars cannot be had. Raises JvmStartError."""
        self._keep_py4j_quiet()
        # the demo brings its own Spark: another one's home and settings must not get into it
        for name in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"):
            os.environ.pop(name, None)
        # Spark starts its Python workers by name; these are the ones that have sparklog
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        if self._delta:
            try:
                self._start_session(DELTA_TIMEOUT_S)
            except JvmStartError as e:
                if self._stopped.is_set():
                    raise
                reason = "took too long to be downloaded" if e.timed_out else delta_failure(self.log)
                self._say(f"Delta's jars cannot be had ({reason}): the table will be Parquet instead")
                self._delta = False
            else:
                return
        self._start_session(JVM_START_TIMEOUT_S)

    def _keep_py4j_quiet(self) -> None:
        """Py4J reports a broken connection before it raises: at a Ctrl-C that is all noise. A file has it."""
        logger = logging.getLogger("py4j")
        logger.propagate = False
        logger.setLevel(logging.INFO)
        logger.addHandler(logging.FileHandler(self._folder / "logs" / "py4j.log", delay=True))

    def _start_session(self, timeout_s: float) -> None:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        with self._lock:
            if self._stopped.is_set():
                raise JvmStartError("stopped", timed_out=False)
            self._jvm = jvm = Jvm(self.log)
        conf = self._conf()
        gateway = jvm.start(conf, timeout_s=timeout_s)
        self.session = SparkSession(SparkContext(conf=conf, gateway=gateway))

    def _conf(self) -> Any:
        from pyspark import SparkConf

        settings = {
            "spark.master": f"local[{min(4, os.cpu_count() or 2)}]",
            "spark.app.name": "sparklog flights demo",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            # a short run is over before the optimising compiler pays
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
        }
        if self._delta:
            settings |= {
                "spark.jars.packages": delta_package(),
                **DELTA_SETTINGS,
                # a small table's own log needs no cluster
                "spark.databricks.delta.snapshotPartitions": "2",
            }
        conf = SparkConf(loadDefaults=False)
        for name, value in settings.items():
            conf.set(name, value)
        return conf

    # --- queries --------------------------------------------------------------------------------------------------

    @told_in_short
    def start_aggregate(self, bootstrap_servers: str) -> None:
        """Query 1: departure delay per origin and hour, from the flights to the result topic."""
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

        # Spark looks for a sink written in Python in its thread's active session. Where Py4J has made a new connection,
        # that is a new thread; any data frame makes the session the active one again.
        self.session.createDataFrame([], "nothing int")
        flights = (
            self.session.readStream.format("sparklog")
            .option("sparklog.bootstrap.servers", bootstrap_servers)
            .option("subscribe", f"{FLIGHTS},{CLOCK}")
            .option("startingOffsets", "earliest")
            .option("columns", "origin,dep_delay,time_hour")  # 3 of 19 columns leave the log
            .load()
        )
        delays = (
            flights.withWatermark("time_hour", f"{WATERMARK_DELAY.days} days")
            .groupBy(F.window("time_hour", "1 hour"), "origin")
            .agg(
                F.count("*").alias("flights"),
                F.count("dep_delay").alias("departed"),
                F.sum("dep_delay").alias("total_delay_min"),
                F.avg("dep_delay").alias("mean_delay_min"),
                F.max("dep_delay").alias("max_delay_min"),
            )
            .select(
                "origin",
                F.col("window.start").alias("time_hour"),
                *("flights", "departed", "total_delay_min", "mean_delay_min", "max_delay_min"),
            )
        )
        self._aggregate = (
            delays.writeStream.format("sparklog")
            .option("sparklog.bootstrap.servers", bootstrap_servers)
            .option("topic", RESULT)
            .option("checkpointLocation", str(self._folder / "checkpoints" / "aggregate"))
            .queryName("delay-by-origin-hour")
            .outputMode("append")
            .start()
        )

    @told_in_short
    def start_table(self, bootstrap_servers: str) -> None:
        """Query 2: the result topic, as it grows, into the Delta (or Parquet) table."""
        self._table = (
            self.session.readStream.format("sparklog")
            .option("sparklog.bootstrap.servers", bootstrap_servers)
            .option("subscribe", RESULT)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format(self.table_format)
            .option("checkpointLocation", str(self._folder / "checkpoints" / "table"))
            .queryName(f"{RESULT}-to-{self.table_format}")
            .outputMode("append")
            .trigger(processingTime=TABLE_TRIGGER)
            .start(str(self.table_path))
        )

    @told_in_short
    def update(self) -> None:
        """Brings `progress` up to date. Raises QueryFailedError when a query has ended with an error."""
        for query in (self._aggregate, self._table):
            if query is not None and not query.isActive and query.exception() is not None:
                raise QueryFailedError(f"query {query.name}: {first_lines(str(query.exception()))}")
        for report in self._aggregate.recentProgress:
            self.progress.add(json.loads(report.json) if hasattr(report, "json") else report)

    @told_in_short
    def drain_aggregate(self) -> None:
        """Blocks until query 1 has processed everything there is and written every hour the watermark has closed."""
        self._aggregate.processAllAvailable()
        self.update()

    @told_in_short
    def drain_table(self) -> None:
        """Blocks until the table has every row of the result topic; then both queries are stopped."""
        self._table.processAllAvailable()
        self.update()
        self._aggregate.stop()
        self._table.stop()

    # --- reading back ---------------------------------------------------------------------------------------------

    @told_in_short
    def read_result_table(self) -> pa.Table:
        """The Delta (or Parquet) table, as Spark reads it."""
        table: pa.Table = self.session.read.format(self.table_format).load(str(self.table_path)).toArrow()
        return table

    @told_in_short
    def sums(self, bootstrap_servers: str, topic: str, columns: list[str], expressions: list[str]) -> list[int]:
        """A batch read of a whole topic: the values of SQL aggregate expressions over `columns`."""
        frame = (
            self.session.read.format("sparklog")
            .option("sparklog.bootstrap.servers", bootstrap_servers)
            .option("subscribe", topic)
            .option("columns", ",".join(columns))
            .load()
        )
        row = frame.selectExpr(*expressions).first()
        return [int(v or 0) for v in row]

    # --- stop -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends the JVM and all it started, whatever it is doing. Idempotent."""
        with self._lock:
            self._stopped.set()
            jvm = self._jvm
        if jvm is not None:
            jvm.stop()


def delta_package() -> str:
    """The Maven coordinates that Delta's Python package asks for (it knows which jar fits this Spark)."""
    from delta import pip_utils
    from pyspark.sql import SparkSession

    builder = pip_utils.configure_spark_with_delta_pip(SparkSession.Builder())
    return str(builder._options["spark.jars.packages"])


def delta_failure(log: Path) -> str:
    """Why Spark's package resolution failed, from its log: one line."""
    lines = log.read_text(errors="replace").splitlines()
    for mark in ("unresolved dependency", "download failed", "not found", "Exception"):
        for line in lines:
            if mark in line:
                return line[line.index(mark) :].strip(" :\t[]")[:120]
    return f"see {log}"


def first_lines(text: str, lines: int = 3) -> str:
    """The beginning of a long error, without the Java stack."""
    kept = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    return " ".join(kept[:lines])
