"""Change events in a DataFrame of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from sparklog.debezium.changes import (
    OPERATION_COLUMN,
    Changes,
    Layout,
    require_available,
    to_table,
)
from sparklog.debezium.events import EventReader
from sparklog.debezium.unwrapping import Unwrapping


def unwrap_frame(frame: Any, layout: Layout, column: str, key_column: str | None, latest: Any, truncate: str) -> Any:
    """Return a DataFrame of the changed rows. The events of a key must be in order in one partition of the frame, as
    the records of a Kafka partition are. `layout`: the columns of the rows; it has a schema. `key_column`: name of the
    column with the records' keys; None or a name that the frame lacks: no keys. `latest`: DataFrame of the newest row
    of each key; None: no rows."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    assert layout.schema is not None
    rows = layout.schema.append(pa.field(OPERATION_COLUMN, pa.string()))
    prefix = _prefix_of_no(layout.schema.names)
    unavailable = "" if latest is None else f"{prefix}unavailable"
    rows = rows.append(pa.field(unavailable, pa.list_(pa.string()))) if unavailable else rows
    # not the types of the DDL: tasks cannot return VARCHAR and CHAR, and a row lacks columns that are NOT NULL
    output = from_arrow_schema(rows, prefer_timestamp_ntz=True)
    keys = F.col(_quoted(key_column)) if key_column in frame.columns else F.lit(None)
    events = frame.select(F.col(_quoted(column)).cast("string").alias("value"), keys.cast("string").alias("key"))
    unwrapped = events.mapInArrow(_Unwrapping(layout, truncate, unavailable), output)
    return unwrapped if latest is None else _with_latest(unwrapped, latest, layout, prefix)


def _prefix_of_no(names: Sequence[str]) -> str:
    """Return a beginning for names of further columns that none of the `names` has, in upper or lower case."""
    prefix = "__"
    while any(name.lower().startswith(prefix) for name in names):
        prefix += "_"
    return prefix


def _quoted(name: str | None) -> str:
    return "`" + (name or "").replace("`", "``") + "`"


def _with_latest(rows: Any, latest: Any, layout: Layout, prefix: str) -> Any:
    """Return the rows with unavailable values taken from the rows of `latest` with the same key. `prefix`: beginning of
    the names of further columns."""
    from pyspark.sql import functions as F  # noqa: N812

    assert layout.schema is not None
    names, key_columns, unavailable = layout.schema.names, layout.key_columns or (), f"{prefix}unavailable"
    old = latest.select(
        *(F.col(_quoted(k)).alias(f"{prefix}key_{i}") for i, k in enumerate(key_columns)),
        *(F.col(_quoted(n)).alias(f"{prefix}old_{i}") for i, n in enumerate(names)),
        F.lit(True).alias(f"{prefix}is_old"),
    )
    is_same = F.size(unavailable) > 0
    for i, key in enumerate(key_columns):
        is_same = is_same & F.col(_quoted(key)).eqNullSafe(F.col(f"{prefix}key_{i}"))
    columns = []
    for i, name in enumerate(names):
        why = F.raise_error(
            F.lit(
                f"DeserializationError: the value of column {name!r} is unavailable, the event has only Debezium's "
                "placeholder, and neither an earlier change nor a row of latest= has the key"
            )
        )
        value = F.when(F.col(f"{prefix}is_old"), F.col(f"{prefix}old_{i}")).otherwise(why)
        is_unavailable = F.array_contains(unavailable, name)
        columns.append(F.when(is_unavailable, value).otherwise(F.col(_quoted(name))).alias(name))
    return rows.join(old, is_same, "left").select(*columns, OPERATION_COLUMN)


class _Unwrapping:
    """Function of Spark's tasks: batches of events to batches of rows."""

    def __init__(self, layout: Layout, truncate: str, unavailable: str) -> None:
        """`unavailable`: name of the column with the names of unavailable columns; "" if there must be none."""
        self._layout = layout
        self._truncate = truncate
        self._unavailable = unavailable

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        unwrapping = Unwrapping(EventReader(truncate=self._truncate))
        numbers = count()
        for batch in batches:
            values, keys = batch.column(0).to_pylist(), batch.column(1).to_pylist()
            events = unwrapping.read(zip(keys, values, strict=True), numbers)
            yield from self._table(unwrapping.changes(events, self._layout)).to_batches()

    def _table(self, changes: Changes) -> pa.Table:
        if not self._unavailable:
            require_available(changes)
            return to_table(changes)
        names: list[list[str]] = [[] for _ in changes.events]
        for name, mask in changes.unavailable.items():
            for at in mask.nonzero()[0].tolist():
                names[at].append(name)
        return to_table(changes).append_column(self._unavailable, pa.array(names, pa.list_(pa.string())))
