"""The canonical JSON of keys: equal keys have equal bytes, so that Kafka's hash of the bytes chooses one partition.

The object has the key columns in the topic's order, without spaces: `{"id":5,"zone":"Harbour"}`. Texts, numbers and
escapes are those of RFC 8785, which is the output of JavaScript's `JSON.stringify`.

=========================  =====================================================================================
column                     JSON
=========================  =====================================================================================
null                       null
boolean                    true, false
integers                   digits
float, double              RFC 8785: the fewest digits that read as the same value of the column's type. `1`, `0.5`,
                           `1e+21`, `1e-7`. -0.0 is `0`; `"NaN"`, `"Infinity"`, `"-Infinity"`
decimal                    string with as many digits after the point as the column's scale: `"12.50"`
string                     UTF-8, with the escapes of RFC 8785: ``\\"``, ``\\\\``, ``\\b``, ``\\t``, ``\\n``,
                           ``\\f``, ``\\r``, and ``\\u00xx`` (small letters) for other control characters
binary                     string, base64 with padding
date                       `"2026-01-31"`
timestamp                  `"2026-01-31T12:00:00Z"`; six digits follow the seconds if they are not all zero:
                           `"2026-01-31T12:00:00.500000Z"`
timestamp without a zone   the same without Z
duration                   ISO 8601 in days and seconds, without parts that are zero: `"P1DT1.5S"`, `"-PT0.5S"`, `"P0D"`
=========================  =====================================================================================

Years outside 0 to 9999 have a sign, as java.time writes them: `"+10000-01-01"`, `"-0044-03-15"`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from sparklog.errors import SchemaMismatchError
from sparklog.format.key_equality import canonical_numbers
from sparklog.format.time_texts import time_texts

_BYTES = pa.large_binary()
_TEXT = pa.large_string()
_DAY_US = 86_400_000_000
_EXPONENTS = range(10, 21)
"""Exponents of ten that Arrow writes, and RFC 8785 does not."""
_MUST_ESCAPE = np.zeros(256, bool)
_MUST_ESCAPE[:32] = _MUST_ESCAPE[ord('"')] = _MUST_ESCAPE[ord("\\")] = True
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_PADDING = ord("=")
_PAIRS = np.frombuffer(b"".join(b"%02d" % i for i in range(100)), np.uint8).reshape(100, 2)
"""Digits of the numbers from 0 to 99."""
_FIRST_DAY, _LAST_DAY = np.datetime64("0000-01-01"), np.datetime64("9999-12-31")
SLICE_ROWS = 16_384
SLICE_NAME_BYTES = 8 * 1024 * 1024
"""Largest number of bytes for the columns' names in the keys of a slice."""


class _Texts(NamedTuple):
    """The JSON of a column's values. `quoted`: each text is a string, and has no quotation marks yet."""

    texts: Any
    quoted: bool


def canonical_keys(columns: Sequence[Any], names: Sequence[str]) -> Any:
    """Return the keys of some rows, as an array of large_binary. `columns`: arrays of the key columns, of the canonical
    types of `format/schema.py`. `names`: names of the key columns, in the topic's order. Raises SchemaMismatchError: A
    column has a type that no key can have."""
    import pyarrow.compute as pc  # late: many producers do without it

    pieces: list[Any] = []
    lead = b"{"
    for name, column in zip(names, columns, strict=True):
        texts, quoted = _json_texts(column)
        lead += msgspec.json.encode(name) + b":"
        if quoted and texts.null_count:
            mark = pa.scalar(b'"', _BYTES)
            texts, quoted = pc.binary_join_element_wise(mark, texts, mark, pa.scalar(b"", _BYTES)), False
        pieces += [pa.scalar(lead + (b'"' if quoted else b""), _BYTES), texts]
        lead = b'",' if quoted else b","
    pieces += [pa.scalar(lead[:-1] + b"}", _BYTES), pa.scalar(b"", _BYTES)]
    return pc.binary_join_element_wise(*pieces, null_handling="replace", null_replacement="null")


