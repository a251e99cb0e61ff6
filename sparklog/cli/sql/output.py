"""The outputs of `sparklog sql`: a table on the terminal, or a file format."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparklog.cli.sql.format import OutputFormat
from sparklog.export.printable import cell, printable
from sparklog.export.writers import ArrowWriter, JsonWriter, ParquetWriter, distinct, is_number, plain_column

WRITERS: dict[OutputFormat, Any] = {
    OutputFormat.json: JsonWriter,
    OutputFormat.parquet: ParquetWriter,
    OutputFormat.arrow: ArrowWriter,
}


def print_table(table: pa.Table) -> None:
    """Print the rows as an aligned table on stdout."""
    from sparklog.cli import console

    names = distinct(table.column_names)
    numbers = tuple(n for n, t in zip(names, table.schema.types, strict=True) if is_number(t))
    shown = console.table(*names, right=numbers)
    columns = [[cell(v) for v in printable(plain_column(c))] for c in table.combine_chunks().columns]
    for row in zip(*columns, strict=True):
        shown.add_row(*row)
    console.stdout().print(shown)
