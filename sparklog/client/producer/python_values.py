"""Conversion of lists of Python objects to Arrow arrays. Every object keeps its type; none is changed to fit another.

PyArrow changes objects if those of one list differ in kind. After a float, True becomes 1.0. After a date, a number
becomes a day of 1970, NaT becomes the year 1, and a datetime loses its time. A datetime without a zone gets one, and
pandas' timestamps lose their nanoseconds. With a type given, 1.5 becomes 1, and a dict loses the fields that the type
does not have. Each of these changes is an error here.

================================  ===========================================================
object                            stored as
================================  ===========================================================
None, pandas' NA and NaT          null
NaN                               a number: it does not fit text, integers and decimals
dict                              struct; map where the topic has one
list of (key, value) pairs        map where the topic has one
================================  ===========================================================
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

_BOOLEANS = (bool, np.bool_)
_SIGNED = (np.int8, np.int16, np.int32, np.int64, np.longlong)
"""NumPy's signed integers. np.signedinteger is not used, because NumPy derives timedelta64 from it."""
_NUMBERS = (int, float, Decimal, np.bool_, np.floating, np.unsignedinteger, *_SIGNED)


class _MixedKindsError(ValueError):
    """The objects of one list are of kinds that cannot be mixed."""


def array_of_objects(values: Sequence[Any], target: pa.DataType | None) -> Any:
    """Return `values` as an array of their own type, which need not be `target`.

    `target` is the topic's type, which distinguishes maps from structs; None: the topic has no such column. Raises
    pa.ArrowException, TypeError, ValueError or OverflowError for objects that make no array, or of different kinds.
    """
    try:
        array = _inferred(values, target)
        require_one_kind(values, array.type)
    except (pa.ArrowException, TypeError, ValueError) as e:
        known = _without_pandas_nulls(values)
        if known is None:
            infinite = next((v for v in values if isinstance(v, Decimal) and not v.is_finite()), None)
            if infinite is not None:
                raise TypeError(f"a decimal cannot hold {infinite!r}") from None
            if not isinstance(e, _MixedKindsError) and any(isinstance(v, float) and v != v for v in values):
                raise TypeError("NaN is a number: use None for a missing value") from None
            raise
        array = _inferred(known, target)
        require_one_kind(known, array.type)
    return array


def _without_pandas_nulls(values: Sequence[Any]) -> list[Any] | None:
    """Return a copy of `values` with None in place of pandas' NA and NaT; None if `values` holds neither."""
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return None
    found = [None if v is pandas.NA or v is pandas.NaT else v for v in values]
    return found if any(a is not b for a, b in zip(found, values, strict=True)) else None


def _inferred(values: Sequence[Any], t: pa.DataType | None) -> Any:
    if t is None or not holds_map(t):
        return pa.array(values)
    if pa.types.is_map(t):
        return _map_array(values, t)
    if pa.types.is_struct(t):
        return _struct_array(values, t)
    present = [v for v in values if v is not None]
    for v in present:
        if not isinstance(v, list | tuple | np.ndarray):
            raise TypeError(f"use a list, not {v!r:.80}")
    elements = _inferred(list(chain.from_iterable(present)), t.value_type)
    return pa.ListArray.from_arrays(_offsets(values), elements, mask=_mask(values))


def _map_array(values: Sequence[Any], t: Any) -> Any:
    keys: list[Any] = []
    items: list[Any] = []
    for v in values:
        if isinstance(v, Mapping):
            keys += v.keys()
            items += v.values()
        elif isinstance(v, list | tuple):
            for pair in v:
                if not isinstance(pair, list | tuple) or len(pair) != 2:
                    raise TypeError(
                        f"use a dict or a list of (key, value) pairs for a map, not a list with {pair!r:.80}"
                    )
                keys.append(pair[0])
                items.append(pair[1])
        elif v is not None:
            raise TypeError(f"use a dict or a list of (key, value) pairs for a map, not {v!r:.80}")
    return pa.MapArray.from_arrays(
        _offsets(values), _inferred(keys, t.key_type), _inferred(items, t.item_type), mask=_mask(values)
    )


