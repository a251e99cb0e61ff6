"""The position of a consumer in one partition, and the batches that wait for its poll.

All state of a position is one `Position` object, which a `seek`, a `pause` or an error replaces by a new object. An
answer for an older object is recognised, because the object is no longer the current one, and dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from sparklog.client.reading.consumed import ConsumedBatch, Projection
from sparklog.errors import SparklogError
from sparklog.types import TopicPartition


class Divergence(NamedTuple):
    """The point at which a leader's log differs from the records that were read: the leader's records up to epoch
    `epoch` end at `end_offset`."""

    end_offset: int
    epoch: int


class Position:
    """The position in one assigned partition."""

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
        "is_polled",
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
        """Offset of the next fetch; None: not known yet, to be looked up by `reset_to`."""
        self._consumed = offset
        self.is_polled = offset is not None
        """True if the application knows the position: from a `seek`, the call `position`, or a poll that ended since.
        Only such positions are committed: the application may have committed other offsets of the rest."""
        self._rowless: dict[int, int] = {}
        self.reset_to = reset_to
        """Offset to look up if `offset` is None: EARLIEST_TIMESTAMP or LATEST_TIMESTAMP; None: no reset."""
        self.error: SparklogError | None = None
        self.paused = False
        """True if nothing is fetched until `resume`."""
        self.waiting = False
        """True if nothing is fetched until `GroupReader.start_at` has set the beginning."""
        self.from_files = False
        """True if the position is read from files, and nothing through the socket."""
        self.is_new = True
        """True until the first answer for the position."""
        self.epoch = self.consumed_epoch = self.checked_epoch = -1
        """Leader epochs (-1: not known): of the record before `offset`, of the record before `consumed`, and of the
        leader that has confirmed the records before `offset` (KIP-320)."""
        self.divergence: Divergence | None = None
        """Point at which the leader's log differs from the records that were read; poll has to choose the next
        offset."""
        self.lane: object | None = None
        """The lane that fetches the position; None: the first lane."""
        self.in_doubt = False
        """True if the leader has to be looked up before the next fetch."""
        self.attempts = 0
        """Number of failed attempts since the last answer without an error."""
        self.resume_at = 0.0
        """Earliest time of the next fetch."""
        self.replica = -1
        """Broker that is read instead of the leader until `replica_until` (KIP-392); -1: none."""
        self.replica_until = self.leader_until = 0.0
        """Times until which only `replica`, or (after a replica has failed) only the leader, is read."""

    def restart(self) -> Position:
        """Return a new Position at the offset after the records that poll has returned. All data that were read for
        this Position are dropped."""
        new = Position(self.tp, self.projection.copy(), self.consumed, self.reset_to)
        new.error, new.paused, new.waiting = self.error, self.paused, self.waiting
        new.is_polled = self.is_polled
        new.epoch = new.consumed_epoch = self.consumed_epoch
        new.lane, new.in_doubt, new.attempts, new.resume_at = self.lane, self.in_doubt, self.attempts, self.resume_at
        new.replica, new.replica_until, new.leader_until = self.replica, self.replica_until, self.leader_until
        return new

    def begin_at(self, offset: int | None, epoch: int = -1) -> None:
        """Set the beginning. `epoch` is the leader epoch of the record before `offset`; -1: not known."""
        self.offset = self.consumed = offset
        self.epoch = self.consumed_epoch = epoch
        self.checked_epoch = -1

    def on_answer(self) -> None:
        """Note an answer without an error."""
        self.is_new, self.attempts = False, 0

    def retry_at(self, at: float) -> None:
        """Note a failed fetch: the leader is looked up, and the fetch is tried again at the time `at`."""
        self.attempts += 1
        self.in_doubt, self.resume_at = True, at

    def leave_replica(self, leader_until: float) -> None:
        """Return to the leader after a failure of the replica that served the partition. Until `leader_until` only the
        leader is read."""
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
        """Note that the offsets [start, end) have no rows: when `consumed` reaches `start`, it counts as `end`."""
        here = self.consumed
        gone = [s for s, e in self._rowless.items() if here is not None and e < here]
        for s in gone:
            del self._rowless[s]
        joined = next((s for s, e in self._rowless.items() if e == start), start)
        self._rowless[joined] = end

    def end_at(self, batches: list[ConsumedBatch], start: int, end: int, epoch: int) -> None:
        """Move the position to `end`, after [start, end) was read. The last of `batches` leads to `end`, even if
        offsets without rows follow it. `epoch` is the leader epoch of the record before `end`."""
        if batches:
            batches[-1].next_offset = max(batches[-1].next_offset, end)
        elif end > start:
            self.pass_over(start, end)
        self.offset, self.epoch = end, epoch


class FetchedBatch(NamedTuple):
    """A batch that waits for poll. `size_bytes` is its share of prefetch.bytes."""

    position: Position
    batch: ConsumedBatch
    size_bytes: int


class ReadyBatches:
    """The fetched batches that wait for poll."""

    def __init__(self) -> None:
        self._batches: deque[FetchedBatch] = deque()
        self.size_bytes = 0
        self._last_taken: FetchedBatch | None = None

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, position: Position, batches: list[ConsumedBatch], size_bytes: int) -> None:
        """Add batches of one position, which have `size_bytes` together."""
        each = size_bytes // len(batches) if batches else 0
        self._batches.extend(FetchedBatch(position, b, each) for b in batches)
        self.size_bytes += each * len(batches)

    def take(self) -> FetchedBatch:
        """Take the next batch; the caller moves the position's `consumed` past it."""
        taken = self._last_taken = self._batches[0]
        self.size_bytes -= taken.size_bytes
        taken.position.consumed_epoch = taken.batch.leader_epoch
        return self._batches.popleft()

    def has_lost(self, positions: Mapping[TopicPartition, Position]) -> bool:
        """True if the position was not moved past the last taken batch, because an exception (Ctrl-C) has ended the
        poll before. Call it before the next batch is taken."""
        taken = self._last_taken
        if taken is None or positions.get(taken.position.tp) is not taken.position:
            return False
        return (taken.position.consumed or 0) < taken.batch.next_offset

    def keep(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Drop the batches whose positions are not among `positions`."""
        kept = [f for f in self._batches if positions.get(f.position.tp) is f.position]
        self._batches = deque(kept)
        self.size_bytes = sum(f.size_bytes for f in kept)
