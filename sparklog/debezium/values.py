"""Conversion of a column's values, as JSON has them, to an Arrow array of the column's type. Every conversion is exact:
a value that the type cannot hold unchanged is an error, and no value becomes null.

Each function takes a list of values (None is null), and returns an array. Their errors are MisfitError or Arrow's; only
`to_column` names the event.
"""

from __future__ import annotations

import binascii
import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.debezium.forms import ANY, DECIMAL_DIGITS_MAX, Form, Hints, default_type
from sparklog.errors import DeserializationError
from sparklog.format.json_exact import exact_decimal
from sparklog.format.schema import fit_column

Values = Sequence[Any]
US_MIN, US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last µs of the years 1 to 9999."""
_DAYS_MIN, _DAYS_MAX = US_MIN // 86_400_000_000, US_MAX // 86_400_000_000
_US_PER_UNIT = {"ms": 1_000, "us": 1}
_UNITS_PER_SECOND = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DIGITS = re.compile(r"[+-]?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_PLAIN_DIGITS = r"^-?[0-9]{1,38}(\.[0-9]{1,38})?$"
_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"


class MisfitError(ValueError):
    """A value has no place in the column's type."""


UNFIT = (MisfitError, pa.ArrowException, ValueError, TypeError, OverflowError, RecursionError)


def to_column(values: Values, form: Form, target: pa.DataType, hints: Hints, name: str, events: Sequence[int]) -> Any:
    """Return a column of changed rows. Raises DeserializationError: A value does not fit the type. The message names
    the first event with such a value."""
    try:
        form = _decided(values, form, target, hints)
        return _array(values, form, target)
    except UNFIT as e:
        for number, value in zip(events, values, strict=True):
            try:
                _array([] if value is None else [value], form, target)
            except UNFIT as reason:
                raise DeserializationError(
                    f"Debezium event {number}: column {name!r} ({target}) does not take {value!r:.80}: {reason}",
                    offset=number,
                ) from e
        raise DeserializationError(f"column {name!r} ({target}) cannot be read: {e}") from e


def _decided(values: Values, form: Form, t: Any, hints: Hints) -> Form:
    """Return the form with the encoding of binary values and decimals. Raises MisfitError."""
    if form.kind == "any":
        form = any_form(t, hints)
    elif form.kind == "text" and pa.types.is_binary(t):
        form = Form("bytes", unit=hints.binary)
    if not form.unit and (pa.types.is_decimal(t) or pa.types.is_binary(t)):
        return form._replace(unit=_encoding(values, form, t))
    return form


def _encoding(values: Values, form: Form, t: Any) -> str:
    """Return the encoding of texts: that of the form, else the only one in which all texts can be read. Raises
    MisfitError."""
    texts = [v for v in values if type(v) is str and v]
    if form.unit or not texts:
        return form.unit
    kind, encodings = ("decimal", ("base64", "digits")) if pa.types.is_decimal(t) else ("bytes", ("base64", "hex"))
    possible = []
    for encoding in encodings:
        with contextlib.suppress(*UNFIT):
            _array(texts, Form(kind, unit=encoding), t)
            if encoding != "hex" or not any(map(str.isupper, texts)):  # Debezium writes small letters
                possible.append(encoding)
    if len(possible) == 1:
        return possible[0]
    shown = f"{texts[0]!r:.80} can be " + (" and ".join(possible) if possible else f"neither {' nor '.join(encodings)}")
    setting = "decimal.handling.mode" if kind == "decimal" else "binary.handling.mode"
    raise MisfitError(f"{shown}, and the events have no schema part: pass connector={{{setting!r}: …}}")


def _array(values: Values, form: Form, t: Any) -> Any:
    kind = form.kind
    if kind == "any":
        return _any(values, form, t)
    array = _CONVERSIONS[kind](values, form, t)
    if array is None:
        raise MisfitError(f"the event has the form {kind!r}: use the type {default_type(form)} for the column")
    return array


