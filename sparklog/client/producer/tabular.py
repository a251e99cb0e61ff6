"""Conversion of tabular data to Arrow tables: Arrow objects of any library, pandas, polars, dicts of columns, lists of
rows."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.client.net.arguments import text
from sparklog.client.producer.python_values import array_of_objects
from sparklog.errors import SchemaMismatchError
from sparklog.format.column_names import shown_names
from sparklog.format.schema import fit_table, null_column

_BINARY_BYTES_MAX = 2**31 - 1
_ARROW_PROTOCOLS = ("__arrow_c_stream__", "__arrow_c_array__", "__arrow_array__")
_ARROW_TABLES = ("__arrow_c_stream__", "__arrow_c_array__")
_TAKEN = (
    "send_batch takes tables (PyArrow, pandas, polars, anything with __arrow_c_stream__), a dict of columns or a list "
    "of dicts"
)
_FEW_ROWS = 32
_PACKED_ROWS_MAX = 1 << 16
"""Largest number of rows whose lengths are packed by `struct`, which holds all of them as Python objects at one
time."""

__all__ = ["binary_array", "fit", "holds_objects", "null_column", "object_columns", "reusable", "to_table"]


def to_table(data: Any, schema: pa.Schema, topic: str) -> pa.Table:
    """Return `data` as a table. `schema`, the topic's, decides which dicts are maps and which are structs; nothing is
    cast to its types yet.

    Raises SchemaMismatchError for objects that do not have the topic's type or are not clearly rows, TypeError for data
    that are not tabular.
    """
    table = _table(data, schema, topic)
    if table.num_rows and not table.num_columns:
        raise _no_columns(table.num_rows, schema, topic)
    names = table.column_names
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise SchemaMismatchError(
            f"data do not fit topic {topic!r}: column {twice!r} occurs {names.count(twice)} times"
        )
    return table


def _table(data: Any, schema: pa.Schema, topic: str) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if _is_pandas(data):
        return _from_pandas(data, schema, topic)
    if any(hasattr(data, protocol) for protocol in _ARROW_TABLES):
        return _import_table(data)
    if isinstance(data, Mapping):
        return _from_columns(data, schema, topic)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray | memoryview):
        return _from_rows(data, schema, topic)
    raise TypeError(f"{_TAKEN}, not {type(data).__name__}")


def _import_table(data: Any) -> pa.Table:
    _refuse_addresses(data)
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data).read_all()
        return pa.Table.from_batches([pa.record_batch(data)])
    except pa.ArrowInvalid as e:
        if hasattr(data, "columns"):
            reason = str(e).splitlines()[0]
            raise SchemaMismatchError(
                f"the {type(data).__name__} has {_unknown_column(data)} of a type that Arrow does not know ({reason}): "
                "cast it before"
            ) from e
        raise TypeError(f'{_TAKEN}; a {type(data).__name__} is one column: send {{"column": data}}') from e


def _unknown_column(frame: Any) -> str:
    """Return the words for the first column of a polars frame that Arrow cannot import; "a column" for other frames."""
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(frame, polars.DataFrame):
        for name in frame.columns:
            try:
                pa.RecordBatchReader.from_stream(frame.select(name))
            except pa.ArrowInvalid:
                return f"the column {name!r}"
    return "a column"


def _refuse_addresses(data: Any) -> None:
    """Raise SchemaMismatchError for a polars frame with a column of Python objects: polars exports the addresses of the
    objects as bytes, which a BINARY column would take.
    """
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(data, polars.DataFrame):
        for name, dtype in data.schema.items():
            if dtype == polars.Object:
                raise SchemaMismatchError(
                    f"column {name!r} has polars' type Object, which cannot leave polars: cast it first, or send a list"
                )


def _no_columns(rows: int, schema: pa.Schema, topic: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"data for topic {topic!r}: {rows} rows without any column; a row has at least one of "
        f"{shown_names(schema.names)} (None: null)"
    )


def object_columns(data: Any, schema: pa.Schema) -> Collection[str]:
    """Return the columns of `data` that are lists of Python objects. `fit` rounds their numbers to the topic's float
    type."""
    if isinstance(data, Mapping):
        return [name for name, values in data.items() if _is_objects(values)]
    return schema.names if isinstance(data, Sequence) else ()


def _is_objects(values: Any) -> bool:
    """True for a sequence of Python objects, and for a NumPy array of them."""
    if isinstance(values, np.ndarray):
        return bool(values.ndim == 1 and values.dtype == object)
    return isinstance(values, Sequence) and not isinstance(values, array | str | bytes | bytearray | memoryview)


def reusable(data: Any) -> Any:
    """Return `data`, or the table made of it if it is a stream that can be read only once."""
    if _is_pandas(data) or isinstance(data, pa.Table) or not hasattr(data, "__arrow_c_stream__"):
        return data
    return _import_table(data)


def fit(table: pa.Table, schema: pa.Schema, topic: str, rounded: Container[str] = ()) -> pa.Table:
    """Return `table` in the topic's layout (`format.schema.fit_table`). A missing column is null, and a column of
    nothing but nulls fits every type.

    `rounded`: the columns whose numbers are rounded to the topic's float type. Raises SchemaMismatchError.
    """
    if table.schema.equals(schema) or not set(table.column_names) & set(schema.names):
        return fit_table(table, schema, topic)
    for i, field in enumerate(schema):
        indices = table.schema.get_all_field_indices(field.name)
        if not indices:
            table = table.append_column(pa.field(field.name, field.type), null_column(table.num_rows, field.type))
        elif len(indices) == 1 and schema.types[i] != table.schema.types[indices[0]]:
            column = table.column(indices[0])
            if column.null_count == len(column):
                empty = null_column(table.num_rows, field.type)
                table = table.set_column(indices[0], pa.field(field.name, field.type), empty)
    return fit_table(table, schema, topic, rounded)


def holds_objects(data: Any) -> bool:
    """True if the Arrow form of `data` is a copy of Python objects, not memory of another library."""
    if isinstance(data, Mapping):
        return all(isinstance(values, list | tuple) for values in data.values())
    return isinstance(data, list | tuple)


def binary_array(values: Sequence[Any]) -> Any:
    """Return Python objects as Arrow `binary`. Raises the errors of `pa.array` for objects that are neither bytes nor
    None.

    `pa.array` imports pandas to check for its objects, which takes 0.3 s of the first send. As long as pandas is not
    imported, the bytes are joined here, which takes up to twice as long per row.
    """
    if "pandas" not in sys.modules:
        with suppress(TypeError, BufferError):  # None, or no bytes
            return _join_values(values)
    return pa.array(values, pa.binary())


def _join_values(values: Sequence[Any]) -> Any:
    """Join values to one array. Raises TypeError unless all are bytes or bytes-like, and together at most 2 GiB."""
    n, data = len(values), b"".join(values)
    if len(data) > _BINARY_BYTES_MAX:
        raise TypeError("too large for one array")
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
    return np.frombuffer(struct.pack(f"{n}i", *map(len, values)), np.int32)  # two thirds of the time of `fromiter`


def _is_pandas(data: Any) -> bool:
    return _of_pandas(data) and hasattr(data, "columns") and hasattr(data, "dtypes")


def _of_pandas(data: Any) -> bool:
    """True for pandas' classes and classes derived from them (geopandas)."""
    return any(c.__module__.partition(".")[0] == "pandas" for c in type(data).__mro__)


