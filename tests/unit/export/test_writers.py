"""Columns of results in types that the writers know."""

from __future__ import annotations

import base64
import datetime as dt
import json
from io import BytesIO

import pyarrow as pa
import pytest

from sparklog.export.writers import CsvWriter, JsonWriter, plain_column

AT = dt.datetime(2026, 11, 29, 12, 30, 0, 123456)


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
