# Databricks notebook source
# MAGIC %md
# MAGIC # Windows, joins and state over typed topics
# MAGIC
# MAGIC A bike-sharing service sends two streams: a record when a bike is taken from a station, and one when it is
# MAGIC brought back. This notebook makes three things of them, each a streaming query from topic to topic:
# MAGIC
# MAGIC - **windows**: how many bikes leave each station, per six hours;
# MAGIC - **a join** of the two streams: the rides, and how long they took;
# MAGIC - **state**: how many bikes stand at each station, and when one runs empty.
# MAGIC
# MAGIC The topics have columns, so nothing is parsed, and what a query writes is checked against the columns of its
# MAGIC target. Run it from top to bottom, here or as `python notebooks/windows_joins_state.py`.

# COMMAND ----------

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import sparklog

# Spark runs Python in processes of its own; they must be this Python. (Only needed outside of Databricks.)
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Topics
# MAGIC
# MAGIC `taken` and `returned` come from the stations; the other three are the targets. `timestamp_column` says
# MAGIC which column is a record's time.

# COMMAND ----------

work = Path(tempfile.mkdtemp(prefix="sparklog-bikes-"))
broker = sparklog.start_local(data_dir=work / "data")
servers = broker.bootstrap_servers

at = pa.timestamp("us", tz="UTC")
event = pa.schema([("ride", pa.int64()), ("station", pa.string()), ("at", at)])
window = pa.schema([("station", pa.string()), ("since", at), ("bikes", pa.int64())])
ride = pa.schema([("ride", pa.int64()), ("origin", pa.string()), ("target", pa.string()), ("minutes", pa.float64())])
stock = pa.schema([("station", pa.string()), ("at", at), ("bikes", pa.int64()), ("lowest", pa.int64())])

with sparklog.Admin(servers) as admin:
    for name in ("taken", "returned"):
        admin.create_topic(name, partitions=2, schema=event, key_columns=["station"], timestamp_column="at")
    admin.create_topic("per-window", partitions=1, schema=window, timestamp_column="since")
    admin.create_topic("rides", partitions=2, schema=ride, key_columns=["ride"])
    admin.create_topic("stock", partitions=1, schema=stock, key_columns=["station"], timestamp_column="at")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Two days of rides
# MAGIC
# MAGIC In the morning people ride from the hill to the harbour. That will cost the hill its bikes.

# COMMAND ----------

stations = ["Harbour", "Hill", "Museum", "Zoo"]
random = np.random.default_rng(11)
count = 6_000
hour = np.sort(random.uniform(0, 48, count))
morning = (hour % 24 > 6) & (hour % 24 < 10)
origin = np.where(morning & (random.random(count) < 0.3), "Hill", random.choice(stations, count))
target = np.where(morning & (random.random(count) < 0.3), "Harbour", random.choice(stations, count))
begin = pd.Timestamp("2024-06-03", tz="UTC") + pd.to_timedelta((hour * 3600).astype(int), unit="s")
end = begin + pd.to_timedelta(random.integers(3 * 60, 55 * 60, count), unit="s")
all_rides = pd.DataFrame({"ride": np.arange(count), "origin": origin, "target": target, "begin": begin, "end": end})
all_rides["minutes"] = (all_rides["end"] - all_rides["begin"]).dt.total_seconds() / 60

taken = all_rides.rename(columns={"origin": "station", "begin": "at"})[["ride", "station", "at"]]
returned = all_rides.rename(columns={"target": "station", "end": "at"})[["ride", "station", "at"]].sort_values("at")
with sparklog.Producer(servers) as producer:
    producer.send_batch("taken", taken)
    producer.send_batch("returned", returned)
print(f"{len(taken):,} bikes were taken, {len(returned):,} returned")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. A session, and two helpers
# MAGIC
# MAGIC `maxOffsetsPerTrigger` cuts the two days into micro-batches, so that there is something to remember from one
# MAGIC to the next.

# COMMAND ----------

spark = (
    SparkSession.builder.appName("bikes")
    .master(os.environ.get("SPARK_MASTER", "local[2]"))
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")


def read(topic: str) -> DataFrame:
    """A stream of a topic, with its columns."""
    reader = spark.readStream.format("sparklog").option("sparklog.bootstrap.servers", servers)
    return (
        reader.option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_500)
        .load()
        .withWatermark("at", "1 hour")
    )


