"""Dates, timestamps and intervals as text, both ways, for whole columns.

==============================  ===================================================================
type                            text
==============================  ===================================================================
timestamp with a zone           `2024-03-01T12:30:00.123456Z`; read with any offset, and as UTC without one
timestamp without a zone        `2024-03-01T12:30:00.123456`; an offset is an error
date                            `2024-03-01`
interval (duration)             ISO 8601 in days to seconds: `P1DT2H3M4.123456S`
==============================  ===================================================================

Years outside of 0000 to 9999 have a sign and at least four digits, as in ISO 8601 and in Java: `+10000-01-01`,
`-0001-12-31`. A text may have a blank in place of the T, no seconds, or no time of day. Digits of a second beyond
microseconds are an error unless they are zeros.

Arrow reads and writes the years 0000 to 9999. The Gregorian calendar repeats every 400 years, so that other years are
shifted into this range.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sparklog.format.decoders import convert

_DAYS_OF_400_YEARS = 146_097
_YEAR_0, _YEAR_10000 = -719_528, 2_932_897
"""First days of the years 0 and 10000, in days since 1970."""
_DAY_US = 86_400_000_000
_MICROSECOND = dt.timedelta(microseconds=1)
_FAR = re.compile(r"([+-]\d{4,7})(-.*)", re.ASCII | re.DOTALL)
_FAR_PATTERN = r"^[+-]\d"
_ZONE_PATTERN = r"\d[T ]\d{2}.*(?:Z|[+-]\d{2}(?::?\d{2})?)$"
_TIME_PATTERN = r"\d[T ]\d{2}"
_INTERVALS: Any = list[dt.timedelta | None]
_INTERVAL_PATTERN = r"^[+-]?P(?:\d{1,9}D)?(?:T(?:\d{1,12}H)?(?:\d{1,14}M)?(?:\d{1,15}(?:\.\d{1,6}0*)?S)?)?$"


def parse_times(texts: Any, t: Any) -> Any:
    """Return an array of text as an array of dates, timestamps or durations. `t`: the type: date32, duration[us] or
    timestamp[us], without a zone or with UTC. Raises pa.ArrowInvalid: A text is not of the form above, or outside of
    the type's range."""
    if pa.types.is_duration(t):
        return _parse_intervals(texts, t)
    try:
        return texts.cast(t)  # the usual form, in an eighth of the time
    except pa.ArrowInvalid:
        pass
    import pyarrow.compute as pc  # late: 10 MB that an idle broker does without

    is_far = pc.match_substring_regex(texts, _FAR_PATTERN)
    if not pc.any(is_far).as_py():
        return _normalized(texts, t).cast(t)
    near = _normalized(pc.if_else(is_far, None, texts), t).cast(t)
    far = pc.filter(texts, pc.fill_null(is_far, False)).to_pylist()
    return pc.replace_with_mask(near.view(_integer(t)), pc.fill_null(is_far, False), _far_numbers(far, t)).view(t)


def _normalized(texts: Any, t: Any) -> Any:
    """Return the texts in the form that Arrow reads."""
    import pyarrow.compute as pc

    if pa.types.is_date(t):
        return texts
    texts = pc.replace_substring_regex(pc.ascii_upper(texts), r"(\.\d{6})0+", r"\1")
    if not t.tz:
        return texts
    has_zone = pc.match_substring_regex(texts, _ZONE_PATTERN)
    has_time = pc.match_substring_regex(texts, _TIME_PATTERN)
    suffix = pc.if_else(has_zone, "", pc.if_else(has_time, "Z", " 00:00:00Z"))
    return pc.binary_join_element_wise(texts, suffix, "")


def _integer(t: Any) -> Any:
    return pa.int32() if pa.types.is_date(t) else pa.int64()


def _far_numbers(texts: list[str], t: Any) -> Any:
    """Return the stored numbers of texts whose years have a sign: those of the same days in another cycle of 400 years,
    moved by the cycles between."""
    matches = [_FAR.fullmatch(text) for text in texts]
    if None in matches:
        raise pa.ArrowInvalid(f"{texts[matches.index(None)]!r:.80} is no {t}")
    parts = [(divmod(int(match[1]), 400), match[2]) for match in matches if match is not None]
    shifted = pa.array([f"{year + 400:04}{rest}" for (_, year), rest in parts], pa.string())
    unit = _DAYS_OF_400_YEARS * (1 if pa.types.is_date(t) else _DAY_US)
    near = parse_times(shifted, t).view(_integer(t)).to_pylist()
    numbers = [number + (cycles - 1) * unit for number, ((cycles, _), _) in zip(near, parts, strict=True)]
    limit = 1 << _integer(t).bit_width - 1
    for number, text in zip(numbers, texts, strict=True):
        if not -limit <= number < limit:
            raise pa.ArrowInvalid(f"{text!r:.80} is outside of the range of {t}")
    return pa.array(numbers, _integer(t))