def key_slices(columns: Sequence[Any], names: Sequence[str]) -> Iterator[Any]:
    """Yield the keys of all rows in slices, which bound the memory. Raises as `canonical_keys`."""
    step = max(1, min(SLICE_ROWS, SLICE_NAME_BYTES // (sum(map(len, names)) + 1)))
    for start in range(0, len(columns[0]), step):
        yield canonical_keys([column.slice(start, step) for column in columns], names)


def _json_texts(column: Any) -> _Texts:
    t = column.type
    for is_type, convert, quoted in _CONVERSIONS:
        if is_type(t):
            return _Texts(convert(column), quoted)
    raise SchemaMismatchError(f"a key column of type {t} has no form in JSON")


def _plain(column: Any) -> Any:
    return column.cast(_TEXT).cast(_BYTES)


def _string(column: Any) -> Any:
    """Escape the texts."""
    texts = column.cast(_BYTES)
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return texts
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    if not _MUST_ESCAPE[np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]].any():
        return texts
    import pyarrow.compute as pc

    mask = pc.fill_null(pc.match_substring_regex(column, r'["\\\x00-\x1f]'), False)
    escaped = [msgspec.json.encode(text)[1:-1] for text in column.filter(mask).to_pylist()]
    return pc.replace_with_mask(texts, mask, pa.array(escaped, _BYTES))


def _binary(column: Any) -> Any:
    """Encode the values in base64, all groups of three bytes at once."""
    n = len(column)
    if n == 1:
        return pa.array([None if v is None else base64.b64encode(v) for v in column.to_pylist()], _BYTES)
    full = column.fill_null(b"") if column.null_count else column
    _, offsets_buffer, buffer = full.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, n + 1, full.offset * 4).astype(np.int64)
    data = np.append(np.frombuffer(buffer or b"", np.uint8), np.zeros(2, np.uint8))
    lengths = np.diff(offsets)
    groups = (lengths + 2) // 3
    ends = np.zeros(n + 1, np.int64)
    np.cumsum(groups, out=ends[1:])
    within = 3 * (np.arange(ends[-1]) - np.repeat(ends[:-1], groups))
    at = np.repeat(offsets[:-1], groups) + within
    rest = np.repeat(lengths, groups) - within
    first, second, third = data[at], np.where(rest > 1, data[at + 1], 0), np.where(rest > 2, data[at + 2], 0)
    out = np.empty((len(at), 4), np.uint8)
    out[:, 0] = _BASE64[first >> 2]
    out[:, 1] = _BASE64[(first & 3) << 4 | second >> 4]
    out[:, 2] = np.where(rest > 1, _BASE64[(second & 15) << 2 | third >> 6], _PADDING)
    out[:, 3] = np.where(rest > 2, _BASE64[third & 63], _PADDING)
    return _with_nulls_of(column, _joined(out, 4 * groups))


def _with_nulls_of(column: Any, texts: Any) -> Any:
    import pyarrow.compute as pc

    return pc.if_else(column.is_valid(), texts, pa.scalar(None, texts.type)) if column.null_count else texts


