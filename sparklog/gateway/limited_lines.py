"""Lines of the log that are limited in rate, because a client or a dead server can cause many of them."""

from __future__ import annotations

import logging
from collections.abc import Callable

LINE_EVERY_S = 10.0
"""Shortest time in s between two lines."""
REASON_CHARS_MAX = 300
"""Largest number of characters of a reason in a line."""


class LimitedLines:
    """Lines of one kind, at most one in LINE_EVERY_S. Event-loop thread only."""

    def __init__(self, log: logging.Logger, clock_s: Callable[[], float], more: str) -> None:
        """`more`: words for the lines that were left out."""
        self._log = log
        self._clock_s = clock_s
        self._more = more
        self._next_line_s = clock_s()
        self._unlogged = 0

    def write(self, line: str) -> None:
        """Write a line if LINE_EVERY_S have passed since the last one."""
        now_s = self._clock_s()
        if now_s < self._next_line_s:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more {self._more} since the last such line)" if self._unlogged else ""
        self._log.warning("%s%s", line, more)
        self._next_line_s, self._unlogged = now_s + LINE_EVERY_S, 0
