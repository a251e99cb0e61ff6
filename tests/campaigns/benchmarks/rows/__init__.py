"""All rows, most valuable first."""

from __future__ import annotations

from collections.abc import Sequence

from . import cluster, consume, gateway, lake, latency, operations, produce, security, spark
from .row import Row

__all__ = ["ROWS", "Row", "select"]

ROWS: tuple[Row, ...] = (
    *produce.ROWS,
    *consume.ROWS,
    *latency.ROWS,
    *spark.ROWS,
    *latency.SPARK_ROWS,
    *operations.ROWS,
    *gateway.ROWS,
    *cluster.ROWS,
    *security.ROWS,
    *lake.LAKE_ROWS,
)


def select(wanted: Sequence[str], rows: Sequence[Row] = ROWS) -> list[Row]:
    """The rows whose name is one of `wanted` or begins with one of them and a dash (`lake` or `lake-*`); all without
    `wanted`.

    Raises ValueError for a name that chooses nothing.
    """
    names = {name: {r.name for r in rows if f"{r.name}-".startswith(f"{name.removesuffix('-*')}-")} for name in wanted}
    for name, chosen in names.items():
        if not chosen:
            raise ValueError(f"no row {name!r}; there are {', '.join(row.name for row in rows)}")
    return [row for row in rows if not wanted or any(row.name in chosen for chosen in names.values())]
