"""Clocks as parameters, so that tests and the simulation control the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970 UTC. The time jumps when the wall clock is set."""
        ...


class MachineClock(Clock, Protocol):
    """All the clocks of a machine."""

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start. They never go back, and do not jump when the wall clock is set."""
        ...

    def uptime_ms(self) -> int:
        """Return milliseconds since the machine's start, including the time that it was suspended."""
        ...


class SteadyClock:
    """A wall clock without jumps. It is set to the machine's wall clock when the object is created, and then follows
    the monotonic clock. It is for durations between times that are shown or stored."""

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
