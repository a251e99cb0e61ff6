"""Conversion of lists of Python objects to Arrow arrays. Every object keeps its type; none is changed to fit another.

PyArrow changes objects if those of one list differ in kind. After a float, True becomes 1.0. After a date, a number
becomes a day of 1970, NaT becomes the year 1, and a datetime loses its time. A datetime without a zone gets one, and
pandas' timestamps lose their nanoseconds. With a type given, 1.5 becomes 1, and a dict loses the fields that the type
does not have. Each of these changes is an error here.

================================  ===========================================================
object                            stored as
================================  ===========================================================
None, NaT, pandas' NA, a masked   null, also inside lists and dicts
value of NumPy
NaN                               a number: it does not fit text, integers and decimals; null in pandas' data
Python's float                    rounded to the nearest float where the topic has FLOAT
NumPy's double                    as it is: where the topic has FLOAT, one that float cannot hold is an error
int                               as it is: where the topic has FLOAT or DOUBLE, one that the type cannot hold is an
                                  error; where it has DECIMAL, an int of any size is a decimal
datetime64, timedelta64           date, datetime or timedelta, except those with nanoseconds
dict                              struct; map where the topic has one
list of (key, value) pairs        map where the topic has one
================================  ===========================================================
"""

from __future__ import annotations

import datetime as dt
import struct
import sys
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.format.json_exact import JsonValueError, exact_decimal
from sparklog.format.map_keys import holds_map

_BOOLEANS = (bool, np.bool_)
_SIGNED = (np.int8, np.int16, np.int32, np.int64, np.longlong)
"""NumPy's signed integers. np.signedinteger is not used, because NumPy derives timedelta64 from it."""
_INTEGERS = (int, np.unsignedinteger, *_SIGNED)
_NUMBERS = (float, Decimal, np.bool_, np.floating, *_INTEGERS)
_LARGE_MIN = 2**24
"""Whole numbers up to this one are numbers of every floating-point type."""
_BINARY_BYTES_MAX = 2**31 - 1
_FEW_ROWS = 32
_PACKED_ROWS_MAX = 1 << 16
"""Largest number of rows whose lengths are packed by `struct`, which holds all of them as Python objects at one
time."""
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)
"""Errors for objects that make no array. NaN has no `get`, which a struct needs."""


class _MixedKindsError(ValueError):
    """The objects of one list are of kinds that cannot be mixed."""


def array_of_objects(values: Sequence[Any], target: pa.DataType | None, *, nan_is_null: bool = False) -> Any:
    """Return `values` as an array of their own type, which need not be `target`.

    `target` is the topic's type, which distinguishes maps from structs; None: the topic has no such column.
    `nan_is_null`: True for values of pandas. Raises pa.ArrowException, TypeError, ValueError or OverflowError for
    objects that make no array, or of different kinds.
    """
    try:
        return _array_of_objects(values, target, nan_is_null)
    except RecursionError:
        raise ValueError("lists or dicts are nested too deeply") from None


def _array_of_objects(values: Sequence[Any], target: pa.DataType | None, nan_is_null: bool) -> Any:
    try:
        return _array_of_one_kind(values, target, nan_is_null)
    except _UNFIT as e:
        plain = _with_numbers_of(_plain(values, nan_is_null), target)
        if plain is values:
            raise _explained(values, target, e) from None
    try:
        return _array_of_one_kind(plain, target, nan_is_null)
    except _UNFIT as e:
        raise _explained(plain, target, e) from None


def _array_of_one_kind(values: Sequence[Any], target: pa.DataType | None, nan_is_null: bool) -> Any:
    column = _inferred(values, target, nan_is_null)
    require_one_kind(values, column.type, target)
    return column


