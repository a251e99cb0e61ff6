"""Durations and sizes with units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog import settings as s
from sparklog.errors import InvalidConfigError
from sparklog.settings import Scope
from sparklog.units import (
    DURATION_UNITS_MS,
    SIZE_UNITS_BYTES,
    parse_duration_ms,
    parse_in_unit,
    parse_size_bytes,
    takes_units,
)
from tests.support.cases import for_each

PARTS = st.dictionaries(st.sampled_from(list(DURATION_UNITS_MS)), st.integers(0, 10**9), min_size=1)


@given(PARTS, st.sampled_from(["", " "]))
def test_a_duration_is_the_sum_of_its_parts(parts: dict[str, int], blank: str) -> None:
    ordered = sorted(parts, key=DURATION_UNITS_MS.__getitem__, reverse=True)
    text = blank.join(f"{parts[unit]}{blank}{unit}" for unit in ordered)
    assert parse_duration_ms(text) == sum(n * DURATION_UNITS_MS[unit] for unit, n in parts.items())


@given(st.integers(0, 10**15), st.sampled_from(list(SIZE_UNITS_BYTES)), st.sampled_from(["", "/s"]))
def test_a_size_is_its_number_in_the_unit(number: int, unit: str, rate: str) -> None:
    for written in (unit, unit.lower(), unit.removesuffix("B") or unit):
        assert parse_size_bytes(f"{number} {written}{rate}") == number * SIZE_UNITS_BYTES[unit]


@given(st.text(max_size=12))
def test_any_other_text_is_refused_with_a_value_error(text: str) -> None:
    for parse in (parse_duration_ms, parse_size_bytes):
        try:
            assert parse(text) >= 0
        except ValueError as e:
            assert repr(text.strip()) in str(e) or repr(text) in str(e)


@pytest.mark.parametrize(
    ("text", "duration_ms"), [("1.5h", 5_400_000), ("2 days 3 hours", 183_600_000), ("7D", 604_800_000), ("0s", 0)]
)
def test_forms_of_durations(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@for_each("text", ["", "d", "7", "-7d", "7dd", "30m1h", "1h1h", "5M", "1e3s", "0.5ms", "7d x", "1_000s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"is needed|not a whole number of ms"):
        parse_duration_ms(text)


@for_each("setting", [x for x in s.SETTINGS if takes_units(x.unit)], ids=lambda x: f"{x.scope.value}:{x.name}")
def test_every_setting_that_is_a_time_or_a_size_takes_units(setting: s.Setting) -> None:
    text = "2w" if setting.unit in ("ms", "s", "minutes") else "3MiB"
    in_unit = parse_in_unit(text, setting.unit)
    bounds = s.Setting(setting.name, setting.scope, setting.default, setting.doc, setting.unit, 0, 2**62)
    assert bounds.parse(text) == in_unit == bounds.parse(str(in_unit))
    with pytest.raises(InvalidConfigError, match=f"{setting.name} = '1x': a whole number is needed, or a number"):
        setting.parse("1x")


def test_numbers_of_other_settings_take_no_units() -> None:
    for name, text in (("max.poll.records", "1k"), ("max.poll.interval.ms", "1MB"), ("fetch.max.bytes", "1s")):
        with pytest.raises(InvalidConfigError, match="a whole number"):
            s.check(Scope.CONSUMER, {name: text})
    assert s.check(Scope.BROKER, {"offsets.retention.minutes": "7d"}) == {"offsets.retention.minutes": 10_080}
    with pytest.raises(InvalidConfigError, match=r"offsets\.retention\.minutes"):
        s.check(Scope.BROKER, {"offsets.retention.minutes": "90s"})
