"""Anything tabular as an Arrow table: Arrow objects of any library, pandas, polars, dicts of columns, lists of rows."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.client.net.arguments import text
from sparklog.errors import SchemaMismatchError
from sparklog.format.schema import fit_table, null_column

_BINARY_BYTES_MAX = 2**31 - 1
_FEW_ROWS = 32
_PACKED_ROWS_MAX = 1 << 16
"""All lengths are Python objects for a moment."""

__all__ = ["binary_array", "fit", "holds_objects", "null_column", "reusable", "to_table"]


def to_table(data: Any, schema: pa.Schema, topic: str) -> pa.Table:
    """`data` as a table. `schema` is the topic's: it tells maps from structs, nothing is cast to it yet.

    Raises SchemaMismatchError for objects that do not have the topic's type, TypeError for what is not tabular.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if _is_pandas(data):
        return _from_pandas(data, schema, topic)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    if isinstance(data, Mapping):
        return _from_columns(data, schema, topic)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray):
        return _from_rows(data, schema, topic)
    raise TypeError(
        f"send_batch takes tables (PyArrow, pandas, polars, anything with __arrow_c_stream__), a dict of columns or a "
        f"list of dicts, not {type(data).__name__}"
    )


def reusable(data: Any) -> Any:
    """`data`, or the table made of it if it is a stream that can be read only once."""
    if _is_pandas(data) or isinstance(data, pa.Table) or not hasattr(data, "__arrow_c_stream__"):
        return data
    return pa.table(data)


def fit(table: pa.Table, schema: pa.Schema, topic: str) -> pa.Table:
    """`table` in the topic's layout (`format.schema.fit_table`); a column of nothing but nulls fits every type.

    Raises SchemaMismatchError.
    """
    if table.schema.equals(schema) or not set(table.column_names) & set(schema.names):
        return fit_table(table, schema, topic)
    for i, field in enumerate(schema):
        found = table.schema.get_all_field_indices(field.name)
        if not found:
            table = table.append_column(pa.field(field.name, field.type), null_column(table.num_rows, field.type))
        elif len(found) == 1 and schema.types[i] != table.schema.types[found[0]]:
            column = table.column(found[0])
            if column.null_count == len(column):
                empty = null_column(table.num_rows, field.type)
                table = table.set_column(found[0], pa.field(field.name, field.type), empty)
    return fit_table(table, schema, topic)


def holds_objects(data: Any) -> bool:
    """Whether Arrow data made of this `data` are a copy of Python objects, and not somebody else's memory."""
    if isinstance(data, Mapping):
        return all(isinstance(values, list | tuple) for values in data.values())
    return isinstance(data, list | tuple)


def binary_array(values: Sequence[Any]) -> Any:
    """Python objects as Arrow `binary`. Raises what `pa.array` does for objects that are neither bytes nor None.

    `pa.array` imports pandas to find out that it was given none of its objects: 0.3 s of the first send. As long as
    nobody else has imported it the bytes are joined here, which takes up to twice as long per row.
    """
    if "pandas" not in sys.modules:
        with suppress(TypeError, BufferError):  # None, or no bytes
            return _joined(values)
    return pa.array(values, pa.binary())


def _joined(values: Sequence[Any]) -> Any:
    """Raises TypeError unless all are bytes or like them, and together below 2 GiB."""
    n, data = len(values), b"".join(values)
    if len(data) > _BINARY_BYTES_MAX:
        raise TypeError("too much for one array")
    if n <= _FEW_ROWS:  # without NumPy, whose calls cost more than a few steps
        few = array("i", accumulate(map(len, values), initial=0))
        if few[-1] != len(data):
            raise TypeError("not only bytes")
        return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(few), pa.py_buffer(data)])
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(_lengths(values), out=offsets[1:])
    if offsets[-1] != len(data):  # a memoryview counts items
        raise TypeError("not only bytes")
    narrow = offsets.astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(narrow), pa.py_buffer(data)])


def _lengths(values: Sequence[Any]) -> np.ndarray:
    n = len(values)
    if n > _PACKED_ROWS_MAX:
        return np.fromiter(map(len, values), np.int64, n)
    return np.frombuffer(struct.pack(f"{n}i", *map(len, values)), np.int32)  # two thirds of what `fromiter` takes


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns") and hasattr(data, "dtypes")


def _from_pandas(frame: Any, schema: pa.Schema, topic: str) -> pa.Table:
    """A pandas frame without its index; NaN and NaT become null."""
    arrays, names = [], []
    for position, name in enumerate(frame.columns):
        series = frame.iloc[:, position]
        index = schema.get_field_index(str(name))
        as_objects = series.dtype == object and index >= 0
        arrays.append(_array(series, schema.field(index).type if as_objects else None, str(name), topic))
        names.append(str(name))
    return pa.Table.from_arrays(arrays, names=names)


def _from_columns(columns: Mapping[str, Any], schema: pa.Schema, topic: str) -> pa.Table:
    arrays = []
    for name, values in columns.items():
        text(f"data for topic {topic!r}: a column's name", name)
        index = schema.get_field_index(name)
        typed = index >= 0 and isinstance(values, list | tuple)
        arrays.append(_array(values, schema.field(index).type if typed else None, name, topic))
    lengths = {n: len(a) for n, a in zip(columns, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        raise SchemaMismatchError(f"data for topic {topic!r}: columns of different lengths: {lengths}")
    return pa.Table.from_arrays(arrays, names=list(columns))


def _from_rows(rows: Sequence[Any], schema: pa.Schema, topic: str) -> pa.Table:
    names: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"send_batch takes a list of dicts, this one holds {type(row).__name__}")
        names.update(dict.fromkeys(row))
    if not names:
        return schema.empty_table()
    return _from_columns({n: [row.get(n) for row in rows] for n in names}, schema, topic)


def _array(values: Any, target: pa.DataType | None, name: str, topic: str) -> Any:
    """`values` with the type they say they have, so that `fit` can refuse lossy casts (PyArrow's own conversion of
    Python objects to a given type cuts 1.5 to 1). Only maps have to be named: a dict looks like a struct."""
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values
        if target == pa.binary():
            # what most send: one look at each object instead of two (inferring finds the same values)
            with suppress(pa.ArrowException, TypeError, ValueError):
                return binary_array(values)
        return pa.array(values, type=target if _holds_map(target) else None, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
        reason = str(e).splitlines()[0]
        wanted = f", the topic has {target}" if target is not None else ""
        raise SchemaMismatchError(f"data do not fit topic {topic!r}: column {name!r}{wanted} ({reason})") from e


def _holds_map(t: pa.DataType | None) -> bool:
    if t is None:
        return False
    if pa.types.is_map(t):
        return True
    return pa.types.is_nested(t) and any(_holds_map(t.field(i).type) for i in range(t.num_fields))
