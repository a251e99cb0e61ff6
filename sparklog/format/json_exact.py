"""The rules for values in JSON: the value of each type that a JSON text stands for, or the reason why it stands for
none. `json_rows` reads usual texts faster, with the same results.

No value is changed to fit. A number fits by its value, not by its notation: `1.0` and `1e3` are whole numbers. A number
with a fraction or an exponent is rounded to the nearest `FLOAT` or `DOUBLE`, as decimal notation needs it. A whole
number has to be exact there, or be the shortest notation of the nearest one, as JavaScript writes 2^60.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Texts that stand in JSON for numbers that JSON does not have, as Spark's `to_json` writes them."""
BINARY_MARK = "base64"
"""Key of the object that stands for bytes: {"base64": "…"}."""

Bytes = Callable[[str], bytes]
"""Function that returns the bytes for which a text stands. Raises ValueError."""

NUMBER_CHARS_MAX = 1_100
"""Largest length of a number. The exact notation of a double has at most 1,077 characters."""
ELEMENTS_MAX = 2_000_000
"""Largest number of elements and members of an object. Python takes about 120 bytes for each."""
_SHORT_BYTES = 1 << 20
"""Size up to which an object has at most ELEMENTS_MAX elements."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BEFORE_COLON = (b'":', b" :", b"\t:", b"\n:", b"\r:")
"""Ends of the colons of members. In strings they can occur, too."""
_DECIMAL = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_SHOWN_CHARS_MAX = 60
_NAMES_CHARS_MAX = 200
_NOT_FINITE_WORDS = {
    "nan": "NaN",
    **dict.fromkeys(["inf", "+inf", "infinity", "+infinity"], "Infinity"),
    **dict.fromkeys(["-inf", "-infinity"], "-Infinity"),
}


class JsonValueError(ValueError):
    """A JSON text is not a row of the schema."""


NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""Form of a number in CSV."""


def text_as_bytes(text: str) -> bytes:
    """Return the text's UTF-8."""
    return text.encode()


def base64_as_bytes(text: str) -> bytes:
    """Return the bytes of a text in base64. Raises ValueError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as e:
        raise ValueError("not base64") from e


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the members of a JSON object. Numbers are int or Decimal. Raises JsonValueError for anything else, and for
    a member twice at any depth."""
    if len(text) > _SHORT_BYTES and _without_strings(text).count(b",") > ELEMENTS_MAX:
        raise JsonValueError(f"more than {ELEMENTS_MAX} elements: write smaller objects")
    try:
        value = parse_json(text.decode("utf-8-sig"))
    except UnicodeDecodeError as e:
        raise JsonValueError(f"not UTF-8: {e.reason} at byte {e.start}") from e
    if not isinstance(value, dict):
        raise JsonValueError("a row is one JSON object: {…}")
    return value


def has_members(text: bytes, count: int) -> bool:
    """Return True if a text, of one or more valid JSON values, has this number of members, at any depth."""
    if text.count(b":") == count:  # no text has a colon; there are never more members
        return True
    if sum(map(text.count, _BEFORE_COLON)) == count:  # nearly always
        return True
    return _without_strings(text).count(b":") == count  # outside of strings a colon stands in members alone


