"""The pages of `metrics.listen`: /metrics, /health/live and /health/ready.

They are served before the logs are opened, so that a long recovery is visible, and until the broker has stopped. A
scrape is rendered on a separate thread. Concurrent requests for one format share a rendering, so at most one rendering
per format is in progress.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from enum import Enum

from sparklog.environment import Environment
from sparklog.histogram import Histogram
from sparklog_broker.config import BrokerConfig, format_address, parse_address
from sparklog_broker.metrics.exposition import Exposition, accepted_by
from sparklog_broker.metrics.hosts import allowed_names, is_allowed
from sparklog_broker.metrics.http_request import Refusal, Request
from sparklog_broker.metrics.http_server import HttpServer, Page
from sparklog_broker.metrics.watched import MetricSources
from sparklog_broker.network.listening import bind

log = logging.getLogger(__name__)

SETTING = "metrics.listen"
Scrape = Callable[[Exposition, MetricSources | None, bool], bytes]


class Stage(Enum):
    """A stage of the broker's life. The value is the text of `/health/ready`."""

    RECOVERING = "not ready: the logs are being opened and checked"
    SERVING = "ready"
    DRAINING = "not ready: the broker is stopping"


class Health:
    """The present stage. Event-loop thread only."""

    def __init__(self) -> None:
        self.stage = Stage.RECOVERING

    @property
    def is_ready(self) -> bool:
        return self.stage is Stage.SERVING


DELAY_INTERVAL_S = 0.1
"""Time in s between two measurements of the event loop's delay."""


class LoopDelay:
    """Measures the delays of the event loop from `start` on: a timer compares its due time with the time at which it
    runs. Event-loop thread only, except for `delays`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.delays = Histogram()
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_at(
            self._loop.time() + DELAY_INTERVAL_S, self._run, self._loop.time() + DELAY_INTERVAL_S
        )

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _run(self, due_s: float) -> None:
        self.delays.observe(max(0.0, self._loop.time() - due_s))
        self.start()


class MetricsService:
    """Serves the pages; nothing if `metrics.listen` is empty. Event-loop thread only."""

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop, environment: Environment) -> None:
        self._listen = config.metrics_listen
        self._names = allowed_names(config)
        self._loop = loop
        self._environment = environment
        self._health = Health()
        self._delay = LoopDelay(loop)
        self._stopping = threading.Event()
        self._watched: MetricSources | None = None
        self._server: HttpServer | None = None
        self._thread: Executor | None = None
        self._scrape: Scrape = _no_metrics
        self._rendering: dict[Exposition, asyncio.Future[bytes]] = {}

    @property
    def address(self) -> str:
        """Address of the pages, as `HOST:PORT`; "" if there are none."""
        return "" if self._server is None else format_address(*self._server.address)

    async def start(self) -> None:
        """Begin to serve the pages. Raises ListenError."""
        if not self._listen:
            return
        from sparklog_broker.metrics.rendering import Renderer

        sock = bind(*parse_address(self._listen, SETTING), setting=SETTING)
        self._server = HttpServer(sock, self.page)
        self._thread = self._environment.executors.daemon("metrics")
        self._scrape = Renderer(self._delay.delays, self._environment.clock.monotonic_s, self._stopping.wait).scrape
        self._delay.start()
        await self._server.start()
        log.info("metrics on http://%s/metrics", self.address)

    def serving(self, watched: MetricSources) -> None:
        """Note that the broker has recovered and accepts requests."""
        self._watched = watched
        self._health.stage = Stage.SERVING

    def draining(self) -> None:
        """Note that the broker is stopping."""
        self._health.stage = Stage.DRAINING

    async def stop(self) -> None:
        """Stop serving. A rendering in progress is not waited for; its thread no longer pauses, and so ends soon."""
        self._stopping.set()
        self._delay.stop()
        if self._server is not None:
            await self._server.stop()
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def page(self, request: Request) -> Page:
        """Return the page for a request. Raises Refusal."""
        if not is_allowed(request.host, self._names):
            raise Refusal(421, "host name not allowed: use the address, or add the name to metrics.allowed.hosts")
        match request.path:
            case "/metrics":
                return await self._metrics(accepted_by(request.accept))
            case "/health/live":
                return Page(b"alive\n")
            case "/health/ready":
                body = f"{self._health.stage.value}\n".encode()
                return Page(body, status=200 if self._health.is_ready else 503)
        raise Refusal(404, "not found: the pages are /metrics, /health/live and /health/ready")

    async def _metrics(self, exposition: Exposition) -> Page:
        rendering = self._rendering.get(exposition)
        if rendering is None:
            rendering = self._loop.run_in_executor(
                self._thread, self._scrape, exposition, self._watched, self._health.is_ready
            )
            self._rendering[exposition] = rendering
            rendering.add_done_callback(lambda _: self._rendering.pop(exposition))
        return Page(await asyncio.shield(rendering), exposition.value)


def _no_metrics(exposition: Exposition, watched: MetricSources | None, is_ready: bool) -> bytes:
    return b""
