"""The machine as a parameter: time, files, threads, randomness and databases.

Code takes an `Environment`, or the part of it that it needs, from the main module of its process, and uses the machine
through nothing else. In production `real_environment()` returns the real machine. In a simulation every part is
simulated, and a run is determined by its seed. `tests/unit/test_environment_rule.py` checks this rule.
"""

from __future__ import annotations

from typing import NamedTuple

from sparklog.environment.clock import MachineClock, SystemClock
from sparklog.environment.databases import Databases, SqliteDatabases
from sparklog.environment.executors import Executors, ThreadExecutors
from sparklog.environment.files import FILE_MODE_DEFAULT, FileSystem, RealFiles
from sparklog.environment.randomness import Randomness, SystemRandomness


class Environment(NamedTuple):
    """The parts of the machine that a process may use."""

    clock: MachineClock
    files: FileSystem
    executors: Executors
    randomness: Randomness
    databases: Databases


def real_environment(file_mode: int = FILE_MODE_DEFAULT) -> Environment:
    """Return the real machine. New files have the permissions `file_mode`."""
    files = RealFiles(file_mode)
    return Environment(SystemClock(), files, ThreadExecutors(), SystemRandomness(), SqliteDatabases())
