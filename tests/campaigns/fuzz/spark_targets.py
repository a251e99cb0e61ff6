"""The Spark data source's readers and its sink on a hostile server, called in a child without a JVM: the calls of
driver and tasks end in time, with a result or a typed error."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_sparklog.sink.writer import batch_writer
from pyspark_sparklog.source.source import batch_reader, infer_schema, stream_reader

from sparklog.client.net.cluster import forget
from sparklog.errors import SparklogError

TIMEOUT_MS = 1500
CALL_S_MAX = 60.0
"""Planning and one task may each wait for the broker as long as the options say."""
ROWS_MAX = 10_000
"""More than the honest broker has; a reader beyond that has been led in a circle."""


def spark(address: str) -> list[str]:
    """Plans and reads as a batch DataFrame and as a streaming query do; the typed errors there were."""
    errors: list[str] = []

    def tried(use: Callable[[dict[str, str]], None], local: str) -> None:
        started = time.monotonic()
        options = {
            "kafka.bootstrap.servers": address,
            "subscribe": "envelope",
            "startingOffsets": "earliest",
            "kafka.request.timeout.ms": str(TIMEOUT_MS),
            "sparklog.broker.wait.ms": str(TIMEOUT_MS),
            "sparklog.local.read": local,
        }
        try:
            use(options)
        except SparklogError as e:
            errors.append(f"{type(e).__name__}: {str(e)[:200]}")
        took = time.monotonic() - started
        assert took < CALL_S_MAX, f"{use.__name__} took {took:.1f} s; errors so far: {errors}"

    for local in ("off", "auto"):
        tried(_batch, local)
        tried(_stream, local)
    tried(_sink, "off")
    forget(address)
    return errors


def _batch(options: dict[str, str]) -> None:
    reader = batch_reader(options, infer_schema(options))
    rows = 0
    for task in reader.partitions():
        for batch in reader.read(task):
            rows += batch.num_rows
            assert rows <= ROWS_MAX


def _sink(options: dict[str, str]) -> None:
    """Writes rows in one task and commits them, as the driver does; a failure aborts."""
    rows = pa.record_batch({"value": [b"a", b"b"]})
    given = {n: v for n, v in options.items() if n not in ("subscribe", "startingOffsets", "sparklog.local.read")}
    given |= {"topic": "envelope", "kafka.delivery.timeout.ms": str(TIMEOUT_MS), "kafka.linger.ms": "0"}
    writer = batch_writer(given, StructType([StructField("value", BinaryType())]), overwrite=False)
    try:
        writer.commit([writer.write(iter([rows]))])
    except SparklogError:
        writer.abort([])
        raise


def _stream(options: dict[str, str]) -> None:
    reader = stream_reader(options, infer_schema(options))
    start = reader.initialOffset()
    rows = 0
    for _ in range(2):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        for task in reader.partitions(start, end):
            for batch in reader.read(task):
                rows += batch.num_rows
                assert rows <= ROWS_MAX
        reader.commit(end)
        start = end
    reader.stop()
