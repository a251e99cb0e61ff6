"""The one converter of Python's data to rows: tables, frames, dicts of columns and lists of dicts become rows in the
columns of their topic, with the partition of each row.

| data | function | values |
|---|---|---|
| Arrow: tables, batches, objects with `__arrow_c_stream__` | `_import_table` | as they are |
| pandas | `_from_pandas` | NaN, NaT and NA are null |
| dict of columns | `_from_columns` | lists of objects, arrays of any library |
| list of dicts | `_from_rows` | objects |

Objects become arrays of their own types (`python_values.py` has the rules). `fit_table` of `format/schema.py` then
takes every array to the topic's types, without loss: the same rules hold for JSON, CSV and Kafka's clients.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.client.net.arguments import text
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.partitioner import partitions_for_keys
from sparklog.client.producer.python_values import array_of_objects, binary_array
from sparklog.client.producer.row_keys import partitions_of_rows
from sparklog.errors import InvalidPartitionsError, SchemaMismatchError, SparklogError
from sparklog.format.column_names import shown_names
from sparklog.format.envelope_layout import no_keys_and_headers
from sparklog.format.schema import (
    ENVELOPE_SCHEMA,
    HEADER_TYPE,
    TIMESTAMP_TYPE,
    fit_column,
    fit_table,
)

Headers = Sequence[tuple[str, bytes | None]]
_TIMESTAMP = ENVELOPE_SCHEMA.get_field_index("timestamp")
_ENVELOPE_INPUT = ENVELOPE_SCHEMA.append(pa.field("partition", pa.int32()))
_ARROW_PROTOCOLS = ("__arrow_c_stream__", "__arrow_c_array__", "__arrow_array__")
_ARROW_TABLES = ("__arrow_c_stream__", "__arrow_c_array__")
_TAKEN = (
    "send_batch takes tables (PyArrow, pandas, polars, anything with __arrow_c_stream__), a dict of columns or a list "
    "of dicts"
)


class Rows(NamedTuple):
    """Rows in the topic's layout, with their partitions."""

    table: pa.Table
    partition: int | np.ndarray | None
    """Partition of all rows, or an array with the partition of each row (-1: sticky). None: all rows are sticky."""
    is_copy: bool = False
    """True if the rows are a copy of Python objects, False if they can be memory of another library."""


def envelope_batch(
    values: list[bytes | None],
    keys: list[bytes | None] | None,
    headers: list[Headers | None] | None,
    timestamps_us: np.ndarray,
) -> pa.RecordBatch:
    """Return rows of an envelope topic from Python lists. `keys` or `headers` is None if no record has any."""
    n = len(values)
    # from a buffer: pa.array of a NumPy array imports pandas
    stamps = pa.Array.from_buffers(TIMESTAMP_TYPE, n, [None, pa.py_buffer(timestamps_us)])
    no_keys, no_headers = no_keys_and_headers(n)
    return pa.RecordBatch.from_arrays(
        [
            binary_array(keys) if keys is not None else no_keys,
            binary_array(values),
            _headers_array(headers) if headers is not None else no_headers,
            stamps,
        ],
        schema=ENVELOPE_SCHEMA,
    )


def _headers_array(headers: list[Headers | None]) -> Any:
    flat = [h for row in headers if row for h in row]
    entries = pa.StructArray.from_arrays(
        [pa.array([h[0] for h in flat], pa.string()), pa.array([h[1] for h in flat], pa.binary())],
        fields=list(HEADER_TYPE.value_type),
    )
    n = len(headers)
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum([len(row) if row else 0 for row in headers], out=offsets[1:])
    bitmap = np.packbits(np.diff(offsets) > 0, bitorder="little")
    return pa.Array.from_buffers(HEADER_TYPE, n, [pa.py_buffer(bitmap), pa.py_buffer(offsets)], children=[entries])


def rows_of(
    data: Any,
    topic: TopicInfo,
    partition: int | None,
    changed: Callable[[SparklogError], TopicInfo] | None = None,
) -> Rows:
    """Fit `data` to the topic and choose partitions.

    Envelope topics take the columns value, key, headers, timestamp (missing or null: now) and partition. `changed`:
    function that returns the newer state of the topic after a refusal, or raises the refusal. Raises
    SchemaMismatchError, InvalidPartitionsError, TypeError.
    """
    data = _reusable(data)
    try:
        rows = _rows_of(data, topic, partition)
    except (SchemaMismatchError, InvalidPartitionsError) as e:
        if changed is None:
            raise
        # the topic may have got a column, a wider one, or a partition since its metadata were read
        rows = _rows_of(data, changed(e), partition)
    return rows._replace(is_copy=_holds_objects(data))


def _rows_of(data: Any, topic: TopicInfo, partition: int | None) -> Rows:
    if partition is not None:
        partition = topic.check_partition(partition)
    if topic.is_envelope:
        return _envelope_rows(data, topic, partition)
    table = to_table(data, topic.schema, topic.name)
    table = fit_table(table, topic.schema, topic.name, _object_columns(data, topic.schema), nulls_fit=True)
    keys = [table.column(c) for c in topic.key_columns]
    require_keys(keys, topic)
    if partition is not None or not keys or table.num_rows == 0:
        return Rows(table, partition)
    return Rows(table, partitions_of_rows(keys, topic))


