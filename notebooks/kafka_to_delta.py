# Databricks notebook source
# MAGIC %md
# MAGIC # Your Kafka topic is a Delta table
# MAGIC
# MAGIC A mirror copies a topic of a running Kafka with the same offsets, and the lake keeps it as a Delta table: each record
# MAGIC once, as columns, and no producer was touched. Records that do not fit the columns wait beside the topic.
# MAGIC
# MAGIC Run it from top to bottom, here or as `python notebooks/kafka_to_delta.py`. It needs `sparklog[notebooks,lake]` and
# MAGIC no Spark. Set `KAFKA=host:9092` to use the topic `orders` of your own Kafka; without it a second broker of sparklog
# MAGIC stands in, which speaks Kafka's protocol.

# COMMAND ----------

import os
import sys
import tempfile
import time
from pathlib import Path

import sparklog

try:
    import polars as pl
    from deltalake import DeltaTable
except ModuleNotFoundError as e:
    print(f"There is no {e.name} here: pip install 'sparklog[notebooks,lake]', then run this again.")
    sys.exit(0)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. A Kafka with a topic
# MAGIC
# MAGIC The values are JSON, as most are. Two of them are not as the others.

# COMMAND ----------

kafka = os.environ.get("KAFKA")
stand_in = None
if kafka is None:
    stand_in = sparklog.start_local(kafka=True)
    kafka = stand_in.kafka_bootstrap_servers
    with sparklog.Admin(stand_in.bootstrap_servers) as their_admin:
        their_admin.create_topic("orders", partitions=1)
    with sparklog.Producer(stand_in.bootstrap_servers) as their_producer:
        for i in range(10_000):
            their_producer.send("orders", b'{"id":%d,"item":"%s","pieces":%d}' % (i, [b"pen", b"ink"][i % 2], i % 7))
        their_producer.send("orders", b'{"id":"ten thousand","item":"pen","pieces":1}')
        their_producer.send("orders", b'{"id":10001,"item":"ink","pieces":2,"gift":true}')

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. A mirror, with columns
# MAGIC
# MAGIC `create_mirror` creates the topic here, read-only. The broker starts a worker beside itself, which follows Kafka. The
# MAGIC same as a command: `sparklog mirror create old --source kafka://… --topics orders --value-format json --ddl '…'`.

# COMMAND ----------

work = Path(tempfile.mkdtemp(prefix="sparklog-mirror-"))
broker = sparklog.start_local(data_dir=work / "data")
servers = broker.bootstrap_servers
admin = sparklog.Admin(servers)

admin.create_mirror(
    "old",
    source=f"kafka://{kafka}",
    topics="orders",
    value_format="json",
    columns={"orders": "id BIGINT, item STRING, pieces INT"},
)


def wait_for_kafka() -> None:
    while admin.describe_mirrors()[0].lag:
        time.sleep(0.2)


wait_for_kafka()
print(
    sparklog.sql(
        servers, "SELECT item, count(*) AS orders, sum(pieces) AS pieces FROM orders GROUP BY item ORDER BY item"
    ).to_pylist()
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. The Delta table
# MAGIC
# MAGIC One call. Each row has the partition and the offset of its record in Kafka: a row can be traced back, and counted.

# COMMAND ----------

admin.enable_lake("orders", location=str(work / "orders"), interval_ms=1_000)


def wait_for_the_table() -> None:
    while admin.describe_lake("orders").lag:
        time.sleep(0.2)


wait_for_the_table()
print(f"{DeltaTable(work / 'orders').count():,} rows in the Delta table")
table = pl.read_delta(str(work / "orders"))
print(table.select("_partition", "_offset", "id", "item", "pieces").sort("_offset").tail(2))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. Records that do not fit
# MAGIC
# MAGIC They are gaps in the offsets, and rows of `orders.refused`, with their place and the reason. Nothing stops, and
# MAGIC nothing is lost. `sparklog refused list orders` prints the same.

# COMMAND ----------

query = 'SELECT partition, "offset", reason FROM "orders.refused" ORDER BY "offset"'
for refused in sparklog.sql(servers, query).to_pylist():
    print(refused)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. Moving on, or back
# MAGIC
# MAGIC Kafka goes on, and so does the mirror; `sparklog mirror delete old` ends it without a trace at the source. When the
# MAGIC producers move, `promote_mirror` opens the topic for them, behind the last record of Kafka. Refused records can then
# MAGIC be mended: the new column lets one of them in.

# COMMAND ----------

print(admin.promote_mirror("old", now=True))
admin.alter_schema("orders", add_columns="gift BOOLEAN")
with sparklog.Producer(servers) as producer:
    producer.send("orders", {"id": 20_000, "item": "pen", "pieces": 1, "gift": False}).result()
wait_for_the_table()
print(f"{DeltaTable(work / 'orders').count():,} rows in the Delta table")
admin.close()
broker.stop()
if stand_in is not None:
    stand_in.stop()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. From here
# MAGIC
# MAGIC - `sparklog refused retry orders` stores the refused records that fit now, each once.
# MAGIC - `sparklog mirror verify old` compares the mirror with Kafka, offset by offset, before the promotion.
# MAGIC - A Spark query of `format("kafka")` goes on as `format("sparklog")` with its checkpoint, because the offsets are the
# MAGIC   same: [Moving from Kafka](../moving-from-kafka.md).
