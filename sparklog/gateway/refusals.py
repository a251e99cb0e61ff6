"""Refused batches and records, and rows that consumers cannot get: lines in the log, limited in rate, and numbers.

The reason of INVALID_RECORD reaches the users of Java's producers only; other clients show the error code alone, and
the answer to FETCH has no place for a reason. No client learns of records that go to a refused topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sparklog.gateway.limited_lines import REASON_CHARS_MAX, LimitedLines

log = logging.getLogger(__name__)


class Refusals:
    """The refusals of one gateway. Event-loop thread only."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.batches = 0
        """Number of refused batches since the start of the gateway."""
        self.records = 0
        """Number of records that went to refused topics since then."""
        self._lines = LimitedLines(log, clock_s, "batches were refused")
        self._fetch_lines = LimitedLines(log, clock_s, "such answers were sent")

    def note_batch(self, client: str, partition: str, reason: str) -> None:
        """Count a refused batch, and log it. `client`: address and client id of the producer; `partition`: topic and
        partition."""
        self.batches += 1
        self._lines.write(f"{client}: a batch for {partition} is refused: {reason[:REASON_CHARS_MAX]}")

    def note_records(self, client: str, partition: str, count: int, reason: str) -> None:
        """Count the refused records of a batch that are in the refused topic, and log them. `reason`: that of the first
        one; the others as for `note_batch`."""
        self.records += count
        self._lines.write(
            f"{client}: {count} records for {partition} go to the refused topic, the first one because of: "
            f"{reason[:REASON_CHARS_MAX]}"
        )

    def note_fetch(self, client: str, partition: str, reason: str) -> None:
        """Log that a consumer got an error in place of rows. Arguments are as for `note_batch`."""
        self._fetch_lines.write(f"{client}: the next rows of {partition} cannot be sent: {reason[:REASON_CHARS_MAX]}")
