"""The keys of maps: each key of a map is there once.

Arrow allows a map with one key twice. Spark, DuckDB, Python and JSON do not: they fail, or take one of the values.
"""

from __future__ import annotations

from itertools import pairwise
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
        raise pa.ArrowInvalid(f"the map of row {rows[place]} has the key {_shown(maps.keys[place])!r} twice")


def _shown(key: Any) -> str:
    """Return a key for an error message; its type if Python has no object for the key, such as a far date."""
    try:
        return str(key)[:80]
    except (ArithmeticError, LookupError, ValueError):
        return str(key.type)[:80]


def _codes(keys: Any) -> tuple[np.ndarray, int]:
    """Return a number for each key, which equal keys share, and a bound of these numbers. Nulls, which only the parts
    of nested keys have, are equal to each other."""
    t = keys.type
    if pa.types.is_struct(t):
        codes, count = _combined([_codes(child)[0] for child in keys.flatten()], len(keys))
    elif pa.types.is_nested(t):
        codes, count = _codes_of_lists(keys)
    elif pa.types.is_floating(t):  # 0.0 and -0.0 are one key, as are all NaN
        numbers = keys.fill_null(0).to_numpy(zero_copy_only=False) + 0.0
        distinct, places = np.unique(numbers, return_inverse=True)
        codes, count = places.astype(np.int64), len(distinct)
    else:
        encoded = keys.dictionary_encode()
        codes, count = encoded.indices.fill_null(0).to_numpy().astype(np.int64), len(encoded.dictionary)
    if keys.null_count:
        codes = np.where(keys.is_null().to_numpy(zero_copy_only=False), count, codes)
    return codes, count + 1


def _combined(columns: list[np.ndarray], rows: int) -> tuple[np.ndarray, int]:
    """Return a number for each row of some columns, which equal rows share, and a bound of these numbers."""
    if not columns:
        return np.zeros(rows, np.int64), 1
    distinct, codes = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return codes.reshape(-1).astype(np.int64), len(distinct)


def _codes_of_lists(keys: Any) -> tuple[np.ndarray, int]:
    """Return the numbers of lists, and of maps as lists of their entries."""
    if pa.types.is_map(keys.type):
        offsets = keys.offsets.to_numpy()
        first, entries = offsets[0], slice(offsets[0], offsets[-1])
        parts, _ = _combined([_codes(keys.keys)[0][entries], _codes(keys.items)[0][entries]], offsets[-1] - first)
    else:
        import pyarrow.compute as pc  # late: 10 MB that an idle broker does without

        sizes = pc.fill_null(pc.list_value_length(keys), 0).to_numpy()
        offsets, first = np.append(0, np.cumsum(sizes)), 0
        parts, _ = _codes(keys.flatten())
    seen: dict[bytes, int] = {}
    texts = [parts[a - first : b - first].tobytes() for a, b in pairwise(offsets.tolist())]
    return np.array([seen.setdefault(text, len(seen)) for text in texts], np.int64), len(seen)
