"""Converts Arrow values to forms for JSON and for people."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from sparklog.format.json_exact import BINARY_MARK
from sparklog.format.json_values import json_values, map_key, marked_key, not_finite_text
from sparklog.format.schema import NO_PYTHON_OBJECT

if TYPE_CHECKING:
    from sparklog.client.reading.consumed import ConsumedBatch

_CELL_CHARS_MAX = 120


def with_metadata(batch: ConsumedBatch) -> pa.Table:
    """Return the batch's columns behind `_topic`, `_partition`, `_offset` and `_timestamp`, as the Spark source names
    these columns."""
    rows = batch.data.num_rows
    timestamps_us = np.asarray(batch.timestamps_ms(), np.int64) * 1000
    columns = {
        "_topic": pa.repeat(pa.scalar(batch.topic), rows),
        "_partition": pa.repeat(pa.scalar(batch.partition, pa.int32()), rows),
        "_offset": pa.array(np.asarray(batch.offsets(), np.int64)),
        "_timestamp": pa.array(timestamps_us, pa.timestamp("us", tz="UTC")),
    }
    columns |= dict(zip(batch.data.schema.names, batch.data.columns, strict=True))
    return pa.table(columns)


def printable(column: Any) -> list[Any]:
    """Return a column's values in forms that msgspec can write as JSON (`format.json_values`). Bytes are text, or
    `{"base64": …}` if they are not UTF-8. A value of SQL for which neither Python nor JSON has a form is the stored
    number."""
    t = column.type
    if pa.types.is_binary(t):
        try:
            return list(column.cast(pa.string()).to_pylist())
        except pa.ArrowInvalid:
            return json_values(column, text_or_base64)
    if not _is_of_sql(t):
        return json_values(column, text_or_base64)
    if _has_union(t):  # each row has a type of its own, which only its scalar knows
        values = [_object(scalar) for scalar in column]
    else:
        try:
            values = column.to_pylist()
        except NO_PYTHON_OBJECT:
            values = [_object(scalar) for scalar in column]
    if pa.types.is_nested(t) or pa.types.is_interval(t):
        return [_plain(v, t) for v in values]
    return list(values)


def _is_of_sql(t: Any) -> bool:
    """True for a type that no topic has, at any depth: only results of SQL have it."""
    if pa.types.is_nested(t) and not pa.types.is_union(t):
        return any(_is_of_sql(t.field(i).type) for i in range(t.num_fields))
    return not (
        *(pa.types.is_integer(t), pa.types.is_floating(t), pa.types.is_boolean(t), pa.types.is_string(t)),
        *(pa.types.is_binary(t), pa.types.is_date(t), pa.types.is_decimal(t)),
        t == pa.duration("us") or (pa.types.is_timestamp(t) and t.tz in (None, "UTC")),
    ).count(True)


def _has_union(t: Any) -> bool:
    return pa.types.is_union(t) or any(_has_union(t.field(i).type) for i in range(t.num_fields))


def _object(scalar: Any) -> Any:
    """Return the value of `as_py`; where Python has no object for a value, its stored number. The value of a union is
    already in its form for JSON."""
    t = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(t):
        return {f.name: _object(scalar[i]) for i, f in enumerate(t)}
    if pa.types.is_map(t):
        return [(_object(entry[0]), _object(entry[1])) for entry in scalar.values]
    if pa.types.is_list(t):
        return [_object(v) for v in scalar.values]
    if pa.types.is_union(t):
        return _plain(_object(scalar.value), scalar.value.type)
    if pa.types.is_timestamp(t) and t.unit == "ns":
        scalar = scalar.cast(pa.timestamp("us", tz=t.tz), safe=False)  # Python's datetime has no ns
    try:
        return scalar.as_py()
    except NO_PYTHON_OBJECT:
        return scalar.value


def text_or_base64(value: bytes | None) -> Any:
    """Return bytes as text, or as `{"base64": …}` if they are not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {BINARY_MARK: base64.b64encode(value).decode()}


def _plain(value: Any, t: Any) -> Any:
    """Return `value`, of Arrow type `t`, in a form for JSON: bytes, intervals, maps and numbers that are not finite are
    replaced, at any depth."""
    if value is None:
        return None
    if pa.types.is_floating(t):
        return value if math.isfinite(value) else not_finite_text(value)
    if pa.types.is_binary(t):
        return text_or_base64(value)
    if pa.types.is_interval(t):
        return _interval(value)
    if pa.types.is_list(t):
        return [_plain(v, t.value_type) for v in value]
    if pa.types.is_struct(t):
        return {f.name: _plain(value[f.name], f.type) for f in t}
    if pa.types.is_map(t):
        keys = [_plain(k, t.key_type) for k, _ in value]
        keys = list(map(marked_key, keys)) if pa.types.is_binary(t.key_type) else keys
        return {map_key(k): _plain(v, t.item_type) for k, (_, v) in zip(keys, value, strict=True)}
    return value


def _interval(value: Any) -> str:
    """Return SQL's INTERVAL in ISO 8601. Without months it is written as a duration; with months, or too long for a
    duration, as months, days and seconds with a sign each."""
    try:
        rest = dt.timedelta(days=value.days, microseconds=value.nanoseconds // 1000)
    except OverflowError:
        rest = None
    if rest is not None and not value.months:
        return str(msgspec.to_builtins(rest))
    seconds = decimal.Decimal(value.nanoseconds) / 10**9
    time = f"T{seconds.normalize():f}S" if seconds else ""
    return f"P{value.months}M{value.days}D{time}" if value.months else f"P{value.days}D{time}"


def cells(column: Any) -> list[str]:
    """Return a column's values as texts for a table."""
    return [_cell(v) for v in (column.to_pylist() if pa.types.is_floating(column.type) else printable(column))]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return str(value)  # also nan, inf and -inf, as in CSV
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode().strip('"')
    return text if len(text) <= _CELL_CHARS_MAX else text[: _CELL_CHARS_MAX - 1] + "…"