def _without_strings(text: bytes) -> bytes:
    return _STRING.sub(b"", text)


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Numbers are int or Decimal. Raises JsonValueError."""
    try:
        return _DECODER.decode(text.strip(" \t\r\n"))
    except JsonValueError:
        raise
    except RecursionError as e:
        raise JsonValueError("nested too deeply") from e
    except ValueError as e:
        raise JsonValueError(f"not readable as JSON: {e}") from e


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise JsonValueError(f"the field {twice[:80]!r} is there twice")
    return members


def _whole(text: str) -> int:
    return int(_short(text))


def _fraction(text: str) -> Decimal:
    return _decimal_of(_short(text))


def _decimal_of(text: str) -> Decimal:
    """Return the number of a text in decimal notation. Raises JsonValueError for an exponent that no column needs."""
    try:
        return Decimal(text)
    except ArithmeticError as e:
        raise JsonValueError(f"the number {text[:_SHOWN_CHARS_MAX]} has an exponent beyond 10^18") from e


def _short(text: str) -> str:
    if len(text) > NUMBER_CHARS_MAX:
        raise JsonValueError(f"a number has at most {NUMBER_CHARS_MAX} characters")
    return text


def _no_number(text: str) -> Any:
    raise JsonValueError(f'{text} is no JSON: write "{text}"')


_DECODER = json.JSONDecoder(
    object_pairs_hook=_members, parse_float=_fraction, parse_int=_whole, parse_constant=_no_number
)


def number_of_text(text: str) -> int | Decimal | str:
    """Return the number of a text in CSV, or the text in NOT_FINITE that it stands for. Raises JsonValueError."""
    text = _short(text.strip())
    if NUMBER.fullmatch(text) is not None:
        return int(text) if text.lstrip("+-").isdigit() and text.strip("-0") else _decimal_of(text)  # -0 keeps its sign
    try:
        return _NOT_FINITE_WORDS[text.lower()]
    except KeyError as e:
        raise JsonValueError(f"{text[:_SHOWN_CHARS_MAX]!r} is no number") from e


def column_value(value: Any, field: pa.Field, to_bytes: Bytes) -> Any:
    """Return a parsed JSON value as the object that `json_rows.build_array` takes. Raises JsonValueError, which names
    the column."""
    try:
        return _value(value, field.type, to_bytes)
    except (ValueError, TypeError, ArithmeticError) as e:
        raise unfit(value, field, str(e) if isinstance(e, JsonValueError) else "") from e


def unfit(value: Any, field: pa.Field, reason: str = "") -> JsonValueError:
    """Return the error for a parsed JSON value that does not fit its column."""
    shown = _shown(value)
    shown = shown if len(shown) <= _SHOWN_CHARS_MAX else shown[: _SHOWN_CHARS_MAX - 1] + "…"
    because = f": {reason}" if reason else ""
    return JsonValueError(
        f"column {field.name!r} is {field.type}: {shown} does not fit{because}{form_hint(field.type)}"
    )


def _shown(value: Any) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except ValueError:  # half of a surrogate pair
        return json.dumps(value, default=str)


def unknown_names(names: Iterable[str]) -> str:
    """Return names that the schema lacks, for an error message. The names can contain halves of surrogate pairs."""
    return ", ".join(sorted(names)).encode(errors="backslashreplace").decode()[:_NAMES_CHARS_MAX]


_ENCODER = msgspec.json.Encoder(decimal_format="number")


def form_hint(t: Any) -> str:
    """Return the form of a time, a date or an interval in text, in parentheses after a blank; "" for other types."""
    if pa.types.is_timestamp(t):
        return f" (write times as 2024-03-01T12:30:00.123456{'Z' if t.tz else ''}, at most in microseconds)"
    if pa.types.is_duration(t):
        return " (write intervals as P1DT2H3M4.123456S, in days to seconds, at most in microseconds)"
    return " (write dates as 2024-03-01)" if pa.types.is_date(t) else ""


def _value(value: Any, t: Any, to_bytes: Bytes) -> Any:
    """Return a value for `build_array`: structs are tuples, maps are lists of pairs, times are text."""
    if value is None:
        return None
    if pa.types.is_list(t):
        return [_value(v, t.value_type, to_bytes) for v in _as(list, value)]
    if pa.types.is_struct(t):
        unknown = _as(dict, value).keys() - {f.name for f in t}
        if unknown:
            raise JsonValueError(f"no field {unknown_names(unknown)}")
        return tuple(_value(value.get(f.name), f.type, to_bytes) for f in t)
    if pa.types.is_map(t):
        return _pairs(value, t, to_bytes)
    return _READERS[_kind(t)](value, t, to_bytes)


def _pairs(value: Any, t: Any, to_bytes: Bytes) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        pairs = [(_key(k, t.key_type, to_bytes), _value(v, t.item_type, to_bytes)) for k, v in value.items()]
    else:
        pairs = []
        for pair in _as(list, value):
            if not isinstance(pair, list) or len(pair) != 2:
                raise JsonValueError("a map is an object, or an array of [key, value]")
            pairs.append((_value(pair[0], t.key_type, to_bytes), _value(pair[1], t.item_type, to_bytes)))
    if any(key is None for key, _ in pairs):
        raise JsonValueError("a map's key is never null")
    return pairs


def _key(text: str, t: Any, to_bytes: Bytes) -> Any:
    """Return the value of a map's key, which is a text in JSON."""
    is_text = pa.types.is_string(t) or pa.types.is_temporal(t) or pa.types.is_decimal(t)
    if is_text or (pa.types.is_binary(t) and not text.startswith("{")) or text in NOT_FINITE:
        return _value(text, t, to_bytes)
    if text != text.strip():
        raise JsonValueError(f"blanks around the key {text[:_SHOWN_CHARS_MAX]!r}")
    return _value(parse_json(text), t, to_bytes)


