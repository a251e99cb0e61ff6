"""Sealed segments of every stored type, compressed or not, are files that other Arrow tools open in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from sparklog.environment.files import RealFiles
from sparklog.format.batch import encode_batch
from sparklog.format.schema_evolution import SchemaChange
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog
from tests.golden.make_golden import TYPED_SCHEMA, typed_rows
from tests.support.logs import ManualClock

OWNER = LogOwner("typed", "0" * 32, 0, "at")
WIDER = SchemaChange(
    add=pa.schema([("added", pa.list_(pa.string()))]),
    widen=pa.schema([("tiny", pa.int64()), ("whole", pa.int64()), ("single", pa.float64())]),
).applied_to(TYPED_SCHEMA, [], "at")
SCHEMAS = {1: TYPED_SCHEMA, 2: WIDER}
ROWS = 40


@pytest.fixture(params=["none", "lz4", "zstd"])
def sealed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A closed log's directory: one segment of 8 batches, and one with a newer schema."""
    directory = tmp_path / OWNER.directory_name
    log = PartitionLog.open(
        directory,
        OWNER,
        LogConfig.from_settings({}),
        SCHEMAS.__getitem__,
        files=RealFiles(),
        clock=ManualClock(),
        clean=True,
    )
    for first in range(0, ROWS, 5):
        log.appender.append(encoded(typed_rows(first, 5), 1, request.param))
    newer = pa.record_batch([pa.nulls(3, f.type) for f in WIDER], schema=WIDER)
    log.appender.append(encoded(newer, 2, request.param))
    log.close()
    return directory


def encoded(rows: pa.RecordBatch, schema_id: int, compression: str) -> bytearray:
    return bytearray(
        encode_batch(rows, schema_id=schema_id, min_timestamp_ms=0, max_timestamp_ms=1, compression=compression)
    )


def first_file(directory: Path) -> str:
    first, second = sorted(directory.glob("*.arrow"))
    assert second.name == f"{ROWS:020}.arrow"
    return str(first)


def plain(table: Any) -> list[dict[str, Any]]:
    """Rows in an order and with values that all tools can be compared by."""
    return sorted(pa.table(table).to_pylist(), key=lambda r: (r["long"] is None, r["long"] or 0))


EXPECTED = plain(pa.Table.from_batches([typed_rows(0, ROWS)]))


def test_pyarrow_reads_the_file_and_the_dataset(sealed: Path) -> None:
    with pa.memory_map(first_file(sealed)) as source:
        reader = pa.ipc.open_file(source)
        assert reader.num_record_batches == ROWS // 5
        table = reader.read_all()
    table.validate(full=True)
    assert table.schema.remove_metadata() == TYPED_SCHEMA
    assert plain(table) == EXPECTED
    dataset = ds.dataset(first_file(sealed), format="ipc")
    assert plain(dataset.to_table()) == EXPECTED
    assert dataset.to_table(columns=["text"], filter=ds.field("whole") >= 30_000).num_rows == 7
    both = ds.dataset(sorted(map(str, sealed.glob("*.arrow"))), format="ipc", schema=WIDER).to_table()
    assert both.num_rows == ROWS + 3  # old and new segments in the newest schema, without sparklog
    assert both.column("whole").type == pa.int64()


def test_polars_scans_the_file(sealed: Path) -> None:
    # polars has no maps, it makes lists of them
    names = [n for n in TYPED_SCHEMA.names if n != "labels"]
    frame = pl.scan_ipc(first_file(sealed)).select(names).collect()
    wanted = [{n: row[n] for n in names} for row in EXPECTED]
    assert (
        frame.sort("long", nulls_last=True).to_dicts()
        == pl.DataFrame(pa.Table.from_pylist(wanted, pa.schema([TYPED_SCHEMA.field(n) for n in names]))).to_dicts()
    )
    assert pl.scan_ipc(first_file(sealed)).filter(pl.col("whole") >= 30_000).collect().height == 7


def test_duckdb_queries_the_file(sealed: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    segment = ds.dataset(first_file(sealed), format="ipc")
    # an interval is months, days and nanoseconds when it comes back: compared as a number
    connection = duckdb.connect()
    found = connection.sql("SELECT * REPLACE (microsecond(lasted) AS lasted) FROM segment").to_arrow_table()
    assert found.column_names == TYPED_SCHEMA.names
    assert plain(found.cast(TYPED_SCHEMA)) == EXPECTED
    assert connection.sql("SELECT count(*) FROM segment WHERE whole >= 30000").fetchall() == [(7,)]
    assert segment.count_rows() == ROWS
    connection.close()


def test_datafusion_queries_the_file(sealed: Path) -> None:
    datafusion = pytest.importorskip("datafusion")
    context = datafusion.SessionContext()
    context.register_dataset("segment", ds.dataset(first_file(sealed), format="ipc"))
    found = pa.Table.from_batches(context.sql("SELECT * FROM segment").collect())
    assert plain(found.cast(TYPED_SCHEMA)) == EXPECTED
    batches = context.sql("SELECT count(*) AS n FROM segment WHERE whole >= 30000").collect()
    assert batches[0].to_pydict() == {"n": [7]}
