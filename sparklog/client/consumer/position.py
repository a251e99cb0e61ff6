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


class Divergence(NamedTuple):
    """A leader's part of the log that a reader has read ends at `end_offset`, with records of leader epoch `epoch`."""

    end_offset: int
    epoch: int


class Position:
    """Where one assigned partition is: `offset` is the next one to fetch (None: not known yet, `reset_to` says which),
    `consumed` the next one that poll returns. Nothing is fetched while it is `paused`, or `waiting` to be told where to
    begin; nothing through the socket while it is read `from_files`. `is_new`: no answer has come for it yet.

    `epoch` and `consumed_epoch` are the leader epochs of the records before these offsets (-1: not known),
    `checked_epoch` that of the leader which has said that the records before `offset` are still its own (KIP-320).
    `divergence`: it is not, poll has to decide where to go on.
    `lane`: who fetches it (None: the first one). `in_doubt`: its leader has to be asked for before it is fetched, not
    before `resume_at`; `attempts` have failed since something came. `replica`: the broker that serves it instead of its
    leader until `replica_until` (KIP-392); after one has failed, only the leader does until `leader_until`."""

    __slots__ = (
        "_consumed",
        "_rowless",
        "attempts",
        "checked_epoch",
        "consumed_epoch",
        "divergence",
        "epoch",
        "error",
        "from_files",
        "in_doubt",
        "is_new",
        "lane",
        "leader_until",
        "offset",
        "paused",
        "projection",
        "replica",
        "replica_until",
        "reset_to",
        "resume_at",
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
        self.epoch = self.consumed_epoch = self.checked_epoch = -1
        self.divergence: Divergence | None = None
        self.lane: object | None = None
        self.in_doubt = False
        self.attempts = 0
        self.resume_at = 0.0
        self.replica = -1
        self.replica_until = self.leader_until = 0.0

    def afresh(self) -> Position:
        """Another one, behind what poll has returned: nothing that was read for this one counts any more."""
        new = Position(self.tp, self.projection.copy(), self.consumed, self.reset_to)
        new.error, new.paused, new.waiting = self.error, self.paused, self.waiting
        new.epoch = new.consumed_epoch = self.consumed_epoch
        new.lane, new.in_doubt, new.attempts, new.resume_at = self.lane, self.in_doubt, self.attempts, self.resume_at
        new.replica, new.replica_until, new.leader_until = self.replica, self.replica_until, self.leader_until
        return new

    def begin_at(self, offset: int | None, epoch: int = -1) -> None:
        """It is known where to begin. `epoch`: of the record before."""
        self.offset = self.consumed = offset
        self.epoch = self.consumed_epoch = epoch
        self.checked_epoch = -1

    def came(self) -> None:
        """Its leader has answered."""
        self.is_new, self.attempts = False, 0

    def retry_at(self, at: float) -> None:
        """An attempt to fetch it has failed: the leader is asked for, and then it is tried again."""
        self.attempts += 1
        self.in_doubt, self.resume_at = True, at

    def leave_replica(self, leader_until: float) -> None:
        """The replica that served it has failed."""
        self.replica, self.leader_until = -1, leader_until

    @property
    def is_fetchable(self) -> bool:
        return not (self.error or self.paused or self.waiting or self.from_files or self.divergence)

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

    def end_at(self, batches: list[ConsumedBatch], start: int, end: int, epoch: int) -> None:
        """What was read of [start, end) are `batches`: who has consumed them stands at `end`, also behind batches
        without rows. `epoch`: of what is before `end`."""
        if batches:
            batches[-1].next_offset = max(batches[-1].next_offset, end)
        elif end > start:
            self.pass_over(start, end)
        self.offset, self.epoch = end, epoch


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
        taken.position.consumed_epoch = taken.batch.leader_epoch
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