def require_keys(columns: Sequence[Any], topic: TopicInfo) -> None:
    """Raise SchemaMismatchError if the topic is compacted and a row is null in all key columns."""
    if not topic.is_compacted or not columns or not all(c.null_count for c in columns):
        return
    missing = np.ones(len(columns[0]), bool)
    for column in columns:
        missing &= np.asarray(column.is_null().to_numpy())
    if missing.any():
        raise without_key(topic.name, int(np.flatnonzero(missing)[0]))


def without_key(topic: str, row: int) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"data do not fit topic {topic!r}: it is compacted, only the last record of each key stays, but row {row} "
        "has no key: add a key"
    )


def _envelope_rows(data: Any, topic: TopicInfo, partition: int | None) -> Rows:
    table = to_table(data, _ENVELOPE_INPUT, topic.name)
    if not topic.is_compacted and _has_values_alone(table):
        return Rows(_values_alone(table.column("value")), partition)
    if "value" not in table.column_names:
        raise SchemaMismatchError(
            f"data do not fit topic {topic.name!r}: an envelope topic needs a column 'value' (and takes key, headers, "
            f"timestamp, partition); found {shown_names(table.column_names) or 'none'}"
        )
    explicit = None
    if "partition" in table.column_names:
        explicit = _partition_numbers(table.column("partition"), topic)
        table = table.drop_columns(["partition"])
    table = _with_timestamps(fit_table(table, ENVELOPE_SCHEMA, topic.name, nulls_fit=True))
    require_keys([table.column("key")], topic)
    if partition is not None or table.num_rows == 0:
        return Rows(table, partition)
    keys = table.column("key")
    keyed = keys.null_count < len(keys)
    if explicit is None and not keyed:
        return Rows(table, None)
    chosen = partitions_for_keys(keys, topic.partitions) if keyed else np.full(table.num_rows, -1, np.int32)
    if explicit is not None:
        chosen = np.where(explicit >= 0, explicit, chosen)
    return Rows(table, chosen)


def _has_values_alone(table: pa.Table) -> bool:
    names = sorted(table.column_names)
    if names == ["key", "value"]:  # as rows copied from a topic without keys have them
        key = table.column("key")
        if key.null_count < len(key):
            return False
    elif names != ["value"]:
        return False
    return bool(table.column("value").type == pa.binary())


def _values_alone(values: Any) -> pa.Table:
    """Return rows without keys and headers from a column of values. Such rows are the most frequent, so the steps for
    other columns are skipped."""
    n = len(values)
    stamps = pa.py_buffer(np.full(n, time.time_ns() // 1000, np.int64))
    no_keys, no_headers = no_keys_and_headers(n)
    return pa.Table.from_arrays(
        [
            no_keys,
            values,
            no_headers,
            pa.Array.from_buffers(TIMESTAMP_TYPE, n, [None, stamps]),
        ],
        schema=ENVELOPE_SCHEMA,
    )


def _partition_numbers(column: Any, topic: TopicInfo) -> np.ndarray:
    try:
        column = fit_column(column, pa.int32())
    except (pa.ArrowException, OverflowError) as e:
        raise SchemaMismatchError(f"data for topic {topic.name!r}: column 'partition' is {column.type}, not int") from e
    numbers = np.asarray(column.fill_null(-1).to_numpy(), np.int32)
    nulls = np.asarray(column.is_null().to_numpy())
    wrong = np.flatnonzero(((numbers < 0) & ~nulls) | (numbers >= topic.partitions))
    if len(wrong):
        raise InvalidPartitionsError(
            f"topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, row {wrong[0]} names {numbers[wrong[0]]}"
        )
    return numbers


def _with_timestamps(table: pa.Table) -> pa.Table:
    column = table.column("timestamp")
    if not column.null_count:
        return table
    now = pa.scalar(time.time_ns() // 1000, pa.int64()).cast(TIMESTAMP_TYPE)
    return table.set_column(_TIMESTAMP, ENVELOPE_SCHEMA.field(_TIMESTAMP), column.fill_null(now))


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


def _object_columns(data: Any, schema: pa.Schema) -> Collection[str]:
    """Return the columns of `data` that are lists of Python objects. Their numbers are rounded to the topic's float
    type."""
    if isinstance(data, Mapping):
        return [name for name, values in data.items() if _is_objects(values)]
    return schema.names if isinstance(data, Sequence) else ()


def _is_objects(values: Any) -> bool:
    """True for a sequence of Python objects, and for a NumPy array of them."""
    if isinstance(values, np.ndarray):
        return bool(values.ndim == 1 and values.dtype == object)
    return isinstance(values, Sequence) and not isinstance(values, array | str | bytes | bytearray | memoryview)


def _reusable(data: Any) -> Any:
    """Return `data`, or the table made of it if it is a stream that can be read only once."""
    if _is_pandas(data) or isinstance(data, pa.Table) or not hasattr(data, "__arrow_c_stream__"):
        return data
    return _import_table(data)


def _holds_objects(data: Any) -> bool:
    """True if the Arrow form of `data` is a copy of Python objects, not memory of another library."""
    if isinstance(data, Mapping):
        return all(isinstance(values, list | tuple) for values in data.values())
    return isinstance(data, list | tuple)


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
    """Return `values` as an array of their own type, so that `fit_table` can refuse lossy casts."""
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
