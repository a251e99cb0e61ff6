"""Programs of a simulation, each on a thread of its own that runs only while the simulation waits for it.

A program is a function of `SimClients`. Each call of a client is a coroutine on the event loop of the program's
simulated process: the program's thread waits until the coroutine has ended, and the simulation runs on. So only one
thread runs at any time, and a seed determines the run. The death of a program raises `ProgramKilled` in the call in
which it waits, and in each later call.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from sparklog.testing._sim_loop import SimLoop, Simulation
from sparklog.testing._sim_net import SimNet

T = TypeVar("T")

REAL_TIME_S = 120.0
"""The longest real time in s that a program may run between two calls of its clients."""
CALLS_AFTER_KILL_MAX = 1_000
"""Number of calls in which a killed program may handle `ProgramKilled`, as `finally` does, before its thread stops."""


class ProgramKilled(BaseException):
    """The program was killed. It is no Exception, so that no program handles it."""


class Program:
    """One life of a program."""

    def __init__(self, simulation: Simulation, net: SimNet, host: str, run: Callable[[Program], Any]) -> None:
        """Start a life on `host`. `run` is the program."""
        self.host = host
        self.loop: SimLoop = simulation.loop(host, is_program=True)
        self.random = random.Random(simulation.rng.getrandbits(32))
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        """True if the program has returned, or has raised an error."""
        self._net = net
        self._run = run
        self._is_killed = False
        self._is_blocked = False
        """True if the program's thread does not come back."""
        self._calls_after_kill = 0
        self._turn = threading.Semaphore(0)
        """Released when the program's thread is to run."""
        self._back = threading.Semaphore(0)
        """Released when the program's thread waits again."""
        self._thread = threading.Thread(target=self._live, name=f"sparklog-{host}", daemon=True)
        self._thread.start()
        self.loop.call_soon(self._resume)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine on the program's loop; called by the program. Raises its error, and
        RuntimeError on another thread."""
        self._check_alive(work)
        task: asyncio.Task[T] = self.loop.create_task(work)
        task.add_done_callback(lambda _: self._resume())
        self._back.release()
        self._turn.acquire()
        if self._is_killed:
            raise ProgramKilled
        return task.result()

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine on the program's loop, without waiting. Raises ProgramKilled, and RuntimeError on another
        thread."""
        self._check_alive(work)
        return self.loop.create_task(work)

    def kill(self) -> None:
        """End the process, as SIGKILL does."""
        self._net.process_died(self.loop)
        self.loop.kill()
        if not self.is_done:
            self._is_killed = True
            self._resume()

    def _resume(self) -> None:
        """Let the program's thread run until it waits again. A program that waits in real time ends with an error."""
        if self._is_blocked:
            return
        self._turn.release()
        while not self._back.acquire(timeout=REAL_TIME_S):
            frame = sys._current_frames().get(self._thread.ident or 0)
            stack = traceback.extract_stack(frame)
            if any(entry.filename.endswith("bdb.py") for entry in stack):
                continue  # a person steps through the program
            self._is_blocked = self._is_killed = self.is_done = True
            self._interrupt()
            self.error = RuntimeError(
                f"{self.host} has run for {REAL_TIME_S:.0f} s without a call of its clients: a program of a simulation "
                f"waits with clients.sleep, not in real time. It is here:\n{''.join(traceback.format_list(stack[-3:]))}"
            )
            return

    def _interrupt(self) -> None:
        """Raise ProgramKilled in the program's thread, which would take the processor's time from later tests."""
        thread = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(ProgramKilled))

    def _check_alive(self, work: Coroutine[Any, Any, Any]) -> None:
        """Raise ProgramKilled in a killed program, and RuntimeError on another thread than the program's. The thread of
        a killed program that handles each ProgramKilled, and so would never end, stands still."""
        if threading.current_thread() is not self._thread:
            work.close()
            raise RuntimeError(f"the clients of {self.host} are for its own thread, while its function runs")
        if not self._is_killed:
            return
        work.close()
        self._calls_after_kill += 1
        if self._calls_after_kill > CALLS_AFTER_KILL_MAX:
            self._back.release()
            threading.Event().wait()
        raise ProgramKilled

    def _live(self) -> None:
        self._turn.acquire()
        try:
            if not self._is_killed:
                self.result = self._run(self)
        except BaseException as e:  # noqa: BLE001 - the simulation reports it
            if not self._is_blocked:
                self.error = e
        finally:
            self.is_done = True
            self._back.release()


def first_error(programs: Sequence[Program]) -> BaseException | None:
    """Return the error of the first program that has failed; None without one."""
    return next((p.error for p in programs if p.is_done and p.error is not None), None)
