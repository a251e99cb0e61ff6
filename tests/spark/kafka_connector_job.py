"""Spark's own Kafka connector against a gateway: batch, stream and real-time mode. Prints one line of JSON.

python -m tests.spark.kafka_connector_job BOOTSTRAP_SERVERS DIRECTORY TOKEN_JAR
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from tests.support.kafka import SPARK_VERSION

RECORDS = 1_000
REAL_TIME_RECORDS = 500
WAIT_S = 120.0


def main() -> None:
    servers, directory, token_jar = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[6]")
        .config("spark.jars.packages", f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}")
        .config("spark.jars.excludes", "org.apache.spark:spark-token-provider-kafka-0-10_2.13")
        .config("spark.jars", token_jar)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    admin = AdminClient({"bootstrap.servers": servers})
    for name in ("in", "out"):
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)

    def source(topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}

    def sink(topic: str, checkpoint: str) -> dict[str, str]:
        path = f"{directory}/{checkpoint}"
        return {"kafka.bootstrap.servers": servers, "topic": topic, "checkpointLocation": path}

    rows = spark.range(RECORDS).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    rows.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", "batch").save()
    read = spark.read.format("kafka").options(**source("batch")).load()
    found: dict[str, Any] = {"batch": sorted(int(r.value) for r in read.select("value").collect())}
    stream = spark.readStream.format("kafka").options(**source("batch")).load().selectExpr("key", "value")
    query = stream.writeStream.format("kafka").options(**sink("copy", "stream")).trigger(availableNow=True).start()
    query.awaitTermination(int(WAIT_S))
    copied = spark.read.format("kafka").options(**source("copy")).load()
    found["stream"] = sorted(int(r.value) for r in copied.select("value").collect())
    found["real_time"] = real_time(spark, servers, source("in"), sink("out", "real-time"))
    spark.stop()
    print(json.dumps(found))


def real_time(spark: SparkSession, servers: str, source: dict[str, str], sink: dict[str, str]) -> list[int]:
    """Numbers that came through a query in real-time mode."""
    rows = spark.readStream.format("kafka").options(**source).load().selectExpr("key", "value")
    writer: Any = rows.writeStream.format("kafka").options(**sink).outputMode("update")
    query = writer.trigger(realTime="5 minutes").start()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "real-time", "auto.offset.reset": "earliest"})
    consumer.subscribe(["out"])
    came: set[int] = set()
    stop = threading.Event()

    def receive() -> None:
        while not stop.is_set() and len(came) < REAL_TIME_RECORDS:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                came.add(int(message.value() or b""))

    thread = threading.Thread(target=receive)
    thread.start()
    for i in range(REAL_TIME_RECORDS):
        producer.produce("in", str(i).encode())
        producer.poll(0)
        time.sleep(0.002)
    producer.flush()
    thread.join(WAIT_S)
    stop.set()
    thread.join()
    consumer.close()
    query.stop()
    return sorted(came)


if __name__ == "__main__":
    main()
