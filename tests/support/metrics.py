"""A broker without sockets whose numbers can be scraped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from sparklog_broker.broker import Broker
from sparklog_broker.config import make_config
from sparklog_broker.metrics.exposition import Exposition
from sparklog_broker.metrics.rendering import Renderer
from sparklog_broker.metrics.watched import MetricSources
from sparklog_broker.network.server import Server

from sparklog.histogram import Histogram
from tests.support.brokers import started

Scenario = Callable[[Broker], Coroutine[Any, Any, None]]
Labels = frozenset[tuple[str, str]]


def run(tmp_path: Path, scenario: Scenario, **settings: object) -> None:
    """Runs `scenario` with a broker. `settings`: underscores for dots."""

    async def main() -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        config = make_config({"data.dir": str(tmp_path / "data"), **given})
        broker = await started(config)
        try:
            await asyncio.wait_for(scenario(broker), 30)
        finally:
            broker.stop_waiting()
            assert await broker.close()

    asyncio.run(main())


def watched(broker: Broker) -> MetricSources:
    unread = SimpleNamespace(held_bytes=0, held_files=0)
    half = SimpleNamespace(cut_count=0)
    server = SimpleNamespace(
        connection_count=3, accepted_count=5, refused_count=1, unread=unread, partial_requests=half
    )
    return MetricSources(
        broker.config,
        broker.environment.clock,
        "127.0.0.1:9292",
        cast(Server, server),
        broker.throttling,
        broker.requests,
        broker.memory,
        broker.storage,
        broker.io,
        broker.partitions,
        broker.background,
        broker.groups,
        broker.transactions,
        broker.lakes,
        broker.mirrors,
        broker.cluster,
    )


class Scraped:
    """The samples of a scrape, read again as Prometheus would."""

    def __init__(self, text: str, *, openmetrics: bool = False) -> None:
        self._found: dict[str, dict[Labels, float]] = {}
        for family in (parse_openmetrics if openmetrics else parse_text)(text):
            for sample in family.samples:
                series = self._found.setdefault(sample.name, {})
                labels = frozenset(sample.labels.items())
                assert labels not in series, f"{sample.name} has {dict(labels)} twice"
                series[labels] = sample.value

    @property
    def names(self) -> set[str]:
        return set(self._found)

    def of(self, name: str, **labels: str) -> float:
        return self._found[name][frozenset(labels.items())]

    def by(self, label: str, name: str) -> dict[str, float]:
        """The values of `name` by one label, which all its series have different."""
        found = {dict(labels)[label]: value for labels, value in self._found.get(name, {}).items()}
        assert len(found) == len(self._found.get(name, {}))
        return found

    def labels(self, name: str) -> set[Labels]:
        return set(self._found[name])


async def scrape(broker: Broker, exposition: Exposition = Exposition.TEXT) -> Scraped:
    """On another thread, as the broker does."""
    renderer = Renderer(Histogram(), time.monotonic, lambda _: None)
    body = await asyncio.to_thread(renderer.scrape, exposition, watched(broker), True)
    return Scraped(body.decode(), openmetrics=exposition is Exposition.OPENMETRICS)
