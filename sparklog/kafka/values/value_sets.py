"""The values that a column, or a field of a schema, can have, as sets of which one contains another or not.

Types with inner values (records, lists, maps) have no set of their own: their parts have.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import pyarrow as pa

_WHOLE_BITS = {32: 24, 64: 53}
"""Number of bits of a whole number that a floating-point type of a width has exactly."""
_DIGITS = {32: 6, 64: 15}
"""Number of digits of a decimal that comes back from the nearest floating-point number of a width."""


class Values(NamedTuple):
    """A set of values without inner values. Fields that do not belong to the kind have no meaning."""

    kind: str
    """empty, whole, floating, decimal, text, bytes, or a type's own name for types of which all values are in it."""
    low: int = 0
    """Smallest whole number, or decimal without its point."""
    high: int = 0
    scale: int = 0
    """Digits of a decimal after the point."""
    width: int = 0
    """Width in bits of a floating-point number; size in bytes of bytes that all have one size, -1 for any size."""
    unit: str = ""
    """Unit of a whole number that stands for a time; "" for a plain number."""
    per_second: int = 0
    """Parts of a second that a time has."""
    texts: frozenset[str] | None = None
    """The only texts; None: all texts."""
    is_open: bool = False
    """True if another text than those in `texts` becomes a default."""


EMPTY_SET = Values("empty")
BOOLEAN = Values("boolean")
DATE = Values("date")
DURATION = Values("duration")
TEXT = Values("text")
ANY_BYTES = Values("bytes", width=-1)


def whole(bits: int, *, signed: bool = True, unit: str = "") -> Values:
    """Return the whole numbers of a number of bits."""
    if signed:
        return Values("whole", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, unit=unit)
    return Values("whole", 0, 2**bits - 1)


def floating(width: int) -> Values:
    """Return the floating-point numbers of a width in bits."""
    return Values("floating", width=width)


def decimals(precision: int, scale: int) -> Values:
    """Return the decimals of a number of digits."""
    return Values("decimal", -(10**precision) + 1, 10**precision - 1, scale)


def times(kind: str, per_second: int) -> Values:
    """Return the points in time of a precision. `kind`: instant, or local for a time without a time zone."""
    return Values(kind, per_second=per_second)


def symbols(names: Collection[str], *, has_default: bool = False) -> Values:
    """Return the symbols of an enum. `has_default`: other symbols become the default."""
    return Values("text", texts=frozenset(names), is_open=has_default)


def bytes_of(size: int) -> Values:
    """Return the bytes of a size."""
    return Values("bytes", width=size)


def of_column(kind: Any) -> Values | None:
    """Return the values of a column's type, which is canonical; None for a type with inner values."""
    if pa.types.is_nested(kind):
        return None
    if pa.types.is_integer(kind):
        return whole(kind.bit_width)
    if pa.types.is_floating(kind):
        return floating(kind.bit_width)
    if pa.types.is_decimal(kind):
        return decimals(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return times("instant" if kind.tz else "local", 1_000_000)
    return _SIMPLE[kind]


_SIMPLE = {
    pa.bool_(): BOOLEAN,
    pa.string(): TEXT,
    pa.binary(): ANY_BYTES,
    pa.date32(): DATE,
    pa.duration("us"): DURATION,
}


def contains(outer: Values, inner: Values) -> bool:
    """Return True if each value of `inner` has an equal one in `outer`."""
    if inner.kind == "empty":
        return True
    if inner.kind in ("whole", "decimal"):
        return _contains_number(outer, inner)
    if inner.kind == "text":
        return _contains_text(outer, inner)
    if outer.kind != inner.kind:
        return False
    if inner.kind == "bytes":
        return outer.width in (-1, inner.width)
    return outer.width >= inner.width and outer.per_second >= inner.per_second


def _contains_number(outer: Values, inner: Values) -> bool:
    if outer.kind == "whole":
        is_same_unit = outer.unit == inner.unit or not (outer.unit and inner.unit)
        return is_same_unit and not inner.scale and outer.low <= inner.low and inner.high <= outer.high
    if outer.kind == "decimal":
        step: int = 10 ** (outer.scale - inner.scale) if outer.scale >= inner.scale else 0
        return step > 0 and outer.low <= inner.low * step and inner.high * step <= outer.high
    if outer.kind == "floating":
        bound: int = 10 ** _DIGITS[outer.width] if inner.scale else 2 ** _WHOLE_BITS[outer.width]
        return -bound <= inner.low and inner.high <= bound
    return False


def _contains_text(outer: Values, inner: Values) -> bool:
    if outer.kind == "bytes":
        return outer.width == -1
    if outer.kind != "text":
        return False
    is_within = inner.texts is not None and outer.texts is not None and inner.texts <= outer.texts
    return outer.texts is None or is_within or (inner.texts is not None and outer.is_open)