def write(rows: DataFrame, topic: str) -> None:
    """Writes a stream to a topic, exactly once, until all is processed that was there."""
    writer = rows.writeStream.format("sparklog").option("sparklog.bootstrap.servers", servers).option("topic", topic)
    query = writer.option("checkpointLocation", str(work / f"checkpoint-{topic}")).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    print(f"{topic}: {sum(batches):,} records read in {len(batches)} micro-batches")


def table(topic: str) -> pd.DataFrame:
    """What is in a topic."""
    return sparklog.read_table(servers, topic).to_pandas()


# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. Windows
# MAGIC
# MAGIC A window is written when the watermark has passed its end: when no record can come any more that is less
# MAGIC than an hour late. The last window stays open.

# COMMAND ----------

windows = read("taken").groupBy("station", F.window("at", "6 hours").alias("w")).agg(F.count("*").alias("bikes"))
write(windows.select("station", F.col("w.start").alias("since"), "bikes"), "per-window")

per_window = table("per-window").pivot(index="since", columns="station", values="bikes")
per_window.index = per_window.index.strftime("%a %H:%M")
print(per_window.to_string())

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. A join of two streams
# MAGIC
# MAGIC A ride begins in one topic and ends in the other. The condition on the times tells Spark how long it has to
# MAGIC keep a beginning that has found no end: a ride takes an hour at most.

# COMMAND ----------

begins = read("taken").select("ride", F.col("station").alias("origin"), F.col("at").alias("begin"))
ends = read("returned").select(F.col("ride").alias("same"), F.col("station").alias("target"), F.col("at").alias("end"))
joined = begins.join(ends, F.expr("ride = same AND end >= begin AND end <= begin + INTERVAL 1 HOUR"))
minutes = ((F.col("end").cast("double") - F.col("begin").cast("double")) / 60).alias("minutes")
write(joined.select("ride", "origin", "target", minutes), "rides")

found = table("rides")
print(found.pivot_table(index="origin", columns="target", values="minutes", aggfunc="count").to_string())
print(f"\n{len(found):,} rides, {found['minutes'].mean():.2f} minutes on average")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. State
# MAGIC
# MAGIC Each station begins with 400 bikes. The state of a station is how many there are, and how few there have been.
# MAGIC Spark keeps it in the checkpoint; the function gets what is new of a station and returns rows for the topic.
# MAGIC (What is taken and what is returned come from two topics, so `lowest` is what was seen from batch to batch.)

# COMMAND ----------


def follow(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """A station's stock after a micro-batch."""
    bikes, lowest = state.get if state.exists else (400, 400)
    events = pd.concat(frames).sort_values("at")
    level = bikes + events["change"].cumsum()
    bikes, lowest = int(level.iloc[-1]), min(lowest, int(level.min()))
    state.update((bikes, lowest))
    yield pd.DataFrame({"station": [key[0]], "at": [events["at"].iloc[-1]], "bikes": [bikes], "lowest": [lowest]})


changes = (
    read("taken")
    .select("station", "at", F.lit(-1).alias("change"))
    .unionByName(read("returned").select("station", "at", F.lit(1).alias("change")))
)
stocks = changes.groupBy("station").applyInPandasWithState(
    follow,
    outputStructType="station STRING, at TIMESTAMP, bikes LONG, lowest LONG",
    stateStructType="bikes LONG, lowest LONG",
    outputMode="append",
    timeoutConf=GroupStateTimeout.NoTimeout,
)
write(stocks, "stock")

latest = table("stock").sort_values("at").groupby("station").last()
latest["at"] = latest["at"].dt.strftime("%a %H:%M")
print(latest.to_string())

# COMMAND ----------

# MAGIC %md
# MAGIC ## 7. Is it true?
# MAGIC
# MAGIC The same three questions, asked of all rides in one go with pandas.

# COMMAND ----------

closed = all_rides.groupby(["origin", pd.Grouper(key="begin", freq="6h")]).size()
of_windows = table("per-window").set_index(["station", "since"])["bikes"]
print(
    "windows:", all(closed[key] == bikes for key, bikes in of_windows.items()), f"({len(of_windows)} of {len(closed)})"
)

same = found.sort_values("ride").reset_index(drop=True)
print("join:   ", same[["ride", "origin", "target"]].equals(all_rides[["ride", "origin", "target"]]))

difference = returned["station"].value_counts() - taken["station"].value_counts()
print("state:  ", (400 + difference).to_dict() == latest["bikes"].to_dict())

spark.stop()
broker.stop()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Where to go on
# MAGIC
# MAGIC Each of these queries goes on where it stopped when it is started again with its checkpoint.
# MAGIC `notebooks/exactly_once.py` kills one to show it. `trigger(processingTime="1 second")` makes them go on for
# MAGIC ever.