def _plain(value: Any, nan_is_null: bool) -> Any:
    """Return `value` with None in place of the nulls of other libraries, and with Python's dates, times and lists in
    place of NumPy's, at any depth. Returns `value` itself if nothing differs."""
    if isinstance(value, Mapping):
        plain = {k: _plain(v, nan_is_null) for k, v in value.items()}
        return plain if any(plain[k] is not v for k, v in value.items()) else value
    if isinstance(value, np.ma.MaskedArray):
        return None if value is np.ma.masked else _plain(list(value), nan_is_null)
    is_list = isinstance(value, list | tuple)
    if is_list or isinstance(value, deque) or (isinstance(value, np.ndarray) and value.dtype.kind in "OMm"):
        elements = [_plain(v, nan_is_null) for v in value]
        return value if is_list and all(a is b for a, b in zip(elements, value, strict=True)) else elements
    if isinstance(value, np.datetime64 | np.timedelta64):
        item = value.item()  # None for NaT; an int for nanoseconds, and beyond the range of Python's types
        return value if isinstance(item, int) else item
    pandas = sys.modules.get("pandas")
    if pandas is not None and (value is pandas.NA or value is pandas.NaT):
        return None
    is_nan = (isinstance(value, float) and value != value) or (isinstance(value, Decimal) and value.is_nan())
    return None if nan_is_null and is_nan else value


def _with_numbers_of(values: Sequence[Any], target: pa.DataType | None) -> Sequence[Any]:
    """Return `values` with ints as floats or Decimals where the topic's type has such numbers, at any depth; `values`
    itself without large ints. Arrow has no array for ints above 64 bits, and none for large ints among floats. Raises
    _MixedKindsError for an int that the topic's floating-point type does not have."""
    if not any(isinstance(v, _INTEGERS) and abs(int(v)) > _LARGE_MIN for v in _objects(values)):
        return values
    return [_with_numbers(v, target) for v in values]


def _with_numbers(value: Any, target: Any) -> Any:
    if target is None or value is None or isinstance(value, bool):
        return value
    if isinstance(value, _INTEGERS):
        if pa.types.is_decimal(target):
            return _decimal(int(value), target)
        return _exact_float(int(value), target) if pa.types.is_floating(target) else value
    if pa.types.is_map(target):
        pairs = value.items() if isinstance(value, Mapping) else value
        types = target.key_type, target.item_type
        return [tuple(map(_with_numbers, pair, types)) if isinstance(pair, list | tuple) else pair for pair in pairs]
    if isinstance(value, Mapping):
        return {name: _with_numbers(v, _child(target, name)) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_with_numbers(v, _child(target, "element")) for v in value]
    return value


def _decimal(number: int, t: Any) -> Decimal:
    """Return an int as a number of the decimal type `t`. Raises _MixedKindsError."""
    try:
        return exact_decimal(Decimal(number), t)
    except JsonValueError as e:
        raise _MixedKindsError(f"{number!r:.80} has {e}") from None


def _exact_float(number: int, t: Any) -> float:
    """Return an int as a float. Raises _MixedKindsError unless the floating-point type `t` has this number."""
    try:
        with np.errstate(over="ignore"):
            rounded = float(np.float32(number)) if pa.types.is_float32(t) else float(number)
        if int(rounded) == number:
            return rounded
        nearest = f"would become {int(rounded)}, the nearest {t}"
    except OverflowError:  # the float is infinite
        nearest = f"is beyond the range of {t}"
    raise _MixedKindsError(f"{number!r:.80} {nearest}")


def _explained(values: Sequence[Any], target: pa.DataType | None, error: Exception) -> Exception:
    """Return the error that names the object which Arrow has refused without its name; else `error`."""
    infinite = next((v for v in _objects(values) if isinstance(v, Decimal) and not v.is_finite()), None)
    if infinite is not None:
        return TypeError(f"a decimal cannot hold {infinite!r}")
    if isinstance(error, OverflowError) or "too large" in str(error):
        bits = target.bit_width if target is not None and pa.types.is_integer(target) else 64
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        beyond = next((v for v in _objects(values) if isinstance(v, int) and not low <= v <= high), None)
        if beyond is not None:
            return OverflowError(f"{beyond!r:.80} is not in range: {low} to {high}; DECIMAL takes more digits")
    if not isinstance(error, _MixedKindsError) and any(isinstance(v, float) and v != v for v in values):
        return TypeError("NaN is a number: use None for a missing value")
    return error


