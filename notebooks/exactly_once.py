# Databricks notebook source
# MAGIC %md
# MAGIC # Exactly once, with a kill in the middle
# MAGIC
# MAGIC A streaming query takes payments from a topic and writes each micro-batch to two places: a Delta table and a
# MAGIC second topic. This notebook kills the query (`kill -9`, Spark and all) at the worst moment: the batch is in
# MAGIC the table and not yet in the topic, and Spark has not noted that it is done. Then the query is started
# MAGIC again, and every payment is counted.
# MAGIC
# MAGIC The query runs as a program of its own, so that it can be killed. Run the notebook from top to bottom, here
# MAGIC or as `python notebooks/exactly_once.py`. On Databricks make the program a job, and cancel its run where
# MAGIC this notebook kills.

# COMMAND ----------

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

import sparklog

# Spark runs Python in processes of its own; they must be this Python. (Only needed outside of Databricks.)
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Payments
# MAGIC
# MAGIC 6,000 payments wait in a topic. `accepted` shall get those that are accepted, each once.

# COMMAND ----------

work = Path(tempfile.mkdtemp(prefix="sparklog-exactly-once-"))
broker = sparklog.start_local(data_dir=work / "data")
servers = broker.bootstrap_servers

schema = pa.schema([("payment", pa.int64()), ("account", pa.string()), ("cents", pa.int64())])
with sparklog.Admin(servers) as admin:
    admin.create_topic("payments", partitions=2, schema=schema, key_columns=["account"])
    admin.create_topic("accepted", partitions=2, schema=schema, key_columns=["account"])

random = np.random.default_rng(7)
payments = pd.DataFrame(
    {
        "payment": np.arange(6_000),
        "account": [f"account-{n}" for n in random.integers(0, 50, 6_000)],
        "cents": random.integers(100, 10_000, 6_000),
    }
)
with sparklog.Producer(servers) as producer:
    producer.send_batch("payments", payments)
print(f"{len(payments):,} payments of {payments['cents'].sum() / 100:,.2f} in all")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. The query
# MAGIC
# MAGIC Spark calls the function `write` below for each micro-batch. `once(name, batch_id)` returns two options,
# MAGIC `txnAppId` (the name) and `txnVersion` (the batch id). Delta and sparklog skip a write if this name and batch id
# MAGIC are committed already. `write` writes to two places, so each of its two writes has a name of its own.
# MAGIC
# MAGIC The line that waits in the second batch is only here so that the kill meets the gap between the two writes.
# MAGIC The file `tries` notes what Spark does.

# COMMAND ----------

program = work / "query.py"
program.write_text(
    textwrap.dedent("""
    import signal
    import sys
    from pathlib import Path

    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession
    from pyspark_sparklog.delta import once

    servers, work, waits = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "wait"

    builder = (
        SparkSession.builder.appName("payments").master("local[2]")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
    )
    spark = configure_spark_with_delta_pip(builder).getOrCreate()

    def note(text):
        with (work / "tries").open("a") as file:
            file.write(text + "\\n")

    def write(rows, batch_id):
        rows = rows.where("cents >= 500")
        note(f"{batch_id} begins")
        rows.write.format("delta").mode("append").options(**once("payments to table", batch_id)).save(str(work / "table"))
        note(f"{batch_id} table")
        if waits and batch_id == 1:
            print("between the two writes of batch 1", flush=True)
            signal.pause()
        target = rows.write.format("sparklog").mode("append").option("sparklog.bootstrap.servers", servers)
        target.option("topic", "accepted").options(**once("payments to topic", batch_id)).save()
        note(f"{batch_id} topic")

    query = (
        spark.readStream.format("sparklog")
        .option("sparklog.bootstrap.servers", servers)
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 2000)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    if not waits:
        spark.read.format("delta").load(str(work / "table")).toPandas().to_parquet(work / "table.parquet")
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Start it, and kill it
# MAGIC
# MAGIC The query and its JVM are one group of processes. SIGKILL ends all of them at once; nobody can tidy up.

# COMMAND ----------

command = [sys.executable, str(program), servers, str(work)]
errors = (work / "errors").open("w")
first = subprocess.Popen(
    [*command, "wait"], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=work, start_new_session=True
)
for line in first.stdout:
    if line.startswith("between"):
        print(line.strip() + ": kill -9")
        break
else:
    raise RuntimeError("the query ended early: " + (work / "errors").read_text()[-2000:])
os.killpg(first.pid, signal.SIGKILL)
print("exit status:", first.wait())
first.stdout.close()

before = sparklog.read_table(servers, "accepted").num_rows
print(f"payments in the topic: {before:,}, those of batch 0")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. Start it again
# MAGIC
# MAGIC Spark finds batch 1 begun and not done, and runs it again from the same offsets. Its rows are in the table:
# MAGIC that write is skipped. They are not in the topic: that one happens.

# COMMAND ----------

subprocess.run([*command, "go on"], stderr=errors, cwd=work, check=True)
errors.close()

tries = pd.Series((work / "tries").read_text().split("\n")[:-1]).str.split(expand=True)
tries.columns = ["batch", "reached"]
print(pd.crosstab(tries["batch"], tries["reached"])[["begins", "table", "topic"]].to_string())

# COMMAND ----------

# MAGIC %md
# MAGIC Batch 1 has begun twice and passed the table twice. Was anything written twice?

# COMMAND ----------

wanted = payments[payments["cents"] >= 500]
topic = sparklog.read_table(servers, "accepted").to_pandas()
table = pd.read_parquet(work / "table.parquet")

report = pd.DataFrame(
    {
        name: {
            "rows": len(found),
            "missing": len(set(wanted["payment"]) - set(found["payment"])),
            "twice": int(found["payment"].duplicated().sum()),
            "cents": int(found["cents"].sum()),
        }
        for name, found in {"expected": wanted, "Delta table": table, "topic": topic}.items()
    }
).T
print(report.to_string())

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. Without `foreachBatch`
# MAGIC
# MAGIC A query with one target needs none of this: `writeStream.format("sparklog")` and
# MAGIC `writeStream.format("delta")` are exactly once by themselves. Readers leave out what is not committed,
# MAGIC unless they ask for it (`isolation.level`). What a killed task has left in a topic is there for those who
# MAGIC ask, and for nobody else. Here it had left nothing: the kill came before the batch's rows were sent.

# COMMAND ----------

for level in ("read_committed", "read_uncommitted"):
    print(f"{level:<17}", sparklog.read_table(servers, "accepted", isolation_level=level).num_rows, "rows")

broker.stop()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Where to go on
# MAGIC
# MAGIC "Exactly once" in `docs/guide.md` says what is promised and how long names are remembered. A query with a
# MAGIC new checkpoint begins with batch 0 again and needs new names. `docs/guide.md#with-delta` has the other
# MAGIC direction: a Delta table's changes into a topic.
