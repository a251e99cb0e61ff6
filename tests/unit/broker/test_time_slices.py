"""Long work in slices: one slice per turn of the loop for all of it together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sparklog.environment.time_slices import ITEMS_PER_LOOK, SLICE_S, LoopTimeSlices


class Clock:
    """Goes on only when work is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(scenario: Callable[[LoopTimeSlices, Clock], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = Clock()
        await asyncio.wait_for(scenario(LoopTimeSlices(asyncio.get_running_loop(), clock=clock), clock), 30)

    asyncio.run(main())


async def work(time_slices: LoopTimeSlices, clock: Clock, slices: int, log: list[float]) -> None:
    def items() -> object:
        for _ in range(slices * ITEMS_PER_LOOK):
            clock.now += SLICE_S / ITEMS_PER_LOOK
            log.append(clock.now)
            yield None

    await time_slices.list_of(items())  # type: ignore[arg-type]


def test_a_turn_of_the_loop_does_not_grow_with_the_number_of_long_works() -> None:
    async def scenario(time_slices: LoopTimeSlices, clock: Clock) -> None:
        log: list[float] = []
        works = [asyncio.ensure_future(work(time_slices, clock, 10, log)) for _ in range(50)]
        worst, before = 0.0, 0.0
        while not all(w.done() for w in works):
            before = clock.now
            await asyncio.sleep(0)
            worst = max(worst, clock.now - before)
        assert len(log) == 50 * 10 * ITEMS_PER_LOOK
        # each of those that begin looks once before it knows that the slice is used up; after that one slice per turn
        assert worst <= 51 * SLICE_S
        late = [asyncio.ensure_future(work(time_slices, clock, 4, log)) for _ in range(2)]
        await asyncio.sleep(0)
        worst = 0.0
        while not all(w.done() for w in late):
            before = clock.now
            await asyncio.sleep(0)
            worst = max(worst, clock.now - before)
        assert worst <= 2 * SLICE_S + 1e-9

    run(scenario)


def test_one_that_is_cancelled_does_not_keep_the_others_waiting() -> None:
    async def scenario(time_slices: LoopTimeSlices, clock: Clock) -> None:
        first, second, third = (asyncio.ensure_future(time_slices.pause()) for _ in range(3))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(second, third)
        assert time_slices.waiting_count == 0

    run(scenario)


def test_begin_waits_only_when_the_slice_is_used_up() -> None:
    async def scenario(time_slices: LoopTimeSlices, clock: Clock) -> None:
        await time_slices.begin()
        assert time_slices.waiting_count == 0
        clock.now += SLICE_S
        waiting = asyncio.ensure_future(time_slices.begin())
        await asyncio.sleep(0)
        await waiting

    run(scenario)
