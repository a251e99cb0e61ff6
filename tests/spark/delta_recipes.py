"""The guide's recipes with a real Delta table, as a program: a session with Delta's jar is another JVM.

    python -m tests.spark.delta_recipes BOOTSTRAP_SERVERS DIRECTORY

Prints the result as JSON. Every query fails once at a critical place and is started again.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark_sparklog.delta import latest_changes, once

import sparklog

SEATS = pa.schema([("seat", pa.string()), ("name", pa.string()), ("price", pa.int64())])


def session(directory: Path) -> Any:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
    )
    return configure_spark_with_delta_pip(builder).getOrCreate()


class Recipes:
    def __init__(self, servers: str, directory: Path) -> None:
        self.servers = {"sparklog.bootstrap.servers": servers}
        self.directory = directory
        self.spark = session(directory)
        self.admin = sparklog.Admin(servers)
        self.producer = sparklog.Producer(servers)

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def topic(self, name: str, **more: Any) -> str:
        self.admin.create_topic(name, partitions=2, schema=SEATS, key_columns=["seat"], **more)
        return name

    def run(self, writer: Any, name: str) -> str:
        """Run a query to the end of the present records; returns its error, or ""."""
        query = writer.option("checkpointLocation", self.path(f"checkpoint-{name}")).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as e:  # noqa: BLE001  what the recipe made fail
            return str(e)
        return ""

    def read_stream(self, topic: str) -> Any:
        reader = self.spark.readStream.format("sparklog").options(**self.servers, subscribe=topic)
        return reader.option("startingOffsets", "earliest").load()

    def seats(self, topic: str) -> list[Any]:
        table = sparklog.read_table(self.servers["sparklog.bootstrap.servers"], topic, include_metadata=True)
        return [
            [r["seat"], r["name"], r["price"]]
            for r in sorted(table.to_pylist(), key=lambda r: (r["seat"], r["_offset"]))
        ]

    def table(self, path: str) -> list[Any]:
        return sorted([r.seat, r.name, r.price] for r in self.spark.read.format("delta").load(path).collect())

    # -- topic to table

    def with_deltas_sink(self) -> list[Any]:
        source, path = self.topic("to-delta"), self.path("table-1")
        for name in ("Ada", "Bob"):
            self.producer.send_batch(source, {"seat": ["1A"], "name": [name], "price": [1]}).result()
            assert not self.run(self.read_stream(source).writeStream.format("delta").option("path", path), "1")
        return self.table(path)

    def with_foreach_batch(self) -> list[Any]:
        """To a table and to a topic in one function, which fails between the two."""
        source, path, copy = self.topic("to-both"), self.path("table-2"), self.topic("copy")
        failing = [True]

        def write(batch: Any, batch_id: int) -> None:
            batch.write.format("delta").mode("append").options(**once("seats to table", batch_id)).save(path)
            if failing:
                failing.pop()
                raise RuntimeError("between the two")
            to_copy = batch.write.format("sparklog").mode("append").options(**self.servers, topic=copy)
            to_copy.options(**once("seats to copy", batch_id)).save()
            raise_later(batch_id)

        later = [True]

        def raise_later(batch_id: int) -> None:
            if later:
                later.pop()
                raise RuntimeError("after both")

        self.producer.send_batch(source, {"seat": ["1A", "2B"], "name": ["Ada", "Bob"], "price": [1, 2]}).result()
        stream = self.read_stream(source).writeStream.foreachBatch(write)
        assert "between the two" in self.run(stream, "2")
        assert "after both" in self.run(stream, "2")
        assert not self.run(stream, "2")
        return [self.table(path), self.seats(copy)]

    # -- table to topic

    def appended_rows(self) -> list[Any]:
        path, target = self.path("table-2"), self.topic("from-table")
        stream = self.spark.readStream.format("delta").load(path)
        query = stream.writeStream.format("sparklog").options(**self.servers, topic=target)
        assert not self.run(query, "3")
        assert not self.run(query, "3")
        return self.seats(target)

    def changes(self) -> list[Any]:
        """The feed of a table that is updated, deleted from and overwritten, as a compacted topic."""
        target = self.topic("changes", configs={"cleanup.policy": "compact"})
        feed = "tblproperties (delta.enableChangeDataFeed = true)"
        self.spark.sql(f"create table seats (seat string, name string, price bigint) using delta {feed}")
        failing = [True]

        def write(batch: Any, batch_id: int) -> None:
            rows = latest_changes(batch, ["seat"])
            options = self.servers | once("seats to changes", batch_id)
            rows.write.format("sparklog").mode("append").options(topic=target, **options).save()
            if failing:
                failing.pop()
                raise RuntimeError("written, not committed")

        def run() -> str:
            stream = self.spark.readStream.format("delta").option("readChangeFeed", "true").table("seats")
            return self.run(stream.writeStream.foreachBatch(write), "4")

        self.spark.sql("insert into seats values ('1A', 'Ada', 1), ('2B', 'Bob', 2), ('3C', 'Cid', 3)")
        assert "written, not committed" in run()
        assert not run()
        self.spark.sql("update seats set price = 9 where seat = '1A'")
        self.spark.sql("update seats set price = 10 where seat = '1A'")
        self.spark.sql("delete from seats where seat = '2B'")
        assert not run()
        self.spark.sql("insert overwrite seats values ('3C', 'Cleo', 4)")
        assert not run()
        return self.seats(target)


def main() -> None:
    recipes = Recipes(sys.argv[1], Path(sys.argv[2]))
    found = {
        "with_deltas_sink": recipes.with_deltas_sink(),
        "with_foreach_batch": recipes.with_foreach_batch(),
        "appended_rows": recipes.appended_rows(),
        "changes": recipes.changes(),
    }
    recipes.producer.close()
    recipes.spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
