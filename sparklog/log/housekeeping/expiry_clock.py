"""The clock that measures the age of records and of other state that expires.

The wall clock can jump. A jump forward of eight days would make everything eight days older at once, and the next run
of retention would delete all of it. This clock follows a jump forward at a limited rate, `rate` times as fast as real
time, until it has caught up. The machine's uptime, which does not jump, measures real time. A clock that is set back
only makes records younger: this clock follows at once.

expiry-clock.json in the data directory, ``{"time_ms", "uptime_ms", "boot_id", "version"}``, keeps the state over
restarts. It is written whole at each start and once a minute. After a restart of the machine the length of the pause is
unknown: all of it counts as a jump. If the file is lost, the wall clock is trusted once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from sparklog.environment.clock import Clock
from sparklog.environment.files import FileSystem, read_hint
from sparklog.errors import SparklogError
from sparklog.format.checkpoint import decode, encode

logger = logging.getLogger(__name__)

EXPIRY_CLOCK_FILE = "expiry-clock.json"
JUMP_MS_MIN = 60_000
"""Lag behind the wall clock, in ms, from which on the lag is logged and reported."""


class ClockState(Struct, frozen=True):
    """Content of the file: the clock showed `time_ms` at the machine's uptime `uptime_ms`, in the boot `boot_id`."""

    time_ms: int
    uptime_ms: int
    boot_id: str
    version: int = 1


def advanced(before_ms: int, wall_ms: int, elapsed_ms: int, rate: int) -> int:
    """Return the clock's time `elapsed_ms` after it showed `before_ms`: the time of the wall clock, `wall_ms`, unless
    this is ahead. Then the clock goes on, at most `rate` times as fast as real time."""
    if wall_ms <= before_ms + elapsed_ms:
        return wall_ms
    return min(wall_ms, before_ms + elapsed_ms * rate)


def resumed(stored: ClockState | None, wall_ms: int, uptime_ms: int, boot_id: str, rate: int) -> int:
    """Return the clock's time at a start. `found`: the state in the file; None: the clock shows the wall clock's time.
    If the state is from an earlier boot of the machine, all time since then counts as a jump."""
    if stored is None:
        return wall_ms
    is_same_boot = bool(boot_id) and stored.boot_id == boot_id and uptime_ms >= stored.uptime_ms
    return advanced(stored.time_ms, wall_ms, uptime_ms - stored.uptime_ms if is_same_boot else 0, rate)


class ExpiryClock:
    """The clock that the module describes, as a `Clock`. Several threads can use it."""

    def __init__(
        self,
        wall: Clock,
        files: FileSystem,
        data_dir: Path,
        *,
        rate: int,
        uptime_ms: Callable[[], int],
    ) -> None:
        """Read the file. `uptime_ms` returns the machine's uptime. Raises StorageError."""
        self._wall = wall
        self._files = files
        self._path = data_dir / EXPIRY_CLOCK_FILE
        self._rate = rate
        self._uptime_ms = uptime_ms
        self._boot_id = files.boot_id()
        self._lock = threading.Lock()
        self._is_reported = False
        data = read_hint(files, self._path)
        stored = decode(data, ClockState) if data is not None else None
        if data is not None and stored is None:
            logger.warning("%s cannot be read; the broker trusts the clock", self._path)
        self._at_ms = uptime_ms()
        self._time_ms = resumed(stored, wall.now_ms(), self._at_ms, self._boot_id, rate)

    def now_ms(self) -> int:
        with self._lock:
            wall_ms, at_ms = self._wall.now_ms(), self._uptime_ms()
            self._time_ms = advanced(self._time_ms, wall_ms, at_ms - self._at_ms, self._rate)
            self._at_ms = at_ms
            self._log_lag(wall_ms - self._time_ms)
            return self._time_ms

    @property
    def behind_ms(self) -> int:
        """Lead of the wall clock over this clock, in ms; 0 for a lead below JUMP_MS_MIN. Deletions that are due by the
        wall clock only are held back."""
        behind_ms = self._wall.now_ms() - self.now_ms()
        return behind_ms if behind_ms >= JUMP_MS_MIN else 0

    @property
    def catches_up_in_ms(self) -> int:
        """Time in ms until the clock has caught up with the wall clock."""
        return self.behind_ms // max(1, self._rate - 1)

    def _log_lag(self, behind_ms: int) -> None:
        if behind_ms >= JUMP_MS_MIN and not self._is_reported:
            logger.warning(
                "the clock has jumped forward by %.1f h (or the machine was off for this time): records that are "
                "expired only by the new time are not deleted at once. Ages catch up at %d times real time, within "
                "%.1f h; if the clock is wrong, correct it before",
                behind_ms / 3_600_000, self._rate, behind_ms / max(1, self._rate - 1) / 3_600_000,
            )  # fmt: skip
        self._is_reported = behind_ms >= JUMP_MS_MIN

    def save(self) -> None:
        """Write the file. A failure is only logged: after a restart, the clock then continues from an older state."""
        now_ms = self.now_ms()
        try:
            self._files.write_atomic(self._path, encode(ClockState(now_ms, self._uptime_ms(), self._boot_id)))
        except SparklogError as e:
            logger.warning("%s could not be written: %s", self._path, e)
