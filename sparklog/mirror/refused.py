"""The state of a mirror's refused topics, whose log end tells which refused records are stored.

The row of a record has the partition and the offset of the record at the source, and lies at this offset. A worker
appends the rows before it appends the gap in the topic. If it dies between, the refused topic ends above the topic:
these offsets are decided, and are not decided a second time.
"""

from __future__ import annotations

from msgspec import Struct

from sparklog.mirror.rules import NO_EPOCH


class RefusedLog(Struct, frozen=True):
    """The state of a partition of a refused topic."""

    start: int = 0
    """Log start offset."""
    end: int = 0
    """Log end: refused records below it are stored."""
    epoch: int = NO_EPOCH
    """The source's leader epoch of the last refused record."""
    count: int = 0
    """Number of refused records so far."""
    ahead: frozenset[int] = frozenset()
    """Offsets of stored rows at or above the end of the topic: a worker has stored them, and died before it appended
    the gap."""
