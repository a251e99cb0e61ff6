"""The newest row of each key of a topic."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import InvalidRequestError
from sparklog.lake.newest_rows import is_deletion, newest_per_key

FOLD_ROWS = 1_000_000
"""Half the number of collected rows at which older rows of the same keys are dropped."""


def key_columns_of(info: TopicInfo) -> tuple[str, ...]:
    """Return the columns of a topic's key. Raises InvalidRequestError."""
    if info.is_envelope:
        return ("key",)
    if not info.key_columns:
        raise InvalidRequestError(
            f"topic {info.name!r} has no key columns, so no row is the newest of a key: create a topic with "
            "--key-columns"
        )
    return info.key_columns


def value_columns_of(info: TopicInfo) -> tuple[str, ...]:
    """Return the columns that are all null in a row that deletes its key."""
    if info.is_envelope:
        return ("value",)
    return tuple(c for c in info.schema.names if c not in info.key_columns and c != info.timestamp_column)


class LatestRows:
    """Collects the newest row of each key. The caller adds the rows of one partition after the other."""

    def __init__(self, info: TopicInfo) -> None:
        self._info = info
        self._keys = list(key_columns_of(info))
        self._partitions: list[pa.Table] = []
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows of the current partition, in the order of their offsets."""
        self._waiting.append(rows)
        self._rows += rows.num_rows
        if self._rows >= 2 * FOLD_ROWS:
            self._fold()

    def end_partition(self) -> None:
        """Keep the newest rows of the current partition; the next `add` begins another partition."""
        self._fold()
        self._partitions += self._waiting
        self._waiting, self._rows = [], 0

    def _fold(self) -> None:
        if self._waiting:
            self._waiting = [newest_per_key(pa.concat_tables(self._waiting).combine_chunks(), self._keys)]
            self._rows = self._waiting[0].num_rows

    def result(self, schema: pa.Schema) -> pa.Table:
        """Return the newest rows without deleted keys.

        The rows of a key are in one partition, unless partitions were added to the topic. For a key in several
        partitions the row with the latest timestamp is the newest, and of equal timestamps that of the last partition:
        it was added later."""
        if not self._partitions:
            return schema.empty_table()
        rows = pa.concat_tables(self._partitions).combine_chunks()
        if len(self._partitions) > 1:
            order = [(name, "ascending") for name in ("_timestamp", "_partition", "_offset")]
            rows = newest_per_key(rows.sort_by(order), self._keys)
        remaining = rows.filter(pc.invert(is_deletion(rows, self._keys, value_columns_of(self._info))))
        return remaining.select(schema.names).cast(schema)


def latest_view(info: TopicInfo, table: str, columns: Sequence[str]) -> str:
    """Return a SELECT of the newest row of each key, in DuckDB's SQL."""
    keys = ", ".join(_quoted(k) for k in key_columns_of(info))
    values = [c for c in value_columns_of(info) if c != "_op"]
    deleted = " AND ".join(f"{_quoted(c)} IS NULL" for c in values) or "false"
    if "_op" in columns and pa.types.is_string(info.schema.field("_op").type):
        deleted = f"({deleted}) OR coalesce(lower(\"_op\") IN ('d', 'delete'), false)"
    by_offset = f"row_number() OVER (PARTITION BY _partition, {keys} ORDER BY _offset DESC) = 1"
    by_time = f"row_number() OVER (PARTITION BY {keys} ORDER BY _timestamp DESC, _partition DESC) = 1"
    newest = f"SELECT * FROM (SELECT * FROM {table} QUALIFY {by_offset}) QUALIFY {by_time}"
    return f"SELECT {', '.join(_quoted(c) for c in columns)} FROM ({newest}) WHERE NOT ({deleted})"


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