def _parse_intervals(texts: Any, t: Any) -> Any:
    import pyarrow.compute as pc

    is_interval = pc.match_substring_regex(texts, _INTERVAL_PATTERN)
    if pc.all(is_interval).as_py() is False:
        first = pc.filter(texts, pc.invert(pc.fill_null(is_interval, True)))[0]
        raise pa.ArrowInvalid(f"{str(first)!r:.80} is no {t}")
    try:
        intervals = convert(texts.to_pylist(), _INTERVALS)
        try:
            return pa.array(intervals, t)
        except pa.ArrowInvalid:  # Arrow does not take the least one
            return pa.array([None if v is None else v // _MICROSECOND for v in intervals], pa.int64()).view(t)
    except (msgspec.ValidationError, OverflowError) as e:
        raise pa.ArrowInvalid(f"an interval is outside of the range of {t}") from e


def time_texts(column: Any) -> Any:
    """Return an array of dates or timestamps (in any unit of at most microseconds) as an array of text."""
    is_far = _far_mask(column)
    return _near_texts(column) if is_far is None else _texts(column, is_far, _near_texts)


def csv_column(column: Any) -> Any:
    """Return an array of dates or timestamps unchanged if Arrow's CSV can have them, else as text: Arrow's, and that of
    `time_texts` for years outside of 0000 to 9999."""
    is_far = _far_mask(column)
    return column if is_far is None else _texts(column, is_far, lambda near: near.cast(pa.string()))


def _numbers(column: Any) -> tuple[Any, int]:
    """Return the days or microseconds since 1970 as int64, and their number in a day."""
    if pa.types.is_date(column.type):
        return column.cast(pa.date32()).view(pa.int32()).cast(pa.int64()), 1
    return column.cast(pa.timestamp("us"), safe=False).view(pa.int64()), _DAY_US


def _far_mask(column: Any) -> Any:
    """Return the mask of the values with years outside of 0000 to 9999; None if there are none."""
    import pyarrow.compute as pc

    numbers, per_day = _numbers(column)
    low, high = _YEAR_0 * per_day, _YEAR_10000 * per_day
    bounds = pc.min_max(numbers)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if least is None or (least >= low and most < high):
        return None
    return pc.fill_null(pc.or_(pc.less(numbers, low), pc.greater_equal(numbers, high)), False)


def _texts(column: Any, is_far: Any, near_texts: Callable[[Any], Any]) -> Any:
    """Return the column's texts. `near_texts`: function for a column without far years."""
    import pyarrow.compute as pc

    numbers, per_day = _numbers(column)
    far = _far_texts(pc.filter(numbers, is_far), column.type, per_day)
    return pc.replace_with_mask(near_texts(pc.if_else(is_far, None, column)), is_far, far)


def _near_texts(column: Any) -> Any:
    """Return the texts of dates or timestamps in the years 0000 to 9999."""
    import pyarrow.compute as pc

    t = column.type
    if pa.types.is_date(t):
        return column.cast(pa.string())
    texts = column.cast(pa.timestamp("us"), safe=False).cast(pa.string())
    texts = pc.replace_substring(pc.replace_substring(texts, " ", "T"), ".000000", "")
    return pc.binary_join_element_wise(texts, "Z", "") if t.tz else texts


def _far_texts(numbers: Any, t: Any, per_day: int) -> Any:
    """Return the texts of numbers of days or microseconds with years outside of 0000 to 9999: those of the same day in
    another cycle of 400 years, with their own years."""
    cycles, rest = np.divmod(numbers.to_numpy(), _DAYS_OF_400_YEARS * per_day)
    stored = pa.date32() if pa.types.is_date(t) else pa.timestamp("us", tz=t.tz)
    texts = _near_texts(pa.array(rest).cast(_integer(t)).view(stored)).to_pylist()
    years = (f"{int(text[:4]) + 400 * cycle:+05}" for text, cycle in zip(texts, cycles.tolist(), strict=True))
    return pa.array([year + text[4:] for year, text in zip(years, texts, strict=True)], pa.string())
