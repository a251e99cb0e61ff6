"""Sequence numbers of one producer in one partition: what makes a retry recognisable (KIP-98, KIP-360). Pure.

A batch gets its sequence when it is drained for its first request and keeps it, and its content, however often it is
sent. The broker remembers five batches, so nothing is drained that is the sixth, counted from the oldest whose outcome
is open: the old leader may answer later than the new one has stored what came behind. A batch that has to be sent again
goes out when nothing else of the partition is under way, and nothing new goes out before it.

A batch that fails for good leaves a gap in the sequences: the batches behind it would be refused for ever. Then nothing
new is drained until the outcome of every batch in flight is known (those that the broker refuses because of the gap are
held), and the partition goes on with the next epoch from sequence 0, the held batches first. A held batch is certainly
not stored, so writing it again under another epoch stores it once; where that is not certain, it fails, too:

* its own outcome was lost once (`maybe_stored`), and
* a copy of the batch that failed may still be on its way (`_ambiguous`), and could yet close the gap.

Epochs are per partition: one that goes on with a newer epoch does not concern the others. A producer's first batch in a
partition travels alone, because a broker that knows nothing of a producer takes any sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from sparklog.errors import SparklogError
from sparklog.types import ProducerIdAndEpoch

SEQUENCES = 2**31
"""0 follows SEQUENCES - 1."""
EPOCH_MAX = 1_000
"""Then a new producer id is asked for: a broker takes no epoch that is much further than what it knows."""
BATCHES_IN_FLIGHT_MAX = 5
"""With those behind the oldest one that are answered already."""
REMEMBERED_S = 60.0
"""How long after the last answer the broker is trusted to remember the producer (`producer.id.expiration.ms`)."""


class Progress(Enum):
    """Where a batch is: not drained; in a request without an answer; to be sent again; refused because of a gap."""

    NEW = "new"
    UNDER_WAY = "under way"
    WAITING = "waiting"
    HELD = "held"


class Refusal(Enum):
    """Why an attempt failed. RETRIABLE includes those whose answer was lost; NO_IDENTITY: the broker does not take the
    producer id or epoch, and never will."""

    RETRIABLE = "retriable"
    OUT_OF_ORDER = "out of order"
    NO_IDENTITY = "no identity"
    FATAL = "fatal"


class AfterFailure(Enum):
    """What becomes of the batches of a failed attempt: sent again, each sent again in a request of its own, held until
    the next epoch, failed, failed without anybody knowing whether they are stored."""

    RETRY = "retry"
    SPLIT = "split"
    HOLD = "hold"
    FAIL = "fail"
    FAIL_UNKNOWN = "fail unknown"


@dataclass(frozen=True)
class Safeguards:
    """Each is True outside of the tests that show what it is for."""

    five_batches: bool = True
    first_alone: bool = True
    retries_first: bool = True
    drain_before_bump: bool = True
    unknown_outcomes: bool = True


class SequencedBatch:
    """What `PartitionSequences` knows of a batch. `order` is its place among all that were drained."""

    __slots__ = ("attempts", "base_sequence", "identity", "maybe_stored", "order", "progress", "record_count")

    def __init__(self, record_count: int) -> None:
        self.record_count = record_count
        self.progress = Progress.NEW
        self.identity: ProducerIdAndEpoch | None = None
        self.base_sequence = -1
        self.order = -1
        self.attempts = 0
        self.maybe_stored = False


class PartitionSequences:
    """The state of one partition. `in_flight` are drained batches whose outcome is open, in their order."""

    def __init__(self, identity: ProducerIdAndEpoch, safeguards: Safeguards | None = None) -> None:
        self.identity = identity
        self.in_flight: list[SequencedBatch] = []
        self.held: list[SequencedBatch] = []
        self.next_sequence = 0
        self.has_gap = False
        self._is_disowned = False
        self._safeguards = safeguards or Safeguards()
        self._ambiguous = False
        self._order = 0
        self._known_at: float | None = None

    def room(self, first: SequencedBatch | None, now: float) -> int:
        """How many batches, beginning with `first` (None: one that is still to be made), may go into a request now."""
        if first is not None and first.progress is Progress.WAITING:
            waiting = sum(b.progress is Progress.WAITING for b in self.in_flight)
            alone = waiting == len(self.in_flight) or not self._safeguards.retries_first
            return waiting if alone else 0
        if self.has_gap:
            return 0
        if self._safeguards.retries_first and any(
            b.attempts != 1 or b.progress is not Progress.UNDER_WAY for b in self.in_flight
        ):
            return 0
        if self._safeguards.first_alone and self.in_flight and self._unknown_to_broker(now):
            return 0
        limit = BATCHES_IN_FLIGHT_MAX if self._safeguards.five_batches else 1000
        return limit - (self._order - self.in_flight[0].order if self.in_flight else 0)

    def _unknown_to_broker(self, now: float) -> bool:
        return self._known_at is None or now - self._known_at > REMEMBERED_S

    def take(self, batches: Sequence[SequencedBatch]) -> None:
        """The batches go into a request: new ones get their sequence."""
        for batch in batches:
            if batch.progress is Progress.NEW:
                batch.identity = self.identity
                batch.base_sequence = self.next_sequence
                batch.order = self._order
                batch.attempts = 0
                batch.maybe_stored = False
                self._order += 1
                self.next_sequence = (self.next_sequence + batch.record_count) % SEQUENCES
                self.in_flight.append(batch)
            batch.attempts += 1
            batch.progress = Progress.UNDER_WAY

    def stored(self, batches: Sequence[SequencedBatch], now: float) -> None:
        """The broker has them, now or from an earlier attempt."""
        for batch in batches:
            self.in_flight.remove(batch)
        self._known_at = now

    def refused(self, batches: Sequence[SequencedBatch], refusal: Refusal, *, definite: bool) -> AfterFailure:
        """The attempt failed. `definite`: it has stored nothing, and will not; else nobody knows."""
        if not definite:
            for batch in batches:
                batch.maybe_stored = True
        if refusal is Refusal.RETRIABLE or len(batches) > 1:
            for batch in batches:
                batch.progress = Progress.WAITING
            return AfterFailure.RETRY if refusal is Refusal.RETRIABLE else AfterFailure.SPLIT
        (batch,) = batches
        if refusal is Refusal.OUT_OF_ORDER:
            if batch is not self.in_flight[0]:
                batch.progress = Progress.WAITING  # because of one before it, whose turn comes first
                return AfterFailure.RETRY
            if self.has_gap:
                return self._beyond_gap(batch)
        self._is_disowned |= refusal is Refusal.NO_IDENTITY
        self._give_up(batch)
        return AfterFailure.FAIL

    def _beyond_gap(self, batch: SequencedBatch) -> AfterFailure:
        self.in_flight.remove(batch)
        if batch.maybe_stored and self._ambiguous and self._safeguards.unknown_outcomes:
            return AfterFailure.FAIL_UNKNOWN
        batch.progress = Progress.HELD
        self.held.append(batch)
        return AfterFailure.HOLD

    def expired(self, batch: SequencedBatch) -> None:
        """Nobody waits for the batch any more; it is not under way."""
        if batch.progress is Progress.WAITING:
            self._give_up(batch)

    def _give_up(self, batch: SequencedBatch) -> None:
        self.in_flight.remove(batch)
        self.has_gap = True
        self._ambiguous |= batch.maybe_stored

    @property
    def may_begin_anew(self) -> bool:
        """Whether there is a gap, and the outcome of everything before and behind it is known."""
        return self.has_gap and (not self.in_flight or not self._safeguards.drain_before_bump)

    def begin_anew(self) -> list[SequencedBatch]:
        """The next epoch, from sequence 0: returns the batches to be drained again, in their order, before all new
        ones.

        After EPOCH_MAX a new producer id is needed: `is_used_up`.
        """
        again, self.held = self.held, []
        for batch in again:
            batch.progress = Progress.NEW
        if not self._safeguards.drain_before_bump:
            for batch in self.in_flight:
                batch.progress = Progress.NEW if batch.progress is Progress.WAITING else batch.progress
            self.in_flight = [b for b in self.in_flight if b.progress is not Progress.NEW]
        self.identity = ProducerIdAndEpoch(self.identity.producer_id, self.identity.producer_epoch + 1)
        self.next_sequence = 0
        self.has_gap = self._ambiguous = False
        self._known_at = None
        return again

    @property
    def is_used_up(self) -> bool:
        """Whether the epochs of this producer id are used up, or the broker does not take it any more."""
        return self.identity.producer_epoch > EPOCH_MAX or self._is_disowned


class WriteSession:
    """What a producer's batches belong to: an identity (None: not asked for yet), and a transaction if
    `transactional_id` is given. In a transaction the first failure (`error`) fails everything that follows, because
    only the coordinator raises the epoch. `is_used`: something has been sent."""

    __slots__ = ("error", "identity", "is_used", "transactional_id")

    def __init__(self, identity: ProducerIdAndEpoch | None = None, transactional_id: str | None = None) -> None:
        self.identity = identity
        self.transactional_id = transactional_id
        self.error: SparklogError | None = None
        self.is_used = False
