"""Rule by which a log directory counts as full, with hysteresis: after a write has failed for lack of space it stays
full for HOLD_S, and until enough is free. So leaderships do not go back and forth with every file that is deleted."""

from __future__ import annotations

from typing import NamedTuple

HOLD_S = 10.0
FREE_SHARE = 0.05
FREE_BYTES_MAX = 1 << 30
"""Upper bound of the space to keep free: FREE_SHARE of a large disk is more than the broker needs."""


def is_enough(size_bytes: int, free_bytes: int) -> bool:
    """True if a disk of this size has the free space that a broker needs to go on."""
    return free_bytes >= min(FREE_BYTES_MAX, FREE_SHARE * size_bytes)


class Room(NamedTuple):
    """State of one directory. `shortages`: number of failed writes that are taken into account."""

    shortages: int = 0
    full_since_s: float | None = None
    """Time of the last failed write that was noticed; None: the directory has room."""

    @property
    def is_full(self) -> bool:
        """True if the directory counts as full."""
        return self.full_since_s is not None

    def look(self, shortages: int, now_s: float) -> Room:
        """Take into account the failed writes for lack of space; `shortages` is their number so far."""
        return self if shortages == self.shortages else Room(shortages, now_s)

    def wants_space(self, now_s: float) -> bool:
        """True if it is time to read the free space."""
        return self.full_since_s is not None and now_s - self.full_since_s >= HOLD_S

    def measure(self, size_bytes: int, free_bytes: int, now_s: float) -> Room:
        """Take the free space of the disk into account."""
        return Room(self.shortages) if self.wants_space(now_s) and is_enough(size_bytes, free_bytes) else self
