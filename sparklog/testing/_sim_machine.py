"""A simulated machine, and the `Environment` of its processes in a `Simulation`.

The disk (`SimFiles`) outlives the processes; a power cut loses unsynced data. Tests can set the wall clock and let it
drift. A thread's job is an event of the process's loop. A database is a real SQLite database in memory; each COMMIT
writes it to the simulated disk.
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
from sparklog.testing._sim_files import SimFiles
from sparklog.testing._sim_loop import SimLoop, Simulation

J = TypeVar("J")

EPOCH_MS = 1_700_000_000_000
"""The wall clock's time at the beginning of a simulation, in ms since 1970."""


class SimClock:
    """The clocks of a machine. The wall clock begins at EPOCH_MS. It advances `rate` times as fast as the simulation's
    time, and `offset_ms` is added; tests change both. The uptime is the simulation's time. The monotonic clock does not
    count skipped time, as a clock that stops during a machine's sleep."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.offset_ms = 0
        self.rate = 1.0

    def now_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + int(self._simulation.now_s * self.rate * 1000)

    def monotonic_s(self) -> float:
        return self._simulation.now_s - self._simulation.skipped_s

    def uptime_ms(self) -> int:
        return int(self._simulation.now_s * 1000)


class SimRandomness:
    """Randomness that is determined by the simulation's seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def new_id(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    def token_bytes(self, size_bytes: int) -> bytes:
        return self._rng.randbytes(size_bytes)


class SimExecutors:
    """Executors whose jobs are events of one process's loop."""

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
    """SQLite databases in memory; each COMMIT writes the whole database to the simulated disk."""

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
                    except BaseException:  # a later COMMIT must not write these changes
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
    """Load the serialized `content` into a database, by way of a second one. `deserialize` on `connection` itself would
    free memory that the connection's prepared statements still use, and crash the process."""
    source = sqlite3.connect(":memory:", isolation_level=None)
    try:
        source.deserialize(content)
        source.backup(connection)
    finally:
        source.close()


class SimMachine:
    """A machine on which processes run one after another. Its disk and clock outlive the processes."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.files = SimFiles()
        self.clock = SimClock(simulation)
        self.files.now_s = self.clock.monotonic_s
        self._starts = 0

    def process(self) -> tuple[SimLoop, Environment]:
        """Start a new process: return its loop and its environment."""
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
        """Cut the machine's power, which ends the process of `loop`. Unsynced data can be lost."""
        loop.kill()
        self.files.power_cut(self.simulation.rng)

    def kill(self, loop: SimLoop) -> None:
        """Kill the process of `loop`. The machine keeps all written data."""
        loop.kill()
        self.files.kill()