def _any(values: Values, form: Form, t: Any) -> Any:
    """Convert values of events without a schema part: the column's type and the values in JSON decide."""
    kinds = set(map(type, values)) - {type(None)}
    if pa.types.is_timestamp(t) and kinds == {int}:
        if not form.unit:
            raise MisfitError(
                "a time is a number, and the events have no schema part with its unit: pass types={column: "
                "'io.debezium.time.MicroTimestamp'} (or Timestamp, NanoTimestamp), or connector={'time.precision.mode':"
                " 'connect'}"
            )
        return _timestamps(values, Form("timestamp", unit=form.unit), t)
    if pa.types.is_duration(t):
        raise MisfitError(
            "the unit of a time is not in the event: pass types={column: 'io.debezium.time.MicroDuration'} or another "
            "name"
        )
    if pa.types.is_date(t):
        return (_dates if kinds == {int} else _iso_dates)(values, Form("date"), t)
    for is_type, kind in _KINDS_BY_TYPE:
        if is_type(t):
            return _array(values, Form(kind, unit=form.unit, children=form.children), t)
    raise MisfitError("the type has no form in JSON")


def any_form(t: Any, hints: Hints) -> Form:
    """Return the form of a column of type `t` in events without a schema part."""
    if pa.types.is_map(t):
        return ANY._replace(children=(("key", any_form(t.key_type, hints)), ("value", any_form(t.item_type, hints))))
    if pa.types.is_nested(t):
        fields = [t.field(i) for i in range(t.num_fields)]
        return ANY._replace(children=tuple((f.name, any_form(f.type, hints)) for f in fields))
    if pa.types.is_decimal(t):
        return ANY._replace(unit=hints.decimals)
    if pa.types.is_binary(t):
        return ANY._replace(unit=hints.binary)
    return ANY._replace(unit=hints.timestamps) if pa.types.is_timestamp(t) else ANY


_KINDS_BY_TYPE: list[tuple[Callable[[Any], bool], str]] = [
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_integer, "integer"),
    (pa.types.is_floating, "float"),
    (pa.types.is_decimal, "decimal"),
    (pa.types.is_string, "text"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_timestamp, "zoned timestamp"),
    (pa.types.is_map, "map"),
    (pa.types.is_struct, "struct"),
    (pa.types.is_list, "list"),
]


_JSON_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number with a fraction",
    Decimal: "a number with a fraction",
    str: "text",
    bytes: "bytes",
    list: "an array",
    dict: "an object",
}


def _require(values: Values, *kinds: type) -> None:
    odd = set(map(type, values)) - {type(None), *kinds}
    if odd:
        allowed = dict.fromkeys(_JSON_NAMES.get(k, k.__name__) for k in kinds)
        shown = odd.pop()
        raise MisfitError(f"JSON has {_JSON_NAMES.get(shown, shown.__name__)}, use {' or '.join(allowed)}")


def _booleans(values: Values, form: Form, t: Any) -> Any:
    _require(values, bool)
    return pa.array(values, pa.bool_()) if pa.types.is_boolean(t) else None


def _integers(values: Values, form: Form, t: Any) -> Any:
    _require(values, int)
    if pa.types.is_integer(t) or pa.types.is_floating(t):
        return fit_column(pa.array(values, pa.int64()), t)
    if pa.types.is_decimal(t):
        return _digits([None if v is None else str(v) for v in values], t)
    return None


def _floats(values: Values, form: Form, t: Any) -> Any:
    _require(values, float, int, Decimal, str)
    if pa.types.is_decimal(t):
        return _digits([None if v is None else str(v) for v in values], t)
    if not pa.types.is_floating(t):
        return None
    numbers = pa.array([v if v is None or type(v) is float else _number(v) for v in values], pa.float64())
    if pa.types.is_float64(t):
        return numbers
    narrow = numbers.cast(t)
    # JSON has the shortest text of a float, which is not the text of the equal double
    is_same = pc.or_(pc.equal(narrow.cast(pa.float64()), numbers), pc.is_nan(numbers))
    is_same = pc.or_(is_same, pc.equal(narrow.cast(pa.string()).cast(pa.float64()), numbers))
    if not pc.all(is_same, min_count=0).as_py():
        raise MisfitError("a FLOAT cannot hold it: use DOUBLE")
    return narrow


def _number(value: Any) -> float:
    """Return a value of JSON as a double. Raises MisfitError."""
    if type(value) is str:
        if value not in _NUMBERS:
            raise MisfitError("use a number, or the text NaN, Infinity or -Infinity")
        return _NUMBERS[value]
    number = float(value)
    if math.isinf(number) or (type(value) is int and int(number) != value):
        raise MisfitError("a DOUBLE cannot hold it: use DECIMAL")
    return number


