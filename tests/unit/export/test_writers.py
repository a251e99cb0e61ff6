"""Columns of results in types that the writers know."""

from __future__ import annotations

import base64
import datetime as dt
import json
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparklog.export.writers import CsvWriter, JsonWriter, ParquetWriter, RowGroupWriter, plain_column

AT = dt.datetime(2026, 11, 29, 12, 30, 0, 123456)
NUMBERS = pa.schema([("n", pa.int64())])


@pytest.mark.parametrize("tz", [None, "UTC"])
def test_nanoseconds_alone_become_microseconds(tz: str | None) -> None:
    for unit in ("s", "ms", "us", "ns"):
        stored = pa.timestamp(unit, tz=tz)
        column = pa.array([1_000, None], pa.int64()).cast(stored)
        expected = pa.timestamp("us", tz=tz) if unit == "ns" else stored
        for plain, t in (
            (plain_column(column), expected),
            (plain_column(pa.array([[1], None], pa.list_(stored))), pa.list_(expected)),
            (plain_column(pa.array([{"a": 1}], pa.struct([("a", stored)]))), pa.struct([("a", expected)])),
        ):
            assert plain.type == t


def test_a_time_in_nanoseconds_is_written() -> None:
    out = BytesIO()
    nanoseconds = int(AT.replace(tzinfo=dt.UTC).timestamp()) * 10**9 + 123_456_789
    batch = pa.record_batch({"at": pa.array([nanoseconds], pa.int64()).cast(pa.timestamp("ns"))})
    JsonWriter(out, batch.schema).write(batch)
    assert out.getvalue() == b'{"at":"2026-11-29T12:30:00.123456"}\n'


def test_a_text_is_marked_as_bytes_in_csv_only_if_it_would_be_read_as_bytes() -> None:
    out, texts = BytesIO(), [b"plain", b"{}", b'{"base64":1}', b"\xff", None]
    batch = pa.record_batch({"v": pa.array(texts, pa.binary())})
    writer = CsvWriter(out, batch.schema)
    writer.write(batch)
    writer.close()
    lines = out.getvalue().decode().splitlines()
    assert lines[1:3] == ['"plain"', '"{}"']
    assert [json.loads(line.strip('"').replace('""', '"')) for line in lines[3:5]] == [
        {"base64": base64.b64encode(text).decode()} for text in (b'{"base64":1}', b"\xff")
    ]


def test_small_batches_become_row_groups_within_the_limits() -> None:
    out = BytesIO()
    writer = RowGroupWriter(ParquetWriter(out, NUMBERS), rows_max=100)
    for n in range(0, 250, 10):
        writer.write(pa.record_batch([pa.array(range(n, n + 10))], schema=NUMBERS))
    assert writer.has_rows
    writer.close()
    assert not writer.has_rows
    file = pq.ParquetFile(out)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [100, 100, 50]
    assert file.read().column("n").to_pylist() == list(range(250))


def test_a_row_group_that_was_interrupted_is_not_written_again() -> None:
    """Ctrl-C is raised after the write that it interrupts, and then `close` completes the file."""
    rows: list[int] = []
    closed: list[bool] = []

    class Interrupted:
        def write(self, batch: pa.RecordBatch) -> None:
            rows.extend(batch.column("n").to_pylist())
            raise KeyboardInterrupt

        def close(self) -> None:
            closed.append(True)

    writer = RowGroupWriter(Interrupted(), rows_max=2)
    batches = [pa.record_batch([pa.array([n])], schema=NUMBERS) for n in range(3)]
    writer.write(batches[0])
    with pytest.raises(KeyboardInterrupt):
        writer.write(batches[1])
    writer.close()
    assert (rows, closed) == ([0, 1], [True])
    writer.write(batches[2])
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    assert (rows, closed) == ([0, 1, 2], [True, True]), "the file is closed also if its last row group fails"