def _objects(value: Any) -> Iterator[Any]:
    """Yield the objects in nested lists and dicts."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for element in value:
            yield from _objects(element)
    else:
        yield value


def _inferred(values: Sequence[Any], t: pa.DataType | None, nan_is_null: bool) -> Any:
    if t is None or not pa.types.is_nested(t) or not holds_map(t):
        return pa.array(values, from_pandas=nan_is_null)
    if pa.types.is_map(t):
        return _map_array(values, t, nan_is_null)
    if pa.types.is_struct(t):
        return _struct_array(values, t, nan_is_null)
    present = [v for v in values if v is not None]
    for v in present:
        if not isinstance(v, list | tuple | np.ndarray):
            raise TypeError(f"use a list, not {v!r:.80}")
    elements = _inferred(list(chain.from_iterable(present)), t.value_type, nan_is_null)
    return pa.ListArray.from_arrays(_offsets(values), elements, mask=_mask(values))


def _map_array(values: Sequence[Any], t: Any, nan_is_null: bool) -> Any:
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
    children = (_inferred(keys, t.key_type, nan_is_null), _inferred(items, t.item_type, nan_is_null))
    return pa.MapArray.from_arrays(_offsets(values), *children, mask=_mask(values))


def _struct_array(values: Sequence[Any], t: Any, nan_is_null: bool) -> Any:
    names: dict[str, None] = {}
    for v in values:
        if v is not None and not isinstance(v, Mapping):
            raise TypeError(f"use a dict for a struct, not {v!r:.80}")
        names.update(dict.fromkeys(v or ()))
    children = []
    for name in names:
        index = t.get_field_index(name)
        its_values = [None if v is None else v.get(name) for v in values]
        children.append(_inferred(its_values, t.field(index).type if index >= 0 else None, nan_is_null))
    if not names:
        return pa.array(values)
    return pa.StructArray.from_arrays(children, list(names), mask=_mask(values))


def _offsets(values: Sequence[Any]) -> Any:
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if v is None else len(v) for v in values], out=offsets[1:])
    return pa.array(offsets)


def _mask(values: Sequence[Any]) -> Any:
    return pa.array([v is None for v in values], pa.bool_())


def _leaves(values: Sequence[Any], t: Any, target: Any) -> Iterator[tuple[Any, Any, list[Any]]]:
    """Yield each number, date and time type inside the type `t` of `values`, at any depth, with the topic's type there
    (None: not known) and the objects of that type, without None. Raises _MixedKindsError for a NumPy array whose mask,
    or whose digits, Arrow would lose."""
    if _is_guessed(t):
        yield t, target, [v for v in values if v is not None]
    elif pa.types.is_nested(t):
        present = [v for v in values if v is not None]
        kinds = set(map(type, present))
        if any(issubclass(k, np.ma.MaskedArray) for k in kinds):
            raise _MixedKindsError("a masked array inside a list: use None for a missing value")
        if pa.types.is_struct(t):
            for f in t:
                if _is_guessed(f.type) or pa.types.is_nested(f.type):
                    yield from _leaves([v.get(f.name) for v in present], f.type, _child(target, f.name))
        elif pa.types.is_map(t):
            pairs = [p for v in present for p in (v.items() if isinstance(v, Mapping) else v)]
            yield from _leaves([k for k, _ in pairs], t.key_type, _child(target, "key"))
            yield from _leaves([v for _, v in pairs], t.item_type, _child(target, "value"))
        elif _is_guessed(t.value_type) or pa.types.is_nested(t.value_type):
            of_elements = _child(target, "element")
            if np.ndarray in kinds and _is_rounded(t.value_type, of_elements):
                arrays = [v for v in present if isinstance(v, np.ndarray)]
                for letters in ("f", "iu"):
                    of_kind = [v for v in arrays if v.dtype.kind in letters]
                    if of_kind:
                        _require_floats(np.concatenate(of_kind))
            yield from _leaves(list(chain.from_iterable(map(_elements, present))), t.value_type, of_elements)


def _child(target: Any, name: str) -> Any:
    """Return the type of a child of the topic's type; None if it has no such child."""
    if target is None or not pa.types.is_nested(target):
        return None
    if pa.types.is_map(target):
        return {"key": target.key_type, "value": target.item_type}.get(name)
    index = target.get_field_index(name) if pa.types.is_struct(target) else 0
    return target.field(index).type if index >= 0 else None


