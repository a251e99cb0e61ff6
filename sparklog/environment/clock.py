"""Time, passed in: so that tests and the simulation can hold it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970 UTC. May jump."""
        ...


class MachineClock(Clock, Protocol):
    """All the clocks of a machine."""

    def monotonic_s(self) -> float:
        """Return seconds since some moment. Never goes back, does not jump when the wall clock is set."""
        ...

    def uptime_ms(self) -> int:
        """Return the time since the machine's start, sleep included."""
        ...


class SteadyClock:
    """Wall-clock time of this object's creation, continued without jumps: for durations between times that are shown or
    stored.
    """

    def __init__(self, clock: MachineClock) -> None:
        self._clock = clock
        self._began_ms = clock.now_ms() - int(clock.monotonic_s() * 1_000)

    def now_ms(self) -> int:
        """Return milliseconds since 1970 UTC."""
        return self._began_ms + int(self._clock.monotonic_s() * 1_000)


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def uptime_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