def _struct_array(values: Sequence[Any], t: Any) -> Any:
    names: dict[str, None] = {}
    for v in values:
        if v is not None and not isinstance(v, Mapping):
            raise TypeError(f"use a dict for a struct, not {v!r:.80}")
        names.update(dict.fromkeys(v or ()))
    children = []
    for name in names:
        index = t.get_field_index(name)
        its_values = [None if v is None else v.get(name) for v in values]
        children.append(_inferred(its_values, t.field(index).type if index >= 0 else None))
    if not names:
        return pa.array(values)
    return pa.StructArray.from_arrays(children, list(names), mask=_mask(values))


def holds_map(t: Any) -> bool:
    """True for a map, and for a type that has one inside."""
    if pa.types.is_map(t):
        return True
    return pa.types.is_nested(t) and any(holds_map(t.field(i).type) for i in range(t.num_fields))


def _offsets(values: Sequence[Any]) -> Any:
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if v is None else len(v) for v in values], out=offsets[1:])
    return pa.array(offsets)


def _mask(values: Sequence[Any]) -> Any:
    return pa.array([v is None for v in values], pa.bool_())


def _leaves(values: Sequence[Any], t: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each number, date and time type inside the type `t` of `values`, at any depth, with the objects of that
    type, without None."""
    if _is_guessed(t):
        yield t, [v for v in values if v is not None]
    elif pa.types.is_nested(t) and _holds_guessed(t):
        present = [v for v in values if v is not None]
        if pa.types.is_struct(t):
            for f in t:
                yield from _leaves([v.get(f.name) for v in present], f.type)
        elif pa.types.is_map(t):
            pairs = [p for v in present for p in (v.items() if isinstance(v, Mapping) else v)]
            yield from _leaves([k for k, _ in pairs], t.key_type)
            yield from _leaves([v for _, v in pairs], t.item_type)
        else:
            yield from _leaves(list(chain.from_iterable(map(_elements, present))), t.value_type)


def _elements(values: Any) -> Any:
    """Return the elements of a list; of a NumPy array only the first, because all have its type."""
    return values[:1] if isinstance(values, np.ndarray) and values.dtype != object else values


def _is_guessed(t: Any) -> bool:
    """True for a type into which PyArrow puts objects of other kinds than its own."""
    is_number = pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t)
    return bool(is_number or pa.types.is_date(t) or pa.types.is_timestamp(t) or pa.types.is_duration(t))


def _holds_guessed(t: Any) -> bool:
    if pa.types.is_nested(t):
        return any(_holds_guessed(t.field(i).type) for i in range(t.num_fields))
    return _is_guessed(t)


def require_one_kind(values: Sequence[Any], t: Any) -> None:
    """Raise ValueError if PyArrow has changed booleans, numbers, dates or times among `values` to make an array of type
    `t` of them.
    """
    for leaf, objects in _leaves(values, t):
        kinds = set(map(type, objects))
        is_number = not pa.types.is_temporal(leaf)
        others = _BOOLEANS if is_number else _NUMBERS
        odd = next((k for k in kinds if issubclass(k, others)), None)
        if odd is not None:
            example = next(v for v in objects if type(v) is odd)
            raise _MixedKindsError(
                f"{example!r:.80} is a boolean among numbers: use 1 or 0 for a number"
                if is_number
                else f"{example!r:.80} is a number among dates or times: use one type for all values"
            )
        if not is_number:
            _require_unchanged(objects, leaf, kinds)


def _require_unchanged(values: list[Any], t: Any, kinds: set[type]) -> None:
    if pa.types.is_date(t):
        if any(issubclass(k, dt.datetime) for k in kinds):
            example = next(v for v in values if isinstance(v, dt.datetime))
            raise _MixedKindsError(f"the column mixes dates with times such as {example}: use only dates or only times")
    elif pa.types.is_timestamp(t):
        times = values if kinds == {dt.datetime} else [v for v in values if isinstance(v, dt.datetime)]
        zones = set(map(attrgetter("tzinfo"), times))
        if len(zones) > 1 and None in zones:
            raise _MixedKindsError("the column mixes times with and without a time zone: give all times a zone")
    for kind in kinds:
        for attribute in ("nanosecond", "nanoseconds"):  # of pandas' Timestamp, and of its Timedelta
            if hasattr(kind, attribute):
                finer = next((v for v in values if getattr(v, attribute, 0)), None)
                if finer is not None:
                    raise _MixedKindsError(f'{finer} has nanoseconds, the log keeps microseconds: use .floor("us")')