def _as(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} is needed")
    return value


def _kind(t: Any) -> str:
    for kind, predicate in _KINDS.items():
        if predicate(t):
            return kind
    raise TypeError(f"a column of the type {t} has no form in JSON")


def _boolean(value: Any, t: Any, to_bytes: Bytes) -> bool:
    return bool(_as(bool, value))


def _text(value: Any, t: Any, to_bytes: Bytes) -> str:
    _as(str, value).encode()  # half of a surrogate pair is no text
    return str(value)


def _integer(value: Any, t: Any, to_bytes: Bytes) -> int:
    number = _number(value)
    if isinstance(number, Decimal):
        if number.adjusted() > NUMBER_CHARS_MAX or number != number.to_integral_value():
            raise ValueError("not a whole number")
        number = int(number)
    if not -(1 << t.bit_width - 1) <= number < 1 << t.bit_width - 1:
        raise ValueError("out of range")
    return number


def _float(value: Any, t: Any, to_bytes: Bytes) -> float:
    if isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    number = _number(value)
    is_float = pa.types.is_float32(t)
    with np.errstate(over="ignore"):
        rounded = np.float32(float(number)) if is_float else np.float64(float(number))
    if np.isinf(rounded):
        raise JsonValueError(f"beyond the range of {'float (3.4e38)' if is_float else 'double (1.8e308)'}")
    if isinstance(number, int) and int(rounded) != number and Decimal(str(rounded)) != number:
        raise JsonValueError(f"a {'float' if is_float else 'double'} would become {int(rounded)}")
    return float(rounded)


def _number(value: Any) -> int | Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise TypeError("a number is needed")
    return value


def _decimal(value: Any, t: Any, to_bytes: Bytes) -> Decimal:
    if isinstance(value, str):
        if _DECIMAL.fullmatch(value) is None:
            raise ValueError("not a decimal number")
        value = _decimal_of(_short(value))
    return exact_decimal(Decimal(_number(value)), t)


def exact_decimal(value: Decimal, t: Any) -> Decimal:
    """Return the number with the scale of the decimal type `t`. Raises JsonValueError if it does not fit exactly.

    Arrow reads numbers with a very small exponent from memory that is not its own.
    """
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise JsonValueError("not a finite number")
    text = "".join(map(str, digits)).lstrip("0")
    if not text:
        return Decimal((sign, (0,), -t.scale))
    stripped = text.rstrip("0")
    exponent += len(text) - len(stripped)
    if exponent < -t.scale:
        raise JsonValueError(f"more than {t.scale} digits after the point")
    if len(stripped) + exponent > t.precision - t.scale:
        raise JsonValueError(f"more than {t.precision - t.scale} digits before the point")
    return Decimal((sign, tuple(map(int, stripped + "0" * (exponent + t.scale))), -t.scale))


def _binary(value: Any, t: Any, to_bytes: Bytes) -> bytes:
    if isinstance(value, dict):
        if value.keys() != {BINARY_MARK}:
            raise JsonValueError('write bytes as {"base64": "…"}')
        return base64_as_bytes(_as(str, value[BINARY_MARK]))
    return to_bytes(_as(str, value))


def _time(value: Any, t: Any, to_bytes: Bytes) -> str:
    return str(_as(str, value))


_KINDS: dict[str, Callable[[Any], bool]] = {
    "boolean": pa.types.is_boolean,
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "text": pa.types.is_string,
    "binary": pa.types.is_binary,
    "decimal": pa.types.is_decimal,
    "time": pa.types.is_temporal,
}
_READERS: dict[str, Callable[[Any, Any, Bytes], Any]] = {
    "boolean": _boolean,
    "integer": _integer,
    "float": _float,
    "text": _text,
    "binary": _binary,
    "decimal": _decimal,
    "time": _time,
}
