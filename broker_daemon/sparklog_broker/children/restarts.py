"""The pauses between the starts of a child process, and the bound on its log. Pure: the caller passes the time."""

from __future__ import annotations

from msgspec import Struct

EXIT_USAGE = 2
"""Exit code of a child whose configuration is wrong. A restart would fail in the same way."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
STEADY_S = 60.0
"""A child that has run for this time begins with the first pause again."""
LINES_PER_S = 200
LINES_BURST = 1_000


class Restarts:
    """The pause before a child's next start: it doubles with each early end, up to a limit."""

    def __init__(self, first_s: float = FIRST_PAUSE_S, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s
        self.count = 0
        """Ends of the child that led to a restart."""

    def pause_s(self, exit_code: int, ran_s: float) -> float | None:
        """Pause after the child's end in s; None: the child stays ended.

        Args:
            exit_code: The exit code; negative: the number of the signal that has ended the child.
            ran_s: Time from the start to the end in s.
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
    """Decision about one line of a child's log."""

    is_written: bool
    left_out: int = 0
    """Lines that were left out before this one."""


class LineLimit:
    """Bounds the lines that a child writes into the broker's log: a burst, then a rate."""

    def __init__(self, lines_per_s: float = LINES_PER_S, burst: int = LINES_BURST) -> None:
        self._rate = lines_per_s
        self._burst = float(burst)
        self._room = float(burst)
        self._at_s: float | None = None
        self._left_out = 0

    def admit(self, now_s: float) -> AdmissionResult:
        """Decide about a line that arrives at `now_s`."""
        if self._at_s is not None:
            self._room = min(self._burst, self._room + max(0.0, now_s - self._at_s) * self._rate)
        self._at_s = now_s
        if self._room < 1:
            self._left_out += 1
            return AdmissionResult(False)
        self._room -= 1
        left_out, self._left_out = self._left_out, 0
        return AdmissionResult(True, left_out)
