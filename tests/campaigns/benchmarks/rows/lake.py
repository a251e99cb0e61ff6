"""Topics as Delta tables: rounds of the lake worker beside Spark's Kafka connector, SQL beside DuckDB, acknowledgements
beside a worker, upserts beside MERGE."""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

import sparklog
from sparklog.lake.worker.worker import LakeWorker
from sparklog.query.session import SqlSession
from tests.support.processes import usage

from ..context import Context
from ..results import Measurement
from ..spark_session import DELTA_CONFIGS, SparkProcess
from .row import CONNECTOR, Row, row

SCHEMA = (
    "id BIGINT, zone STRING, fare DOUBLE, tip DOUBLE, minutes INT, a BIGINT, b BIGINT, c DOUBLE, d INT, note STRING"
)
ROWS = 6_000_000
ROWS_PER_BATCH = 20_000
PARTITIONS = 4
KEYS, CHANGES = 1_000_000, 10_000
RATE, FRESHNESS_S = 20_000, 40.0


def rides(first: int, count: int) -> pa.Table:
    """Ten columns of plausible values."""
    ids = np.arange(first, first + count)
    rng = np.random.default_rng(first)
    return pa.table(
        {
            "id": ids,
            "zone": pa.array([f"zone-{i % 250:03}" for i in ids]),
            "fare": rng.random(count) * 60,
            "tip": rng.random(count) * 9,
            "minutes": pa.array(rng.integers(0, 90, count), pa.int32()),
            "a": rng.integers(0, 1_000, count),
            "b": rng.integers(0, 1_000_000, count),
            "c": rng.random(count),
            "d": pa.array(rng.integers(0, 10, count), pa.int32()),
            "note": pa.array([f"note {i % 1000}" for i in ids]),
        }
    )


_DELTA = "Spark with Delta"


def _delta_session(context: Context) -> SparkProcess:
    return context.once(
        _DELTA, lambda: SparkProcess(context.installation, context.directory("delta"), DELTA_CONFIGS), SparkProcess.stop
    )


def _kafka_topic(context: Context, name: str, rows: pa.Table) -> dict[str, Any]:
    """A topic of Kafka with rows as JSON values, written once; as a source of the session with Delta."""

    def fill() -> str:
        path = context.directory("rides") / "rides.parquet"
        pq.write_table(rows, path)
        session = _delta_session(context)
        session.call("files", name=name, path=str(path))
        topic: str = context.kafka().create_topic(PARTITIONS)
        options = {"kafka.bootstrap.servers": context.kafka().bootstrap_servers, "topic": topic}
        session.call("write", frame=name, format="kafka", options=options, json=True)
        return topic

    topic = context.once(f"kafka {name}", fill)
    options = {"kafka.bootstrap.servers": context.kafka().bootstrap_servers, "subscribe": topic}
    return {"format": "kafka", "options": options | {"startingOffsets": "earliest"}, "json_ddl": SCHEMA}


class _Lake:
    """A broker with a topic of rides and a table."""

    def __init__(self, context: Context, rows: int, *, mode: str = "append", key_columns: tuple[str, ...] = ()) -> None:
        self.directory = context.directory("lake")
        self.broker = sparklog.start_local(self.directory / "data", settings={"lake.worker.enable": False})
        self.table = self.directory / "table"
        with sparklog.Admin(self.broker.bootstrap_servers) as admin:
            admin.create_topic("rides", partitions=PARTITIONS, schema=SCHEMA, key_columns=key_columns)
            admin.enable_lake("rides", location=str(self.table), mode=mode)
        self.send(0, rows)

    def send(self, first: int, count: int) -> None:
        with sparklog.Producer(self.broker.bootstrap_servers) as producer:
            for at in range(first, first + count, ROWS_PER_BATCH):
                producer.send_batch("rides", rides(at, min(ROWS_PER_BATCH, first + count - at)))

    def close(self) -> None:
        self.broker.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


_WORK = """
import resource, sys, time
from sparklog.lake.worker.worker import LakeWorker
worker = LakeWorker(sys.argv[1])
began, used = time.monotonic(), time.process_time()
errors = worker.run_once()
assert not errors, errors
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(time.monotonic() - began, time.process_time() - used, memory / 1024)
"""


