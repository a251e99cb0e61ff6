"""The rule by which a log directory counts as full. After a write has failed for lack of space, the directory counts as
full for HOLD_S, and then until enough space is free. So leaderships do not move with every file that is deleted."""

from __future__ import annotations

from typing import NamedTuple

HOLD_S = 10.0
FREE_SHARE = 0.05
FREE_BYTES_MAX = 1 << 30
"""Upper bound of the space to keep free: FREE_SHARE of a large disk is more than the broker needs."""


def is_enough(size_bytes: int, free_bytes: int) -> bool:
    """True if a disk of `size_bytes` has enough free space to accept writes again."""
    return free_bytes >= min(FREE_BYTES_MAX, FREE_SHARE * size_bytes)


class Room(NamedTuple):
    """State of one log directory. `shortages`: number of failed writes for lack of space, at the last `look`."""

    shortages: int = 0
    full_since_s: float | None = None
    """Time of the last `look` that found a new failed write; None: the directory has room."""

    @property
    def is_full(self) -> bool:
        """True if the directory counts as full."""
        return self.full_since_s is not None

    def look(self, shortages: int, now_s: float) -> Room:
        """Return the new state. If `shortages`, the number of failed writes for lack of space so far, has changed, the
        directory counts as full from now on."""
        return self if shortages == self.shortages else Room(shortages, now_s)

    def wants_space(self, now_s: float) -> bool:
        """True if the directory is full and HOLD_S has passed, so that its free space is to be measured."""
        return self.full_since_s is not None and now_s - self.full_since_s >= HOLD_S

    def measure(self, size_bytes: int, free_bytes: int, now_s: float) -> Room:
        """Return the new state: not full any more if HOLD_S has passed and enough space is free."""
        return Room(self.shortages) if self.wants_space(now_s) and is_enough(size_bytes, free_bytes) else self
