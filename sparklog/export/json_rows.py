"""Reads JSON lines with types that PyArrow's JSON reader does not know: maps, durations, bytes, and dates and times
inside other types.

It makes a Python object for each value, and is slower than PyArrow's reader. Therefore it is used only for schemas that
need it. It reads the output of `sparklog consume` (`sparklog.export.printable`).
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from sparklog.client.producer.python_values import array_of_objects
from sparklog.export.printable import BINARY_MARK, NOT_FINITE
from sparklog.format.schema import fit_column

_BELOW_MICROSECONDS = re.compile(r"[.,]\d{6}\d*[1-9]")
_DECODER = msgspec.json.Decoder(float_hook=decimal.Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_VALUE_CHARS_MAX = 60
_UNFIT = (pa.ArrowException, OverflowError, TypeError, ValueError)


class JsonValueError(ValueError):
    """A line of JSON is not a row of the schema."""


def needs_rows(t: Any, *, nested: bool = False) -> bool:
    """True if PyArrow's JSON reader cannot read a column of this type."""
    if pa.types.is_map(t) or pa.types.is_duration(t) or pa.types.is_binary(t):
        return True
    if pa.types.is_list(t):
        return needs_rows(t.value_type, nested=True)
    if pa.types.is_struct(t):
        return any(needs_rows(f.type, nested=True) for f in t)
    return nested and pa.types.is_temporal(t)


def read_rows(block: bytes, schema: pa.Schema) -> pa.Table:
    """Return the rows of a block of whole lines, with exactly the columns of `schema`; columns that a line lacks are
    null.

    Raises JsonValueError for a line that is not an object, an unknown column, or a value that does not fit its column.
    """
    rows: list[dict[str, Any]] = []
    for line in block.split(b"\n"):
        if not line.strip():
            continue
        try:
            row = _DECODER.decode(line)
        except (ValueError, RecursionError) as e:
            raise JsonValueError(str(e)) from e
        if not isinstance(row, dict):
            raise JsonValueError("a line is one object: {…}")
        unknown = row.keys() - set(schema.names)
        if unknown:
            raise JsonValueError(f"no column {', '.join(sorted(unknown))} (columns: {', '.join(schema.names)})")
        rows.append(row)
    return pa.table([_column([row.get(field.name) for row in rows], field) for field in schema], schema=schema)


def read_texts(texts: list[str | None], field: pa.Field) -> Any:
    """Return a column of CSV: intervals in ISO 8601; lists, structs and maps as JSON. Raises JsonValueError."""
    if pa.types.is_duration(field.type):
        return _column(texts, field)
    try:
        return _column([None if text is None else _DECODER.decode(text) for text in texts], field)
    except msgspec.DecodeError as e:
        raise JsonValueError(f"column {field.name!r} is {field.type}, which is JSON in CSV: {e}") from e


def _column(given: Sequence[Any], field: pa.Field) -> Any:
    values = []
    for value in given:
        try:
            values.append(_value(value, field.type))
        except (ValueError, TypeError, ArithmeticError, AttributeError, KeyError) as e:
            raise _unfit(value, field) from e
    try:
        return _fit(values, field.type)
    except _UNFIT as e:
        raise _first_unfit(values, field) from e


def _fit(values: list[Any], t: Any) -> Any:
    """Return `values` as an array of `t`, by the rules of `send_batch`. `pa.array` with a type would cut 1.5 to 1."""
    return fit_column(array_of_objects(values, t), t, rounded=True)


def _first_unfit(values: list[Any], field: pa.Field) -> JsonValueError:
    """Return the error for the first value that does not fit. Arrow's own error does not name the value."""
    for value in values:
        try:
            _fit([value], field.type)
        except OverflowError:
            return _unfit(value, field)
        except _UNFIT as e:
            return JsonValueError(f"column {field.name!r} is {field.type}: {str(e).splitlines()[0]}")
    return JsonValueError(f"column {field.name!r} is {field.type}: the values do not fit together")


def _unfit(value: Any, field: pa.Field) -> JsonValueError:
    shown = _ENCODER.encode(value).decode()
    shown = shown if len(shown) <= _VALUE_CHARS_MAX else shown[: _VALUE_CHARS_MAX - 1] + "…"
    return JsonValueError(f"column {field.name!r} is {field.type}: {shown} does not fit{form_hint(field.type)}")


def form_hint(t: Any) -> str:
    """Return the form of a time, a date or an interval in text, in parentheses after a blank; "" for other types."""
    if pa.types.is_timestamp(t):
        return f" (write times as 2024-03-01T12:30:00.123456{'Z' if t.tz else ''}, at most in microseconds)"
    if pa.types.is_duration(t):
        return " (write intervals as P1DT2H3M4.123456S, in days to seconds, at most in microseconds)"
    return " (write dates as 2024-03-01)" if pa.types.is_date(t) else ""


def _value(value: Any, t: Any) -> Any:
    """Return a decoded JSON value in the form that `pa.array` accepts for `t`."""
    if value is None:
        return None
    if pa.types.is_floating(t) and isinstance(value, str):
        return NOT_FINITE.get(value, value)
    if pa.types.is_map(t):
        return [(_value(_key(k, t.key_type), t.key_type), _value(v, t.item_type)) for k, v in value.items()]
    if pa.types.is_list(t):
        return [_value(v, t.value_type) for v in _as(list, value)]
    if pa.types.is_struct(t):
        if value.keys() - {f.name for f in t}:
            raise KeyError("unknown field")
        return {f.name: _value(value.get(f.name), f.type) for f in t}
    if pa.types.is_binary(t):
        return _bytes(value)
    if pa.types.is_duration(t):
        if _BELOW_MICROSECONDS.search(value):
            raise ValueError("more digits than microseconds have")
        return msgspec.convert(value, dt.timedelta)
    if pa.types.is_date(t):
        return dt.date.fromisoformat(value)
    if pa.types.is_timestamp(t):
        at = dt.datetime.fromisoformat(value)
        if _BELOW_MICROSECONDS.search(value) or (at.tzinfo is not None and not t.tz):
            raise ValueError("more digits than microseconds have, or a zone where the column has none")
        return at.replace(tzinfo=dt.UTC) if t.tz and at.tzinfo is None else at
    if pa.types.is_decimal(t):
        return decimal.Decimal(str(value))
    return _float(value) if isinstance(value, decimal.Decimal) else value


def _key(text: str, t: Any) -> Any:
    """Return the key of a map, which is text in JSON, as a value of JSON."""
    is_number = pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_boolean(t)
    return _DECODER.decode(text) if is_number and text not in NOT_FINITE else text


def _float(value: decimal.Decimal) -> float:
    number = float(value)
    if math.isinf(number):
        raise ValueError("beyond the range of double")
    return number


def _as(wanted: type[list[Any]], value: Any) -> list[Any]:
    if not isinstance(value, wanted):
        raise TypeError(f"{wanted.__name__} is needed")
    return value


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    try:
        return base64.b64decode(value[BINARY_MARK], validate=True)
    except binascii.Error as e:
        raise ValueError("not base64") from e
