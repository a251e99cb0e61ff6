"""What SQL over a topic costs: a range of time and the newest rows beside all of it, and beside DuckDB on Parquet.

    python tests/benchmarks/sql_scan.py [--megabytes 1000] [--runs 5] [--scratch DIR]

Makes a topic of rides whose times cover a day evenly, in order, and the same rows as one Parquet file. Prints the
median of the runs, each with what was read; the first run of each statement is not counted, and all files are in the
page cache. Also, how much of a full scan's time the last hour takes; by its share of the rows it would be 4.2 %.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import sparklog
from sparklog.query.session import SqlSession

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
    with (
        sparklog.Producer(address) as producer,
        pq.ParquetWriter(parquet, SCHEMA, compression="snappy") as writer,
    ):
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


def median_ms(call: Callable[[], object], runs: int) -> float:
    call()
    found = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        found.append((time.perf_counter() - started) * 1000)
    return statistics.median(found)


def measure(address: str, parquet: Path, runs: int) -> None:
    statements = {
        "full scan, by zone": GROUPED.format("{}", ""),
        "last hour, by zone": GROUPED.format("{}", f"WHERE {{time}} >= {LAST_HOUR}"),
        "an hour at midday, by zone": GROUPED.format("{}", f"WHERE {{time}} BETWEEN {MIDDAY} AND {HOUR_LATER}"),
        "count(*)": "SELECT count(*) FROM {}",
        "newest 10": "FROM {} ORDER BY {order} DESC LIMIT 10",
    }
    took: dict[tuple[str, str], float] = {}
    for local in ("auto", "off"):
        with SqlSession(address, local=local, memory_limit_bytes=2 << 30) as session:
            for title, statement in statements.items():
                query = statement.replace("{time}", "_timestamp").replace("{order}", "_timestamp").format(TOPIC)

                def run(query: str = query, session: SqlSession = session) -> pa.Table:
                    with session.execute(query) as result:
                        return result.read_all()

                took[local, title] = median_ms(run, runs)
                read = session.statistics
                way = "mapped" if local == "auto" else "socket"
                print(
                    f"{way}   {title:28} {took[local, title]:>10,.1f} ms   "
                    f"{read.rows_read:>12,} rows, {read.bytes_read / 1e6:>10,.1f} MB read"
                )
        ratio = took[local, "last hour, by zone"] / took[local, "full scan, by zone"]
        print(f"{way}   the last hour takes {ratio:.1%} of a full scan")
    with duckdb.connect(":memory:") as plain:
        plain.execute("SET TimeZone = 'UTC'")
        for title, statement in statements.items():
            query = statement.replace("{time}", '"at"').replace("{order}", '"at"').format(f"'{parquet}'")
            plain_ms = median_ms(lambda query=query: plain.sql(query).to_arrow_table(), runs)  # type: ignore[misc]
            print(
                f"Parquet  {title:28} {plain_ms:>10,.1f} ms   sparklog mapped: {took['auto', title] / plain_ms:.1f} times that"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scratch", type=Path)
    arguments = parser.parse_args()
    rows = arguments.megabytes * 1_000_000 // ROW_BYTES
    with tempfile.TemporaryDirectory(prefix="sql-scan-", dir=arguments.scratch) as directory:
        parquet = Path(directory, "rides.parquet")
        with sparklog.start_local(data_dir=Path(directory, "data")) as broker:
            fill(broker.bootstrap_servers, rows, parquet)
            stored = sum(p.stat().st_size for p in Path(directory, "data").glob(f"{TOPIC}-*/*.arrow"))
            print(
                f"{rows:,} rows: {stored / 1e6:,.0f} MB in {PARTITIONS} partitions, {parquet.stat().st_size / 1e6:,.0f} MB as "
                f"Parquet; median of {arguments.runs}"
            )
            measure(broker.bootstrap_servers, parquet, arguments.runs)


if __name__ == "__main__":
    main()
