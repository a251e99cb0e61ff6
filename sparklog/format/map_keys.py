"""The keys of maps: each key of a map is there once.

Arrow allows a map with one key twice. Spark, DuckDB, Python and JSON do not: they fail, or take one of the values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.format.plain_layout import plain_layout


def holds_map(t: Any) -> bool:
    """Return True for a map, and for a type that has one inside."""
    if pa.types.is_map(t):
        return True
    return pa.types.is_nested(t) and any(holds_map(t.field(i).type) for i in range(t.num_fields))


def require_distinct_keys(column: Any) -> None:
    """Raise pa.ArrowInvalid if a map in `column`, at any depth, has a key twice. The message shows the first such
    key. Values that no row has, outside of a slice or under a null, do not count."""
    if not holds_map(column.type):
        return
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        _require_distinct(plain_layout(chunk))


def _require_distinct(array: Any) -> None:
    """Check an array in plain layout."""
    t = array.type
    if not holds_map(t):
        return
    if pa.types.is_struct(t):
        for child in array.flatten():
            _require_distinct(child)
    elif pa.types.is_map(t):
        _require_distinct_rows(array)
        _require_distinct(array.keys)
        _require_distinct(array.items)
    else:
        _require_distinct(array.flatten())


def _require_distinct_rows(maps: Any) -> None:
    sizes = np.diff(maps.offsets.to_numpy())
    if not len(sizes) or sizes.max() < 2:
        return
    rows = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    codes, count = _codes(maps.keys)
    entries = rows * count + codes
    if (np.diff(np.sort(entries)) == 0).any():
        order = np.argsort(entries, kind="stable")
        place = int(order[np.flatnonzero(np.diff(entries[order]) == 0) + 1].min())
        raise pa.ArrowInvalid(f"the map of row {rows[place]} has the key {str(maps.keys[place])[:80]!r} twice")


def _codes(keys: Any) -> tuple[np.ndarray, int]:
    """Return a number for each key, which equal keys share, and a bound of these numbers."""
    if pa.types.is_nested(keys.type):  # rare, and Arrow cannot compare them
        seen: dict[str, int] = {}
        return np.array([seen.setdefault(str(key), len(seen)) for key in keys], np.int64), max(len(seen), 1)
    if pa.types.is_floating(keys.type):  # 0.0 and -0.0 are one key, as are all NaN
        numbers = keys.to_numpy(zero_copy_only=False) + 0.0
        distinct, codes = np.unique(numbers, return_inverse=True)
        return codes.astype(np.int64), max(len(distinct), 1)
    encoded = keys.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)