def _float(column: Any) -> Any:
    """Write the numbers as RFC 8785 does: Arrow's texts have the same digits, but exponents from 1e+10 on."""
    import pyarrow.compute as pc

    numbers = canonical_numbers(column.fill_null(0).to_numpy(zero_copy_only=False))
    values = pa.Array.from_buffers(column.type, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])
    texts = values.cast(_TEXT)
    with np.errstate(invalid="ignore"):
        is_large = (np.abs(numbers) >= 1e10) & (np.abs(numbers) < 1e21)
    if is_large.any():
        for exponent in _EXPONENTS:
            texts = _without_exponent(texts, exponent)
    if not np.isfinite(numbers).all():
        for name, json in (("nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"')):
            texts = pc.if_else(pc.equal(texts, pa.scalar(name, _TEXT)), pa.scalar(json, _TEXT), texts)
    return _with_nulls_of(column, texts.cast(_BYTES))


def _without_exponent(texts: Any, exponent: int) -> Any:
    """Write the numbers with this positive exponent of ten as digits."""
    import pyarrow.compute as pc

    ending = f"e+{exponent:02d}"
    mask = pc.ends_with(texts, ending)
    few = texts.filter(mask)
    if not len(few):
        return texts
    parts = pc.extract_regex(few, r"^(?P<sign>-?)(?P<whole>\d)\.?(?P<fraction>\d*)e")
    sign, whole, fraction = (pc.struct_field(parts, i) for i in range(3))
    no_separator = pa.scalar("", _TEXT)
    digits = pc.binary_join_element_wise(whole, pc.utf8_rpad(fraction, exponent, "0"), no_separator)
    digits = pc.replace_substring_regex(digits, rf"^(\d{{{exponent + 1}}})(\d+)$", r"\1.\2")
    return pc.replace_with_mask(texts, mask, pc.binary_join_element_wise(sign, digits, no_separator))


def _decimal(column: Any) -> Any:
    import pyarrow.compute as pc

    scale = column.type.scale
    unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(column), column.buffers(), offset=column.offset)
    texts = unscaled.cast(_TEXT)
    if not scale:
        return texts.cast(_BYTES)
    padded = pc.utf8_lpad(pc.utf8_ltrim(texts, "-"), scale + 1, "0")
    sign = pc.if_else(pc.starts_with(texts, "-"), pa.scalar("-", _TEXT), pa.scalar("", _TEXT))
    whole, fraction = pc.utf8_slice_codeunits(padded, 0, -scale), pc.utf8_slice_codeunits(padded, -scale)
    point, no_separator = pa.scalar(".", _TEXT), pa.scalar("", _TEXT)
    return pc.binary_join_element_wise(sign, whole, point, fraction, no_separator).cast(_BYTES)


def _date(column: Any) -> Any:
    days = column.view(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    return _with_nulls_of(column, _date_texts(days.astype("M8[D]")))


def _timestamp(column: Any) -> Any:
    import pyarrow.compute as pc

    times = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    marks = [(0, "T"), (3, ":"), (6, ":"), (9, "."), *([(16, "Z")] if column.type.tz else [])]
    days, rest = np.divmod(times, _DAY_US)
    seconds, fraction = np.divmod(rest, 1_000_000)
    clock = np.empty((len(times), 17 if column.type.tz else 16), np.uint8)
    for at, mark in marks:
        clock[:, at] = ord(mark)
    for at, number in ((1, seconds // 3600), (4, seconds // 60 % 60), (7, seconds % 60)):
        clock[:, at : at + 2] = _PAIRS[number]
    for at, number in ((10, fraction // 10_000), (12, fraction // 100 % 100), (14, fraction % 100)):
        clock[:, at : at + 2] = _PAIRS[number]
    is_whole = fraction == 0
    shown = np.ones(clock.shape, bool)
    shown[is_whole, 9:16] = False
    clocks = _joined(clock[shown], clock.shape[1] - 7 * is_whole)
    texts = pc.binary_join_element_wise(_date_texts(days.astype("M8[D]")), clocks, pa.scalar(b"", _BYTES))
    return _with_nulls_of(column, texts)


def _date_texts(days: np.ndarray) -> Any:
    if len(days) and (days.min() < _FIRST_DAY or days.max() > _LAST_DAY):
        return time_texts(pa.array(days.astype(np.int32), pa.int32()).view(pa.date32())).cast(_BYTES)
    months, years = days.astype("M8[M]"), days.astype("M8[Y]").astype(np.int64) + 1970
    out = np.empty((len(days), 10), np.uint8)
    out[:, 0:2], out[:, 2:4] = _PAIRS[years // 100], _PAIRS[years % 100]
    out[:, 4] = out[:, 7] = ord("-")
    out[:, 5:7] = _PAIRS[months.astype(np.int64) % 12 + 1]
    out[:, 8:10] = _PAIRS[(days - months.astype("M8[D]")).astype(np.int64) + 1]
    return _joined(out, np.full(len(days), 10))


def _joined(content: np.ndarray, lengths: np.ndarray) -> Any:
    """Return texts of the given lengths, which follow each other in `content`."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return pa.Array.from_buffers(_BYTES, len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(content)])


def _duration(column: Any) -> Any:
    import pyarrow.compute as pc

    numbers = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    size = np.where(numbers < 0, -(numbers.astype(np.uint64)), numbers.astype(np.uint64))
    days, rest = size // np.uint64(_DAY_US), size % np.uint64(_DAY_US)
    seconds, fraction = rest // np.uint64(1_000_000), rest % np.uint64(1_000_000)

    def text(part: np.ndarray, lead: str, tail: str, shown: np.ndarray) -> Any:
        digits = pa.Array.from_buffers(pa.uint64(), len(part), [None, pa.py_buffer(part)]).cast(_TEXT)
        around = [pa.scalar(one, _TEXT) for one in (lead, tail, "")]
        return pc.if_else(shown, pc.binary_join_element_wise(around[0], digits, *around[1:]), around[2])

    millionths = text(fraction + np.uint64(1_000_000), "", "", fraction > 0)
    point = pc.replace_substring_regex(pc.utf8_rtrim(millionths, "0"), "^1", ".")
    sign = pc.if_else(numbers < 0, pa.scalar("-P", _TEXT), pa.scalar("P", _TEXT))
    end = pc.if_else(rest > 0, pa.scalar("S", _TEXT), pa.scalar("", _TEXT))
    no_separator = pa.scalar("", _TEXT)
    parts = (text(days, "", "D", (days > 0) | (size == 0)), text(seconds, "T", "", rest > 0), point, end)
    texts = pc.binary_join_element_wise(sign, *parts, no_separator)
    return _with_nulls_of(column, texts.cast(_BYTES))


_CONVERSIONS: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any], bool], ...] = (
    (pa.types.is_string, _string, True),
    (pa.types.is_integer, _plain, False),
    (pa.types.is_boolean, _plain, False),
    (pa.types.is_floating, _float, False),
    (pa.types.is_decimal, _decimal, True),
    (pa.types.is_timestamp, _timestamp, True),
    (pa.types.is_date32, _date, True),
    (pa.types.is_binary, _binary, True),
    (pa.types.is_duration, _duration, True),
)
"""For each kind of type: the function that writes its values, and True if the texts are JSON strings."""
