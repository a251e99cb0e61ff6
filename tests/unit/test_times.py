"""Points in time as people write them."""

from __future__ import annotations

import contextlib
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.reading.positions import AtTime, BeforeEnd, offsets_of, parse_position, position_of
from sparklog.errors import InvalidRequestError
from sparklog.times import parse_time_ms, time_ms_of
from sparklog.types import OffsetAndTimestamp, TopicPartition
from sparklog.units import DURATION_UNITS_MS
from tests.support.cases import for_each

ZONES = st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "UTC"])
NOWS = st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
NOW = datetime(2026, 11, 27, 21, 30, tzinfo=UTC)


def ms(at: datetime) -> int:
    return (at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), ZONES, st.sampled_from("T "), NOWS)
def test_a_written_time_means_the_same_instant(at: datetime, zone: str, between: str, now: datetime) -> None:
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    text = at.isoformat(sep=between)
    assert parse_time_ms(text, ms(now)) == ms(at.replace(tzinfo=UTC)) == time_ms_of(at, 0)
    aware = at.replace(tzinfo=ZoneInfo(zone))
    assert (
        parse_time_ms(f"{text} {zone}", 0) == parse_time_ms(f"{text} [{zone}]", 0) == ms(aware) == time_ms_of(aware, 0)
    )
    offset = aware.isoformat(sep=between)
    assert parse_time_ms(offset, 0) == ms(datetime.fromisoformat(offset))


@given(NOWS, st.integers(0, 10**6), st.sampled_from(list(DURATION_UNITS_MS)))
def test_a_duration_before_now(now: datetime, number: int, unit: str) -> None:
    before = ms(now) - number * DURATION_UNITS_MS[unit]
    for text in (f"-{number}{unit}", f"now-{number}{unit}", f"{number} {unit} ago", f"now - {number} {unit}"):
        assert parse_time_ms(text, ms(now)) == before
        assert parse_position(text, ms(now)) == AtTime(before)


@given(NOWS, ZONES)
def test_calendar_days_follow_the_zone(now: datetime, zone: str) -> None:
    there = ZoneInfo(zone)
    today, yesterday = (parse_time_ms(f"{word} {zone}", ms(now)) for word in ("today", "Yesterday"))
    assert yesterday < today <= ms(now)
    day = now.astimezone(there).date()
    assert parse_time_ms(f"{day} {zone}", 0) == today
    assert parse_time_ms(f"{day - timedelta(days=1)} {zone}", 0) == yesterday
    assert parse_time_ms(f"yesterday 10:30 {zone}", ms(now)) == parse_time_ms(
        f"{day - timedelta(days=1)}T10:30 {zone}", 0
    )


def test_days_with_a_change_of_the_clock() -> None:
    """A skipped time moves by the gap; of a time that comes twice the first one counts; a day may have 23 hours."""
    assert parse_time_ms("2026-03-29T02:30 Europe/Berlin", 0) == parse_time_ms("2026-03-29T03:30+02:00", 0)
    assert parse_time_ms("2026-10-25T02:30 Europe/Berlin", 0) == parse_time_ms("2026-10-25T02:30+02:00", 0)
    noon = ms(datetime(2026, 3, 30, 12, tzinfo=UTC))
    day_ms = parse_time_ms("today Europe/Berlin", noon) - parse_time_ms("yesterday Europe/Berlin", noon)
    assert day_ms == 23 * 3_600_000


def test_the_machines_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        for word in ("today", "yesterday 10:30", "2026-11-27T10:00"):
            assert parse_time_ms(f"{word} local", ms(NOW)) == parse_time_ms(f"{word} Asia/Kolkata", ms(NOW))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_objects() -> None:
    assert time_ms_of(date(2026, 11, 27), 0) == parse_time_ms("2026-11-27", 0)
    assert time_ms_of("-1h", 3_600_001) == 1
    assert parse_time_ms("@1764237600001", 0) == 1_764_237_600_001


@for_each(
    "text",
    ["", "tomorrow", "1h", "-5M", "-", "2026-13-01", "2026-11-27T25:00", "2026-11-27T10:00Z UTC", "now UTC", "20261127",
     "0001-01-01T00:00+10:00", "yesterday 25:00", "last week", "@", "@1e3", "10:00", "\x00"],
)  # fmt: skip
def test_no_times(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="write a time as -1h, yesterday"):
        parse_time_ms(text, ms(NOW))


@for_each("zone", ["Foo/Bar", "CETT", "../etc", "Europe"])
def test_an_unknown_zone_is_named(zone: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"zone|write a time"):
        parse_position(f"2026-11-27 {zone}", 0)


@given(st.text(max_size=20))
def test_any_text_is_a_position_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidRequestError):
        parse_position(text, ms(NOW))


def test_positions() -> None:
    assert [parse_position(text, 0) for text in ("earliest", " LATEST", "1_000", "-5", "-0")] == [
        "earliest", "latest", 1000, BeforeEnd(5), BeforeEnd(0),
    ]  # fmt: skip
    assert position_of(-3, 0) == BeforeEnd(3)
    assert position_of(NOW, 0) == AtTime(ms(NOW))
    assert position_of(np.int64(-3), 0) == position_of(pa.scalar(-3), 0) == BeforeEnd(3)
    utc = NOW.astimezone(UTC).replace(tzinfo=None)
    for unit in ("ms", "us", "ns"):  # the elements of columns of times
        for element in (
            np.datetime64(utc, unit),
            pa.scalar(NOW, pa.timestamp(unit, "UTC")),
            pd.Timestamp(NOW).as_unit(unit),
        ):
            assert position_of(element, 0) == AtTime(ms(NOW))
    for wrong in (True, 1.5, None, [1], 2**70, "1" * 24, pd.NaT, np.datetime64("NaT"), pd.NA, np.True_, pa.scalar(1.5)):
        with pytest.raises(InvalidRequestError):
            position_of(wrong, 0)


def test_offsets_of_positions() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    first, end = {a: 10, b: 0}, {a: 20, b: 3}
    asked: list[object] = []

    def ask(wanted: object) -> dict[TopicPartition, OffsetAndTimestamp]:
        asked.append(wanted)
        return {a: OffsetAndTimestamp(15, 7), b: OffsetAndTimestamp(-1, -1)}

    def found(position: object) -> dict[TopicPartition, int]:
        return offsets_of(position, [a, b], first, end, ask)  # type: ignore[arg-type]

    assert found("earliest") == found(AtTime(0)) == found(AtTime(-1)) == first
    assert found("latest") == found(BeforeEnd(0)) == end
    assert found(BeforeEnd(5)) == {a: 15, b: 0}
    assert found(12) == {a: 12, b: 12}
    assert not asked  # a negative time is a name in the protocol, so none is sent
    assert found(AtTime(5)) == {a: 15, b: 3}
    assert asked == [{a: 5, b: 5}]
    assert offsets_of(AtTime(5), [], {}, {}, ask) == {}
