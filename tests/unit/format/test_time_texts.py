"""Dates, timestamps and intervals as text: every stored one has a text that is read back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparklog.format.time_texts import csv_column, parse_times, time_texts

ZONED, LOCAL, DAY, SPAN = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.duration("us")
YEAR_10000_US = 253_402_300_800_000_000


@given(st.sampled_from([ZONED, LOCAL, DAY]), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=3))
@example(LOCAL, [YEAR_10000_US - 1, YEAR_10000_US, None])
@example(ZONED, [-(2**63), 2**63 - 1, 0])
@example(DAY, [2_932_896 << 32, 2_932_897 << 32, -719_529 << 32])
def test_every_stored_time_has_a_text_that_is_read_back(t: Any, numbers: list[int | None]) -> None:
    stored = pa.int32() if t == DAY else pa.int64()
    numbers = [n if n is None or t != DAY else n >> 32 for n in numbers]
    column = pa.array(numbers, stored).view(t)
    for texts in (time_texts(column), csv_column(column).cast(pa.string())):
        assert parse_times(texts, t).equals(column)


def test_texts_of_far_years_have_a_sign() -> None:
    times = pa.array([YEAR_10000_US - 1, YEAR_10000_US, -62_167_219_200_000_001], pa.int64()).view(ZONED)
    assert time_texts(times).to_pylist() == [
        "9999-12-31T23:59:59.999999Z",
        "+10000-01-01T00:00:00Z",
        "-0001-12-31T23:59:59.999999Z",
    ]


@pytest.mark.parametrize(
    ("text", "zoned", "local", "day"),
    [
        ("2026-01-31", "2026-01-31T00:00:00Z", "2026-01-31T00:00:00", "2026-01-31"),
        ("2026-01-31 12", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00", None),
        ("2026-01-31t12:30:00.1", "2026-01-31T12:30:00.100000Z", "2026-01-31T12:30:00.100000", None),
        ("2026-01-31T12:30:00.123456000", "2026-01-31T12:30:00.123456Z", "2026-01-31T12:30:00.123456", None),
        ("2026-01-31T12:30:00+05:30", "2026-01-31T07:00:00Z", None, None),
        ("9999-12-31T23:59:59-23:59", "+10000-01-01T23:58:59Z", None, None),
        ("+10000-01-01", "+10000-01-01T00:00:00Z", "+10000-01-01T00:00:00", "+10000-01-01"),
        ("9999-12-31T23:59:59.9999999", None, None, None),
        ("2026-02-30", None, None, None),
        ("2026-01-31T24:00:00", None, None, None),
        (" 2026-01-31", None, None, None),
        ("２026-01-31", None, None, None),
        ("+300000-01-01T00:00:00", None, None, None),
    ],
)
def test_texts_have_one_meaning_or_none(text: str, zoned: str | None, local: str | None, day: str | None) -> None:
    for t, expected in ((ZONED, zoned), (LOCAL, local), (DAY, day)):
        if expected is None:
            with pytest.raises(pa.ArrowInvalid):
                parse_times(pa.array([text]), t)
        else:
            assert time_texts(parse_times(pa.array([text]), t)).to_pylist() == [expected]


def test_intervals_are_exact() -> None:
    texts = ["P106751991DT14454.775807S", "-P106751991DT14454.775808S", "PT0.1000000S", None]
    assert parse_times(pa.array(texts), SPAN).cast(pa.int64()).to_pylist() == [2**63 - 1, -(2**63), 100_000, None]
    for wrong in ("PT0.1234567S", "P106751992D", "PT1.5H", "P1M", "P", "", "PT-1S", "1"):
        with pytest.raises(pa.ArrowInvalid):
            parse_times(pa.array([wrong]), SPAN)
