"""A simulated machine: the `Environment` of a process in a `Simulation`.

The disk (`SimFiles`) outlives the process; a power cut loses unsynced data. The clock may be set, and drifts. Threads
are events of the process's loop. Databases are SQLite's own, in memory, written to the simulated disk at each COMMIT.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Generic, TypeVar

from sparklog.environment import Environment
from sparklog.environment.executors import GATHERED_MAX, Worker
from sparklog.environment.files import FileSystem, read_whole
from sparklog.testing.sim_files import SimFiles
from sparklog.testing.sim_loop import SimLoop, Simulation

J = TypeVar("J")

EPOCH_MS = 1_700_000_000_000
"""The wall clock at the simulation's beginning."""


class SimClock:
    """A machine's clock: the simulation's time, seen through an offset that jumps and a rate that drifts."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.offset_ms = 0
        self.rate = 1.0

    def now_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + int(self._simulation.now_s * self.rate * 1000)

    def monotonic_s(self) -> float:
        return self._simulation.now_s

    def uptime_ms(self) -> int:
        return int(self._simulation.now_s * 1000)


class SimRandomness:
    """Ids and tokens drawn from the simulation's seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def new_id(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    def token_bytes(self, size_bytes: int) -> bytes:
        return self._rng.randbytes(size_bytes)


class SimExecutors:
    """Threads as events of one process's loop."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def pool(self, name: str, threads: int) -> Executor:
        return self._loop.executor(threads)

    def daemon(self, name: str) -> Executor:
        return self._loop.executor()

    def worker(self, name: str, run: Callable[[list[J]], None]) -> Worker[J]:
        return _SimWorker(self._loop, run)


class _SimWorker(Generic[J]):
    def __init__(self, loop: SimLoop, run: Callable[[list[J]], None]) -> None:
        self._run = run
        self._executor = loop.executor()
        self._queue: list[J] = []
        self._is_due = False

    def put(self, item: J) -> None:
        self._queue.append(item)
        self._wake()

    def _wake(self) -> None:
        if self._queue and not self._is_due:
            self._is_due = True
            self._executor.submit(self._work)

    def _work(self) -> None:
        self._is_due = False
        items, self._queue = self._queue[:GATHERED_MAX], self._queue[GATHERED_MAX:]
        if items:
            self._run(items)
        self._wake()

    def __len__(self) -> int:
        return len(self._queue)

    def stop(self) -> None:
        while self._queue:
            self._work()


class SimDatabases:
    """SQLite in memory, kept on a simulated disk."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files

    def open(self, path: Path) -> sqlite3.Connection:
        files = self._files
        content = read_whole(files, path) or b""

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
                nonlocal content
                cursor = super().execute(sql, *args)
                if sql == "COMMIT":
                    try:
                        files.write_atomic(path, written := self.serialize())
                    except BaseException:  # nothing of it may come with a later one
                        if content:
                            _fill(self, content)
                        raise
                    content = written
                return cursor

        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=Connection)
        if content:
            _fill(connection, content)
        return connection


def _fill(connection: sqlite3.Connection, content: bytes) -> None:
    """Give a database the serialized `content`. Through a copy: `deserialize` frees what prepared statements of the
    connection still use, and the process dies."""
    source = sqlite3.connect(":memory:", isolation_level=None)
    try:
        source.deserialize(content)
        source.backup(connection)
    finally:
        source.close()


class SimMachine:
    """A machine on which processes can be started, one after the other. Its disk and clock stay."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.files = SimFiles()
        self.files.now_s = lambda: simulation.now_s
        self.clock = SimClock(simulation)
        self._starts = 0

    def process(self) -> tuple[SimLoop, Environment]:
        """Return the loop and the environment of a new process."""
        self._starts += 1
        loop = self.simulation.loop(f"{self.name}.{self._starts}")
        environment = Environment(
            self.clock,
            self.files,
            SimExecutors(loop),
            SimRandomness(random.Random(self.simulation.rng.getrandbits(64))),
            SimDatabases(self.files),
        )
        return loop, environment

    def power_cut(self, loop: SimLoop) -> None:
        """Stop the machine, and the process of `loop`; unsynced data may be lost."""
        loop.kill()
        self.files.power_cut(self.simulation.rng)

    def kill(self, loop: SimLoop) -> None:
        """Kill the process; the machine, and all that was written, stays."""
        loop.kill()
        self.files.kill()
