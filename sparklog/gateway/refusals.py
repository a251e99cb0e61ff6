"""Refused batches and records: lines in the log, limited in rate, and their numbers.

The reason of INVALID_RECORD reaches the users of Java clients only; other clients show the error code alone. No client
learns of records that go to a refused topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

LINE_EVERY_S = 10.0
"""Shortest time in s between two lines."""
REASON_CHARS_MAX = 300


class Refusals:
    """The refusals of one gateway. Event-loop thread only."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self.batches = 0
        """Number of refused batches since the start of the gateway."""
        self.records = 0
        """Number of records that went to refused topics since then."""
        self._next_line_s = clock_s()
        self._unlogged = 0

    def note_batch(self, client: str, partition: str, reason: str) -> None:
        """Count a refused batch, and log it. `client`: address and client id of the producer; `partition`: topic and
        partition."""
        self.batches += 1
        self._log(f"{client}: a batch for {partition} is refused: {reason[:REASON_CHARS_MAX]}")

    def note_records(self, client: str, partition: str, count: int, reason: str) -> None:
        """Count the refused records of a batch that are in the refused topic, and log them. `reason`: that of the first
        one; the others as for `note_batch`."""
        self.records += count
        self._log(
            f"{client}: {count} records for {partition} go to the refused topic, the first one because of: "
            f"{reason[:REASON_CHARS_MAX]}"
        )

    def _log(self, line: str) -> None:
        """Write a line if LINE_EVERY_S have passed since the last one."""
        now_s = self._clock_s()
        if now_s < self._next_line_s:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more batches were refused since the last such line)" if self._unlogged else ""
        log.warning("%s%s", line, more)
        self._next_line_s, self._unlogged = now_s + LINE_EVERY_S, 0
