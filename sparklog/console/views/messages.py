"""The content of the record pages: rows of a table, and a single record with all its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.console.views.values import DETAIL_CHARS_MAX, Cell, bytes_cell, cell_of

COLUMNS_MAX = 40
HEADERS_MAX = 100
ENVELOPE = ("key", "value", "headers")


def number_columns(schema: pa.Schema) -> set[str]:
    """Return the names of numeric columns, which are aligned to the right."""
    return {f.name for f in schema if _is_number(f.type)}


def _is_number(t: Any) -> bool:
    return bool(pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t))


class MessageRow(NamedTuple):
    """A record as a row, with one cell for each column of the table."""

    partition: int
    offset: int
    timestamp_ms: int
    cells: list[Cell]


def shown_columns(schema: pa.Schema, requested: Sequence[str], *, is_envelope: bool) -> list[str]:
    """Return the first COLUMNS_MAX columns of `requested`, or of all columns if none of `requested` exists.

    An envelope's column `timestamp` is left out, because the table has the log's timestamp.
    """
    names = [n for n in schema.names if not (is_envelope and n == "timestamp")]
    chosen = [n for n in names if n in requested] or names
    return chosen[:COLUMNS_MAX]


def message_row(
    partition: int, offset: int, timestamp_ms: int, data: pa.RecordBatch, index: int, columns: Sequence[str], mode: str
) -> MessageRow:
    cells = [_cell(data, name, index, mode) for name in columns]
    return MessageRow(partition, offset, timestamp_ms, cells)


def _cell(data: pa.RecordBatch, name: str, index: int, mode: str) -> Cell:
    column = data.column(name)
    if name == "headers" and pa.types.is_list(column.type):
        headers = header_rows(column[index])
        return (
            Cell(", ".join(f"{h.key}={h.value.text}" for h in headers)[:240], "text") if headers else Cell("", "text")
        )
    return cell_of(column[index], mode)


class HeaderRow(NamedTuple):
    """A record's header."""

    key: str
    value: Cell


def header_rows(scalar: Any) -> list[HeaderRow]:
    """Return the first HEADERS_MAX headers of an envelope."""
    if not scalar.is_valid:
        return []
    values = scalar.values
    rows = []
    for i in range(min(len(values), HEADERS_MAX)):
        key, value = values[i]["key"], values[i]["value"]
        shown = bytes_cell(value.as_py(), len(value.as_py())) if value.is_valid else Cell("null", "null")
        rows.append(HeaderRow(cell_of(key).text, shown))
    return rows


class MessageView(NamedTuple):
    """A single record."""

    fields: list[tuple[str, str, Cell]]
    """Column, type and value of each field."""
    headers: list[HeaderRow]


def message_view(data: pa.RecordBatch, index: int, mode: str, *, is_envelope: bool) -> MessageView:
    fields: list[tuple[str, str, Cell]] = []
    headers: list[HeaderRow] = []
    for field in data.schema:
        scalar = data.column(field.name)[index]
        if is_envelope and field.name == "headers":
            headers = header_rows(scalar)
        elif not (is_envelope and field.name == "timestamp"):
            fields.append((field.name, str(field.type), cell_of(scalar, mode, DETAIL_CHARS_MAX)))
    return MessageView(fields, headers)


def raw_bytes(scalar: Any) -> bytes:
    """Return the bytes of a value for a file: unchanged for bytes and text, else as text; empty for null."""
    if not scalar.is_valid:
        return b""
    buffer = scalar.as_buffer() if hasattr(scalar, "as_buffer") else None
    return bytes(buffer.to_pybytes()) if buffer is not None else str(scalar.as_py()).encode()


class Grid(NamedTuple):
    """The result of a statement as a table."""

    names: list[str]
    numbers: list[bool]
    """True for each numeric column."""
    rows: list[list[Cell]]


def grid(table: pa.Table) -> Grid:
    """Return all rows of a small table."""
    columns = [c.combine_chunks() if c.num_chunks != 1 else c.chunk(0) for c in table.columns]
    numbers = [_is_number(t) for t in table.schema.types]
    rows = [[cell_of(c[i]) for c in columns] for i in range(table.num_rows)]
    return Grid(list(table.column_names), numbers, rows)
