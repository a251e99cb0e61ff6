"""Records with schemas: rows a second of processor time into typed topics, and a scan beside `from_avro`, in one run.

    python -m tests.campaigns.benchmarks.schema_figures [--records N] [--scans N]

librdkafka sends records that are encoded before; the same bytes go into an envelope topic, too. The rate is per second
of processor time of the gateway, and of gateway and broker. The scans are in one session of Spark, one after the other,
into `noop`: the columns with `format("sparklog")`, and the same records with Spark's Kafka connector and `from_avro`.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import psutil
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

import sparklog
from sparklog.client.local import LocalBroker
from tests.campaigns.benchmarks.context import environment
from tests.campaigns.gateway_suites.schema_clients.spark_reader import PACKAGES

AVRO = {
    "type": "record", "name": "Ride", "fields": [
        {"name": "id", "type": "long"}, {"name": "zone", "type": "string"}, {"name": "fare", "type": "double"},
        {"name": "note", "type": ["null", "string"]}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["DAY", "NIGHT"]}},
    ],
}  # fmt: skip
PATIENCE_S = 300.0
DISTINCT = 1_000
"""Distinct values, which are sent again and again."""


def avro_values() -> list[bytes]:
    parsed, values = fastavro.parse_schema(AVRO), []
    for i in range(DISTINCT):
        out = io.BytesIO()
        row = {"id": i, "zone": f"zone {i % 200}", "fare": i / 4, "note": None, "at": i, "kind": "DAY"}
        fastavro.schemaless_writer(out, parsed, row)
        values.append(out.getvalue())
    return values


def protobuf_values() -> tuple[str, list[bytes]]:
    """Return the descriptor in base64, and values of three fields."""
    kinds = (("id", FieldDescriptorProto.TYPE_INT64), ("zone", FieldDescriptorProto.TYPE_STRING))
    file = FileDescriptorProto(name="ride.proto", syntax="proto3")
    fields = file.message_type.add(name="Ride").field
    for number, (name, kind) in enumerate((*kinds, ("fare", FieldDescriptorProto.TYPE_DOUBLE)), 1):
        fields.add(name=name, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    ride = message_factory.GetMessageClass(pool.FindMessageTypeByName("Ride"))
    values = [
        b"\0" + ride(id=i, zone=f"zone {i % 200}", fare=i / 4).SerializeToString() for i in range(1, DISTINCT + 1)
    ]
    return base64.b64encode(file.SerializeToString()).decode(), values


def produced(broker: LocalBroker, topic: str, values: list[bytes], records: int) -> tuple[float, float]:
    """Send records, and return the processor time in s of the gateway and of both processes."""
    root = psutil.Process(broker.pid)
    (gateway,) = [one for one in root.children(recursive=True) if "sparklog.gateway" in " ".join(one.cmdline())]
    before = [sum(one.cpu_times()[:2]) for one in (root, gateway)]
    settings = {"linger.ms": 50, "batch.size": 1_000_000, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({"bootstrap.servers": broker.kafka_bootstrap_servers, **settings})
    errors: list[Any] = []
    for i in range(records):
        while True:
            try:
                producer.produce(topic, values[i % DISTINCT], on_delivery=lambda e, _: errors.append(e) if e else None)
                break
            except BufferError:
                producer.poll(0.1)
        if not i % 10_000:
            producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0 and not errors, errors[:1]
    of_broker, of_gateway = (sum(one.cpu_times()[:2]) - t for one, t in zip((root, gateway), before, strict=True))
    return of_gateway, of_gateway + of_broker


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def scans(broker: LocalBroker, topic: str, count: int) -> tuple[list[float], list[float]]:
    """Return times in s of scans of the columns, and of those with `from_avro`."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro

    from sparklog.spark import register

    os.environ |= environment() | {"PYSPARK_PYTHON": sys.executable}  # Spark's workers find the data source
    builder = SparkSession.builder.master("local[2]").config("spark.jars.packages", ",".join(PACKAGES))
    spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()
    register(spark)
    reader = spark.read.format("sparklog").option("sparklog.bootstrap.servers", broker.bootstrap_servers)
    columns = reader.option("subscribe", topic).load()
    records = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.kafka_bootstrap_servers)
    decoded = (
        records.option("subscribe", topic).option("startingOffsets", "earliest").load()
        .select(from_avro(f.expr("substring(value, 6)"), json.dumps(AVRO)).alias("row")).select("row.*")
    )  # fmt: skip
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(count + 1):
        for frame, own in zip((columns, decoded), times, strict=True):
            own.append(timed(frame.write.format("noop").mode("overwrite").save))
    spark.stop()
    return times[0][1:], times[1][1:]  # without the first, which compiles


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--scans", type=int, default=3)
    given = parser.parse_args()
    settings = {"auto.create.typed.topics": True}
    with (
        tempfile.TemporaryDirectory(prefix="sparklog-figures-") as directory,
        sparklog.start_local(Path(directory) / "data", kafka=True, settings=settings) as broker,
    ):
        registry = SchemaRegistryClient({"url": broker.schema_registry_url})
        descriptor, messages = protobuf_values()
        for form, text, values in (("AVRO", json.dumps(AVRO), avro_values()), ("PROTOBUF", descriptor, messages)):
            topic = f"rides-{form.lower()}"
            schema_id = registry.register_schema(f"{topic}-value", Schema(text, form))
            framed = [b"\0" + schema_id.to_bytes(4, "big") + value for value in values]
            for name in (topic, f"{topic}-bytes"):
                gateway_s, both_s = produced(broker, name, framed, given.records)
                rates = f"{given.records / gateway_s:,.0f} records/s of gateway, {given.records / both_s:,.0f} of both"
                print(f"{name}: {rates}", flush=True)
        if given.scans:
            columns, decoded = (sorted(times) for times in scans(broker, "rides-avro", given.scans))
            ratio = decoded[len(decoded) // 2] / columns[len(columns) // 2]
            print(f"scan: {columns} s, from_avro: {decoded} s, ratio {ratio:.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
