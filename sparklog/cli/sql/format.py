"""The formats of `sparklog sql`: apart from their writers, which import more than `--help` should."""

from __future__ import annotations

from enum import StrEnum

TABLE_ROWS = 1_000


class OutputFormat(StrEnum):
    """The formats of rows."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"
    arrow = "arrow"
