# Databricks notebook source
# MAGIC %md
# MAGIC # Moving from Kafka
# MAGIC
# MAGIC A job written for Spark's Kafka source and sink moves by one word and one address. This notebook has such a
# MAGIC job, as one finds it in a hundred tutorials: orders come as JSON, are parsed, counted per minute, and the
# MAGIC counts go to a second topic. It runs it on sparklog, shows what is different, and then what a topic with
# MAGIC columns makes of it.
# MAGIC
# MAGIC Run it from top to bottom, here or as `python notebooks/moving_from_kafka.py`. `docs/moving-from-kafka.md`
# MAGIC has all of it in detail.

# COMMAND ----------

import json
import os
import random
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import sparklog

# Spark runs Python in processes of its own; they must be this Python. (Only needed outside of Databricks.)
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

FORMAT = "sparklog"  # this was "kafka"

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. A broker and a session
# MAGIC
# MAGIC In earnest the broker is the process `sparklog broker` on some machine. There is no jar and no package to
# MAGIC add to the session.

# COMMAND ----------

work = Path(tempfile.mkdtemp(prefix="sparklog-moving-"))
broker = sparklog.start_local(data_dir=work / "data")
servers = broker.bootstrap_servers

spark = (
    SparkSession.builder.appName("moving from Kafka")
    .master(os.environ.get("SPARK_MASTER", "local[2]"))
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Orders, as a shop would send them
# MAGIC
# MAGIC The key chooses the partition by the same hash as Kafka's, so a customer's orders are where they would be
# MAGIC there. The topic makes itself with the first record, as Kafka's do.

# COMMAND ----------

shop = random.Random(1)
items = {"tea": 3.0, "coffee": 3.5, "cake": 4.5}
noon = int(pd.Timestamp("2024-06-03 12:00", tz="UTC").timestamp() * 1000)

with sparklog.Producer(servers) as producer:
    for number in range(3_000):
        order = {"order": number, "item": shop.choice(list(items)), "cups": shop.randint(1, 4)}
        producer.send(
            "orders",
            key=f"customer-{shop.randrange(200)}".encode(),
            value=json.dumps(order).encode(),
            headers=[("channel", b"web" if number % 3 else b"app")],
            timestamp_ms=noon + number * 100,
        )

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. The job, with its options as they were
# MAGIC
# MAGIC The columns are those of Spark's Kafka source. Settings of Kafka's clients are known: those that have a
# MAGIC counterpart are taken over, the others are accepted and named in one line of the log.

# COMMAND ----------

kafka_options = {
    "kafka.bootstrap.servers": servers,
    "subscribe": "orders",
    "startingOffsets": "earliest",
    "maxOffsetsPerTrigger": 1_000,
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    "kafka.security.protocol": "PLAINTEXT",
    "kafka.fetch.max.wait.ms": 200,
    "kafka.session.timeout.ms": 30_000,
}
stream = spark.readStream.format(FORMAT).options(**kafka_options).load()
stream.printSchema()

orders = (
    stream.select(
        F.col("key").cast("string").alias("customer"),
        F.from_json(F.col("value").cast("string"), "order LONG, item STRING, cups INT").alias("o"),
        "timestamp",
    )
    .select("customer", "o.*", "timestamp")
    .withWatermark("timestamp", "1 minute")
)
per_minute = orders.groupBy(F.window("timestamp", "1 minute"), "item").agg(F.sum("cups").alias("cups"))

query = (
    per_minute.select(
        F.col("item").alias("key"),
        F.to_json(F.struct(F.col("window.start").alias("minute"), "item", "cups")).alias("value"),
    )
    .writeStream.format(FORMAT)
    .option("kafka.bootstrap.servers", servers)
    .option("kafka.acks", "all")
    .option("topic", "cups-per-minute")
    .option("checkpointLocation", str(work / "checkpoint"))
    .outputMode("append")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
batches = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
print("records of each micro-batch:", batches)

# COMMAND ----------

# MAGIC %md
# MAGIC Offsets and progress look as they did. What is new: this sink is *exactly once*, where Kafka's is at
# MAGIC least once. Nothing has to be set for it. (As with Kafka, minutes that the watermark has not passed are
# MAGIC still open: more orders may come.)

# COMMAND ----------

source = query.lastProgress["sources"][0]
print("end offsets of orders:", json.loads(source["endOffset"])["orders"])

counts = (
    spark.read.format(FORMAT).option("kafka.bootstrap.servers", servers).option("subscribe", "cups-per-minute").load()
)
counted = counts.select(
    F.from_json(F.col("value").cast("string"), "minute TIMESTAMP, item STRING, cups INT").alias("c")
)
counted.select("c.*").groupBy("minute").pivot("item", list(items)).sum("cups").orderBy("minute").show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. Batch reads by offset and by time
# MAGIC
# MAGIC `startingOffsets`, `endingOffsets`, `startingTimestamp` and their kin have Kafka's names, forms and meaning:
# MAGIC the end is exclusive, -2 is earliest, -1 latest.

# COMMAND ----------


def read(**options: object) -> DataFrame:
    """A batch read of the orders."""
    reader = spark.read.format(FORMAT).option("kafka.bootstrap.servers", servers).option("subscribe", "orders")
    return reader.options(**options).load()


print(
    "offsets 10 to 14:",
    [
        row.offset
        for row in read(
            startingOffsets=json.dumps({"orders": {"0": 10}}), endingOffsets=json.dumps({"orders": {"0": 15}})
        )
        .select("offset")
        .collect()
    ],
)
print("since 12:04:", read(startingTimestamp=noon + 4 * 60_000).count())
read(includeHeaders="true").select("offset", F.col("key").cast("string"), "timestamp", "headers").show(
    3, truncate=False
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. What is different
# MAGIC
# MAGIC Sparklog is stricter: an option that does not exist is an error here, where Kafka's connector ignores it.
# MAGIC Spark itself refuses two things for every sink that is written in Python: a batch write without
# MAGIC `.mode("append")`, and the output mode `update`.

# COMMAND ----------


def first_line(error: Exception) -> str:
    """What matters of an error."""
    text = str(error).splitlines()[0]
    return text.rsplit("sparklog.errors.", 1)[-1]


try:
    read(failOnDataLos="false")
except AnalysisException as e:
    print("a misspelt option: ", first_line(e))

one = spark.createDataFrame([("tea", "1")], "key STRING, value STRING")
try:
    one.write.format(FORMAT).option("kafka.bootstrap.servers", servers).option("topic", "totals").save()
except AnalysisException as e:
    print('no mode("append"): ', first_line(e))

# COMMAND ----------

# MAGIC %md
# MAGIC The way around the second is `foreachBatch`. `once` gives each batch a name, so that a batch that Spark
# MAGIC runs again is written once. The topic `totals` gets every item's running total whenever it changes.

# COMMAND ----------

from pyspark_sparklog.delta import once  # noqa: E402


def write_totals(rows: DataFrame, batch_id: int) -> None:
    """Writes a micro-batch of changed totals."""
    changed = rows.select(F.col("item").alias("key"), F.col("cups").cast("string").alias("value"))
    writer = changed.write.format(FORMAT).mode("append").option("kafka.bootstrap.servers", servers)
    writer.option("topic", "totals").options(**once("totals per item", batch_id)).save()


query = (
    orders.groupBy("item")
    .agg(F.sum("cups").alias("cups"))
    .writeStream.outputMode("update")
    .foreachBatch(write_totals)
    .option("checkpointLocation", str(work / "checkpoint-totals"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
totals = spark.read.format(FORMAT).option("kafka.bootstrap.servers", servers).option("subscribe", "totals").load()
totals = totals.select(
    F.col("key").cast("string").alias("item"), F.col("value").cast("string").cast("int").alias("cups")
)
totals.groupBy("item").agg(F.count("*").alias("updates"), F.max("cups").alias("cups")).orderBy("item").show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. The next step: a topic with columns
# MAGIC
# MAGIC The job above parses JSON, every time it is read, and finds out then whether it fits. A typed topic has
# MAGIC columns: what does not fit is refused when it is sent, and readers get columns without parsing. One query
# MAGIC moves what is there, exactly once, with the time and the key it had.

# COMMAND ----------

schema = pa.schema(
    [
        ("customer", pa.string()),
        ("order", pa.int64()),
        ("item", pa.string()),
        ("cups", pa.int32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
with sparklog.Admin(servers) as admin:
    admin.create_topic(
        "typed-orders", partitions=1, schema=schema, key_columns=["customer"], timestamp_column="timestamp"
    )

query = (
    orders.writeStream.format(FORMAT)
    .option("sparklog.bootstrap.servers", servers)
    .option("topic", "typed-orders")
    .option("checkpointLocation", str(work / "checkpoint-typed"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

typed = (
    spark.read.format(FORMAT).option("sparklog.bootstrap.servers", servers).option("subscribe", "typed-orders").load()
)
typed.groupBy("item").agg(F.count("*").alias("orders"), F.sum("cups").alias("cups")).orderBy("item").show()

parsed = read().selectExpr("from_json(CAST(value AS STRING), 'order LONG, cups INT') AS o").selectExpr("sum(o.cups)")
print("same cups in both topics:", parsed.first()[0] == typed.agg(F.sum("cups")).first()[0])

spark.stop()
broker.stop()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Where to go on
# MAGIC
# MAGIC A checkpoint of the Kafka job cannot be taken along: offsets here are others. Begin with a new one and
# MAGIC `startingTimestamp`. `docs/moving-from-kafka.md` has every option, every client setting and every
# MAGIC difference.
