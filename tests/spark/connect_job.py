"""The job that test_connect runs as a client of Spark Connect: writes, streams through a topic, reads back; prints the
rows as JSON.

python -m tests.spark.connect_job sc://HOST:PORT BROKERS SOURCE TARGET CHECKPOINT
"""

from __future__ import annotations

import json
import sys
import warnings


def main(remote: str, brokers: str, source: str, target: str, checkpoint: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(remote).getOrCreate()
    options = {"kafka.bootstrap.servers": brokers}
    rows = spark.range(100).selectExpr("cast(id as string) key", "cast(id * id as string) value")
    rows.write.format("sparklog").mode("append").options(**options).option("topic", source).save()
    stream = spark.readStream.format("sparklog").options(**options, subscribe=source, startingOffsets="earliest").load()
    even = stream.where("cast(cast(key as string) as int) % 2 = 0").select("key", "value")
    writer = even.writeStream.format("sparklog")
    writer = writer.options(**options, topic=target, checkpointLocation=checkpoint).trigger(availableNow=True)
    query = writer.start()
    ended = query.awaitTermination(120)
    found = spark.read.format("sparklog").options(**options, subscribe=target).load()
    numbers = [f"cast(cast({name} as string) as int) {name}" for name in ("key", "value")]
    pairs = found.selectExpr(*numbers).orderBy("key").collect()
    refused = ""
    try:
        spark.read.format("sparklog").options(**options).load().collect()
    except Exception as e:  # noqa: BLE001 - its words are looked at
        refused = str(e)
    print(json.dumps({"ended": ended, "rows": [list(p) for p in pairs], "refused": refused}))
    spark.stop()


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # PySpark's own
    main(*sys.argv[1:])
