"""Histogram of times: `observe` costs one bisection and two additions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

TIME_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Upper ends of the buckets in s, inclusive: from an answer out of memory up to the usual time limit of clients."""


class HistogramCounts(NamedTuple):
    """Counts of a histogram. `cumulative`: the number of observations up to each of `bounds`, then of all
    observations."""

    bounds: Sequence[float]
    cumulative: Sequence[int]
    sum_s: float


class Histogram:
    """Counts of durations by bucket. Only one thread at a time must call `observe`; any thread can read `counts`."""

    __slots__ = ("_bounds", "_buckets", "sum_s")

    def __init__(self, bounds: Sequence[float] = TIME_BOUNDS_S) -> None:
        self._bounds = bounds
        self._buckets = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._buckets[bisect_left(self._bounds, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self._buckets)

    @property
    def counts(self) -> HistogramCounts:
        """The present counts."""
        total, cumulative = 0, []
        for in_bucket in list(self._buckets):
            total += in_bucket
            cumulative.append(total)
        return HistogramCounts(self._bounds, cumulative, self.sum_s)
