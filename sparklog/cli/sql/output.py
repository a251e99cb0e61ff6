"""The outputs of `sparklog sql`: a table on the terminal, or a file format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from sparklog.cli.file_format import delimiter_of, is_arrow_stream
from sparklog.cli.sql.format import OutputFormat
from sparklog.export.printable import cells
from sparklog.export.writers import (
    ArrowWriter,
    CsvWriter,
    JsonWriter,
    ParquetWriter,
    RowGroupWriter,
    distinct,
    is_number,
    plain_column,
)

if TYPE_CHECKING:
    from sparklog.export.writers import Writer


def writer_of(format: OutputFormat, output: Path | None) -> Callable[[BinaryIO, pa.Schema], Writer]:
    """Return the constructor of the writer of a file format. The ending of `output` decides between comma and tab
    (`.tsv`), and between Arrow's file and stream (`.arrows`)."""
    if format is OutputFormat.csv:
        return partial(CsvWriter, delimiter=delimiter_of(output))
    if format not in (OutputFormat.parquet, OutputFormat.arrow):
        return JsonWriter
    is_parquet = format is OutputFormat.parquet
    writer = ParquetWriter if is_parquet else partial(ArrowWriter, is_stream=is_arrow_stream(output))
    return lambda out, schema: RowGroupWriter(writer(out, schema))


def print_table(table: pa.Table) -> None:
    """Print the rows as an aligned table on stdout."""
    from sparklog.cli import console

    names = distinct(table.column_names)
    numbers = tuple(n for n, t in zip(names, table.schema.types, strict=True) if is_number(t))
    shown = console.table(*names, right=numbers)
    columns = [cells(plain_column(c)) for c in table.combine_chunks().columns]
    for row in zip(*columns, strict=True):
        shown.add_row(*row)
    console.stdout().print(shown)
