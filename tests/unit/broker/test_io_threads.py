"""Jobs of a key run in order on one thread; outcomes come back on the event loop, even when nobody waits."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sparklog_broker.partitions.io_threads import IoThreads

from sparklog.environment.executors import ThreadExecutors


def with_threads(count: int, scenario: Any) -> None:
    async def main() -> None:
        threads = IoThreads(asyncio.get_running_loop(), ThreadExecutors(), count)
        try:
            await asyncio.wait_for(scenario(threads), 30)
        finally:
            await asyncio.to_thread(threads.stop)

    asyncio.run(main())


def test_jobs_of_one_key_run_in_order_on_one_thread() -> None:
    async def scenario(threads: IoThreads) -> None:
        seen: list[tuple[int, str]] = []
        index = threads.index_of("topic", 3)
        await asyncio.gather(
            *(threads.run(index, lambda i=i: seen.append((i, threading.current_thread().name))) for i in range(500))  # type: ignore[misc]
        )
        assert [i for i, _ in seen] == list(range(500))
        assert {name for _, name in seen} == {f"io-{index}"}

        assert sorted(threads.index_of("topic", p) for p in range(6)) == [0, 0, 1, 1, 2, 2]

    with_threads(3, scenario)


def test_a_failing_job_fails_its_own_future_only() -> None:
    async def scenario(threads: IoThreads) -> None:
        bad, good = threads.run(0, lambda: 1 // 0), threads.run(0, lambda: 7)
        with pytest.raises(ZeroDivisionError):
            await bad
        assert await good == 7

    with_threads(1, scenario)


def test_cancelling_the_waiter_does_not_take_the_job_back() -> None:
    async def scenario(threads: IoThreads) -> None:
        gate, ran = threading.Event(), []
        first = threads.run(0, lambda: gate.wait(30))
        second = threads.run(0, lambda: ran.append(1))
        second.cancel()
        gate.set()
        await first
        await threads.run(0, lambda: None)
        assert ran == [1]

    with_threads(1, scenario)


def test_delivery_happens_on_the_loop_for_every_job(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(threads: IoThreads) -> None:
        delivered: list[tuple[Any, Any, str]] = []

        def deliver(result: Any, error: Exception | None) -> None:
            delivered.append((result, error, threading.current_thread().name))
            if result == 1:
                raise RuntimeError("a defect in one delivery")

        for i in range(3):
            threads.submit(0, lambda i=i: i, deliver)  # type: ignore[misc]
        await threads.run(0, lambda: None)
        assert [r for r, _, _ in delivered] == [0, 1, 2]
        assert {name for _, _, name in delivered} == {"MainThread"}

    with_threads(1, scenario)
    assert "a defect in one delivery" in caplog.text


def test_stop_finishes_queued_jobs() -> None:
    ran: list[int] = []

    async def main() -> None:
        threads = IoThreads(asyncio.get_running_loop(), ThreadExecutors(), 2)
        for i in range(100):
            threads.submit(i % 2, lambda i=i: ran.append(i), lambda *_: None)  # type: ignore[misc]
        await asyncio.to_thread(threads.stop)

    asyncio.run(main())
    assert sorted(ran) == list(range(100))
