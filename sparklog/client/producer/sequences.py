"""Sequence numbers of one producer in one partition, by which a broker recognises a retry (KIP-98, KIP-360). Pure.

A batch gets its sequence when it is drained, that is taken for its first request. It keeps the sequence and its
content, however often it is sent. The broker remembers five batches. So at most five batches are drained, counted from
the oldest one with an open outcome: after a change of leaders the old leader's answer to that one can come when the new
leader has already stored later batches. A batch that has to be sent again goes out when nothing else of the partition
is in flight, and nothing new goes out before it.

A batch that fails permanently leaves a gap in the sequences, and the broker would refuse the batches after it forever.
Then nothing new is drained until the outcome of every batch in flight is known; batches that the broker refuses because
of the gap are held. The partition continues with the next epoch from sequence 0, the held batches first. A held batch
is certainly not stored, so sending it again under another epoch stores it once. A refused batch is not held but fails
if it is perhaps stored, that is if both of these are true:

* its own outcome was lost once (`maybe_stored`), and
* a copy of the failed batch is perhaps still in flight (`_ambiguous`), and could yet close the gap.

Epochs are per partition: a newer epoch of one partition does not concern the others. A producer's first batch in a
partition travels alone, because a broker without knowledge of a producer accepts any sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from sparklog.errors import SparklogError
from sparklog.types import ProducerIdAndEpoch

SEQUENCES = 2**31
"""Number of sequence numbers: 0 follows SEQUENCES - 1."""
EPOCH_MAX = 1_000
"""Last epoch of a producer id: beyond it a new id is requested, because a broker accepts no epoch far above the known
one."""
BATCHES_IN_FLIGHT_MAX = 5
"""Largest number of batches from the oldest one without an outcome to the newest drained one, with the answered batches
between them."""
REMEMBERED_S = 60.0
"""Time in s after the last answer for which the broker is trusted to remember the producer
(`producer.id.expiration.ms`)."""


class Progress(Enum):
    """The progress of a batch: not drained (NEW); in a request without an answer (UNDER_WAY); to be sent again
    (WAITING); refused because of a gap (HELD)."""

    NEW = "new"
    UNDER_WAY = "under way"
    WAITING = "waiting"
    HELD = "held"


class Refusal(Enum):
    """The reason of a failed attempt. RETRIABLE includes attempts whose answer was lost. NO_IDENTITY: the broker does
    not accept the producer id or epoch, and never will."""

    RETRIABLE = "retriable"
    OUT_OF_ORDER = "out of order"
    NO_IDENTITY = "no identity"
    FATAL = "fatal"


class AfterFailure(Enum):
    """The next step for the batches of a failed attempt: send them again (RETRY), or each of them in a request of its
    own (SPLIT); hold them until the next epoch; fail them, or fail them with an unknown outcome."""

    RETRY = "retry"
    SPLIT = "split"
    HOLD = "hold"
    FAIL = "fail"
    FAIL_UNKNOWN = "fail unknown"


@dataclass(frozen=True)
class Safeguards:
    """The safeguards of the protocol. A test sets a safeguard to False to show its effect."""

    five_batches: bool = True
    first_alone: bool = True
    retries_first: bool = True
    drain_before_bump: bool = True
    unknown_outcomes: bool = True


class SequencedBatch:
    """The state of a batch in `PartitionSequences`. `order` is its place among all drained batches."""

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
    """The state of one partition. `in_flight` are drained batches whose outcome is open, in their order, also those
    that wait to be sent again."""

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
        self._confirmed_at: float | None = None

    def room(self, first: SequencedBatch | None, now: float) -> int:
        """Return the number of batches, from `first` on, that can go into a request now. `first` None: the next batch
        is not created yet."""
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
        return self._confirmed_at is None or now - self._confirmed_at > REMEMBERED_S

    def take(self, batches: Sequence[SequencedBatch]) -> None:
        """Take the batches into a request: new ones get their sequence."""
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
        """Note that the broker has the batches, now or from an earlier attempt."""
        for batch in batches:
            self.in_flight.remove(batch)
        self._confirmed_at = now

    def refused(self, batches: Sequence[SequencedBatch], refusal: Refusal, *, definite: bool) -> AfterFailure:
        """Handle a failed attempt. `definite`: True if the attempt has stored nothing and never will; False if that is
        unknown."""
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
        self._abandon(batch)
        return AfterFailure.FAIL

    def _beyond_gap(self, batch: SequencedBatch) -> AfterFailure:
        self.in_flight.remove(batch)
        if batch.maybe_stored and self._ambiguous and self._safeguards.unknown_outcomes:
            return AfterFailure.FAIL_UNKNOWN
        batch.progress = Progress.HELD
        self.held.append(batch)
        return AfterFailure.HOLD

    def expired(self, batch: SequencedBatch) -> None:
        """Account for a batch that has reached its time limit and is not in a request. If it was sent before, it leaves
        a gap."""
        if batch.progress is Progress.WAITING:
            self._abandon(batch)

    def _abandon(self, batch: SequencedBatch) -> None:
        self.in_flight.remove(batch)
        self.has_gap = True
        self._ambiguous |= batch.maybe_stored

    @property
    def may_reset(self) -> bool:
        """True if there is a gap, and the outcome of every drained batch is known."""
        return self.has_gap and (not self.in_flight or not self._safeguards.drain_before_bump)

    def reset(self) -> list[SequencedBatch]:
        """Begin the next epoch, from sequence 0, and return the batches to be drained again, in their order, before all
        new ones.

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
        self._confirmed_at = None
        return again

    @property
    def is_used_up(self) -> bool:
        """True if the epochs of this producer id are used up, or the broker does not accept it any more."""
        return self.identity.producer_epoch > EPOCH_MAX or self._is_disowned


class WriteSession:
    """The session of a producer's batches: an identity (None: not requested yet), and a transaction if
    `transactional_id` is given.

    In a transaction the first failure (`error`) fails everything that follows, because only the coordinator raises the
    epoch. `is_error_raised`: True if a call of the application has raised it. `is_used`: True if a batch was taken for
    a request, or offsets were added to the transaction.
    """

    __slots__ = ("error", "identity", "is_error_raised", "is_used", "transactional_id")

    def __init__(self, identity: ProducerIdAndEpoch | None = None, transactional_id: str | None = None) -> None:
        self.identity = identity
        self.transactional_id = transactional_id
        self.error: SparklogError | None = None
        self.is_error_raised = False
        self.is_used = False
