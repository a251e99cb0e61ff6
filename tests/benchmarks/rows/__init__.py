"""All rows, most valuable first."""

from __future__ import annotations

from collections.abc import Sequence

from . import cluster, consume, latency, operations, produce, security, spark
from .row import Row

__all__ = ["ROWS", "Row", "select"]

ROWS: tuple[Row, ...] = (
    *produce.ROWS,
    *consume.ROWS,
    *latency.ROWS,
    *spark.ROWS,
    *latency.SPARK_ROWS,
    *operations.ROWS,
    *cluster.ROWS,
    *security.ROWS,
)


def select(wanted: Sequence[str], rows: Sequence[Row] = ROWS) -> list[Row]:
    """The rows whose name is one of `wanted` or begins with one of them and a dash; all without `wanted`.

    Raises ValueError for a name that chooses nothing.
    """
    if not wanted:
        return list(rows)
    for name in wanted:
        if not any(_chosen(row.name, name) for row in rows):
            raise ValueError(f"no row {name!r}; there are {', '.join(row.name for row in rows)}")
    return [row for row in rows if any(_chosen(row.name, name) for name in wanted)]


def _chosen(row: str, wanted: str) -> bool:
    return row == wanted or row.startswith(f"{wanted}-")
