"""Queries go on with their checkpoints at another cluster. Prints one line of JSON.

python -m tests.spark.moved_checkpoints_job DIRECTORY TOKEN_JAR FORMAT SERVERS CHECKPOINT …

The queries run once for each format, address and ending of the names of their checkpoints. Between the runs it prints a
line, and waits for a line: the parent sends records, mirrors, and moves checkpoints. TOKEN_JAR: a part of Spark's Kafka
connector; "" for a session without it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delta import configure_spark_with_delta_pip
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own short name

from tests.support.kafka import SPARK_VERSION

PACKAGES = [f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}"]
WAIT_S = 240


def session(token_jar: str) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
    )
    if token_jar:
        builder = builder.config("spark.jars.excludes", "org.apache.spark:spark-token-provider-kafka-0-10_2.13")
        builder = builder.config("spark.jars", token_jar)
    return configure_spark_with_delta_pip(builder, extra_packages=PACKAGES if token_jar else None).getOrCreate()


def numbers(rows: DataFrame) -> DataFrame:
    return rows.select(F.expr("CAST(CAST(value AS STRING) AS INT) AS n"), "partition", "offset", "timestamp")


class Queries:
    """The queries, each with a checkpoint and an output of its own."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._forms: dict[str, Callable[[DataFrame, str], Any]] = {
            "parquet": lambda rows, name: self._table(numbers(rows), name, "parquet"),
            "delta": lambda rows, name: self._table(numbers(rows), name, "delta"),
            "pattern": lambda rows, name: self._table(numbers(rows), name, "parquet"),
            "limited": lambda rows, name: self._table(numbers(rows), name, "parquet"),
            "each-batch": self._each_batch,
            "state": self._state,
            "distinct": self._distinct,
        }

    def run(self, format: str, servers: str, checkpoint: str) -> dict[str, str]:
        """Run all queries to the present end. Returns the errors by query."""
        errors = {}
        for name, build in self._forms.items():
            options = {f"{'kafka' if format == 'kafka' else 'sparklog'}.bootstrap.servers": servers}
            options |= {"startingOffsets": "earliest"}
            options |= {"subscribePattern": "number.*"} if name == "pattern" else {"subscribe": "numbers"}
            options |= {"maxOffsetsPerTrigger": "7"} if name == "limited" else {}
            rows = self._spark.readStream.format(format).options(**options).load()
            try:
                writer = build(rows, name).option("checkpointLocation", str(self._directory / f"{name}.{checkpoint}"))
                query = writer.trigger(availableNow=True).start()
                query.awaitTermination(WAIT_S)
            except PySparkException as e:
                errors[name] = str(e)[:2000]
        return errors

    def results(self) -> dict[str, Any]:
        """The numbers of all records by query, and the counts and sums of the state."""
        found: dict[str, Any] = {}
        for name in self._forms:
            path = self._directory / name
            if name in ("each-batch", "distinct", "state"):
                lines = [json.loads(line) for file in sorted(path.glob("*.json")) for line in file.open()]
                found[name] = (
                    sorted(lines) if name != "state" else json.loads(sorted(path.glob("*.json"))[-1].read_text())
                )
            else:
                form = "delta" if name == "delta" else "parquet"
                found[name] = sorted(row.n for row in self._spark.read.format(form).load(str(path)).collect())
        return found

    def _table(self, rows: DataFrame, name: str, form: str) -> Any:
        return rows.writeStream.format(form).option("path", str(self._directory / name))

    def _file(self, name: str, batch_id: int) -> Path:
        path = self._directory / name
        path.mkdir(exist_ok=True)
        return path / f"{batch_id:05}.json"

    def _each_batch(self, rows: DataFrame, name: str) -> Any:
        def write(batch: DataFrame, batch_id: int) -> None:
            lines = [json.dumps(row.n) for row in batch.collect()]
            self._file(name, batch_id).write_text("\n".join(lines))

        return numbers(rows).writeStream.foreachBatch(write)

    def _state(self, rows: DataFrame, name: str) -> Any:
        """Counts and sums by key, whole after each batch."""

        def write(batch: DataFrame, batch_id: int) -> None:
            self._file(name, batch_id).write_text(
                json.dumps(sorted([row.k, row.many, row.total] for row in batch.collect()))
            )

        keyed = numbers(rows).withColumn("k", F.expr("n % 3"))
        sums = keyed.groupBy("k").agg(F.count("*").alias("many"), F.sum("n").alias("total"))
        return sums.writeStream.outputMode("complete").foreachBatch(write)

    def _distinct(self, rows: DataFrame, name: str) -> Any:
        def write(batch: DataFrame, batch_id: int) -> None:
            self._file(name, batch_id).write_text("\n".join(json.dumps(row.n) for row in batch.collect()))

        return numbers(rows).withWatermark("timestamp", "1 hour").dropDuplicates(["n"]).writeStream.foreachBatch(write)


def main() -> None:
    directory, token_jar, *places = sys.argv[1:]
    spark = session(token_jar)
    queries = Queries(spark, Path(directory))
    errors = {}
    for step, (format, servers, checkpoint) in enumerate(zip(places[::3], places[1::3], places[2::3], strict=True)):
        if step:
            print(json.dumps({"step": step}), flush=True)
            sys.stdin.readline()
        for name, error in queries.run(format, servers, checkpoint).items():
            errors[f"{step}-{name}"] = error
    print(json.dumps({"results": queries.results(), "errors": errors}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
