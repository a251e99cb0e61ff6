"""Columns of results in types that the writers know."""

from __future__ import annotations

import datetime as dt
from io import BytesIO

import pyarrow as pa
import pytest

from sparklog.export.writers import JsonWriter, plain_column

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