def worker_rate(context: Context, *, peer: bool) -> Measurement:
    """Measure typed rows per second of processor time of the worker; `peer`: rows per second of writing the same rows
    with delta-rs from memory, the least that any writer of a Delta table does."""
    rows = context.records(ROWS)
    if peer:
        data = pa.concat_tables([rides(at, ROWS_PER_BATCH) for at in range(0, rows, ROWS_PER_BATCH)])
        directory = context.directory("plain")
        used = time.process_time()
        write_deltalake(directory / "table", data)
        spent = time.process_time() - used
        shutil.rmtree(directory, ignore_errors=True)
        return Measurement(value=rows / spent, extra={})
    lake = _Lake(context, rows)
    try:
        command = [sys.executable, "-c", _WORK, lake.broker.bootstrap_servers]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        wall_s, cpu_s, memory_mib = map(float, done.stdout.split())
        assert DeltaTable(lake.table).count() == rows
    finally:
        lake.close()
    return Measurement(value=rows / cpu_s, extra={"cpu_s": cpu_s, "wall_s": wall_s, "memory_mib": memory_mib})


def connector_rate(context: Context, *, peer: bool) -> Measurement:
    """Measure typed rows per second of processor time of the worker; `peer`: of Spark's Kafka connector, from_json and
    the Delta sink, for the same rows in a second run of a warm session."""
    if not peer:
        return worker_rate(context, peer=False)
    rows = context.records(ROWS) // 4
    data = pa.concat_tables([rides(at, ROWS_PER_BATCH) for at in range(0, rows, ROWS_PER_BATCH)])
    source = _kafka_topic(context, "rides", data)
    session = _delta_session(context)
    found: dict[str, float] = {}
    for _ in range(2):
        sink = {"format": "delta", "options": {"path": str(context.directory("table") / "rides")}}
        before = usage(session.pid).cpu_s
        found = session.call("available_now", source=source, sink=sink)
        cpu_s = usage(session.pid).cpu_s - before
    return Measurement(
        value=found["rows"] / cpu_s, extra={"cpu_s": cpu_s, "wall_s": found["seconds"], "rows": found["rows"]}
    )


def sql_scan(context: Context, *, peer: bool) -> Measurement:
    """Measure a full scan with SQL; `peer`: DuckDB on the same Parquet files."""
    query = "SELECT zone, count(*), avg(fare) FROM {} GROUP BY zone"
    lake = context.once("lake of sql", lambda: _filled(context), _Lake.close)
    times = []
    with SqlSession(lake.broker.bootstrap_servers) as session:
        for _ in range(4):
            began = time.monotonic()
            if peer:
                duckdb.connect().execute(query.format(f"'{lake.table}/*.parquet'")).fetchall()
            else:
                list(session.execute(query.format("rides")))
            times.append(time.monotonic() - began)
    return Measurement(value=1000 * min(times[1:]), extra={})


def _filled(context: Context) -> _Lake:
    lake = _Lake(context, context.records(ROWS))
    worker = LakeWorker(lake.broker.bootstrap_servers)
    assert not worker.run_once()
    worker.close()
    return lake


def acknowledgement(context: Context, *, peer: bool) -> Measurement:
    """Measure the 99th percentile of an acknowledgement beside a worker; `peer`: without one."""
    lake = _Lake(context, 0)
    worker = None
    try:
        if not peer:
            with sparklog.Admin(lake.broker.bootstrap_servers) as admin:
                admin.alter_topic("rides", {"lake.commit.interval.ms": 1_000})
            command = [sys.executable, "-m", "sparklog.cli", "lake", "run", "-b", lake.broker.bootstrap_servers]
            worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            time.sleep(5)
        times = []
        with sparklog.Producer(lake.broker.bootstrap_servers, linger_ms=0) as producer:
            for at in range(max(200, context.records(2_000))):
                began = time.monotonic()
                producer.send_batch("rides", rides(at * 100, 100)).result(30)
                times.append(1000 * (time.monotonic() - began))
                time.sleep(0.005)
    finally:
        if worker is not None:
            worker.terminate()
            worker.wait()
        lake.close()
    return Measurement(value=float(np.percentile(times, 99)), extra={"p50": statistics.median(times)})


