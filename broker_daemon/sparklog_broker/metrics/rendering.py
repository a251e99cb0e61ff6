"""The rendering of a scrape, from the broker's numbers to bytes. Only a broker with a metrics page imports this module,
because the import of `prometheus_client` takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from sparklog.histogram import Histogram
from sparklog_broker.metrics.broker_collector import BrokerCollector
from sparklog_broker.metrics.exposition import Exposition
from sparklog_broker.metrics.slices import Slices
from sparklog_broker.metrics.watched import MetricSources


class Renderer:
    """Renders on the scrape's thread. `rest` sleeps between slices."""

    def __init__(self, loop_delay: Histogram, now_s: Callable[[], float], rest: Callable[[float], object]) -> None:
        self._loop_delay = loop_delay
        self._now_s = now_s
        self._rest = rest

    def scrape(self, exposition: Exposition, watched: MetricSources | None, is_ready: bool) -> bytes:
        """Render all families. `watched` is None while the logs are being opened."""
        slices = Slices(self._now_s, self._rest)
        return render(BrokerCollector(watched, is_ready, self._loop_delay, self._now_s, slices), exposition)


def render(collector: Collector, exposition: Exposition) -> bytes:
    """Render the collector's families in the given format."""
    if exposition is Exposition.OPENMETRICS:
        text: bytes = openmetrics.generate_latest(collector, version="1.0.0")  # type: ignore[no-untyped-call]
        return text
    return generate_latest(collector)
