"""Reads trips with Spark's Kafka connector and its function `from_avro`.

    python spark_reader.py SERVERS REGISTRY avro read COUNT TOPIC...

The function knows plain schemas, so the frame of each value is cut off before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

HERE = Path(__file__).parent
SCALA, VERSION = "2.13", "4.2.0"
PACKAGES = [f"org.apache.spark:spark-{name}_{SCALA}:{VERSION}" for name in ("sql-kafka-0-10", "avro")]


def main() -> None:
    servers, _, _, _, _, *topics = sys.argv[1:]
    builder = SparkSession.builder.master("local[1]").config("spark.jars.packages", ",".join(PACKAGES))
    spark = builder.config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", "earliest")
        .load()
    )
    row = from_avro(f.expr("substring(value, 6)"), (HERE / "trip.avsc").read_text(), {"mode": "FAILFAST"})
    rows = records.select("topic", row.alias("row"))
    rows = rows.withColumn("row", f.col("row").withField("at", f.unix_millis("row.at")))
    for line in rows.select(f.to_json(f.struct("topic", "row"), {"ignoreNullFields": "false"})).collect():
        print(json.dumps(json.loads(line[0])))
    spark.stop()


if __name__ == "__main__":
    main()
