"""Virtual time: asyncio works on it, one seed gives one order, a killed process never runs again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from sparklog.testing._sim_loop import SimLoop, Simulation, SimulationStuckError


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with Simulation(1) as made:
        yield made


def test_time_passes_without_waiting(simulation: Simulation) -> None:
    loop = simulation.loop("a")

    async def sleep() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert simulation.complete(loop, sleep()) == 3600
    assert simulation.now_s == 3600


def test_a_limit_that_is_over_turns_no_time_back(simulation: Simulation) -> None:
    simulation.loop("a").call_later(60, lambda: None)
    simulation.run_for(10)
    assert not simulation.run(lambda: False, limit_s=5)
    assert simulation.now_s == 10


def test_timeouts_tasks_locks_and_events_work(simulation: Simulation) -> None:
    loop = simulation.loop("a")

    async def work() -> list[str]:
        said = []
        lock, event = asyncio.Lock(), asyncio.Event()

        async def holder() -> None:
            async with lock:
                await event.wait()
                said.append("held")

        task = asyncio.create_task(holder())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(0)
                async with lock:
                    said.append("never")
        event.set()
        await task
        assert asyncio.current_task() is not None
        return said

    assert simulation.complete(loop, work()) == ["held"]
    assert simulation.now_s == 5


def trace_of(seed: int) -> tuple[str, list[str]]:
    simulation = Simulation(seed)
    order: list[str] = []

    def job(name: str) -> str:
        simulation.note("job", name)
        order.append(name)
        assert threading.current_thread() is threading.main_thread()
        return name

    async def process(loop: SimLoop) -> None:
        executor = loop.executor(threads=3)
        jobs = [loop.run_in_executor(executor, partial(job, f"{loop.name}{n}")) for n in range(5)]
        for done in asyncio.as_completed(jobs):
            simulation.note("done", await done)

    loops = [simulation.loop(name) for name in "ab"]
    tasks = [loop.create_task(process(loop)) for loop in loops]
    simulation.run(lambda: all(t.done() for t in tasks))
    return simulation.trace_hash, order


def test_one_seed_gives_one_trace() -> None:
    assert trace_of(7) == trace_of(7)
    assert len({tuple(trace_of(seed)[1]) for seed in range(10)}) > 5


def test_jobs_of_one_thread_keep_their_order(simulation: Simulation) -> None:
    loop = simulation.loop("a")
    ran: list[int] = []

    async def submit() -> None:
        executor = loop.executor()
        await asyncio.gather(*(loop.run_in_executor(executor, partial(ran.append, n)) for n in range(20)))

    simulation.complete(loop, submit())
    assert ran == list(range(20))


def test_a_killed_process_stops_at_once(simulation: Simulation) -> None:
    victim, other = simulation.loop("victim"), simulation.loop("other")
    ticks: list[str] = []

    async def tick(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                ticks.append(name)
        finally:
            ticks.append(f"{name} cleaned up")

    tasks = [victim.create_task(tick("victim")), other.create_task(tick("other"))]
    simulation.run_for(2.5)
    victim.kill()
    simulation.run_for(2)
    assert ticks.count("victim") == 2
    assert ticks.count("other") == 4
    assert "victim cleaned up" not in ticks
    victim.call_soon(ticks.append, "late")
    simulation.run_for(1)
    assert "late" not in ticks
    assert not tasks[0].done()


def test_a_job_may_fail(simulation: Simulation) -> None:
    loop = simulation.loop("a")

    async def work() -> None:
        await loop.run_in_executor(None, partial(int, "x"))

    with pytest.raises(ValueError, match="invalid literal"):
        simulation.complete(loop, work())


def test_impossible_waits_are_reported(simulation: Simulation) -> None:
    loop = simulation.loop("a")
    with pytest.raises(SimulationStuckError, match="no event is left"):
        simulation.complete(loop, asyncio.Event().wait())


def test_an_unhandled_exception_is_kept(simulation: Simulation) -> None:
    loop = simulation.loop("a")
    loop.call_later(1, lambda: 1 // 0)
    simulation.run_for(2)
    assert isinstance(loop.failures[0]["exception"], ZeroDivisionError)
