"""Delta tables and topics in one pipeline, exactly once in both directions; docs/guide.md has the recipes.

Needs delta-spark in the session only where a Delta table is read or written; nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparklog.errors import InvalidConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["latest_changes", "once"]

_RANK = "case _change_type when 'delete' then 0 when 'insert' then 1 else 2 end"
"""Of the changes one commit makes to a key: an overwrite deletes the row before it inserts it again."""


def once(app_id: str, batch_id: int) -> dict[str, str]:
    """The options that make a write inside `foreachBatch` happen once, whether the format is delta or sparklog.

    `app_id` names the query and the target: each write in the function needs one of its own, and a query with a new
    checkpoint, which counts its batches from 0 again, needs new ones.
    """
    return {"txnAppId": app_id, "txnVersion": str(batch_id)}


def latest_changes(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """What a batch of a table's change data feed has made of each key, in the table's columns: its row, or, if it was
    deleted, a row with nothing but the key, which a topic with cleanup.policy=compact takes for a deletion.

    One row per key, so that it does not matter in which order tasks write them. Raises InvalidConfigError if `keys`
    are no columns of the table, or `changes` does not come from a change data feed.
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
        raise InvalidConfigError(f"keys {list(keys)}: name at least one of the table's columns {', '.join(columns)}")
    order = F.struct("_commit_version", F.expr(_RANK))
    last = (
        changes.where("_change_type <> 'update_preimage'")
        .groupBy(*keys)
        .agg(F.max_by(F.struct("_change_type", *columns), order).alias("_last"))
    )
    deleted = F.col("_last._change_type") == "delete"
    return last.select(
        *(F.col(c) if c in keys else F.when(~deleted, F.col(f"_last.{c}")).alias(c) for c in columns),
    )
