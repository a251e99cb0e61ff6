"""Event loops in virtual time: no real time passes, and a seed determines the order of events.

A `Simulation` has one clock and any number of `SimLoop`s, one for each simulated process. `run` repeats one step: it
chooses the loop with the earliest event (of equal times, the seed chooses one), sets the clock to that time, and runs
one turn of that loop. The code on a loop has an ordinary asyncio loop without sockets: tasks, timers, locks and
`asyncio.timeout` work. A job of an executor (`SimExecutor`) is one event of the loop, at a time that the seed chooses.

`Simulation.skip` lets time pass without events. The clock goes on for all; the timers of machines, but not those of
programs, become due later by the skipped time.

`SimLoop.kill` ends a simulated process between two events. None of its code runs afterwards, as after SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import math
import random
from asyncio import events
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextvars import Context
from typing import Any, TypeVar

from sparklog.environment.executors import future_of

T = TypeVar("T")

JOB_DELAY_S = (0.00005, 0.002)
"""Range of the delay of an executor's job in s. The delay begins at the submission, or at the end of the thread's
preceding job."""
TIMERS_CANCELLED_MAX = 50
"""Number of cancelled timers above which a loop removes all of them from its heap."""
SLOW_JOB_SHARE, SLOW_JOB_S = 0.02, 0.5
"""Share of the jobs that a slow disk delays, and their longest delay in s."""


class SimulationStuckError(RuntimeError):
    """No event is left, or too many turns have passed, before the awaited condition is true."""


class Simulation:
    """The clock of a simulation, its randomness, its processes' loops, and a trace of the events.

    `rng` is the only source of randomness. All code draws from it in the order of events, so a seed can be replayed.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.skipped_s = 0.0
        """Time in s that was skipped."""
        self.turns = 0
        self._loops: list[SimLoop] = []
        self._unfinished: list[asyncio.Task[Any]] = []
        self._trace = hashlib.blake2b(digest_size=16)

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, then close their coroutines. Clean-up code in these has no effect on the simulation."""
        for loop in list(self._loops):
            loop.kill()
        for task in self._unfinished:
            coroutine = task.get_coro()
            if coroutine is not None:
                with contextlib.suppress(BaseException):
                    coroutine.close()
        self._unfinished.clear()

    def loop(self, name: str, *, is_program: bool = False) -> SimLoop:
        """Create a loop for a new process. `is_program`: its timers go on while time is skipped."""
        loop = SimLoop(self, name, is_program=is_program)
        loop.fall_behind(self.skipped_s)
        self._loops.append(loop)
        return loop

    def note(self, *values: object) -> None:
        """Add values and the present time to the trace. Two runs of one seed must add the same values at the same
        times."""
        self._trace.update(repr((round(self.now_s, 9), *values)).encode())

    @property
    def trace_hash(self) -> str:
        """Hash of all notes so far."""
        return self._trace.hexdigest()

    def run(self, until: Callable[[], bool], *, limit_s: float = math.inf, turns_max: int = 10_000_000) -> bool:
        """Run events until `until()` is true, or until the virtual clock reaches `limit_s`. Returns True if `until()`
        is true; False at the limit. Raises SimulationStuckError: No event is left, or `turns_max` turns have passed."""
        before = events._get_running_loop()
        try:
            return self._run(until, limit_s, self.turns + turns_max)
        finally:
            events._set_running_loop(before)

    def _run(self, until: Callable[[], bool], limit_s: float, turns_max: int) -> bool:
        """Run events as `run` does, without restoring the running loop. `turns_max`: the largest value of `turns`."""
        running: SimLoop | None = None
        while not until():
            loop, at = self._next()
            if at > limit_s:
                self.now_s = max(self.now_s, limit_s)  # a limit in the past does not turn the clock back
                return False
            if loop is None:
                raise SimulationStuckError("no event is left")
            self.now_s = max(self.now_s, at)
            self.turns += 1
            if self.turns > turns_max:
                raise SimulationStuckError(f"the awaited event did not happen within {turns_max} turns")
            if loop is not running:  # setting the running loop costs a system call
                events._set_running_loop(loop)
                running = loop
            loop.turn()
        return True

    def run_for(self, seconds: float) -> None:
        """Run events until `seconds` of virtual time have passed."""
        self.run(lambda: False, limit_s=self.now_s + seconds)

    def skip(self, seconds: float) -> None:
        """Let time pass without events. No program may have an event within this time."""
        self.now_s += seconds
        self.skipped_s += seconds
        for loop in self._loops:
            loop.fall_behind(self.skipped_s)

    def complete(self, loop: SimLoop, work: Any, *, limit_s: float = math.inf) -> Any:
        """Run the coroutine `work` on `loop`, and all other events, until it ends. Returns its result, or raises its
        error. Raises SimulationStuckError after `limit_s` seconds of virtual time."""
        task = loop.create_task(work)
        if not self.run(task.done, limit_s=self.now_s + limit_s):
            raise SimulationStuckError(f"not finished within {limit_s} s: {work!r}")
        return task.result()

    def _next(self) -> tuple[SimLoop | None, float]:
        """Return the loop with the next event, and the time of that event. If no event is left, return (None,
        infinity)."""
        now_s, earliest = self.now_s, math.inf
        best: list[SimLoop] = []
        for loop in self._loops:
            if loop.is_paused:
                continue
            at = now_s
            if not loop._ready:  # type: ignore[attr-defined]
                timers = loop._scheduled  # type: ignore[attr-defined]
                due_s = timers[0]._when if timers and not timers[0]._cancelled else loop.due_s()
                due_s += loop.behind_s
                if due_s > now_s:
                    at = due_s
            if at > earliest:
                continue
            if at < earliest:
                best, earliest = [loop], at
            elif at < math.inf:
                best.append(loop)
        if not best:
            return None, math.inf
        return best[0] if len(best) == 1 else self.rng.choice(best), earliest

    def forget(self, loop: SimLoop, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Remove a loop that was killed. Its tasks are kept until `close`, so that Python does not run their clean-up
        code before."""
        self._loops.remove(loop)
        self._unfinished += tasks


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one process. Created by `Simulation.loop`."""

    def __init__(self, simulation: Simulation, name: str, *, is_program: bool = False) -> None:
        super().__init__()
        self._timer_cancelled_count: int
        self.name = name
        self.simulation = simulation
        self.is_program = is_program
        self.behind_s = 0.0
        """Skipped time in s, by which the loop's clock is behind the simulation's."""
        self._reached_s = 0.0
        """Time of the latest timer that was due. The difference of the two clocks may be smaller by rounding."""
        self.is_dead = False
        self.is_paused = False
        """True during a simulated SIGSTOP; tests set the field. Events that become due in this time run afterwards."""
        self._selector = _NoSockets()
        self._default = SimExecutor(self, threads=4)
        self.failures: list[dict[str, Any]] = []
        """Errors that asyncio would have logged, such as those of callbacks, and of tasks whose result nobody reads."""

    def time(self) -> float:
        return max(self.simulation.now_s - self.behind_s, self._reached_s)

    def fall_behind(self, seconds: float) -> None:
        """Let the loop's clock be behind the simulation's, unless the process is a program."""
        if seconds and not self.is_program:
            self.behind_s = seconds

    def due_s(self) -> float:
        """Return the time of the next timer in s; infinity if there is none."""
        scheduled = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        return scheduled[0]._when if scheduled else math.inf

    def next_event_s(self) -> float:
        """Return the simulation's time of the next event in s; infinity if there is none before the process goes on."""
        if self.is_paused:
            return math.inf
        return self.simulation.now_s if self._ready else self.due_s() + self.behind_s  # type: ignore[attr-defined]

    def turn(self) -> None:
        """Run the due events. This loop must be the running one. The method replaces `BaseEventLoop._run_once`, which
        also polls a selector and measures time."""
        due_s = self.due_s()  # removes cancelled timers
        if due_s + self.behind_s <= self.simulation.now_s:
            self._reached_s = max(self._reached_s, due_s)
        if self._timer_cancelled_count > TIMERS_CANCELLED_MAX:
            self._run_once()  # type: ignore[attr-defined]
            return
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        end_s = self.time() + self._clock_resolution  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._when < end_s:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def __del__(self) -> None:
        """Do nothing, because the loop owns nothing to close."""

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def kill(self) -> None:
        """End the process. None of its code runs afterwards."""
        if self.is_dead:
            return
        self.is_dead = True
        tasks = asyncio.all_tasks(self)
        self.simulation.forget(self, tasks)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]

    def executor(self, threads: int = 1) -> SimExecutor:
        """Return an executor whose jobs are events of this loop."""
        return SimExecutor(self, threads)

    # --- methods of BaseEventLoop ---

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        chosen = self._default if executor is None else executor
        return asyncio.wrap_future(chosen.submit(func, *args), loop=self)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = events.Handle(callback, args, self, context)
        if not self.is_dead:
            self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.failures.append(context)

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class _NoSockets:
    """Replacement of a selector. It returns at once, because the simulation sets the clock."""

    def select(self, _timeout: float | None) -> list[Any]:
        return []

    def close(self) -> None:
        pass


class SimExecutor(Executor):
    """The threads of a simulated process. A job is one event of the process's loop. With one thread, jobs run in the
    order of their submission; with several threads, jobs can overtake one another."""

    def __init__(self, loop: SimLoop, threads: int = 1) -> None:
        self._loop = loop
        self._free_at = [0.0] * threads

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future, job = future_of(fn, args, kwargs)
        self._loop.call_at(self._when(), job)
        return future

    def _when(self) -> float:
        rng = self._loop.simulation.rng
        thread = rng.randrange(len(self._free_at))
        pause_s = rng.random() * SLOW_JOB_S if rng.random() < SLOW_JOB_SHARE else rng.uniform(*JOB_DELAY_S)
        at = max(self._loop.time(), self._free_at[thread]) + pause_s
        self._free_at[thread] = at
        return at

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing. Submitted jobs still run, and later ones are accepted, too."""
