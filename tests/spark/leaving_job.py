"""A Spark job that reads and writes a secured broker in every way, and shows all that Spark can show of it.

Its standard input is a line of JSON with the options, which hold a password; its argument is the directory for all
that Spark writes. Nothing that it prints or writes may have the password.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any


def main(directory: Path) -> None:
    options: dict[str, str] = json.loads(sys.stdin.readline())
    from pyspark.sql import SparkSession

    import sparklog

    for name in ("events", "local", "pages"):
        (directory / name).mkdir()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.rolling.enabled", "false")
        .config("spark.eventLog.dir", (directory / "events").as_uri())
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.shuffle.compress", "false")
        .config("spark.broadcast.compress", "false")
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "INFO")
        .getOrCreate()
    )
    sparklog.register(spark)
    read = spark.read.format("sparklog").options(**options).option("subscribe", "in").load()
    read.explain(True)
    print(read.count(), "rows")
    writer = read.groupBy("key").agg({"value": "max"}).selectExpr("key", "`max(value)` AS value").write
    writer.format("sparklog").options(**options).option("topic", "out").mode("append").save()
    stream = spark.readStream.format("sparklog").options(**options).option("subscribe", "in")
    query = (
        stream.option("startingOffsets", "earliest").load().writeStream.format("sparklog").options(**options)
        .option("topic", "out").option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    query.explain(True)
    (directory / "pages" / "progress").write_text("\n".join(map(str, query.recentProgress)))
    _fail(spark, options)
    _save_pages(spark, directory / "pages")
    spark.stop()


def _fail(spark: Any, options: dict[str, str]) -> None:
    """Return the errors of a wrong job: by its options, by the driver, by a write."""
    wrong = options | {"kafka.sasl.mechanism": "PLAIN"}
    tries = (
        lambda: spark.read.format("sparklog").options(**wrong).option("subscribe", "in").load().count(),
        lambda: spark.read.format("sparklog").options(**options).option("subscribe", "forbidden").load().count(),
        lambda: spark.createDataFrame([("x",)], "value STRING").write.format("sparklog").options(**options)
        .option("topic", "in").mode("append").save(),
    )  # fmt: skip
    for attempt in tries:
        try:
            attempt()
            print("NOT DENIED")
        except Exception as e:  # noqa: BLE001 - whatever it is, it is printed
            print("DENIED", e)


def _save_pages(spark: Any, directory: Path) -> None:
    """Save the pages of the UI and its API."""
    ui, application = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    port = ui.rpartition(":")[2]
    paths = ["jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/"]
    paths += [f"SQL/execution/?id={n}" for n in range(12)]
    paths += [f"api/v1/applications/{application}/{what}" for what in ("sql?details=true", "environment", "jobs")]
    for number, path in enumerate(paths):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
                (directory / f"page-{number}").write_bytes(answer.read())
        except OSError as e:
            (directory / f"page-{number}").write_text(f"{path}: {e}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
