"""Checks of decoded columns: the same findings as Arrow's full validation, in a fraction of its time for text.

Arrow checks text value by value. If all bytes of a column are ASCII, which one operation shows, so is every value; its
offsets and nulls are then checked as those of a binary column. Arrow validates all other text.
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
    or only `columns`, which begin with their buffers' first row, as decoded ones do.
    """
    types = _types_as_bytes(schema)
    if types is None:
        batch.validate(full=True)
        return
    for place, column in enumerate(batch.columns):
        as_bytes = types[place if columns is None else columns[place]]
        if as_bytes is None:
            column.validate(full=True)
        else:
            check_text(column, as_bytes)


def check_text(column: Any, as_bytes: Any) -> None:
    """Check a column with text; `as_bytes`: its type with binary in the place of text. Raises pa.ArrowInvalid."""
    if column.null_count < len(column):
        column.view(as_bytes).validate(full=True)
        if _is_ascii(column):
            return
    column.validate(full=True)


def type_as_bytes(kind: Any) -> Any:
    """Return the type with binary in the place of text."""
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
    """Return True if all text in the column is ASCII, null or not. Its offsets have been checked."""
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
    """Return the types of all columns, None for a column without text; None if no column has text."""
    types = [(field.type, type_as_bytes(field.type)) for field in schema]
    found = [None if as_bytes == kind else as_bytes for kind, as_bytes in types]
    return found if any(kind is not None for kind in found) else None
