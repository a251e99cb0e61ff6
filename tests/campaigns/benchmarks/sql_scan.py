"""The cost of SQL over a topic: a range of time and the newest rows beside a full scan, and beside DuckDB on Parquet.

    python -m tests.campaigns.benchmarks.sql_scan [--megabytes 10000] [--runs 5] [--scratch DIR]

Makes a topic of rides whose times cover a day evenly, in order, and the same rows as one Parquet file. Every statement
runs in turns: over the mapped files, over the socket, on Parquet, so that other load of the machine falls on all of
them. Prints the median, the fastest and the slowest of the rounds, the rows read, and the bytes of their batches: whole
ones in mapped files, over the socket those that the broker has sent. The first round is not counted, and the files are
in the page cache as far as memory lets them. By its share of the rows the last hour would take 4.2 % of a full scan.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import sparklog
from sparklog.query.session import SqlSession

TOPIC = "rides"
PARTITIONS = 4
ROWS_PER_BATCH = 5_000
ROWS_PER_GROUP = 120_000
"""Rows of a Parquet row group, about as many as DuckDB itself writes."""
ROW_BYTES = 110
DAY_US, HOUR_US = 86_400_000_000, 3_600_000_000
BEGIN_US = 1_700_000_000_000_000
SCHEMA = pa.schema(
    {"id": pa.int64(), "zone": pa.string(), "at": pa.timestamp("us", "UTC"), "fare": pa.float64(), "note": pa.string()}
)
ZONES = np.array([f"zone-{i:03}" for i in range(250)])
_GROUPED = "SELECT zone, count(*) AS rides, avg(fare) AS fare FROM {topic} %s GROUP BY zone ORDER BY rides DESC"
_NOON = BEGIN_US + DAY_US // 2
STATEMENTS = {
    "full scan, by zone": _GROUPED % "",
    "last hour, by zone": _GROUPED % f"WHERE {{time}} >= make_timestamptz({BEGIN_US + DAY_US - HOUR_US})",
    "an hour at midday, by zone": _GROUPED
    % f"WHERE {{time}} BETWEEN make_timestamptz({_NOON}) AND make_timestamptz({_NOON + HOUR_US})",
    "count(*)": "SELECT count(*) FROM {topic}",
    "newest 10": "FROM {topic} ORDER BY {time} DESC LIMIT 10",
}


def batches(rows: int) -> Iterator[pa.Table]:
    """The rides in order of time."""
    rng = np.random.default_rng(7)
    for first in range(0, rows, ROWS_PER_BATCH):
        ids = np.arange(first, min(first + ROWS_PER_BATCH, rows))
        notes = rng.integers(0, 256, (len(ids), 32), np.uint8)
        times = pa.array(BEGIN_US + ids * DAY_US // rows).cast(SCHEMA.field("at").type)
        zones, fares = ZONES[rng.integers(0, len(ZONES), len(ids))], rng.random(len(ids)) * 60
        columns = [ids, zones, times, fares, [note.tobytes().hex() for note in notes]]
        yield pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)


def fill(address: str, rows: int, parquet: Path) -> None:
    """Write the rides to a new topic and to a Parquet file."""
    with sparklog.Admin(address) as admin:
        admin.create_topic(TOPIC, PARTITIONS, schema=SCHEMA, timestamp_column="at")
    with sparklog.Producer(address) as producer, pq.ParquetWriter(parquet, SCHEMA, compression="snappy") as writer:
        group: list[pa.Table] = []
        for number, rides in enumerate(batches(rows), 1):
            producer.send_batch(TOPIC, rides, partition=number % PARTITIONS)
            group.append(rides)
            if len(group) * ROWS_PER_BATCH >= ROWS_PER_GROUP or number * ROWS_PER_BATCH >= rows:
                writer.write_table(pa.concat_tables(group))
                group.clear()
        producer.flush()


def measure(address: str, parquet: Path, runs: int) -> None:
    """Print a line for each statement and way."""
    sessions = {way: SqlSession(address, local=way, memory_limit_bytes=2 << 30) for way in ("auto", "off")}
    plain = duckdb.connect(":memory:")
    plain.execute("SET TimeZone = 'UTC'")
    ways = {"mapped": "auto", "socket": "off", "Parquet": None}
    took: dict[tuple[str, str], list[float]] = {(title, way): [] for title in STATEMENTS for way in ways}
    read: dict[tuple[str, str], str] = {}
    for number in range(runs + 1):
        for title, way in took:
            local = ways[way]
            topic, column = (TOPIC, "_timestamp") if local else (f"'{parquet}'", '"at"')
            statement = STATEMENTS[title].format(topic=topic, time=column)
            begun = time.perf_counter()
            if local is None:
                plain.sql(statement).to_arrow_table()
            else:
                with sessions[local].execute(statement) as result:
                    result.read_all()
                seen = sessions[local].statistics
                read[title, way] = f"{seen.rows_read:>12,} rows, {seen.bytes_read / 1e6:>10,.1f} MB of batches"
            if number:
                took[title, way].append((time.perf_counter() - begun) * 1000)
    for (title, way), found in took.items():
        spread = f"({min(found):,.1f} to {max(found):,.1f})"
        print(f"{way:8} {title:28} {statistics.median(found):>10,.1f} ms {spread:>22}   {read.get((title, way), '')}")
    for session in sessions.values():
        session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=10_000, help="of Arrow data")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scratch", type=Path)
    given = parser.parse_args()
    rows = given.megabytes * 1_000_000 // ROW_BYTES
    with TemporaryDirectory(prefix="sql-scan-", dir=given.scratch) as scratch:
        parquet, data = Path(scratch, "rides.parquet"), Path(scratch, "data")
        with sparklog.start_local(data_dir=data) as broker:
            fill(broker.bootstrap_servers, rows, parquet)
            stored = sum(path.stat().st_size for path in data.glob(f"{TOPIC}-*/*.arrow"))
            print(f"{rows:,} rows: {stored / 1e6:,.0f} MB, as Parquet {parquet.stat().st_size / 1e6:,.0f} MB")
            measure(broker.bootstrap_servers, parquet, given.runs)


if __name__ == "__main__":
    main()
