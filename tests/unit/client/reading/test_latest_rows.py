"""The newest row of a key, as `read_table(latest=True)` and SQL choose it."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.latest_rows import LatestRows, latest_view

SCHEMA = pa.schema([("row", pa.int64()), ("value", pa.string())])
INFO = TopicInfo("t", "id", "typed", 3, 5, {5: SCHEMA}, ("row",), None, {}, 0, ())
ROWS: list[list[Any]] = [
    [0, 0, 10, 1, "old"], [0, 1, 30, 2, "later"], [0, 2, 10, 3, "old"],
    [1, 0, 10, 1, "added"], [1, 1, 20, 2, "earlier"],
    [2, 0, 10, 3, None],
]  # fmt: skip
"""Partition, offset, time, key and value. Partitions were added: the rows of a key are in two of them."""
NEWEST = [{"row": 1, "value": "added"}, {"row": 2, "value": "later"}]


def _table(rows: list[list[Any]]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    names = ["_partition", "_offset", "_timestamp", "row", "value"]
    types = [pa.int32(), pa.int64(), pa.timestamp("us", "UTC"), pa.int64(), pa.string()]
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=names)


def test_of_equal_times_the_row_of_the_added_partition_is_the_newest() -> None:
    kept = LatestRows(INFO)
    for partition in range(3):
        kept.add(_table([row for row in ROWS if row[0] == partition]))
        kept.end_partition()
    assert sorted(kept.result(SCHEMA).to_pylist(), key=str) == NEWEST
    with duckdb.connect() as connection:
        connection.register("rows", _table(ROWS))
        found = connection.sql(latest_view(INFO, "rows", SCHEMA.names)).to_arrow_table()
    assert sorted(found.to_pylist(), key=str) == NEWEST