def _texts(values: Values, form: Form, t: Any) -> Any:
    _require(values, str)
    if pa.types.is_string(t):
        return pa.array(values, pa.string())
    if pa.types.is_decimal(t):
        return _digits(values, t)
    if pa.types.is_date(t):
        return _iso_dates(values, form, t)
    return _zoned_timestamps(values, form, t)


def _digits(texts: Values, t: Any) -> Any:
    """Parse decimals. Arrow's parser takes only texts of 38 digits, because it returns wrong numbers for longer ones
    (24.0)."""
    array = pa.array(texts, pa.string())
    plain = pc.and_(
        pc.match_substring_regex(array, _PLAIN_DIGITS), pc.less_equal(pc.binary_length(array), DECIMAL_DIGITS_MAX)
    )
    if not pc.all(plain, min_count=0).as_py():
        return pa.array([None if text is None else exact_decimal(_decimal(text), t) for text in texts], t)
    return array.cast(t)


def _decimal(text: str) -> Decimal:
    if not _DIGITS.fullmatch(text):
        raise MisfitError("use a number in digits")
    return Decimal(text)


def _decimals(values: Values, form: Form, t: Any) -> Any:
    """Convert numbers, base64 of unscaled numbers, or digits, by the form's encoding."""
    if any(type(v) is dict for v in values):
        return _variable_decimals(values, form, t)
    _require(values, str, bytes, int, float, Decimal)
    kinds = set(map(type, values)) - {type(None)}
    if kinds <= {int, float, Decimal} or _encoding(values, form, t) == "digits":
        texts = [None if v is None else str(v) for v in values]
        return _digits(texts, t) if pa.types.is_decimal(t) else _plain_column(texts, t)
    if not kinds <= {str, bytes}:
        raise MisfitError("use either numbers or texts in one column")
    unscaled = [v if v is None or type(v) is bytes else _base64(v) for v in values]
    scale = form.scale if form.scale is not None else t.scale if pa.types.is_decimal(t) else 0
    if pa.types.is_string(t):
        return pa.array([None if v is None else _scaled_text(v, scale) for v in unscaled], pa.string())
    if not pa.types.is_decimal(t):
        return None
    if not 0 <= scale <= DECIMAL_DIGITS_MAX:
        return _digits([None if v is None else _scaled_text(v, scale) for v in unscaled], t)
    array = _unscaled_decimals(unscaled, scale).cast(t)
    array.validate(full=True)
    return array


def _plain_column(texts: Values, t: Any) -> Any:
    return pa.array(texts, pa.string()) if pa.types.is_string(t) else None


def _unscaled_decimals(unscaled: Sequence[bytes | None], scale: int) -> Any:
    """Return decimals of 38 digits, of big-endian two's complement numbers."""
    lengths = np.array([0 if v is None else len(v) for v in unscaled], np.int64)
    if any(v is not None and not 0 < len(v) <= 16 for v in unscaled):
        raise MisfitError(f"a DECIMAL has at most {DECIMAL_DIGITS_MAX} digits: use STRING")
    data = np.frombuffer(b"".join(v for v in unscaled if v is not None) + b"\0", np.uint8)
    ends = np.cumsum(lengths)
    words = np.zeros((len(unscaled), 16), np.uint8)
    is_negative = (lengths > 0) & (data[np.minimum(ends - lengths, len(data) - 1)] >= 0x80)
    words[is_negative] = 0xFF
    for i in range(int(lengths.max(initial=0))):  # from the last byte, which Arrow has first
        rows = np.flatnonzero(lengths > i)
        words[rows, i] = data[ends[rows] - 1 - i]
    nulls = pa.array([v is not None for v in unscaled], pa.bool_()).buffers()[1]
    decimals = pa.Array.from_buffers(
        pa.decimal128(DECIMAL_DIGITS_MAX, scale), len(unscaled), [nulls, pa.py_buffer(words.tobytes())]
    )
    decimals.validate(full=True)
    return decimals


def _scaled_text(unscaled: bytes, scale: int) -> str:
    if len(unscaled) > 1_024 or abs(scale) > 10_000:
        raise MisfitError("the number is too long")
    number = int.from_bytes(unscaled, "big", signed=True)
    digits = str(abs(number)).rjust(scale + 1, "0")
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale > 0 else digits + "0" * (-scale if number else 0)
    return f"-{text}" if number < 0 else text


