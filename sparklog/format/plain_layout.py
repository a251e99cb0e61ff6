"""Rewriting of arrays in layouts that Arrow cannot cast to the stored layouts, as layouts that Arrow can cast.

Arrow 26 has no `take` for views and for run-end encoded arrays, and its cast of a list view to a list gives invalid
offsets. So dictionaries, run-end encoded arrays, list views and views are rewritten here, at any depth. Values that no
row has, outside of a slice or under a null, are left out or become null:

=====================================  ===============================
given                                  rewritten as
=====================================  ===============================
dictionary, run-end encoded            the values, one a row
string_view, binary_view               large_string, large_binary
list_view, large_list_view             large_list
list, large_list, fixed_size_list,     the same with rewritten children
struct, map
=====================================  ===============================
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def is_encoded(t: Any) -> bool:
    """Return True for a dictionary type and a run-end encoded type. The values of such a column have the type
    `t.value_type`."""
    return bool(pa.types.is_dictionary(t) or pa.types.is_run_end_encoded(t))


def is_list_view(t: Any) -> bool:
    """Return True for list views, with offsets of 32 or 64 bits."""
    return bool(pa.types.is_list_view(t) or pa.types.is_large_list_view(t))


def needs_rewriting(t: Any) -> bool:
    """Return True if a column of this type contains, at any depth, a layout that Arrow cannot cast: a dictionary, run
    ends or a list view. Views of text and bytes alone do not count, because Arrow can cast them."""
    if is_encoded(t) or is_list_view(t):
        return True
    return pa.types.is_nested(t) and any(needs_rewriting(t.field(i).type) for i in range(t.num_fields))


def plain_layout(array: Any) -> Any:
    """Return the same values in the layouts of the table above. Raises pa.ArrowInvalid if the values are more than one
    array can contain."""
    t = array.type
    if pa.types.is_string_view(t):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(t):
        return array.cast(pa.large_binary())
    if pa.types.is_dictionary(t):
        return plain_layout(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(t):
        return _run_end_decoded(array)
    if pa.types.is_map(t):
        return _plain_map(array)
    if pa.types.is_struct(t) and t.num_fields:
        names, mask = [f.name for f in t], _nulls(array)
        children = [array.field(i) for i in range(t.num_fields)]
        if mask is not None:  # the struct's nulls are nulls of the children, too; run ends cannot take them
            children = [_run_end_decoded(c) if pa.types.is_run_end_encoded(c.type) else c for c in children]
            children = pa.StructArray.from_arrays(children, names, mask=mask).flatten()
        return pa.StructArray.from_arrays([plain_layout(child) for child in children], names, mask=mask)
    if is_list_view(t):
        return _plain_list_view(array)
    if pa.types.is_fixed_size_list(t):
        return _plain_fixed_size_list(array)
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        return _plain_list(array)
    return array


def _run_end_decoded(array: Any) -> Any:
    first, count = array.find_physical_offset(), array.find_physical_length()
    ends = array.run_ends.to_numpy()[first : first + count].astype(np.int64) - array.offset
    lengths = np.diff(np.minimum(ends, len(array)), prepend=0)
    rows = np.repeat(np.arange(count), lengths)
    return plain_layout(array.values.slice(first, count)).take(pa.array(rows))


def _plain_list(array: Any) -> Any:
    offsets, (values,) = _plain_children(array, array.values)
    array_type = pa.LargeListArray if pa.types.is_large_list(array.type) else pa.ListArray
    return array_type.from_arrays(offsets, values, mask=_nulls(array))


def _plain_children(array: Any, *children: Any) -> tuple[Any, list[Any]]:
    """Return the offsets of a list or map whose null rows have no elements, and its children with these offsets."""
    ends = array.offsets.to_numpy()
    first, sizes = int(ends[0]), np.diff(ends)
    plain = [plain_layout(child.slice(first, int(ends[-1]) - first)) for child in children]
    if array.null_count:
        is_valid = array.is_valid().to_numpy(zero_copy_only=False)
        held = np.repeat(is_valid, sizes)
        if not held.all():
            plain, sizes = [child.filter(pa.array(held)) for child in plain], sizes * is_valid
    offsets = np.zeros(len(ends), ends.dtype)
    np.cumsum(sizes, out=offsets[1:])
    return pa.array(offsets), plain


def _plain_list_view(array: Any) -> Any:
    """Return a large_list. Elements that several list views share are stored once for each of these views, so the
    result can have more elements than the input."""
    sizes = array.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    starts = array.offsets.to_numpy().astype(np.int64)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    elements = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
    first = int(elements.min(initial=len(array.values)))
    count = int(elements.max(initial=first - 1)) + 1 - first
    values = plain_layout(array.values.slice(first, count)).take(pa.array(elements - first))
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=_nulls(array))


def _plain_fixed_size_list(array: Any) -> Any:
    size = array.type.list_size
    values = plain_layout(array.values.slice(array.offset * size, len(array) * size))
    if array.null_count:
        is_null = array.is_null().to_numpy(zero_copy_only=False)
        values = values.take(pa.array(np.arange(len(values)), mask=np.repeat(is_null, size)))
    return pa.FixedSizeListArray.from_arrays(values, size, mask=_nulls(array))


def _plain_map(array: Any) -> Any:
    offsets, (keys, items) = _plain_children(array, array.keys, array.items)
    return pa.MapArray.from_arrays(offsets, keys, items, mask=_nulls(array))


def _nulls(array: Any) -> Any:
    """Return the mask of null rows for the rewritten array; None if no row is null."""
    return array.is_null() if array.null_count else None
