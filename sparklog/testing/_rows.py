"""Rows of tables and DataFrames as dicts, and values that can be compared.

| value | compared as |
|---|---|
| NaN | equal to NaN |
| list, tuple, NumPy array | equal if the elements are equal |
| map of Arrow or Spark | a dict |
| missing value of pandas (NaN, NaT, NA) | None |
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import pyarrow as pa

ROWS_ALLOWED = "a list of dicts, an Arrow table, or a DataFrame of pandas, polars or Spark is needed"
SHOWN_MAX, SHOWN_BEFORE = 300, 40
"""Largest number of characters of a value in a message, and of those before the first difference of long values."""
Row = Mapping[str, Any]


class _NaN:
    """The value that stands for each NaN, which is not equal to itself."""

    def __repr__(self) -> str:
        return "nan"


_NAN = _NaN()
_PLAIN = frozenset({int, str, bool, bytes, type(None)})
"""Types of values that are compared as they are."""


def rows_of(data: Any) -> list[dict[str, Any]]:
    """Return the rows of a table, a DataFrame or an iterable of dicts. Raises TypeError."""
    if hasattr(data, "toArrow"):  # Spark
        data = data.toArrow()
    if isinstance(data, pa.RecordBatchReader):
        data = data.read_all()
    if isinstance(data, pa.Table | pa.RecordBatch):
        return rows_of_arrow(data)
    if hasattr(data, "to_dicts"):  # polars
        data = data.to_dicts()
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas
        data = _rows_of_pandas(data)
    if isinstance(data, Mapping | str | bytes) or not isinstance(data, Iterable):
        raise TypeError(f"{data!r} are no rows: {ROWS_ALLOWED}")
    return [_row(row) for row in data]


def rows_of_arrow(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of an Arrow table, with maps as dicts."""
    _check_columns(table.schema.names)
    rows: list[dict[str, Any]] = table.to_pylist()
    for field in table.schema:
        convert = _map_converter(field.type)
        if convert is not None:
            for row in rows:
                row[field.name] = convert(row[field.name])
    return rows


def comparable(value: Any) -> Hashable:
    """Return a hashable value that is equal for equal values; see the table of this module."""
    if type(value) in _PLAIN:
        return value  # type: ignore[no-any-return]
    if isinstance(value, Mapping):
        return frozenset((comparable(key), comparable(item)) for key, item in value.items())
    if hasattr(value, "tolist") and hasattr(value, "ndim"):  # NumPy
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(comparable, value))
    if _is_nan(value):
        return _NAN
    return value if isinstance(value, Hashable) else repr(value)


def column(row: Row, name: str) -> Any:
    """Return the value of a column, or of a field of a struct, as `who.id`. Raises AssertionError."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise AssertionError(f"no column {name!r} in the row {shown(dict(row))}: it has {', '.join(map(str, row))}")
        value = value[part]
    return value


def shown(value: Any) -> str:
    """Return a value as messages show it, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text)} characters)"


def shown_pair(one: Any, other: Any) -> tuple[str, str]:
    """Return two different values as messages show them. Long ones begin near the first difference."""
    texts = [repr(one), repr(other)]
    if max(map(len, texts)) <= SHOWN_MAX:
        return texts[0], texts[1]
    same = next((place for place, pair in enumerate(zip(*texts, strict=False)) if len(set(pair)) > 1), 0)
    start = max(0, same - SHOWN_BEFORE)
    parts = [f"{'…' if start else ''}{text[start : start + SHOWN_MAX]}" for text in texts]
    ends = ["…" if len(text) > start + SHOWN_MAX else "" for text in texts]
    return f"{parts[0]}{ends[0]}", f"{parts[1]}{ends[1]}"


def _row(row: Any) -> dict[str, Any]:
    """Return a row as a dict. Raises TypeError."""
    if hasattr(row, "asDict"):  # Spark
        return dict(row.asDict(recursive=True))
    if not isinstance(row, Mapping):
        raise TypeError(f"{row!r} is no row: {ROWS_ALLOWED}")
    return dict(row)


def _rows_of_pandas(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a pandas DataFrame, with None for its missing values."""
    _check_columns(list(frame.columns))
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict(orient="records")
    return rows


def _check_columns(names: list[str]) -> None:
    """Raise TypeError if two columns have one name: a dict would have one of them only."""
    repeated = sorted({str(name) for name in names if names.count(name) > 1})
    if repeated:
        raise TypeError(f"two columns have the name {', '.join(repeated)}: give each column a name of its own")


def _map_converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that changes the maps in a value from pairs to dicts; None if the type has no map."""
    if pa.types.is_map(kind):
        item = _map_converter(kind.item_type) or _unchanged
        return lambda pairs: pairs if pairs is None else _as_dict([(key, item(value)) for key, value in pairs])
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        element = _map_converter(kind.value_type)
        return None if element is None else lambda values: values and [element(value) for value in values]
    if pa.types.is_struct(kind):
        converters = {field.name: _map_converter(field.type) for field in kind}
        fields = {name: convert for name, convert in converters.items() if convert is not None}
        if fields:
            return lambda row: row and row | {name: convert(row[name]) for name, convert in fields.items()}
    return None


def _as_dict(pairs: list[tuple[Any, Any]]) -> Any:
    """Return the pairs of a map as a dict, or unchanged if keys are repeated or cannot be keys of a dict."""
    if not all(isinstance(key, Hashable) for key, _ in pairs):
        return pairs
    as_dict = dict(pairs)
    return as_dict if len(as_dict) == len(pairs) else pairs


def _unchanged(value: Any) -> Any:
    return value


def _is_nan(value: Any) -> bool:
    try:
        return bool(value != value)
    except (TypeError, ValueError, ArithmeticError):
        return False
