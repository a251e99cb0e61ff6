"""Scan throughput of the Spark source against the ceiling of Spark's Python data sources.

The ceiling is a data source that hands out ready Arrow batches from mapped files: no broker, no offsets, no checksums.
Both run in the same session, interleaved, `df.write.format("noop")`; the median of the rounds is printed.

    python tests/benchmarks/spark_scan.py --rows 4000000 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import sparklog

BATCH_ROWS = 10_000


class CeilingReader(DataSourceReader):
    def __init__(self, directory: str) -> None:
        self.directory = directory

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(p)) for p in sorted(Path(self.directory).glob("*.arrows"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as file:
            yield from pa.ipc.open_stream(file)


class CeilingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        first = min(Path(self.options["path"]).glob("*.arrows"))
        with pa.memory_map(str(first)) as file:
            return from_arrow_schema(pa.ipc.open_stream(file).schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(self.options["path"])


def envelope_columns(rows: int, first: int, value_bytes: int) -> dict[str, Any]:
    raw = np.frombuffer(os.urandom(rows * value_bytes), np.uint8)
    offsets = pa.array(np.arange(0, (rows + 1) * value_bytes, value_bytes, dtype=np.int32))
    values = pa.Array.from_buffers(pa.binary(), rows, [None, offsets.buffers()[1], pa.py_buffer(raw)])
    keys = pa.array(np.arange(first, first + rows)).cast(pa.string()).cast(pa.binary())
    return {"key": keys, "value": values}


def typed_columns(rows: int, first: int) -> dict[str, Any]:
    numbers = np.arange(first, first + rows)
    text = pa.array(["EWR", "JFK", "LGA", "BOS"]).take(pa.array(numbers % 4))
    return {
        "at": pa.array(numbers * 1000).cast(pa.timestamp("us", "UTC")),
        "carrier": text,
        "origin": text,
        "dest": text,
        "flight": pa.array(numbers.astype(np.int32)),
        "delay": pa.array(numbers * 0.5),
        "distance": pa.array(numbers),
        "hour": pa.array((numbers % 24).astype(np.int32)),
        "cancelled": pa.array(numbers % 7 == 0),
        "air_time": pa.array(numbers * 0.25),
    }


def with_metadata(columns: dict[str, Any], topic: str, partition: int, first: int, kinds: str) -> dict[str, Any]:
    """The columns Spark's Kafka source adds; `kinds` "few" as the plain ceiling, "all" as ours."""
    rows = len(columns["value"])
    offsets = pa.array(np.arange(first, first + rows))
    stamps = offsets.cast(pa.timestamp("us", "UTC"))
    partitions = pa.array(np.full(rows, partition, np.int32))
    if kinds == "few":
        return columns | {"partition": partitions, "offset": offsets, "timestamp": stamps}
    return columns | {
        "topic": pa.repeat(pa.scalar(topic), rows),
        "partition": partitions,
        "offset": offsets,
        "timestamp": stamps,
        "timestampType": pa.array(np.zeros(rows, np.int32)),
    }


def write_ceiling(directory: Path, partition: int, batches: list[dict[str, Any]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    first = pa.record_batch(batches[0])
    with (
        pa.OSFile(str(directory / f"{partition}.arrows"), "wb") as file,
        pa.ipc.new_stream(file, first.schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(pa.record_batch(batch))


def prepare(bootstrap: str, directory: Path, kind: str, rows: int, partitions: int, value_bytes: int) -> list[str]:
    """Fills topic `kind` and the ceiling's directories with the same data; returns the ceilings' names."""
    each = rows // partitions
    with sparklog.Admin(bootstrap) as admin, sparklog.Producer(bootstrap) as producer:
        schema = None if kind == "envelope" else pa.record_batch(typed_columns(1, 0)).schema
        admin.create_topic(kind, partitions=partitions, schema=schema)
        for p in range(partitions):
            starts = range(0, each, BATCH_ROWS)
            counts = [min(BATCH_ROWS, each - s) for s in starts]
            if kind == "envelope":
                columns = [envelope_columns(n, s, value_bytes) for s, n in zip(starts, counts, strict=True)]
                for kinds in ("few", "all"):
                    made = [with_metadata(c, kind, p, s, kinds) for c, s in zip(columns, starts, strict=True)]
                    write_ceiling(directory / f"{kind}-{kinds}", p, made)
            else:
                columns = [typed_columns(n, s) for s, n in zip(starts, counts, strict=True)]
                write_ceiling(directory / f"{kind}-few", p, columns)
            for c in columns:
                producer.send_batch(kind, pa.record_batch(c), partition=p)
            producer.flush()
    return ["few", "all"] if kind == "envelope" else ["few"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000, help="records in the topic (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=4, help="partitions of the topic (default: %(default)s)")
    parser.add_argument("--value-bytes", type=int, default=100, help="size of an envelope value (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default: %(default)s)")
    parser.add_argument("--kind", choices=["envelope", "typed", "both"], default="both")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--directory", help="where to put the data (default: a temporary directory)")
    args = parser.parse_args()

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(args.master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark.dataSource.register(CeilingSource)
    kinds = ["envelope", "typed"] if args.kind == "both" else [args.kind]
    with (
        tempfile.TemporaryDirectory(dir=args.directory) as scratch,
        sparklog.start_local(Path(scratch) / "log") as broker,
    ):
        for kind in kinds:
            measure(spark, broker.bootstrap_servers, Path(scratch), kind, args)
    spark.stop()


def measure(spark: Any, bootstrap: str, scratch: Path, kind: str, args: argparse.Namespace) -> None:
    ceilings = prepare(bootstrap, scratch, kind, args.rows, args.partitions, args.value_bytes)

    def ours(**options: str) -> Any:
        return spark.read.format("sparklog").options(
            **({"sparklog.bootstrap.servers": bootstrap, "subscribe": kind} | options)
        )

    frames = {
        f"ceiling ({name} columns)": spark.read.format("ceiling").load(str(scratch / f"{kind}-{name}"))
        for name in ceilings
    }
    frames["sparklog mmap"] = ours().load()
    frames["sparklog socket"] = ours(**{"sparklog.local.read": "off"}).load()
    if kind == "envelope":
        few = {"columns": "key,value,partition,offset,timestamp"}
        frames["sparklog mmap, few columns"] = ours(**few).load()
        frames["sparklog socket, few columns"] = ours(**few, **{"sparklog.local.read": "off"}).load()
    frames["sparklog mmap, no crc"] = ours(**{"sparklog.check.crcs": "false"}).load()
    times: dict[str, list[float]] = {name: [] for name in frames}
    for round_number in range(args.rounds + 1):
        # another order every round: who comes first must not matter
        order = list(frames.items())
        shift = round_number % len(order)
        for name, frame in order[shift:] + order[:shift]:
            begun = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            if round_number:  # the first round starts workers and fills caches
                times[name].append(time.perf_counter() - begun)
    rows = args.rows // args.partitions * args.partitions
    base = times[next(iter(times))]
    print(
        f"\n{kind}: {rows:,} rows, {args.partitions} partitions, {args.rounds} rounds; of the ceiling: by median, by best"
    )
    for name, found in times.items():
        median = statistics.median(found)
        ratios = f"{statistics.median(base) / median:5.2f}  {min(base) / min(found):5.2f}"
        print(
            f"  {name:32} median {median:6.2f} s  best {min(found):6.2f} s  {rows / median / 1e6:5.2f} M rows/s  {ratios}"
        )


if __name__ == "__main__":
    main()