def freshness(context: Context, *, peer: bool) -> Measurement:
    """Measure the age at which rows are in the table, as a median, at a steady rate; `peer`: its goal of 5 s."""
    if peer:
        return Measurement(value=5_000.0, extra={})
    lake = _Lake(context, 0)
    with sparklog.Admin(lake.broker.bootstrap_servers) as admin:
        admin.alter_topic("rides", {"lake.commit.interval.ms": 5_000})
    stop = threading.Event()

    def load() -> None:
        with sparklog.Producer(lake.broker.bootstrap_servers) as producer:
            at = 0
            while not stop.wait(0.1):
                producer.send_batch("rides", rides(at, RATE // 10))
                at += RATE // 10

    thread = threading.Thread(target=load)
    worker = subprocess.Popen(
        [sys.executable, "-m", "sparklog.cli", "lake", "run", "-b", lake.broker.bootstrap_servers],
        stderr=subprocess.DEVNULL,
    )
    ages: list[float] = []
    try:
        thread.start()
        seen, end = 0, time.monotonic() + max(15.0, FRESHNESS_S * min(1.0, context.scale))
        while time.monotonic() < end:
            time.sleep(0.2)
            table = DeltaTable(lake.table)
            if table.version() == seen:
                continue
            now_ms, before, seen = time.time() * 1000, seen, table.version()
            files = pa.table(table.get_add_actions(flatten=True))
            fresh = sorted(files.to_pylist(), key=lambda f: f["modification_time"])[-PARTITIONS * (seen - before) :]
            for file in fresh:
                first, last = (file[f"{end}._timestamp"].timestamp() * 1000 for end in ("min", "max"))
                ages += [now_ms - first, now_ms - (first + last) / 2, now_ms - last]
    finally:
        stop.set()
        thread.join()
        worker.terminate()
        worker.wait()
        lake.close()
    return Measurement(
        value=float(np.percentile(ages, 50)), extra={"p95": float(np.percentile(ages, 95)), "commits": seen}
    )


def merge(context: Context, *, peer: bool) -> Measurement:
    """Measure 10,000 changes of 1,000,000 keys; `peer`: `foreachBatch` with MERGE from Kafka, the time of the batch in
    a third run of a warm session."""
    if not peer:
        return upsert(context, peer=False)
    keys = context.records(KEYS)
    session = _delta_session(context)
    table = context.directory("merged") / "table"
    write_deltalake(table, pa.concat_tables([rides(at, ROWS_PER_BATCH) for at in range(0, keys, ROWS_PER_BATCH)]))
    found: dict[str, float] = {}
    for turn in range(3):
        source = _kafka_topic(context, f"changes {turn}", _changes(keys, seed=turn))
        found = session.call("merge", source=source, table=str(table), key="id")
    return Measurement(value=1000 * found["seconds"], extra={"rows": found["rows"]})


def _changes(keys: int, seed: int = 3) -> pa.Table:
    count = min(keys, CHANGES)
    return rides(0, count).set_column(0, "id", pa.array(np.random.default_rng(seed).permutation(keys)[:count]))


def upsert(context: Context, *, peer: bool) -> Measurement:
    """Measure 10,000 changes of 1,000,000 keys, per partition; `peer`: delta-rs's MERGE of the same changes."""
    keys = context.records(KEYS)
    changes = _changes(keys)
    if peer:
        directory = context.directory("merge")
        base = pa.concat_tables([rides(at, ROWS_PER_BATCH) for at in range(0, keys, ROWS_PER_BATCH)])
        write_deltalake(directory / "table", base)
        began = time.monotonic()
        merge = DeltaTable(directory / "table").merge(changes, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        spent = time.monotonic() - began
        shutil.rmtree(directory, ignore_errors=True)
        return Measurement(value=1000 * spent, extra={})
    lake = _Lake(context, keys, mode="upsert", key_columns=("id",))
    try:
        worker = LakeWorker(lake.broker.bootstrap_servers)
        assert not worker.run_once()
        with sparklog.Producer(lake.broker.bootstrap_servers) as producer:
            producer.send_batch("rides", changes)
        began = time.monotonic()
        assert not worker.run_once()
        spent = time.monotonic() - began
        worker.close()
        assert DeltaTable(lake.table).count() == keys
    finally:
        lake.close()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measurement(value=1000 * spent, extra={"per_partition_ms": 1000 * spent / PARTITIONS, "memory_mib": memory})


LAKE_ROWS: tuple[Row, ...] = (
    row("lake-rate", "Typed rows into the Delta table, per worker core", 0.7, worker_rate, unit="rows/s", peer="delta-rs writing from memory"),
    row("lake-connector", "Typed rows into a Delta table, per core", 4.0, connector_rate, unit="rows/s", peer=f"{CONNECTOR} into Delta", connector="JSON values, from_json, a quarter of the rows"),
    row("lake-sql", "SQL: full scan of a topic with a lake", 1.3, sql_scan, unit="ms", peer="DuckDB on the same Parquet"),
    row("lake-ack", "Acknowledgement with a lake worker beside the broker, p99", 1.2, acknowledgement, unit="ms", peer="without a worker"),
    row("lake-freshness", "Age of rows at which they are in the table, p50", 1.0, freshness, unit="ms", peer="the goal of 5 s"),
    row("lake-merge", "10,000 changes of 1,000,000 keys into a Delta table", 0.33, merge, unit="ms", peer="foreachBatch and MERGE", connector="JSON values, from_json, one Delta table without partitions"),
    row("lake-upsert", "10,000 changes of 1,000,000 keys", 0.33, upsert, unit="ms", peer="delta-rs MERGE"),
)  # fmt: skip
