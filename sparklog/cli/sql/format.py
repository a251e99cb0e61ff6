"""The output formats of `sparklog sql`, without their writers, whose imports would slow down `--help`."""

from __future__ import annotations

from enum import StrEnum

TABLE_ROWS = 1_000


class OutputFormat(StrEnum):
    """Output formats of rows."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"
    arrow = "arrow"
