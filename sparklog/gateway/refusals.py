"""Refused batches: lines in the log, limited in rate, and their number.

The reason of INVALID_RECORD reaches the users of Java clients only; other clients show the error code alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

LINE_EVERY_S = 10.0
"""Shortest time in s between two lines."""
REASON_CHARS_MAX = 300


class Refusals:
    """The refused batches of one gateway. Event-loop thread only."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self.count = 0
        """Number of refused batches since the start of the gateway."""
        self._next_line_s = clock_s()
        self._unlogged = 0

    def record(self, client: str, partition: str, reason: str) -> None:
        """Count a refused batch, and write a line if LINE_EVERY_S have passed since the last one. `client`: address and
        client id of the producer; `partition`: topic and partition."""
        self.count += 1
        now_s = self._clock_s()
        if now_s < self._next_line_s:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more batches were refused since the last such line)" if self._unlogged else ""
        log.warning("%s: a batch for %s is refused: %s%s", client, partition, reason[:REASON_CHARS_MAX], more)
        self._next_line_s, self._unlogged = now_s + LINE_EVERY_S, 0
