"""Where a consumer stands in one partition, and what waits for its poll.

What belongs to a position is one `Position` object; `seek` and `assign` replace it, so that what was asked for an older
one is recognised (its object is no longer the current one) and dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from sparklog.client.reading.consumed import ConsumedBatch, Projection
from sparklog.errors import SparklogError
from sparklog.types import TopicPartition


class Position:
    """Where one assigned partition is: `offset` is the next one to fetch (None: not known yet, `reset_to` says which),
    `consumed` the next one that poll returns. Nothing is fetched while it is `paused`, or `waiting` to be told where to
    begin; nothing through the socket while it is read `from_files`. `is_new`: no answer has come for it yet."""

    __slots__ = (
        "_consumed",
        "_rowless",
        "error",
        "from_files",
        "is_new",
        "offset",
        "paused",
        "projection",
        "reset_to",
        "tp",
        "waiting",
    )

    def __init__(self, tp: TopicPartition, projection: Projection, offset: int | None, reset_to: int | None) -> None:
        self.tp = tp
        self.projection = projection
        self.offset = offset
        self._consumed = offset
        self._rowless: dict[int, int] = {}
        self.reset_to = reset_to
        self.error: SparklogError | None = None
        self.paused = False
        self.waiting = False
        self.from_files = False
        self.is_new = True

    def afresh(self) -> Position:
        """Another one, behind what poll has returned: nothing that was read for this one counts any more."""
        new = Position(self.tp, self.projection.copy(), self.consumed, self.reset_to)
        new.error, new.paused, new.waiting = self.error, self.paused, self.waiting
        return new

    @property
    def is_fetchable(self) -> bool:
        return not (self.error or self.paused or self.waiting or self.from_files)

    @property
    def consumed(self) -> int | None:
        offset = self._consumed
        return None if offset is None else self._rowless.get(offset, offset)

    @consumed.setter
    def consumed(self, offset: int | None) -> None:
        self._consumed = offset

    def pass_over(self, start: int, end: int) -> None:
        """Offsets [start, end) have been fetched and have no rows: who has consumed all before stands at `end`."""
        here = self.consumed
        gone = [s for s, e in self._rowless.items() if here is not None and e < here]
        for s in gone:
            del self._rowless[s]
        joined = next((s for s, e in self._rowless.items() if e == start), start)
        self._rowless[joined] = end

    def end_at(self, batches: list[ConsumedBatch], start: int, end: int) -> None:
        """What was read of [start, end) are `batches`: who has consumed them stands at `end`, also behind batches
        without rows."""
        if batches:
            batches[-1].next_offset = max(batches[-1].next_offset, end)
        elif end > start:
            self.pass_over(start, end)
        self.offset = end


class Fetched(NamedTuple):
    """A batch that waits for poll. `size_bytes` is what it takes of prefetch.bytes."""

    position: Position
    batch: ConsumedBatch
    size_bytes: int


class ReadyBatches:
    """What has been fetched and waits for poll."""

    def __init__(self) -> None:
        self._batches: deque[Fetched] = deque()
        self.size_bytes = 0
        self._taken: Fetched | None = None

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, position: Position, batches: list[ConsumedBatch], size_bytes: int) -> None:
        """Batches of one position, which are of `size_bytes` together."""
        each = size_bytes // len(batches) if batches else 0
        self._batches.extend(Fetched(position, b, each) for b in batches)
        self.size_bytes += each * len(batches)

    def take(self) -> Fetched:
        """The next one; whoever takes it moves the position's `consumed` behind it."""
        taken = self._taken = self._batches[0]
        self.size_bytes -= taken.size_bytes
        return self._batches.popleft()

    def has_lost(self, positions: Mapping[TopicPartition, Position]) -> bool:
        """Whether the position was not moved: an exception (Ctrl-C) has ended a poll in between. Asked before the next
        one is taken."""
        taken = self._taken
        if taken is None or positions.get(taken.position.tp) is not taken.position:
            return False
        return (taken.position.consumed or 0) < taken.batch.next_offset

    def keep(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Drops what belongs to none of these."""
        kept = [f for f in self._batches if positions.get(f.position.tp) is f.position]
        self._batches = deque(kept)
        self.size_bytes = sum(f.size_bytes for f in kept)
