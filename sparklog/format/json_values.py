"""Values of Arrow columns in forms that msgspec writes as JSON, column by column. `json_rows` reads them back.

Each stored value has a form: a number that JSON lacks is its text in NOT_FINITE, a time of any year is text
(`time_texts`), and a map is an object whose keys are text, or JSON if they are no text.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa

from sparklog.format.json_exact import BINARY_MARK
from sparklog.format.time_texts import time_texts

BytesForm = Callable[[bytes], Any]
_NAMES_KEPT = 1_000
_NAME_WRONG = frozenset('"\\') | {chr(c) for c in range(32)} | {"\x7f"}
_UTC = ("UTC", "Etc/UTC", "+00:00", "Z")


def base64_text(value: bytes) -> str:
    """Return bytes as a text in base64."""
    return base64.b64encode(value).decode()


def row_objects(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Return an object for each row of the columns, which msgspec writes as a JSON object with these names. A msgspec
    struct takes half the time of a dict."""
    kind = _row_class(tuple(names)) if columns else None
    if kind is not None:
        return list(map(kind, *columns))
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


@lru_cache(maxsize=_NAMES_KEPT)
def _row_class(names: tuple[str, ...]) -> type | None:
    """Return a class whose fields are renamed to `names`; None if msgspec refuses a name."""
    if any(_NAME_WRONG & set(name) for name in names):
        return None
    fields = [f"f{i}" for i in range(len(names))]
    return msgspec.defstruct("RowObject", fields, rename=dict(zip(fields, names, strict=True)), gc=False)


def json_values(column: Any, bytes_form: BytesForm) -> list[Any]:
    """Return a column's values for msgspec."""
    t = column.type
    if pa.types.is_floating(t):
        return [_number(v) for v in column.to_pylist()] if _has_not_finite(column) else list(column.to_pylist())
    if pa.types.is_date(t) or (pa.types.is_timestamp(t) and (t.tz is None or t.tz in _UTC)):
        return list(time_texts(column).to_pylist())
    if pa.types.is_binary(t):
        return [None if v is None else bytes_form(v) for v in column.to_pylist()]
    if not pa.types.is_nested(t):
        return list(column.to_pylist())
    if pa.types.is_struct(t):
        return _structs(column, bytes_form)
    offsets = column.offsets.to_pylist()
    first, count = offsets[0], offsets[-1] - offsets[0]
    if pa.types.is_map(t):
        keys = map(map_key, _keys(column.keys.slice(first, count), bytes_form))
        entries = list(zip(keys, json_values(column.items.slice(first, count), bytes_form), strict=True))
        rows: list[Any] = [dict(entries[a - first : b - first]) for a, b in pairwise(offsets)]
    else:
        elements = json_values(column.values.slice(first, count), bytes_form)
        rows = [elements[a - first : b - first] for a, b in pairwise(offsets)]
    return _with_nulls(rows, column)


def _keys(column: Any, bytes_form: BytesForm) -> list[Any]:
    """Return the keys of maps for `map_key`. Bytes whose text looks like an object are an object with their base64."""
    values = json_values(column, bytes_form)
    if not pa.types.is_binary(column.type):
        return values
    return [marked_key(value) for value in values]


def marked_key(value: Any) -> Any:
    """Return the form of a binary key, such that no key's text is taken for the form of bytes."""
    return {BINARY_MARK: base64_text(value.encode())} if isinstance(value, str) and value.startswith("{") else value


def _structs(column: Any, bytes_form: BytesForm) -> list[Any]:
    names = [f.name for f in column.type]
    if not names:
        return _with_nulls([{} for _ in range(len(column))], column)
    children = [json_values(child, bytes_form) for child in column.flatten()]
    return _with_nulls([dict(zip(names, row, strict=True)) for row in zip(*children, strict=True)], column)


def _with_nulls(rows: list[Any], column: Any) -> list[Any]:
    if not column.null_count:
        return rows
    return [row if is_valid else None for row, is_valid in zip(rows, column.is_valid().to_pylist(), strict=True)]


def _has_not_finite(column: Any) -> bool:
    import pyarrow.compute as pc  # late: 10 MB that an idle broker does without

    return pc.all(pc.is_finite(column)).as_py() is False


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else not_finite_text(value)


def not_finite_text(value: float) -> str:
    """Return the text in NOT_FINITE of a number that is not finite."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def map_key(key: Any) -> str:
    """Return the text of a map's key, which is in its form for msgspec."""
    return key if isinstance(key, str) else msgspec.json.encode(key).decode().strip('"')
