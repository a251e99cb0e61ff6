"""Content of an Arrow array as plain values, without a conversion that could fail or hide something: fixed-width values
are their bytes, texts too, lists are lists, structs tuples, maps lists of pairs."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa


def values(array: pa.Array) -> list[Any]:
    """One plain value per row."""
    t = array.type
    n = len(array)
    if not n:
        return []
    found: list[Any]
    if pa.types.is_struct(t):
        children = [values(array.field(i)) for i in range(t.num_fields)]
        found = list(zip(*children, strict=True)) if children else [()] * n
    elif pa.types.is_map(t):
        entries = list(zip(values(array.keys), values(array.items), strict=True))
        found = _cut(entries, array.offsets.to_pylist())
    elif pa.types.is_list(t):
        found = _cut(values(array.values), array.offsets.to_pylist())
    elif pa.types.is_boolean(t):
        return list(array.to_pylist())
    elif pa.types.is_string(t) or pa.types.is_binary(t):
        return list(array.cast(pa.binary()).to_pylist())
    else:
        raw = pa.binary(t.bit_width // 8)
        return list(pa.Array.from_buffers(raw, n, array.buffers(), array.null_count, array.offset).to_pylist())
    if not array.null_count:
        return found
    return [v if ok else None for v, ok in zip(found, array.is_valid().to_pylist(), strict=True)]


def _cut(entries: list[Any], offsets: list[int]) -> list[Any]:
    return [entries[a:b] for a, b in itertools.pairwise(offsets)]


def columns_of(rows: pa.RecordBatch | pa.Table) -> list[list[Any]]:
    """The values of every column."""
    if isinstance(rows, pa.Table):
        return [[v for chunk in column.chunks for v in values(chunk)] for column in rows.columns]
    return [values(column) for column in rows.columns]
