# Databricks notebook source
# MAGIC %md
# MAGIC # The log from pandas, polars and DuckDB
# MAGIC
# MAGIC A topic with columns is a table that grows. Everything that speaks Arrow can write it and read it: no Spark,
# MAGIC no serializers, no schema registry. This notebook sends a week of bike rides from pandas and polars, asks
# MAGIC pandas, polars and DuckDB the same question, follows the topic as it grows, and opens the broker's files
# MAGIC themselves.
# MAGIC
# MAGIC It needs `pip install 'sparklog[notebooks]'`. Run it from top to bottom, here or as
# MAGIC `python notebooks/pandas_polars_duckdb.py`.

# COMMAND ----------

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

import sparklog

try:
    import duckdb
    import pandas as pd
    import polars as pl
except ImportError as e:
    print(f"There is no {e.name} here: pip install 'sparklog[notebooks]', then run this again.")
    sys.exit()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. A broker and a topic
# MAGIC
# MAGIC `started` is the record's time, so the topic can be searched by it. Rides of one station stay in order.

# COMMAND ----------

work = Path(tempfile.mkdtemp(prefix="sparklog-rides-"))
broker = sparklog.start_local(data_dir=work / "data")
servers = broker.bootstrap_servers

schema = pa.schema(
    [
        ("ride_id", pa.int64()),
        ("station", pa.string()),
        ("started", pa.timestamp("us", tz="UTC")),
        ("minutes", pa.float64()),
        ("electric", pa.bool_()),
    ]
)
admin = sparklog.Admin(servers)
admin.create_topic("rides", partitions=3, schema=schema, key_columns=["station"], timestamp_column="started")
print("topics:", ", ".join(admin.list_topics()))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Send frames
# MAGIC
# MAGIC `send_batch` takes a pandas or polars frame as it is. Columns are matched by name and their types are
# MAGIC checked. A value that would not survive is refused, and nothing is stored of the frame.

# COMMAND ----------

stations = ["Castle", "Harbour", "Museum", "Station", "Zoo"]


def rides(day: int, count: int = 20_000) -> pd.DataFrame:
    """Made-up rides of one day of a week in June; the same for the same day."""
    random = np.random.default_rng(day)
    second = np.sort(random.integers(0, 86_400, count))
    return pd.DataFrame(
        {
            "ride_id": np.arange(day * count, (day + 1) * count),
            "station": random.choice(stations, count, p=[0.1, 0.3, 0.15, 0.35, 0.1]),
            "started": pd.Timestamp("2024-06-03", tz="UTC") + pd.to_timedelta(day * 86_400 + second, unit="s"),
            "minutes": random.gamma(3.0, 5.0, count).round(1),
            "electric": random.random(count) < 0.4,
        }
    )


with sparklog.Producer(servers, compression="zstd") as producer:
    for day in range(6):
        producer.send_batch("rides", rides(day))  # pandas
    producer.send_batch("rides", pl.from_pandas(rides(6)))  # polars
    producer.flush()

    try:
        producer.send_batch("rides", pl.DataFrame({"ride_id": ["A7"], "station": ["Zoo"]}))
    except sparklog.SparklogError as e:
        print(f"refused: {e}")

ends = admin.list_offsets({sparklog.TopicPartition("rides", p): "latest" for p in range(3)})
for tp, end in ends.items():
    print(f"partition {tp.partition}: {end.offset:,} rides")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. One question, three answers
# MAGIC
# MAGIC `read_table` gives a PyArrow table. pandas copies it; polars and DuckDB use it where it is. With `columns`
# MAGIC nothing else is read or decoded.

# COMMAND ----------

table = sparklog.read_table(servers, "rides", columns=["station", "minutes", "electric"])
print(f"{table.num_rows:,} rides, {table.nbytes / 2**20:.1f} MiB\n")

print("pandas")
frame = table.to_pandas().groupby("station").agg(rides=("minutes", "size"), minutes=("minutes", "mean"))
print(frame.round(2).to_string(), "\n")

print("polars")
answer = (
    pl.from_arrow(table)
    .group_by("station")
    .agg(pl.len().alias("rides"), pl.col("minutes").mean().round(2))
    .sort("station")
)
print(answer, "\n")

print("DuckDB")
question = "SELECT station, count(*) AS rides, round(avg(minutes), 2) AS minutes FROM rides GROUP BY ALL ORDER BY ALL"
duck = duckdb.connect()
duck.execute("SET TimeZone = 'UTC'")
duck.register("rides", table)
print(duck.sql(question))

