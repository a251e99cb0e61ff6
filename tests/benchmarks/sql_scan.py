"""The cost of SQL over a topic: a range of time and the newest rows beside a full scan, and beside DuckDB on Parquet.

    python -m tests.benchmarks.sql_scan [--megabytes 10000] [--runs 5] [--scratch DIR] [--kept DIR [--fill-only]]

Makes a topic of rides whose times cover a day evenly, in order, and the same rows as one Parquet file. Every statement
runs in turns: over the mapped files, over the socket, on Parquet, so that other load of the machine falls on all of
them. Prints the median, the fastest and the slowest of the rounds, and the rows read; the first round is not counted,
and the files are in the page cache as far as memory lets them. By its share of the rows the last hour would take 4.2 %
of a full scan. With `--kept DIR` the topic is made there if it is not there yet, and stays.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import sparklog
from sparklog.query.session import SqlSession
from tests.benchmarks.machine import machine

TOPIC = "rides"
PARTITIONS = 4
ROWS_PER_BATCH = 5_000
BATCHES_PER_ROW_GROUP = 24
"""120,000 rows, about what DuckDB itself writes."""
ROW_BYTES = 110
DAY_US = 86_400_000_000
BEGIN_US = 1_700_000_000_000_000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("zone", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("fare", pa.float64()),
        ("note", pa.string()),
    ]
)
ZONES = np.array([f"zone-{i:03}" for i in range(250)])
LAST_HOUR = f"make_timestamptz({BEGIN_US + DAY_US - 3_600_000_000})"
MIDDAY = f"make_timestamptz({BEGIN_US + DAY_US // 2})"
HOUR_LATER = f"make_timestamptz({BEGIN_US + DAY_US // 2 + 3_600_000_000})"
GROUPED = "SELECT zone, count(*) AS rides, avg(fare) AS fare FROM {} {} GROUP BY zone ORDER BY rides DESC"


def batches(rows: int) -> Iterator[pa.Table]:
    """The rides in order of time."""
    rng = np.random.default_rng(7)
    for first in range(0, rows, ROWS_PER_BATCH):
        ids = np.arange(first, min(first + ROWS_PER_BATCH, rows))
        notes = rng.integers(0, 256, (len(ids), 32), np.uint8)
        yield pa.table(
            {
                "id": ids,
                "zone": ZONES[rng.integers(0, len(ZONES), len(ids))],
                "at": pa.array(BEGIN_US + ids * DAY_US // rows).cast(SCHEMA.field("at").type),
                "fare": rng.random(len(ids)) * 60,
                "note": pa.array([note.tobytes().hex() for note in notes]),
            },
            schema=SCHEMA,
        )


def fill(address: str, rows: int, parquet: Path) -> None:
    with sparklog.Admin(address) as admin:
        admin.create_topic(TOPIC, PARTITIONS, schema=SCHEMA, timestamp_column="at")
    with sparklog.Producer(address) as producer, pq.ParquetWriter(parquet, SCHEMA, compression="snappy") as writer:
        group: list[pa.Table] = []
        for number, rides in enumerate(batches(rows)):
            producer.send_batch(TOPIC, rides, partition=number % PARTITIONS)
            group.append(rides)
            if len(group) == BATCHES_PER_ROW_GROUP:
                writer.write_table(pa.concat_tables(group))
                group.clear()
        if group:
            writer.write_table(pa.concat_tables(group))
        producer.flush()


STATEMENTS = {
    "full scan, by zone": GROUPED.format("{}", ""),
    "last hour, by zone": GROUPED.format("{}", f"WHERE {{time}} >= {LAST_HOUR}"),
    "an hour at midday, by zone": GROUPED.format("{}", f"WHERE {{time}} BETWEEN {MIDDAY} AND {HOUR_LATER}"),
    "count(*)": "SELECT count(*) FROM {}",
    "newest 10": "FROM {} ORDER BY {time} DESC LIMIT 10",
}
WAYS = ("mapped", "socket", "Parquet")


def query(title: str, way: str, parquet: Path) -> str:
    time_column, table = ('"at"', f"'{parquet}'") if way == "Parquet" else ("_timestamp", TOPIC)
    return STATEMENTS[title].replace("{time}", time_column).format(table)


def measure(address: str, parquet: Path, runs: int) -> None:
    """Prints a line for each statement and way, then the ratios."""
    took: dict[tuple[str, str], list[float]] = {(title, way): [] for title in STATEMENTS for way in WAYS}
    read: dict[tuple[str, str], str] = {}
    with (
        SqlSession(address, local="auto", memory_limit_bytes=2 << 30) as mapped,
        SqlSession(address, local="off", memory_limit_bytes=2 << 30) as socket,
        duckdb.connect(":memory:") as plain,
    ):
        plain.execute("SET TimeZone = 'UTC'")
        sessions = {"mapped": mapped, "socket": socket}
        for number in range(runs + 1):
            for title, way in took:
                statement = query(title, way, parquet)
                started = time.perf_counter()
                if way == "Parquet":
                    plain.sql(statement).to_arrow_table()
                else:
                    with sessions[way].execute(statement) as result:
                        result.read_all()
                    seen = sessions[way].statistics
                    read[title, way] = f"{seen.rows_read:>12,} rows, {seen.bytes_read / 1e6:>10,.1f} MB read"
                if number:
                    took[title, way].append((time.perf_counter() - started) * 1000)
    median = {key: statistics.median(found) for key, found in took.items()}
    for (title, way), found in took.items():
        spread = f"({min(found):,.1f} to {max(found):,.1f})"
        print(f"{way:8} {title:28} {median[title, way]:>10,.1f} ms {spread:>22}   {read.get((title, way), '')}")
    for way in WAYS:
        ratio = median["last hour, by zone", way] / median["full scan, by zone", way]
        print(f"{way:8} the last hour takes {ratio:.1%} of a full scan")
    for title in STATEMENTS:
        ratio = median[title, "mapped"] / median[title, "Parquet"]
        print(f"{title:28} mapped takes {ratio:.2f} times what DuckDB takes on Parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=10_000, help="of Arrow data")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--kept", type=Path, help="a directory for the topic, which stays for the next time")
    parser.add_argument("--fill-only", action="store_true", help="make the topic and measure nothing")
    arguments = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine().items()), f"load {os.getloadavg()[0]:.1f}", sep=", ")
    rows = arguments.megabytes * 1_000_000 // ROW_BYTES
    with ExitStack() as resources:
        scratch = arguments.kept
        if scratch is None:
            scratch = Path(resources.enter_context(TemporaryDirectory(prefix="sql-scan-", dir=arguments.scratch)))
        parquet, filled = scratch / "rides.parquet", scratch / f"filled-with-{rows}-rows"
        broker = resources.enter_context(sparklog.start_local(data_dir=scratch / "data"))
        if not filled.exists():
            fill(broker.bootstrap_servers, rows, parquet)
            filled.touch()
        stored = sum(path.stat().st_size for path in (scratch / "data").glob(f"{TOPIC}-*/*.arrow"))
        print(
            f"{rows:,} rows: {stored / 1e6:,.0f} MB in {PARTITIONS} partitions, {parquet.stat().st_size / 1e6:,.0f} MB as "
            f"Parquet; median of {arguments.runs}"
        )
        if not arguments.fill_only:
            measure(broker.bootstrap_servers, parquet, arguments.runs)


if __name__ == "__main__":
    main()
