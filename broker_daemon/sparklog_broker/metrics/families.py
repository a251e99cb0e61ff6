"""Families of series in the form of `prometheus_client`, from rows of labels and numbers.

The rows can be generated while the page is written, so `samples` of a family can be read only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

from prometheus_client.core import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from sparklog.histogram import HistogramCounts

Labels = dict[str, str]
Row = tuple[Labels, float]
NO_LABELS: Labels = {}


class MetricInfo(NamedTuple):
    """The name and the help text of a family."""

    name: str
    doc: str


def counter(described: MetricInfo, rows: Iterable[Row]) -> Metric:
    """Return a family of counters, which only rise. `_total` is appended to the name."""
    name = f"{described.name}_total"
    return _family(described, "counter", (Sample(name, labels, value) for labels, value in rows))


def gauge(described: MetricInfo, rows: Iterable[Row]) -> Metric:
    """Return a family of gauges, which rise and fall."""
    name = described.name
    return _family(described, "gauge", (Sample(name, labels, value) for labels, value in rows))


def one_counter(name: str, doc: str, value: float) -> Metric:
    """Return a counter without labels."""
    return counter(MetricInfo(name, doc), [(NO_LABELS, value)])


def one_gauge(name: str, doc: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return gauge(MetricInfo(name, doc), [(NO_LABELS, value)])


def histogram(described: MetricInfo, rows: Iterable[tuple[Labels, HistogramCounts]]) -> Metric:
    """Return a family of histograms of times in s."""
    return _family(described, "histogram", _buckets(described.name, rows))


def _buckets(name: str, rows: Iterable[tuple[Labels, HistogramCounts]]) -> Iterator[Sample]:
    for labels, counts in rows:
        ends = [*map(floatToGoString, counts.bounds), "+Inf"]
        for end, count in zip(ends, counts.cumulative, strict=True):
            yield Sample(f"{name}_bucket", {**labels, "le": end}, count)
        yield Sample(f"{name}_sum", labels, counts.sum_s)
        yield Sample(f"{name}_count", labels, counts.cumulative[-1])


def _family(described: MetricInfo, kind: str, samples: Iterable[Sample]) -> Metric:
    family = Metric(described.name, described.doc, kind)
    family.samples = cast(list[Sample], samples)
    return family
