"""Delta tables and topics in one pipeline, exactly once in both directions; docs/guide.md has the recipes.

Needs delta-spark in the session only where a Delta table is read or written; nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparklog.errors import InvalidConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["latest_changes", "once"]

_RANK = "case _change_type when 'delete' then 0 when 'insert' then 1 else 2 end"
"""Order of the changes that one commit makes to a key: an overwrite deletes the row before it inserts it again."""


def once(app_id: str, batch_id: int) -> dict[str, str]:
    """Return the options that make a write inside `foreachBatch` happen exactly once, for the formats delta and
    sparklog.

    Args:
        app_id: Name of the query and the target. Each write in the function needs its own name. A query with a new
            checkpoint counts its batches from 0 again and needs new names.
        batch_id: The batch id that `foreachBatch` passes.

    Returns:
        The options `txnAppId` and `txnVersion`.

    Example:
        ```python
        def write(batch, batch_id):
            batch.write.format("delta").options(**once("trips-to-lake", batch_id)).mode("append").save(path)
        ```
    """
    return {"txnAppId": app_id, "txnVersion": str(batch_id)}


def latest_changes(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the last change of each key in a batch of a change data feed, in the table's columns.

    A key's row is its newest row; for a deleted key all columns except the key are null. A topic with
    cleanup.policy=compact takes such a row for a deletion. There is one row per key, so the order in which tasks write
    them does not matter.

    Args:
        changes: Rows of a table's change data feed.
        keys: Names of the key columns, at least one.

    Returns:
        One row per key.

    Raises:
        InvalidConfigError: `keys` are not columns of the table, or `changes` does not come from a change data feed.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

    added = ("_change_type", "_commit_version", "_commit_timestamp")
    if any(name not in changes.columns for name in added):
        raise InvalidConfigError(
            f"columns {', '.join(changes.columns)}: no change data feed; read the table with "
            '.option("readChangeFeed", "true")'
        )
    columns = [c for c in changes.columns if c not in added]
    unknown = [k for k in keys if k not in columns]
    if unknown or not keys:
        raise InvalidConfigError(f"keys {list(keys)}: name one or more of the table's columns {', '.join(columns)}")
    change = "_" * (1 + max(map(len, columns)))  # no name of a column
    order = F.struct("_commit_version", F.expr(_RANK))
    last = (
        changes.where("_change_type <> 'update_preimage'")
        .groupBy(*map(_column, keys))
        .agg(F.max_by(F.struct("_change_type", *map(_column, columns)), order).alias(change))
    )
    newest = F.col(change)
    deleted = newest.getField("_change_type") == "delete"
    return last.select(
        *(_column(c) if c in keys else F.when(~deleted, newest.getField(c)).alias(c) for c in columns),
    )


def _column(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col("`" + name.replace("`", "``") + "`")
