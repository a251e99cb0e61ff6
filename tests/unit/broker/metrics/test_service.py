"""The service of metrics, its slices of work, and the state of the cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.config import BrokerConfig, make_config
from sparklog_broker.counters.replication import ReplicationCounters
from sparklog_broker.metrics.exposition import Exposition
from sparklog_broker.metrics.http_request import Refusal, Request
from sparklog_broker.metrics.partition_rows import PartitionRow, Sums
from sparklog_broker.metrics.service import MetricsService
from sparklog_broker.metrics.slices import ITEMS_PER_LOOK, PAUSE_S, SLICE_S, Slices
from sparklog_broker.metrics.watched import MetricSources
from sparklog_broker.network.listening import ListenError

from sparklog.environment import real_environment
from sparklog.errors import InvalidConfigError
from sparklog.replication.cluster_image import PartitionImage
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


# A scrape's thread lets the event loop have its turn


class Machine:
    """A clock, on which each item takes `item_s`, and sleeps are noted."""

    def __init__(self, item_s: float) -> None:
        self.now_s = 0.0
        self.item_s = item_s
        self.rests: list[float] = []

    def rest(self, seconds: float) -> None:
        self.rests.append(self.now_s)
        self.now_s += seconds

    def work(self, count: int) -> Slices:
        slices = Slices(lambda: self.now_s, self.rest)
        assert list(slices.each(self.items(count))) == list(range(count))
        return slices

    def items(self, count: int) -> list[int]:
        return _Items(self, count)


class _Items(list[int]):
    def __init__(self, machine: Machine, count: int) -> None:
        super().__init__(range(count))
        self._machine = machine

    def __iter__(self):  # type: ignore[no-untyped-def]
        for item in super().__iter__():
            self._machine.now_s += self._machine.item_s
            yield item


def test_little_work_is_one_slice() -> None:
    machine = Machine(SLICE_S / 1000)
    assert machine.work(500).count == 1
    assert machine.rests == []


def test_no_slice_is_much_longer_than_it_may() -> None:
    item_s = SLICE_S / 20
    machine = Machine(item_s)
    slices = machine.work(2_000)
    assert slices.count == len(machine.rests) + 1 > 50
    ends = [0.0, *(rest + PAUSE_S for rest in machine.rests)]
    longest_s = max(rest - end for rest, end in zip(machine.rests, ends, strict=False))
    assert longest_s <= SLICE_S + (ITEMS_PER_LOOK + 1) * item_s


def test_slow_items_are_slices_of_their_own() -> None:
    machine = Machine(SLICE_S * 2)
    assert machine.work(10 * ITEMS_PER_LOOK).count == 11


# Numbers of replicas: their sources, and the counted changes


def sums(*rows: PartitionRow) -> Sums:
    found = Sums()
    for row in rows:
        found.add(row)
    return found


def test_only_the_leader_reports_the_common_state_of_replicas() -> None:
    led = PartitionRow("t", 0, 3, 2, False, start=5, end=9, high_watermark=8, stable=7, size_bytes=100, min_in_sync=2)
    followed = led._replace(number=1, leads=False)
    both = sums(led, followed)
    assert (both.held, both.partitions, both.size_bytes) == (2, 1, 200)
    assert (both.replicas, both.in_sync, both.high_watermark, both.undecided) == (3, 2, 8, 1)
    assert (both.under_replicated, both.under_min_isr, both.at_min_isr) == (1, 0, 1)


def test_min_in_sync_replicas() -> None:
    row = PartitionRow("t", 0, 3, 3, False, min_in_sync=2)
    found = [sums(row._replace(in_sync=n)) for n in (3, 2, 1)]
    assert [(s.under_min_isr, s.at_min_isr) for s in found] == [(0, 0), (0, 1), (1, 0)]
    alone = sums(PartitionRow("t", 0, 1, 1, False))
    assert (alone.under_min_isr, alone.at_min_isr) == (0, 0), "there is no spare replica to lose"


def image(leader: int, epoch: int, *isr: int, recovering: bool = False) -> PartitionImage:
    return PartitionImage((1, 2, 3), leader, epoch, epoch, isr, recovering=recovering)


def test_counted_states() -> None:
    counted = ReplicationCounters()
    for before, after in (
        (image(1, 3, 1, 2, 3), image(1, 3, 1, 2)),
        (image(1, 3, 1, 2), image(1, 3, 1, 3)),  # one goes, another one comes
        (image(2, 3, 1, 2), image(1, 4, 1)),  # another leader's doing
        (image(1, 4, 1), image(1, 4, 1)),
    ):
        counted.count(before, after)
    assert (counted.isr_shrinks, counted.isr_expands, counted.unclean_elections) == (2, 1, 0)
    counted.count(image(-1, 4), image(1, 5, 1, recovering=True))
    counted.count(image(1, 5, 1, recovering=True), image(1, 5, 1, recovering=True))
    assert counted.unclean_elections == 1