same = frame["rides"].tolist() == answer["rides"].to_list() == [rides for _, rides, _ in duck.sql(question).fetchall()]
print("\nall three agree:", same)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. From a moment on
# MAGIC
# MAGIC The topic knows its records' times. `list_offsets` finds where a time begins in each partition, without
# MAGIC reading what is before it, and a consumer that begins there reads nothing else.

# COMMAND ----------

sunday = pd.Timestamp("2024-06-09", tz="UTC")
partitions = [sparklog.TopicPartition("rides", p) for p in range(3)]
begin = admin.list_offsets(dict.fromkeys(partitions, int(sunday.timestamp() * 1000)))

with sparklog.Consumer(servers) as consumer:
    consumer.assign(partitions)
    for tp in partitions:
        consumer.seek(tp, begin[tp].offset)
    batches = []
    while any(consumer.position(tp) < ends[tp].offset for tp in partitions):
        batches += [pl.from_arrow(batch.data) for batch in consumer.poll_batches(timeout_ms=1000)]
on_sunday = pl.concat(batches)
print(f"{on_sunday.height:,} rides, the first at {on_sunday['started'].min():%A %H:%M}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. Follow the topic
# MAGIC
# MAGIC Each run of `report` adds what is new to a DuckDB table, and the positions to another, in one transaction.
# MAGIC Start it every five minutes, kill it where you like: every ride counts once. (Here the database is in
# MAGIC memory; give `connect` a file.)

# COMMAND ----------

duck.execute("CREATE TABLE totals (station TEXT PRIMARY KEY, rides BIGINT, minutes DOUBLE)")
duck.execute("CREATE TABLE positions (partition INT PRIMARY KEY, next BIGINT)")


def report() -> int:
    """Adds the new rides to the totals; how many there were."""
    new = 0
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
    positions = dict(duck.sql("SELECT * FROM positions").fetchall())
    duck.begin()
    with sparklog.Consumer(servers, columns=["station", "minutes"]) as consumer:
        consumer.assign(partitions)
        for tp in partitions:
            consumer.seek(tp, positions.get(tp.partition, 0))
        while any(consumer.position(tp) < ends[tp].offset for tp in partitions):
            for batch in consumer.poll_batches(timeout_ms=1000):
                duck.register("new_rides", pa.Table.from_batches([batch.data]))
                duck.execute(
                    "INSERT INTO totals SELECT station, count(*), sum(minutes) FROM new_rides GROUP BY station "
                    "ON CONFLICT DO UPDATE SET rides = rides + excluded.rides, minutes = minutes + excluded.minutes"
                )
                new += batch.data.num_rows
        for tp in partitions:
            duck.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", [tp.partition, consumer.position(tp)])
    duck.commit()
    return new


print(f"first run: {report():,} rides")
print(f"second run: {report():,} rides")
with sparklog.Producer(servers) as producer:
    producer.send_batch("rides", rides(7, 5_000))
print(f"third run: {report():,} rides\n")
print(duck.sql("SELECT station, rides, round(minutes / 60) AS hours FROM totals ORDER BY rides DESC"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. The files
# MAGIC
# MAGIC A partition is a directory of Arrow files. The broker has stopped, so all of them are complete (while it
# MAGIC runs, all but the newest of each partition are). PyArrow opens them as one data set, polars lazily, DuckDB
# MAGIC through PyArrow; sparklog is not asked.

# COMMAND ----------

admin.close()
broker.stop()

files = sorted((work / "data").glob("rides-*/*.arrow"))
print(f"{len(files)} files")

data_set = ds.dataset(files, format="ipc")
print("PyArrow:", f"{data_set.count_rows():,} rides")

lazy = pl.scan_ipc(files)
longest = lazy.sort("minutes", descending=True).select("station", "minutes").head(1).collect().row(0)
print("polars:", f"the longest ride took {longest[1]} minutes, from {longest[0]}")

duck.register("files", data_set)
share = duck.sql("SELECT round(100.0 * count(*) FILTER (electric) / count(*), 1) FROM files").fetchall()[0][0]
print("DuckDB:", f"{share} % of the rides were electric")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Where to go on
# MAGIC
# MAGIC `docs/guide.md` says what producers and consumers can do besides. `notebooks/quickstart.py` reads such a
# MAGIC topic with Spark.
