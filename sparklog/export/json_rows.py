"""JSON lines, and JSON in CSV, as Arrow columns, by the rules of `sparklog.format.json_exact`. The texts are those that
`sparklog consume` writes (`sparklog.export.printable`)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparklog.format.json_exact import JsonValueError, column_value, form_hint, parse_json, text_as_bytes
from sparklog.format.json_rows import SLICE_ROWS, JsonRows, JsonRowsError, exact_column

__all__ = ["JsonValueError", "form_hint", "needs_rows", "read_rows", "read_texts"]


def needs_rows(t: Any, *, nested: bool = False) -> bool:
    """True if PyArrow's JSON reader cannot read a column of this type, not even as text."""
    if pa.types.is_map(t) or pa.types.is_binary(t):
        return True
    if pa.types.is_list(t):
        return needs_rows(t.value_type, nested=True)
    if pa.types.is_struct(t):
        return any(needs_rows(f.type, nested=True) for f in t)
    return bool(nested and (pa.types.is_temporal(t) or pa.types.is_decimal(t)))


def read_rows(block: bytes, schema: pa.Schema) -> pa.Table:
    """Return the rows of a block of whole lines, with exactly the columns of `schema`; columns that a line lacks are
    null.

    Raises JsonValueError for a line that is not an object, an unknown column, or a value that does not fit its column.
    """
    lines = [line for line in block.split(b"\n") if not line.isspace() and line]
    reader = JsonRows(schema)
    try:
        batches = [reader.read(lines[start : start + SLICE_ROWS]) for start in range(0, len(lines), SLICE_ROWS)]
    except JsonRowsError as e:
        raise JsonValueError(str(e)) from e
    return pa.Table.from_batches(batches, schema)


def read_texts(texts: list[str | None], field: pa.Field) -> Any:
    """Return a column of CSV with lists, structs and maps as JSON. Raises JsonValueError."""
    values = []
    for text in texts:
        try:
            value = None if text is None else parse_json(text)
        except JsonValueError as e:
            raise JsonValueError(f"column {field.name!r} is {field.type}, which is JSON in CSV: {e}") from e
        values.append(column_value(value, field, text_as_bytes))
    return whole_column(values, field)


def whole_column(values: list[Any], field: pa.Field) -> Any:
    """Return an array of results of `column_value`. Raises JsonValueError for the first that does not fit."""
    array, refused = exact_column(values, field)
    if refused:
        raise JsonValueError(next(iter(refused.values())))
    return array
