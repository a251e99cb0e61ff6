"""flush.mode=group in the broker: acknowledged means on the disk, and many appends share one fsync."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.config import make_config
from sparklog_broker.handlers.produce import produce
from sparklog_broker.partitions.io_threads import IoThreads
from sparklog_broker.request_context import RequestContext

from sparklog.environment.executors import ThreadExecutors
from sparklog.environment.files import RealFile
from sparklog.errors import ERRORS, StorageError
from sparklog.metadata.store import TopicSpec
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse, ProduceResult
from tests.support.brokers import started
from tests.support.raw_client import envelope_batch

BATCH = envelope_batch(10, 20)


def run(
    tmp_path: Path,
    configs: dict[str, Any],
    scenario: Any,
    *,
    clean: bool = True,
    topic_defaults: dict[str, object] | None = None,
) -> None:
    async def main() -> None:
        config = make_config({"data.dir": str(tmp_path / "data")}, topic_defaults)
        broker = await started(config)
        try:
            await broker.topics.create(TopicSpec("t", 2, configs=configs))
            await asyncio.wait_for(scenario(broker, RequestContext(broker, ("127.0.0.1", 1), "127.0.0.1")), 60)
        finally:
            broker.stop_waiting()
            assert await broker.close() == clean

    asyncio.run(main())


async def append(context: RequestContext, partition: int = 0, acks: int = -1) -> ProduceResult:
    request = ProduceRequest(acks, 10_000, [ProducePartition("t", partition, len(BATCH))])
    response = await produce(request, memoryview(bytearray(BATCH)), context)
    assert isinstance(response.message, ProduceResponse)
    return response.message.results[0]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the segment files that were fsynced."""
    names: list[str] = []
    original = RealFile.sync

    def sync(self: RealFile) -> None:
        if self._path.suffix == ".arrow":
            names.append(f"{self._path.parent.name}/{threading.current_thread().name}")
        original(self)

    monkeypatch.setattr(RealFile, "sync", sync)
    return names


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_an_acknowledged_append_is_on_the_disk(tmp_path: Path, synced: list[str], acks: int) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        log = broker.partitions.get("t", 0).log
        for i in range(3):
            request = ProduceRequest(acks, 10_000, [ProducePartition("t", 0, len(BATCH))])
            await produce(request, memoryview(bytearray(BATCH)), context)
            assert log.flushed_offset == log.high_watermark == 10 * (i + 1)
        assert [name.startswith("t-0/io-") for name in synced] == [True] * 3

    run(tmp_path, {"flush.mode": "group"}, scenario)


def test_all_that_arrived_meanwhile_share_the_fsync(tmp_path: Path, synced: list[str]) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await append(context)
        synced.clear()
        gate = threading.Event()
        broker.io.submit(broker.partitions.get("t", 0).thread, lambda: gate.wait(30), lambda *_: None)
        waiting = [asyncio.ensure_future(append(context)) for _ in range(20)]
        await asyncio.sleep(0)
        gate.set()
        results = await asyncio.gather(*waiting)
        assert [r.base_offset for r in results] == list(range(10, 210, 10))
        assert len(synced) <= 2  # one, unless the thread had begun with a part of them

    run(tmp_path, {"flush.mode": "group"}, scenario)


def test_without_it_no_append_is_fsynced_and_small_ones_stay_on_the_loop(tmp_path: Path, synced: list[str]) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        def may_append_inline() -> bool:
            return broker.appender.may_append_inline([broker.partitions.get("t", 0)], 100, alone=True)

        for _ in range(5):
            await append(context)
        assert synced == []
        while not may_append_inline():  # a slow append sends the next ones to the threads for a second
            await asyncio.sleep(0.01)
        await broker.topics.alter("t", {"flush.mode": "group"})
        assert not may_append_inline()
        await append(context)
        assert len([name for name in synced if "admin" not in name]) == 1, "beside what was there before"
        await broker.topics.alter("t", {"flush.mode": None})
        while not may_append_inline():
            await asyncio.sleep(0.01)

    run(tmp_path, {}, scenario)


def test_with_flush_messages_only_the_append_that_reaches_the_number_waits(tmp_path: Path, synced: list[str]) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        log = broker.partitions.get("t", 0).log
        for appended in (1, 2):
            assert (await append(context)).error_code == 0
            assert (len(synced), log.high_watermark) == (0, 10 * appended)
        assert (await append(context)).error_code == 0
        assert (len(synced), log.high_watermark, log.flushed_offset) == (1, 30, 30)

    run(tmp_path, {"flush.messages": 25}, scenario)


def test_an_append_that_cannot_be_fsynced_fails_and_so_do_all_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await append(context)
        log = broker.partitions.get("t", 0).log
        calls = []
        original = RealFile.sync

        def failing(self: RealFile) -> None:
            if self._path.parent.name != "t-0":
                return original(self)
            calls.append(self)
            raise StorageError("cannot fsync: Invalid argument")

        with monkeypatch.context() as patched:
            patched.setattr(RealFile, "sync", failing)
            failed = await append(context)
        for result in (failed, await append(context)):
            assert ERRORS[result.error_code] is StorageError
            assert "failed fsync" in result.message
        assert len([c for c in calls if c._path.suffix == ".arrow"]) == 1, "an fsync that failed was tried again"
        assert (log.high_watermark, log.flushed_offset) == (10, 10)
        assert (await append(context, 1)).error_code == 0, "another partition is not affected"

    run(tmp_path, {"flush.mode": "group"}, scenario, clean=False)


def test_rolled_segments_and_flush_ms_are_looked_after(tmp_path: Path, synced: list[str]) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await append(context)
        await append(context, 1)
        broker.partitions.get("t", 0).log.appender.roll()
        for number in (0, 1):  # the rolled one at once, the other because of flush.ms
            log = broker.partitions.get("t", number).log
            while log.flushed_offset < 10:
                await asyncio.sleep(0.005)
        assert {name.split("/")[0] for name in synced} == {"t-0", "t-1"}

    run(tmp_path, {"flush.ms": 20}, scenario, topic_defaults={"flush.ms": 20})


def test_finish_runs_after_all_jobs_that_were_queued() -> None:
    async def main() -> None:
        threads = IoThreads(asyncio.get_running_loop(), ThreadExecutors(), 1)
        seen: list[str] = []
        got: list[tuple[Any, Exception | None]] = []
        gate = threading.Event()
        threads.submit(0, lambda: gate.wait(30), lambda *_: None)

        def finish(i: int) -> int:
            seen.append(f"finish {i}")
            if i == 2:
                raise ValueError("at the end")
            return i * 10

        for i in range(3):
            threads.submit(0, lambda i=i: seen.append(f"job {i}") or i, lambda *o: got.append(o), finish)  # type: ignore[misc]
        threads.submit(0, lambda: 1 // 0, lambda *o: got.append(o), finish)
        gate.set()
        await asyncio.to_thread(threads.stop)
        await asyncio.sleep(0)
        assert seen == ["job 0", "job 1", "job 2", "finish 0", "finish 1", "finish 2"]
        assert got[:2] == [(0, None), (10, None)]
        assert [type(error) for _, error in got[2:]] == [ValueError, ZeroDivisionError]

    asyncio.run(main())