def _elements(values: Any) -> Any:
    """Return the elements of a list; of a NumPy array only the first, because all have its type."""
    return values[:1] if isinstance(values, np.ndarray) and values.dtype != object else values


def _is_guessed(t: Any) -> bool:
    """True for a type into which PyArrow puts objects of other kinds than its own."""
    is_number = pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t)
    return bool(is_number or pa.types.is_date(t) or pa.types.is_timestamp(t) or pa.types.is_duration(t))


def _is_rounded(t: Any, target: Any) -> bool:
    """True for doubles where the topic has floats: Python's floats are rounded there, and nothing else is."""
    return target is not None and pa.types.is_float64(t) and pa.types.is_float32(target)


def _require_floats(numbers: np.ndarray) -> None:
    """Raise _MixedKindsError unless each of the numbers, which are doubles or integers, is a float without rounding."""
    if numbers.dtype.kind == "f":
        with np.errstate(over="ignore"):
            exact = (numbers.astype(np.float32) == numbers) | np.isnan(numbers)
        if not exact.all():
            raise _MixedKindsError(
                f"{numbers[~exact][0]} is a double that float cannot hold exactly: cast it before, for example to "
                "numpy.float32"
            )
    else:
        for number in numbers[np.abs(numbers) > _LARGE_MIN].tolist():
            _exact_float(number, pa.float32())


def require_one_kind(values: Sequence[Any], t: Any, target: Any) -> None:
    """Raise ValueError if PyArrow has changed booleans, numbers, dates or times among `values` to make an array of type
    `t` of them, or if numbers that must not be rounded would be rounded to the topic's type `target`.
    """
    for leaf, leaf_type, objects in _leaves(values, t, target):
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
        if np.float16 in kinds and pa.types.is_integer(leaf):
            raise _MixedKindsError("integers and NumPy's float16 in one list: use one type for all values")
        if _is_rounded(leaf, leaf_type):
            if any(issubclass(k, np.float64) for k in kinds):
                _require_floats(np.array([v for v in objects if isinstance(v, np.float64)]))
            if any(issubclass(k, _INTEGERS) for k in kinds):
                _require_floats(np.array([int(v) for v in objects if isinstance(v, _INTEGERS)], object))
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


def binary_array(values: Sequence[Any]) -> Any:
    """Return Python objects as Arrow `binary`. Raises the errors of `pa.array` for objects that are neither bytes nor
    None.

    `pa.array` imports pandas to check for its objects, which takes 0.3 s of the first send. As long as pandas is not
    imported, the bytes are joined here, which takes up to twice as long per row.
    """
    if "pandas" not in sys.modules:
        with suppress(TypeError, BufferError):  # None, or no bytes
            return _join_values(values)
    return pa.array(values, pa.binary())


def _join_values(values: Sequence[Any]) -> Any:
    """Join values to one array. Raises TypeError unless all are bytes or bytes-like, and together at most 2 GiB."""
    n, data = len(values), b"".join(values)
    if len(data) > _BINARY_BYTES_MAX:
        raise TypeError("too large for one array")
    if n <= _FEW_ROWS:  # without NumPy, whose calls cost more than a few steps
        few = array("i", accumulate(map(len, values), initial=0))
        if few[-1] != len(data):
            raise TypeError("not only bytes")
        return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(few), pa.py_buffer(data)])
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(_lengths(values), out=offsets[1:])
    if offsets[-1] != len(data):  # a memoryview counts items
        raise TypeError("not only bytes")
    narrow = offsets.astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(narrow), pa.py_buffer(data)])


def _lengths(values: Sequence[Any]) -> np.ndarray:
    n = len(values)
    if n > _PACKED_ROWS_MAX:
        return np.fromiter(map(len, values), np.int64, n)
    return np.frombuffer(struct.pack(f"{n}i", *map(len, values)), np.int32)  # two thirds of the time of `fromiter`
