"""Selection of the newest row of each key, in Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.format.key_equality import canonical_key

OPERATION_COLUMN = "_op"
"""Optional column of a changelog topic with the kind of the change."""
DELETE_OPERATIONS = ("d", "delete")
"""Values of that column that delete the key, in lower case; they count in any case."""
_POSITION = "row"
VALUE_BYTES_MAX = 32
"""Length in bytes of the longest value of fixed width, a decimal of 256 bits."""


def newest_per_key(rows: pa.Table, key_columns: Sequence[str]) -> pa.Table:
    """Return the last row of each key. The order of the rows stays. `key_columns`: names of the key columns.
    `sparklog.format.key_equality` says which keys are equal."""
    if rows.num_rows < 2:
        return rows
    keys = _canonical_keys(rows, key_columns)
    names = keys.column_names
    keys = keys.append_column(_POSITION, pa.array(np.arange(rows.num_rows)))
    last = keys.group_by(names).aggregate([(_POSITION, "max")]).column(f"{_POSITION}_max")
    return rows.take(pc.sort_indices(last) if len(last) == rows.num_rows else np.sort(last.to_numpy()))


def is_deletion(rows: pa.Table, key_columns: Sequence[str], value_columns: Sequence[str]) -> Any:
    """Return a boolean array that is True for each row that deletes its key.

    A row deletes its key if all its values are null, or if a text column `_op` has one of DELETE_OPERATIONS.

    `value_columns`: names of the columns that are all null in a tombstone; `_op` and key columns are ignored."""
    values = [c for c in value_columns if c != OPERATION_COLUMN and c not in key_columns]
    deleted = pa.array(np.full(rows.num_rows, bool(values)))
    for name in values:
        deleted = pc.and_(deleted, pc.is_null(_combined(rows.column(name))))
    if OPERATION_COLUMN in rows.column_names:
        operation = _combined(rows.column(OPERATION_COLUMN))
        if pa.types.is_string(operation.type):
            named = pc.is_in(pc.utf8_lower(operation), value_set=pa.array(DELETE_OPERATIONS))
            deleted = pc.or_(deleted, pc.fill_null(named, False))
    return deleted


def _combined(column: Any) -> Any:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def other_keys(rows: pa.Table, keys: pa.Table, key_columns: Sequence[str]) -> np.ndarray | None:
    """Find the rows whose key is not in `keys`. `rows`: the rows; only their key columns are used. Returns a boolean
    array that is True for each row to keep; None if all rows stay."""
    marked = _canonical_keys(keys, key_columns)
    # in a join null equals nothing, so each key column gets a column that marks its nulls
    own, marked = _with_null_marks(_canonical_keys(rows, key_columns)), _with_null_marks(marked)
    on = own.column_names
    own = own.append_column(_POSITION, pa.array(np.arange(rows.num_rows)))
    joined = own.join(marked, keys=on, join_type="left anti").column(_POSITION).to_numpy()
    if len(joined) == rows.num_rows:
        return None
    is_kept = np.zeros(rows.num_rows, dtype=bool)
    is_kept[joined] = True
    return is_kept


def _canonical_keys(rows: pa.Table, key_columns: Sequence[str]) -> pa.Table:
    """Return the key columns, such that equal keys have equal bytes. Numbers are their names, so that no name of a
    topic's column is taken for a name of this module."""
    columns = [canonical_key(rows.column(name)) for name in key_columns]
    return pa.table(columns, names=[str(i) for i in range(len(columns))])


def _with_null_marks(keys: pa.Table) -> pa.Table:
    columns = {f"null {name}": pc.is_null(keys.column(name)) for name in keys.column_names}
    return pa.table(columns | {name: _without_nulls(keys.column(name)) for name in keys.column_names})


def _without_nulls(column: Any) -> Any:
    if not column.null_count:
        return column
    t = column.type
    if pa.types.is_string(t) or pa.types.is_binary(t):
        filled = pa.scalar("", t)
    else:  # the value whose bytes are all 0, which casts and `pa.scalar` do not make for every type
        filled = pa.Array.from_buffers(t, 1, [None, pa.py_buffer(bytes(VALUE_BYTES_MAX))])[0]
    return pc.fill_null(column, filled)