def _from_pandas(frame: Any, schema: pa.Schema, topic: str) -> pa.Table:
    """Return a pandas frame: its index levels that have a name, then its columns. NaN and NaT become null."""
    columns: list[tuple[str, Any]] = []
    for name, values in _named_levels(frame.index):
        if schema.get_field_index(name) < 0:
            raise SchemaMismatchError(
                f"data for topic {topic!r}: the frame's index has the name {name!r}, and the topic no such column: "
                "send frame.reset_index(drop=True) to leave the index out"
            )
        columns.append((name, values))
    columns += [(str(name), frame.iloc[:, position]) for position, name in enumerate(frame.columns)]
    if not columns and len(frame):
        raise _no_columns(len(frame), schema, topic)
    arrays = []
    for name, series in columns:
        index = schema.get_field_index(name)
        as_objects = series.dtype == object and index >= 0
        arrays.append(_array(series, schema.field(index).type if as_objects else None, name, topic))
    return pa.Table.from_arrays(arrays, names=[name for name, _ in columns])


def _named_levels(index: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and values of the levels of a pandas index that have a name."""
    for level, name in enumerate(index.names):
        if name is not None:
            yield str(name), index.get_level_values(level)


def _from_columns(data: Mapping[str, Any], schema: pa.Schema, topic: str) -> pa.Table:
    columns = {**_index_columns(data, schema, topic), **data}
    arrays = []
    for name, values in columns.items():
        text(f"data for topic {topic!r}: a column's name", name)
        index = schema.get_field_index(name)
        arrays.append(
            _array(_row_values(values, name, topic), schema.field(index).type if index >= 0 else None, name, topic)
        )
    lengths = {n: len(a) for n, a in zip(columns, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        raise SchemaMismatchError(f"data for topic {topic!r}: columns of different lengths: {lengths}")
    return pa.Table.from_arrays(arrays, names=list(columns))


def _index_columns(columns: Mapping[str, Any], schema: pa.Schema, topic: str) -> dict[str, Any]:
    """Return the index levels of pandas Series that have the name of a column of the topic that `columns` lacks."""
    index_columns: dict[str, Any] = {}
    for values in columns.values():
        if not _of_pandas(values) or not hasattr(values, "index"):
            continue
        for name, rows in _named_levels(values.index):
            if name in columns or schema.get_field_index(name) < 0:
                continue
            if not index_columns.setdefault(name, rows).equals(rows):
                raise SchemaMismatchError(
                    f"data for topic {topic!r}: two columns have an index {name!r} with other values or another order: "
                    f"send {{{name!r}: …}} as a column of its own"
                )
    return index_columns


def _row_values(values: Any, name: str, topic: str) -> Any:
    """Return a column's values, one per row: a list, or an array of some library. Raises SchemaMismatchError for an
    object that is merely iterable: text would give its letters, a dict its keys."""
    if isinstance(values, list | tuple | pa.Array | pa.ChunkedArray) or (
        _of_pandas(values) and hasattr(values, "dtype")
    ):
        return values
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return values.tolist() if values.dtype == object else values
    if isinstance(values, array):
        return np.asarray(values)
    if any(hasattr(values, protocol) for protocol in _ARROW_PROTOCOLS) and not _of_pandas(values):
        return values
    if _is_objects(values):
        return list(values)
    shown = " ".join(f"{values!r:.80}".split())
    raise SchemaMismatchError(
        f"data for topic {topic!r}: column {name!r} is {type(values).__name__} ({shown}), not a list or a "
        f"one-dimensional array with a value for each row; for one row send [{{{name!r}: …}}]"
    )


def _from_rows(rows: Sequence[Any], schema: pa.Schema, topic: str) -> pa.Table:
    names: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"send_batch takes a list of dicts, this one holds {type(row).__name__} ({row!r:.80})")
        names.update(dict.fromkeys(row))
    if not names:
        if rows:
            raise _no_columns(len(rows), schema, topic)
        return schema.empty_table()
    return _from_columns({n: [row.get(n) for row in rows] for n in names}, schema, topic)


def _array(values: Any, target: pa.DataType | None, name: str, topic: str) -> Any:
    """Return `values` as an array of their own type, so that `fit` can refuse lossy casts."""
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values
        if target == pa.binary() and not hasattr(values, "__arrow_c_stream__"):
            # the usual types: one look at each object instead of two (inferring finds the same values)
            with suppress(pa.ArrowException, TypeError, ValueError):
                return binary_array(values)
        if isinstance(values, list | tuple):
            return array_of_objects(values, target)
        if not _of_pandas(values):
            return pa.array(values)
        if values.dtype == object:
            return array_of_objects(values.where(values.notna(), None).tolist(), target, nan_is_null=True)
        return pa.array(_dense(values))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
        reason = str(e).splitlines()[0]
        kind = getattr(values, "dtype", "object")
        actual = "" if kind == "object" else f" is {kind}"
        expected = f", the topic has {target}" if target is not None else ""
        raise SchemaMismatchError(
            f"data do not fit topic {topic!r}: column {name!r}{actual}{expected} ({reason})"
        ) from e


def _dense(values: Any) -> Any:
    """Return a pandas column; a sparse one is converted, because Arrow cannot take it."""
    import pandas as pd

    return pd.Series(values).astype(values.dtype.subtype) if isinstance(values.dtype, pd.SparseDtype) else values
