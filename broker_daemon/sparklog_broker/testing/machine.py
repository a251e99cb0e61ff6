"""The machine of a broker under test: clocks that a test moves forward, and disks that a test fills."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any, cast

from sparklog.environment import Environment
from sparklog.environment.clock import MachineClock
from sparklog.environment.files import File, FileSystem, storage_error
from sparklog_broker.testing.faults import Faults


class MovedClock:
    """The clocks of `clock`, ahead of it by the time that the test has let pass."""

    def __init__(self, clock: MachineClock) -> None:
        self._clock = clock
        self._ahead_ms = 0

    def move(self, ms: int) -> None:
        """Let time pass."""
        self._ahead_ms += ms

    @property
    def ahead_s(self) -> float:
        """Time in s that the test has let pass."""
        return self._ahead_ms / 1000

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._ahead_ms

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s() + self.ahead_s

    def uptime_ms(self) -> int:
        return self._clock.uptime_ms() + self._ahead_ms


class MovedLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers follow a `MovedClock`."""

    def __init__(self, clock: MovedClock) -> None:
        self._moved = clock
        super().__init__()

    def time(self) -> float:
        return super().time() + self._moved.ahead_s


class _Disk:
    """A file system whose writes fail while its disk is full. All other calls are those of `files`."""

    def __init__(self, files: FileSystem, faults: Faults) -> None:
        self._files = files
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open(self, path: Path, *, create: bool = False) -> File:
        if create and not self._files.exists(path):
            self._check_space("create", path)
        return cast(File, _FileOnDisk(self._files.open(path, create=create), path, self))

    def write_atomic(self, path: Path, data: bytes) -> None:
        self._check_space("write", path)
        self._files.write_atomic(path, data)

    def space(self, path: Path) -> tuple[int, int]:
        size_bytes, free_bytes = self._files.space(path)
        return size_bytes, 0 if self._faults.is_disk_full else free_bytes

    def _check_space(self, action: str, path: Path) -> None:
        """Raise StorageFullError if the disk is full."""
        if self._faults.is_disk_full:
            raise storage_error(action, path, OSError(errno.ENOSPC, "full, ordered by a test"))


class _FileOnDisk:
    """An open file of a `_Disk`."""

    def __init__(self, file: File, path: Path, disk: _Disk) -> None:
        self._file = file
        self._path = path
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._disk._check_space("write", self._path)
        self._file.write(position, data)


def environment_under_test(machine: Environment, clock: MovedClock, faults: Faults) -> Environment:
    """Return `machine` with the moved clock, and with disks that a fault fills."""
    return machine._replace(clock=clock, files=cast(FileSystem, _Disk(machine.files, faults)))
