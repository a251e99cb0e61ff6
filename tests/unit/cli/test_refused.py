"""Refused records at the command line."""

from __future__ import annotations

import json

import pyarrow as pa

from sparklog.cli.refused import _json, _time
from sparklog.client.refused import record_rows
from sparklog.metadata.refused_topics import REFUSED_SCHEMA

YEAR_10000_MS = 253_402_300_800_000


def test_records_with_times_after_the_year_9999_are_shown() -> None:
    columns = {name: pa.nulls(3, REFUSED_SCHEMA.field(name).type) for name in REFUSED_SCHEMA.names}
    times = pa.array([1_000, YEAR_10000_MS * 1000, None], pa.int64())
    columns["timestamp"] = times.cast(REFUSED_SCHEMA.field("timestamp").type)
    records = record_rows(pa.RecordBatch.from_pydict(columns, schema=REFUSED_SCHEMA))
    assert [_time(record) for record in records] == ["1970-01-01T00:00:00.001Z", str(YEAR_10000_MS), "-"]
    shown = [json.loads(_json(record))["timestamp"] for record in records]
    assert shown == ["1970-01-01 00:00:00.001000+00:00", str(YEAR_10000_MS), None]
