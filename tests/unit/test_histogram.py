"""Times in buckets."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from sparklog.histogram import TIME_BOUNDS_S, Histogram


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.0, 1.0, 1.5, 2.0, 2.1):
        histogram.observe(seconds)
    counts = histogram.counts
    assert (list(counts.cumulative), counts.sum_s, histogram.count) == ([2, 4, 5], 6.6, 5)


def test_an_empty_histogram() -> None:
    counts = Histogram().counts
    assert list(counts.cumulative) == [0] * (len(TIME_BOUNDS_S) + 1)
    assert counts.sum_s == 0.0


@given(st.lists(st.floats(0, 100)))
def test_buckets_are_cumulative(observed: list[float]) -> None:
    histogram = Histogram()
    for seconds in observed:
        histogram.observe(seconds)
    ordered = sorted(observed)
    assert list(histogram.counts.cumulative) == [*(bisect_right(ordered, b) for b in TIME_BOUNDS_S), len(ordered)]
