# Databricks notebook source
# MAGIC %md
# MAGIC # sparklog in five minutes
# MAGIC
# MAGIC A *topic* is a log that many can append to and many can read, each at their own pace. In sparklog a topic can have
# MAGIC **columns**: you send tables, the broker keeps them as Arrow files, and Spark reads them without parsing anything.
# MAGIC
# MAGIC This notebook starts a broker, fills a topic with taxi trips, reads it with PyArrow and with Spark, runs a streaming
# MAGIC query that writes its result into a second topic, and draws that result. Run it from top to bottom, here or as
# MAGIC `python notebooks/quickstart.py`.

# COMMAND ----------

import os
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import sparklog

# Spark runs Python in processes of its own; they must be this Python. (Only needed outside of Databricks.)
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. A broker
# MAGIC
# MAGIC `start_local` runs a broker as a process of its own and stops it when this program ends. In earnest you
# MAGIC run `sparklog broker` on some machine and put its address here.

# COMMAND ----------

work = Path(tempfile.mkdtemp(prefix="sparklog-quickstart-"))
broker = sparklog.start_local(data_dir=work / "data")
print("the broker listens on", broker.bootstrap_servers)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. A topic with columns
# MAGIC
# MAGIC Trips of one zone always go to the same partition (`key_columns`), so they stay in order. The column `pickup` is the
# MAGIC record's time: it can be searched by, and Spark can use it for windows.

# COMMAND ----------

schema = pa.schema(
    [
        ("trip_id", pa.int64()),
        ("zone", pa.string()),
        ("pickup", pa.timestamp("us", tz="UTC")),
        ("minutes", pa.float64()),
        ("fare", pa.decimal128(8, 2)),
    ]
)

admin = sparklog.Admin(broker.bootstrap_servers)
admin.create_topic("trips", partitions=4, schema=schema, key_columns=["zone"], timestamp_column="pickup")
admin.create_topic("long-trips", partitions=2, schema=schema, key_columns=["zone"], timestamp_column="pickup")
print("topics:", ", ".join(sorted(admin.list_topics())))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Send tables
# MAGIC
# MAGIC `send_batch` takes pandas, PyArrow, polars: whatever speaks Arrow. Columns are matched by name, types are checked. What
# MAGIC does not fit is refused with the column's name, never stored half.

# COMMAND ----------

zones = ["Airport", "Castle", "Harbour", "Old Town", "Station", "Zoo"]


def trips(first_id: int, count: int, day: str) -> pd.DataFrame:
    """Made-up trips of one day; the same for the same arguments."""
    random = np.random.default_rng(first_id)
    minutes = random.gamma(4.0, 4.0, count).round(1)
    pickup = pd.Timestamp(day, tz="UTC") + pd.to_timedelta(np.sort(random.integers(0, 86_400, count)), unit="s")
    return pd.DataFrame(
        {
            "trip_id": np.arange(first_id, first_id + count),
            "zone": random.choice(zones, count),
            "pickup": pickup,
            "minutes": minutes,
            "fare": [Decimal(f"{2.5 + 1.8 * m:.2f}") for m in minutes],
        }
    )


with sparklog.Producer(broker.bootstrap_servers) as producer:
    future = producer.send_batch("trips", trips(0, 20_000, "2024-03-01"))
    for stored in future.result()[:4]:
        print(f"stored in partition {stored.partition} from offset {stored.offset}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. Read without Spark
# MAGIC
# MAGIC `read_table` gives a PyArrow table (and with `columns` it reads only those). From there it is
# MAGIC one call to pandas, polars or DuckDB.

# COMMAND ----------

table = sparklog.read_table(broker.bootstrap_servers, "trips", columns=["zone", "fare"])
print(f"read {table.num_rows:,} trips")
print(table.group_by("zone").aggregate([("fare", "sum")]).sort_by("zone").to_pandas().to_string(index=False))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. Read with Spark
# MAGIC
# MAGIC `format("sparklog")` is found by itself: no jar, no registration. The topic's columns are the DataFrame's columns.

# COMMAND ----------

spark = (
    SparkSession.builder.appName("sparklog quickstart")
    .master(os.environ.get("SPARK_MASTER", "local[2]"))
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

df = (
    spark.read.format("sparklog")
    .option("sparklog.bootstrap.servers", broker.bootstrap_servers)
    .option("subscribe", "trips")
    .option("includeMetadata", "true")
    .load()
)
df.printSchema()
df.groupBy("_partition").agg(F.count("*").alias("trips"), F.max("_offset").alias("last offset")).orderBy(
    "_partition"
).show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. A streaming query, from topic to topic
# MAGIC
# MAGIC The query picks the long trips and writes them to a second topic. Its checkpoint remembers how far it has read: with
# MAGIC `availableNow` it takes what is there and stops; started again, it takes what has come since.
# MAGIC (`trigger(processingTime="1 second")` would go on for ever.)

# COMMAND ----------


def pick_long_trips() -> int:
    """Processes what is new in the topic; returns the number of trips read."""
    query = (
        spark.readStream.format("sparklog")
        .option("sparklog.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", "trips")
        .option("startingOffsets", "earliest")
        .load()
        .where("minutes > 30")
        .writeStream.format("sparklog")
        .option("sparklog.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", "long-trips")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress.numInputRows for progress in query.recentProgress)


print(f"the first run read {pick_long_trips():,} trips")

with sparklog.Producer(broker.bootstrap_servers) as producer:
    producer.send_batch("trips", trips(20_000, 5_000, "2024-03-02"))
print(f"the second run read {pick_long_trips():,} trips")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 7. The result
# MAGIC
# MAGIC Compared with the same question asked of the first topic in one go.

# COMMAND ----------

long_trips = sparklog.read_table(broker.bootstrap_servers, "long-trips")
per_zone = long_trips.group_by("zone").aggregate([("trip_id", "count"), ("fare", "sum")]).sort_by("zone").to_pylist()
most = max(row["trip_id_count"] for row in per_zone)
for row in per_zone:
    bar = "█" * round(40 * row["trip_id_count"] / most)
    print(f"{row['zone']:<12}{row['trip_id_count']:>5} long trips {row['fare_sum']:>10}  {bar}")

everything = sparklog.read_table(broker.bootstrap_servers, "trips")
expected = everything.filter(pc.field("minutes") > 30)
same = sorted(expected["trip_id"].to_pylist()) == sorted(long_trips["trip_id"].to_pylist())
print(f"{long_trips.num_rows} of {everything.num_rows:,} trips are long; each arrived exactly once:", same)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 8. The log is a table
# MAGIC
# MAGIC The broker's files are Arrow files. Now that it has stopped, every one of them opens in any Arrow tool as it lies there
# MAGIC (while it runs, all but the newest of each partition do): here with PyArrow, without sparklog.

# COMMAND ----------

spark.stop()
admin.close()
broker.stop()

rows = 0
for path in sorted((work / "data").glob("trips-*/*.arrow")):
    with pa.memory_map(str(path)) as file:
        segment = pa.ipc.open_file(file).read_all()
    rows += segment.num_rows
    print(f"{path.parent.name}/{path.name}: {segment.num_rows:,} trips, {path.stat().st_size:,} bytes")
print(f"{rows:,} trips in the files")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Where to go on
# MAGIC
# MAGIC `docs/guide.md` has every option and setting, `make demo` a year of real flights with joins, watermarks and a
# MAGIC Delta table, and `notebooks/pipeline.py` a job for `spark-submit`.