def _variable_decimals(values: Values, form: Form, t: Any) -> Any:
    _require(values, dict)
    texts = []
    for v in values:
        if v is not None and (type(v.get("scale")) is not int or type(v.get("value")) not in (str, bytes)):
            raise MisfitError("use an object with scale and value")
        value = None if v is None else v["value"]
        raw = _base64(value) if type(value) is str else value
        texts.append(None if v is None or raw is None else _scaled_text(raw, v["scale"]))
    return _digits(texts, t) if pa.types.is_decimal(t) else _plain_column(texts, t)


def _base64(text: str) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)


def _base64_url_safe(text: str) -> bytes:
    return _base64(text.translate({45: 43, 95: 47}))


_BYTES: dict[str, Callable[[str], bytes]] = {
    "base64": _base64,
    "base64-url-safe": _base64_url_safe,
    "hex": binascii.unhexlify,
    "bits": _base64,
}


def _binaries(values: Values, form: Form, t: Any) -> Any:
    _require(values, str, bytes)
    decode = _BYTES[_encoding(values, form, t) or "base64"]
    decoded = [v if v is None or type(v) is bytes else decode(v) for v in values]
    if pa.types.is_binary(t):
        return pa.array(decoded, pa.binary())
    if form.unit == "bits" and pa.types.is_integer(t):
        return pa.array([None if v is None else int.from_bytes(v, "little") for v in decoded], pa.int64()).cast(t)
    return None


def _raw_or(values: Values, t: Any) -> Any:
    """Return the numbers of a time themselves, for a column of integers; None for other types."""
    _require(values, int)
    return pa.array(values, pa.int64()).cast(t) if pa.types.is_integer(t) else None


def _dates(values: Values, form: Form, t: Any) -> Any:
    raw = _raw_or(values, t)
    if raw is not None or not (pa.types.is_date(t) or pa.types.is_string(t)):
        return raw
    days = pa.array(values, pa.int64())
    _require_range(days, _DAYS_MIN, _DAYS_MAX)
    return days.cast(pa.int32()).cast(pa.date32()).cast(t)


def _require_range(numbers: Any, low: int, high: int) -> None:
    inside = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))
    if not pc.all(inside, min_count=0).as_py():
        raise MisfitError("a date lies in the years 1 to 9999: use BIGINT for the number itself")


def _iso_dates(values: Values, form: Form, t: Any) -> Any:
    _require(values, str)
    if pa.types.is_string(t):
        return pa.array(values, pa.string())
    days = pc.replace_substring_regex(pa.array(values, pa.string()), "Z$", "")
    if not pc.all(pc.match_substring_regex(days, _DAY), min_count=0).as_py():
        raise MisfitError("use a date as 2026-11-27")
    return days.cast(pa.date32()) if pa.types.is_date(t) else None


def _timestamps(values: Values, form: Form, t: Any) -> Any:
    raw = _raw_or(values, t)
    if raw is not None:
        return raw
    if pa.types.is_string(t):
        moments = pa.array(values, pa.int64())
        if form.unit != "ns":
            _require_range(_micros(values, form.unit), US_MIN, US_MAX)
        text = moments.cast(pa.timestamp(form.unit)).cast(pa.string())
        return pc.replace_substring(_without_zeros(text), " ", "T")
    if not pa.types.is_timestamp(t):
        return None
    micros = _micros(values, form.unit)
    _require_range(micros, US_MIN, US_MAX)
    return micros.cast(t)


def _micros(values: Values, unit: str) -> Any:
    """Return numbers of a unit as µs. Raises MisfitError for a part of a µs."""
    numbers = pa.array(values, pa.int64())
    if unit != "ns":
        return pc.multiply_checked(numbers, _US_PER_UNIT[unit])
    micros = pc.divide(numbers, 1_000)
    if not pc.all(pc.equal(pc.multiply(micros, 1_000), numbers), min_count=0).as_py():
        raise MisfitError("it is finer than µs: use BIGINT or STRING for the column")
    return micros


def _without_zeros(texts: Any) -> Any:
    """Return texts of times without the zeros at the end of the fraction."""
    return pc.replace_substring_regex(pc.replace_substring_regex(texts, r"(\.[0-9]*?)0+$", r"\1"), r"\.$", "")


