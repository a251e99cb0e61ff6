# Databricks notebook source
# MAGIC %md
# MAGIC # Into the lake
# MAGIC
# MAGIC sparklog can keep a topic as a Delta table, too: one call of `enable_lake` is enough, without a Spark job.
# MAGIC This notebook writes rides to a topic and reads them as a table with Delta's own reader, polars and DuckDB. Then
# MAGIC it deletes these records from the log and sends new ones. One read returns both: the old rows from the table,
# MAGIC the new ones from the log.
# MAGIC
# MAGIC Run it from top to bottom, here or as `python notebooks/into_the_lake.py`. It needs `sparklog[notebooks,lake]`
# MAGIC and no Spark; the last cell shows the same in Spark.

# COMMAND ----------

import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import sparklog
from sparklog.types import TopicPartition

try:
    import duckdb
    import polars as pl
    from deltalake import DeltaTable
except ModuleNotFoundError as e:
    print(f"There is no {e.name} here: pip install 'sparklog[notebooks,lake]', then run this again.")
    sys.exit(0)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. A topic with a table
# MAGIC
# MAGIC `enable_lake` creates the table. The broker starts a worker beside itself, which commits new rows, here once a
# MAGIC second.

# COMMAND ----------

work = Path(tempfile.mkdtemp(prefix="sparklog-lake-"))
broker = sparklog.start_local(data_dir=work / "data")
servers = broker.bootstrap_servers
admin = sparklog.Admin(servers)

admin.create_topic("rides", partitions=2, schema="id BIGINT, zone STRING, minutes DOUBLE")
admin.enable_lake("rides", location=str(work / "rides"), interval_ms=1_000)


def send(first: int, count: int) -> None:
    zones = ["Soho", "Harlem", "Astoria"]
    ids = range(first, first + count)
    rides = {"id": list(ids), "zone": [zones[i % 3] for i in ids], "minutes": [float(i % 40) for i in ids]}
    with sparklog.Producer(servers) as producer:
        producer.send_batch("rides", pa.table(rides))


def wait_for_the_table() -> None:
    while admin.describe_lake("rides").lag:
        time.sleep(0.2)


send(0, 30_000)
wait_for_the_table()
print(f"{DeltaTable(work / 'rides').count():,} rows in the Delta table")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. The table in other engines
# MAGIC
# MAGIC Each row has its place in the log: `_partition`, `_offset`, `_timestamp`.

# COMMAND ----------

table = DeltaTable(work / "rides")
print(pl.read_delta(str(work / "rides")).group_by("zone").len().sort("zone"))
rides = table.to_pyarrow_dataset()
print(duckdb.sql("SELECT zone, avg(minutes) AS minutes FROM rides GROUP BY zone ORDER BY zone"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. History and tail as one
# MAGIC
# MAGIC The log may forget what the table has. `history=True` reads the offsets of the table from the table, and the others
# MAGIC from the log: each row once.

# COMMAND ----------

admin.delete_records({TopicPartition("rides", p): -1 for p in range(2)})
send(30_000, 500)
print(f"{sparklog.read_table(servers, 'rides').num_rows:,} rows in the log")
print(f"{sparklog.read_table(servers, 'rides', history=True).num_rows:,} rows with their history")
print(sparklog.sql(servers, "SELECT count(*) AS rides, count(DISTINCT id) AS different FROM rides").to_pylist())

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. The newest row of each key
# MAGIC
# MAGIC Rows of a changelog topic are changes. `mode="upsert"` keeps the newest row of each key in the table.

# COMMAND ----------

keyed = {"cleanup.policy": "compact"}
admin.create_topic("accounts", schema="id BIGINT, name STRING, _op STRING", key_columns=["id"], configs=keyed)
admin.enable_lake("accounts", location=str(work / "accounts"), mode="upsert", interval_ms=1_000)
events = [
    {"before": None, "after": {"id": 1, "name": "Ada"}, "op": "c"},
    {"before": None, "after": {"id": 2, "name": "Bob"}, "op": "c"},
    {"before": {"id": 1, "name": "Ada"}, "after": {"id": 1, "name": "Ada L."}, "op": "u"},
    {"before": {"id": 2, "name": "Bob"}, "after": None, "op": "d"},
]
with sparklog.Producer(servers) as producer:
    producer.send_batch("accounts", sparklog.unwrap_debezium(events))
print(sparklog.sql(servers, "SELECT id, name FROM latest.accounts").to_pylist())
while admin.describe_lake("accounts").lag:
    time.sleep(0.2)
print(DeltaTable(work / "accounts").to_pyarrow_table(columns=["id", "name"]).to_pylist())
admin.close()
broker.stop()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. In Spark
# MAGIC
# MAGIC ```python
# MAGIC spark.read.format("delta").load("/data/lake/rides")
# MAGIC sparklog.history(spark, "rides", bootstrap_servers=servers)
# MAGIC sparklog.latest(spark, "accounts", bootstrap_servers=servers)
# MAGIC spark.readStream.format("sparklog").option("subscribe", "rides").option("startingOffsets", "history").load()
# MAGIC ```
