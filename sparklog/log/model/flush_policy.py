"""The settings that say when a topic's appends are fsynced."""

from __future__ import annotations

from msgspec import Struct

NEVER = -1


class FlushPolicy(Struct, frozen=True):
    """When a topic's appends are fsynced besides the background's interval."""

    messages: int = NEVER
    """As soon as this many records are not on the disk."""
    ms: int = NEVER
    """As soon as a record is not on the disk for this long."""
    group: bool = False
    """Before an append is acknowledged; all that arrived meanwhile share the fsync."""

    @property
    def at_append(self) -> bool:
        """Whether an append may have to wait for the disk."""
        return self.group or self.messages != NEVER

    def due_after_append(self, unflushed_records: int) -> bool:
        return unflushed_records > 0 and (self.group or 0 <= self.messages <= unflushed_records)

    def due(self, dirty_since_ms: int | None, now_ms: int) -> bool:
        if self.ms == NEVER or dirty_since_ms is None:
            return False
        return not 0 <= now_ms - dirty_since_ms < self.ms  # a clock that was set back must not keep it from the disk