def _zoned_timestamps(values: Values, form: Form, t: Any) -> Any:
    _require(values, str)
    if pa.types.is_string(t):
        return pa.array(values, pa.string())
    if not pa.types.is_timestamp(t):
        return None
    texts = _without_zeros_before_zone(pa.array(values, pa.string()))
    moments = texts.cast(t)  # refuses texts with a zone for a type without one, and finer ones than µs
    _require_range(moments.cast(pa.int64()), US_MIN, US_MAX)
    return moments


def _without_zeros_before_zone(texts: Any) -> Any:
    """Return texts of times with at most 6 digits after the second, if the others are zeros."""
    return pc.replace_substring_regex(texts, r"(\.[0-9]{6})0+(Z|[+-][0-9:]+)?$", r"\1\2")


def _times(values: Values, form: Form, t: Any) -> Any:
    raw = _raw_or(values, t)
    if raw is not None:
        return raw
    if pa.types.is_duration(t):
        return _micros(values, form.unit).cast(t)
    if not pa.types.is_string(t):
        return None
    per_second = _UNITS_PER_SECOND[form.unit]
    numbers = pa.array(values, pa.int64())
    remaining, parts = pc.abs_checked(numbers), []
    for divisor, width in (
        (3_600 * per_second, 2),
        (60 * per_second, 2),
        (per_second, 2),
        (1, len(str(per_second)) - 1),
    ):
        part = pc.divide(remaining, divisor)
        remaining = pc.subtract(remaining, pc.multiply(part, divisor))
        parts.append(pc.utf8_lpad(part.cast(pa.string()), width, "0"))
    text = pc.binary_join_element_wise(pc.binary_join_element_wise(*parts[:3], ":"), parts[3], ".")
    sign = pc.if_else(pc.less(numbers, 0), "-", "")
    return pc.binary_join_element_wise(sign, _without_zeros(text), "")


def _durations(values: Values, form: Form, t: Any) -> Any:
    raw = _raw_or(values, t)
    if raw is not None or not pa.types.is_duration(t):
        return raw
    return _micros(values, form.unit).cast(t)


def _lists(values: Values, form: Form, t: Any) -> Any:
    if not pa.types.is_list(t):
        return None
    _require(values, list)
    elements = _array(list(chain.from_iterable(v for v in values if v is not None)), form.children[0][1], t.value_type)
    return pa.ListArray.from_arrays(_offsets(values), elements, type=t, mask=_nulls(values))


def _maps(values: Values, form: Form, t: Any) -> Any:
    if not pa.types.is_map(t):
        return None
    _require(values, dict, list)
    pairs = [p for v in values if v is not None for p in (v.items() if isinstance(v, Mapping) else v)]
    if not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise MisfitError("use an object, or a list of pairs")
    for v in values:
        if isinstance(v, list) and len({repr(k) for k, _ in v}) < len(v):
            raise MisfitError("a map has each key once")
    (_, key_form), (_, value_form) = form.children
    keys = _array([k for k, _ in pairs], key_form, t.key_type)
    if keys.null_count:
        raise MisfitError("a map has no null as a key")
    items = _array([v for _, v in pairs], value_form, t.item_type)
    return pa.MapArray.from_arrays(_offsets(values), keys, items, type=t, mask=_nulls(values))


def _structs(values: Values, form: Form, t: Any) -> Any:
    if not pa.types.is_struct(t):
        return None
    _require(values, dict)
    forms = dict(form.children)
    fields = [t.field(i) for i in range(t.num_fields)]
    columns = []
    for f in fields:
        column = [None if v is None else v.get(f.name) for v in values]
        columns.append(_array(column, forms[f.name], f.type) if f.name in forms else pa.nulls(len(values), f.type))
    return pa.StructArray.from_arrays(columns, fields=fields, mask=_nulls(values))


def _offsets(values: Values) -> Any:
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if v is None else len(v) for v in values], out=offsets[1:])
    return pa.array(offsets)


def _nulls(values: Values) -> Any:
    return pa.array([v is None for v in values], pa.bool_())


_CONVERSIONS: dict[str, Callable[[Values, Form, Any], Any]] = {
    "boolean": _booleans,
    "integer": _integers,
    "float": _floats,
    "text": _texts,
    "bytes": _binaries,
    "decimal": _decimals,
    "variable decimal": _variable_decimals,
    "date": _dates,
    "iso date": _iso_dates,
    "time": _times,
    "timestamp": _timestamps,
    "zoned timestamp": _zoned_timestamps,
    "duration": _durations,
    "list": _lists,
    "map": _maps,
    "struct": _structs,
}
