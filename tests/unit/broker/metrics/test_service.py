"""The pages and their answers in each state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.config import BrokerConfig, make_config
from sparklog_broker.metrics.exposition import Exposition
from sparklog_broker.metrics.http_request import Refusal, Request
from sparklog_broker.metrics.service import MetricsService
from sparklog_broker.metrics.watched import MetricSources
from sparklog_broker.network.listening import ListenError

from sparklog.environment import real_environment
from sparklog.errors import InvalidConfigError
from tests.support.metrics import watched

READY = Request(False, "/health/ready", "")
METRICS = Request(False, "/metrics", "")


def config(tmp_path: Path, listen: str = "127.0.0.1:0") -> BrokerConfig:
    return make_config({"data.dir": str(tmp_path / "data"), "metrics.listen": listen})


def run(scenario: Callable[[MetricsService], Awaitable[None]], its_config: BrokerConfig) -> None:
    async def main() -> None:
        service = MetricsService(its_config, asyncio.get_running_loop(), real_environment())
        try:
            await service.start()
            await scenario(service)
        finally:
            await service.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_ready_between_recovery_and_the_stop(tmp_path: Path) -> None:
    async def scenario(service: MetricsService) -> None:
        loop = asyncio.get_running_loop()
        page = await service.page(READY)
        assert (page.status, page.body) == (503, b"not ready: the logs are being opened and checked\n")
        assert b"\nsparklog_ready 0.0\n" in (await service.page(METRICS)).body
        broker = await loop.run_in_executor(None, Broker.open, its_config, loop)
        broker.start()
        await broker.join(())
        service.serving(watched(broker))
        assert (await service.page(READY)).status == 200
        body = (await service.page(METRICS)).body
        assert b"\nsparklog_ready 1.0\n" in body
        assert b"\nkafka_server_replicamanager_partitioncount 0.0\n" in body
        service.draining()
        page = await service.page(READY)
        assert (page.status, page.body) == (503, b"not ready: the broker is stopping\n")
        assert (await service.page(Request(False, "/health/live", ""))).status == 200
        broker.stop_waiting()
        await broker.close()
        assert b"\nsparklog_ready 0.0\n" in (await service.page(METRICS)).body, "logs are closed, and can be shown"

    its_config = config(tmp_path)
    run(scenario, its_config)


def test_concurrent_requests_get_the_same_answer(tmp_path: Path) -> None:
    async def scenario(service: MetricsService) -> None:
        go_on, calls = threading.Event(), []

        def scrape(exposition: Exposition, watched: MetricSources | None, is_ready: bool) -> bytes:
            calls.append(exposition)
            go_on.wait(30)
            return exposition.name.encode()

        service._scrape = scrape
        openmetrics = Request(False, "/metrics", "application/openmetrics-text")
        asking = [asyncio.ensure_future(service.page(r)) for r in [METRICS] * 50 + [openmetrics] * 50]
        await asyncio.sleep(0)
        asking[0].cancel()  # who goes away, takes nobody's answer along
        go_on.set()
        pages = await asyncio.gather(*asking[1:])
        assert {(p.content_type, p.body) for p in pages} == {(e.value, e.name.encode()) for e in Exposition}
        assert sorted(calls, key=lambda e: e.name) == [Exposition.OPENMETRICS, Exposition.TEXT]
        await service.page(METRICS)
        assert len(calls) == 3

    run(scenario, config(tmp_path))


def test_a_failed_rendering_is_no_end(tmp_path: Path) -> None:
    async def scenario(service: MetricsService) -> None:
        good = service._scrape

        def fails(exposition: Exposition, watched: MetricSources | None, is_ready: bool) -> bytes:
            raise KeyError("defect")

        service._scrape = fails
        with pytest.raises(KeyError):
            await service.page(METRICS)
        service._scrape = good
        assert (await service.page(METRICS)).body

    run(scenario, config(tmp_path))


def test_other_paths(tmp_path: Path) -> None:
    async def scenario(service: MetricsService) -> None:
        with pytest.raises(Refusal) as refused:
            await service.page(Request(False, "/metrics/", ""))
        assert refused.value.status == 404

    run(scenario, config(tmp_path))


def test_off_by_default(tmp_path: Path) -> None:
    async def scenario(service: MetricsService) -> None:
        assert service.address == ""

    run(scenario, config(tmp_path, ""))


def test_a_wrong_address_is_said_with_the_settings_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"metrics\.listen = '9293': HOST:PORT is needed"):
        config(tmp_path, "9293")

    async def scenario(service: MetricsService) -> None:
        with pytest.raises(ListenError, match=r"the port is in use.* choose another port with metrics\.listen"):
            await MetricsService(
                config(tmp_path, service.address), asyncio.get_running_loop(), real_environment()
            ).start()

    run(scenario, config(tmp_path))


def test_the_loops_delay_is_measured(tmp_path: Path) -> None:
    async def scenario(service: MetricsService) -> None:
        while not service._delay.delays.count:
            await asyncio.sleep(0.01)
        assert b"\nsparklog_event_loop_delay_seconds_count 0.0\n" not in (await service.page(METRICS)).body

    run(scenario, config(tmp_path))
