"""The settings that say when a topic's appends are fsynced."""

from __future__ import annotations

from msgspec import Struct

NEVER = -1


class FlushPolicy(Struct, frozen=True):
    """Conditions for an fsync of a topic's appends, in addition to the broker's periodic flush."""

    messages: int = NEVER
    """Number of unflushed records that makes an fsync due; NEVER: no limit."""
    ms: int = NEVER
    """Age of the oldest unflushed record that makes an fsync due, in ms; NEVER: no limit."""
    group: bool = False
    """True if an append is acknowledged after an fsync, shared by all appends that arrived before it."""

    @property
    def at_append(self) -> bool:
        """True if an append can have to wait for an fsync."""
        return self.group or self.messages != NEVER

    def durable_end(self, flushed: int, written: int) -> int:
        """Return the end of the records that may be acknowledged. `flushed`: end of the fsynced records; `written`: end
        of the log, which may be acknowledged if no fsync is due.
        """
        return flushed if self.due_after_append(written - flushed) else written

    def due_after_append(self, unflushed_records: int) -> bool:
        return unflushed_records > 0 and (self.group or 0 <= self.messages <= unflushed_records)

    def due(self, dirty_since_ms: int | None, now_ms: int) -> bool:
        if self.ms == NEVER or dirty_since_ms is None:
            return False
        return not 0 <= now_ms - dirty_since_ms < self.ms  # a clock that was set back must not keep it from the disk
