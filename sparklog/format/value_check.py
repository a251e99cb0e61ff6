"""Checks of decoded columns: the same findings as Arrow's full validation, in a fraction of its time for text.

Arrow checks text value by value. But if all bytes of a column are ASCII, every value is valid text, and one operation
on all bytes shows that. The offsets and nulls of such a column are checked as those of a binary column. Arrow validates
all other text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.format.identity_cache import kept_by_identity

_ASCII_MAX = 0x7F


def check_values(batch: pa.RecordBatch, schema: pa.Schema, columns: Sequence[int] | None = None) -> None:
    """Raise pa.ArrowInvalid if offsets, nulls or text of a column are not sound. `batch` has the columns of `schema`,
    or only `columns` (indexes, ascending). The columns must not be slices: each begins with its buffers' first row.
    """
    types = _types_as_bytes(schema)
    if types is None:
        batch.validate(full=True)
        return
    for place, column in enumerate(batch.columns):
        index = place if columns is None else columns[place]
        as_bytes = types[index]
        try:
            if as_bytes is None:
                column.validate(full=True)
            else:
                check_text(column, as_bytes)
        except pa.ArrowInvalid as e:
            raise pa.ArrowInvalid(f"column {schema.names[index]!r}: {e}") from e


def check_text(column: Any, as_bytes: Any) -> None:
    """Check a column with text, at any depth. `as_bytes` is the column's `type_as_bytes`. Raises pa.ArrowInvalid."""
    if column.null_count < len(column):
        column.view(as_bytes).validate(full=True)
        if _is_ascii(column):
            return
    column.validate(full=True)


def type_as_bytes(kind: Any) -> Any:
    """Return the type `kind` with binary in the place of text, at any depth."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(type_as_bytes(field.type)) for field in kind])
    if pa.types.is_map(kind):
        item = kind.item_field
        return pa.map_(type_as_bytes(kind.key_type), item.with_type(type_as_bytes(item.type)), kind.keys_sorted)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(type_as_bytes(kind.value_type)))
    return kind


def _is_ascii(column: Any) -> bool:
    """Return True if all text in the column is ASCII, also the bytes of null values. The column's offsets must have
    been checked."""
    kind = column.type
    if pa.types.is_struct(kind):
        return all(_is_ascii(column.field(i)) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _is_ascii(column.keys) and _is_ascii(column.items)
    if pa.types.is_list(kind):
        return _is_ascii(column.values)
    if not pa.types.is_string(kind) or not len(column):
        return True
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, "<i4", len(column) + 1, 4 * column.offset)
    first, last = int(offsets[0]), int(offsets[-1])
    return first == last or int(np.frombuffer(data, np.uint8, last - first, first).max()) <= _ASCII_MAX


@kept_by_identity
def _types_as_bytes(schema: pa.Schema) -> list[Any] | None:
    """Return `type_as_bytes` of each column, None for a column without text. Returns None if no column has text."""
    types = [(field.type, type_as_bytes(field.type)) for field in schema]
    differing = [None if as_bytes == kind else as_bytes for kind, as_bytes in types]
    return differing if any(kind is not None for kind in differing) else None
