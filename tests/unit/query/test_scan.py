"""Which batches may hold a time, by their headers."""

from __future__ import annotations

import pytest

from sparklog.format.batch import ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_LOG_APPEND_TIME, BatchHeader
from sparklog.query.ranges import TIME_MS_MAX, Interval
from sparklog.query.scan import may_have_time


def header(low_ms: int, high_ms: int, *, attributes: int = 0, append_ms: int = 0) -> BatchHeader:
    return BatchHeader(0, 0, 0, append_ms, attributes, 1, 3, 2, low_ms, high_ms, -1, -1, -1, 0, 0, 0)


TIMES = [Interval(100, 200), Interval(500, 600)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (header(0, 99), False),
        (header(0, 100), True),
        (header(200, 300), True),
        (header(201, 499), False),
        (header(201, 700), True),
        (header(601, 700), False),
        (header(0, 0, attributes=ATTRIBUTE_LOG_APPEND_TIME, append_ms=550), True),
        (header(150, 150, attributes=ATTRIBUTE_LOG_APPEND_TIME, append_ms=300), False),
        (header(10**15, 700, attributes=ATTRIBUTE_DELETE_HORIZON), True),
        (header(0, 50, attributes=ATTRIBUTE_DELETE_HORIZON), False),
    ],
)
def test_by_header(given: BatchHeader, expected: bool) -> None:
    assert may_have_time(given, TIMES) is expected


def test_times_beyond_microseconds_are_at_the_edge() -> None:
    assert may_have_time(header(2**62, 2**62), [Interval(TIME_MS_MAX, TIME_MS_MAX)])
