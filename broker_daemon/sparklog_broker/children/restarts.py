"""Pauses between the starts of a child process, and the limit of its log. Pure: the caller passes the time."""

from __future__ import annotations

from msgspec import Struct

EXIT_USAGE = 2
"""Exit code of a child with a wrong configuration, for which a restart would fail again."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
STEADY_S = 60.0
"""Running time, in s, after which the pauses begin with the shortest again."""
LINES_PER_S = 200
LINES_BURST = 1_000


class Restarts:
    """The pause before a child's next start. It doubles with each early end, up to a limit."""

    def __init__(self, first_s: float = FIRST_PAUSE_S, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s
        self.count = 0
        """Number of ends of the child that led to a restart."""

    def pause_s(self, exit_code: int, ran_s: float) -> float | None:
        """Return the pause before the next start, in s; None if the child must not be restarted. `exit_code`: the exit
        code; negative for the number of the signal that ended the child. `ran_s`: time from the start to the end, in s.
        """
        if exit_code == EXIT_USAGE:
            return None
        if ran_s >= STEADY_S:
            self._next_s = self._first_s
        pause = self._next_s
        self._next_s = min(2 * pause, self._longest_s)
        self.count += 1
        return pause


class AdmissionResult(Struct, frozen=True):
    """The decision about one line of a child's log."""

    is_written: bool
    suppressed: int = 0
    """Number of lines dropped just before this one."""


class LineLimit:
    """Limits the lines that a child writes into the broker's log: a burst, then a rate."""

    def __init__(self, lines_per_s: float = LINES_PER_S, burst: int = LINES_BURST) -> None:
        self._rate = lines_per_s
        self._burst = float(burst)
        self._room = float(burst)
        self._at_s: float | None = None
        self._suppressed = 0

    def admit(self, now_s: float) -> AdmissionResult:
        """Decide if a line that arrives at `now_s` is logged."""
        if self._at_s is not None:
            self._room = min(self._burst, self._room + max(0.0, now_s - self._at_s) * self._rate)
        self._at_s = now_s
        if self._room < 1:
            self._suppressed += 1
            return AdmissionResult(False)
        self._room -= 1
        suppressed, self._suppressed = self._suppressed, 0
        return AdmissionResult(True, suppressed)
