"""Work that is done again and again, in virtual time: pauses, wake-ups, failures, the stop."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from sparklog_broker.background.periodic import Periodic, Rounds

from sparklog.errors import StorageError
from sparklog.testing._sim_loop import SimLoop, Simulation

PAUSE_S = 10.0


class Work:
    """A job that records its times; `then` gives its result."""

    def __init__(self, loop: SimLoop, then: Callable[[int], bool | None]) -> None:
        self.at_s: list[float] = []
        self._loop = loop
        self._then = then

    async def __call__(self) -> bool | None:
        return self.now()

    def now(self) -> bool | None:
        self.at_s.append(round(self._loop.time(), 3))
        return self._then(len(self.at_s))


def test_it_runs_after_pauses_and_at_once_while_work_remains() -> None:
    with Simulation(1) as simulation:
        loop = simulation.loop("broker")
        work = Work(loop, lambda count: count in (2, 3))
        periodic = Periodic("work", loop, work, lambda: PAUSE_S)
        periodic.start(3.0)
        simulation.run_for(25)
        assert work.at_s == [3, 13, 13, 13, 23]
        simulation.complete(loop, periodic.stop())
        simulation.run_for(100)
        assert len(work.at_s) == 5


def test_a_wake_up_ends_the_pause_and_is_not_lost_during_the_work() -> None:
    with Simulation(1) as simulation:
        loop = simulation.loop("broker")
        periodic: list[Periodic] = []

        def then(count: int) -> None:
            if count == 2:
                periodic[0].run_soon()

        work = Work(loop, then)
        periodic.append(Periodic("work", loop, work, lambda: PAUSE_S))
        periodic[0].start()
        loop.call_later(4.0, periodic[0].run_soon)
        simulation.run_for(8)
        assert work.at_s == [0, 4, 4]
        simulation.complete(loop, periodic[0].stop())


@pytest.mark.parametrize(
    ("error", "traceback"), [(StorageError("the disk is full"), False), (KeyError("defect"), True)]
)
def test_a_failure_is_reported_and_retried(error: Exception, traceback: bool, caplog: pytest.LogCaptureFixture) -> None:
    with Simulation(1) as simulation:
        loop = simulation.loop("broker")

        def then(count: int) -> None:
            if count == 1:
                raise error

        work = Work(loop, then)
        periodic = Periodic("flushing", loop, work, lambda: PAUSE_S)
        with caplog.at_level(logging.ERROR):
            periodic.start()
            simulation.run_for(15)
        assert work.at_s == [0, 10]
        (record,) = caplog.records
        assert record.getMessage().startswith("flushing failed, next attempt in 10.0 s")
        assert (record.exc_info is not None) == traceback
        simulation.complete(loop, periodic.stop())


def test_rounds_on_a_thread_do_not_begin_after_the_stop() -> None:
    with Simulation(1) as simulation:
        loop = simulation.loop("broker")
        work = Work(loop, lambda count: count < 3)
        rounds = Rounds("rounds", loop, loop.executor(), lambda: bool(work.now()), pause_s=lambda: PAUSE_S)
        rounds.start()
        simulation.run_for(5)
        assert len(work.at_s) == 3
        assert simulation.complete(loop, rounds.stop(1.0))
        rounds.run_soon()
        simulation.run_for(100)
        assert len(work.at_s) == 3
