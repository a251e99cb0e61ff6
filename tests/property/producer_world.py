"""Several producers, the log that they write to, and its invariants: the base of `producer_machine.py`.

It does not know the log's rules, only its invariants. No message is in the log twice or out of its producer's order,
and nothing of an epoch comes behind a newer one. A repeated message is answered with its first offsets, and an
acknowledged message is stored. Readers of committed records, from any start, see all of a committed transaction and
nothing of an aborted or undecided one. Markers and messages come late and repeatedly; brokers stop, crash and lose
power. Foreign clients write under ids that were never issued, under those of others, and under so many of their own
that other producers are forgotten. No producer with an open transaction is forgotten, and no other one before there are
too many or it has expired.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hypothesis.stateful import RuleBasedStateMachine

from sparklog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    LogCorruptError,
    OutOfOrderSequenceError,
)
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog
from sparklog.log.producers.states import ALL_SAFEGUARDS, Safeguards
from sparklog.testing._sim_files import PowerCut, SimFiles
from tests.support.logs import ManualClock
from tests.support.producers import produced

OWNER = LogOwner("events", "0" * 32, 0, "timestamp", ("key",), ("value",))
DIRECTORY = Path("/data/events-0")
CONFIG = LogConfig.from_settings(
    {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0,
        "segment.bytes": 6000,
        "delete.retention.ms": 1000,
        "file.delete.delay.ms": 0,
        "max.producers.per.partition": 10,
    }
)
REFUSED = (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
)
PRODUCERS = 3
"""The first one is only idempotent, the others write in transactions."""
REMEMBERED = 5
STRANGERS = range(1_000, 1_000_000)
"""Producers that write once, under ids of their own."""


def is_issued(producer_id: int) -> bool:
    return producer_id < PRODUCERS or producer_id in STRANGERS


@dataclass(frozen=True)
class Message:
    """One batch; `number` is its identity. `transaction` -1: none."""

    number: int
    producer_id: int
    epoch: int
    sequence: int
    rows: int
    transaction: int

    def payload(self) -> bytearray:
        return produced(
            self.producer_id,
            self.sequence,
            rows=self.rows,
            epoch=self.epoch,
            transactional=self.transaction >= 0,
            value=b"%d" % self.number,
            key=b"%d" % self.number,
        )


@dataclass(frozen=True)
class Marker:
    producer_id: int
    epoch: int
    transaction: int
    commit: bool


@dataclass
class Producer:
    """A client and, for the same id, the coordinator's knowledge."""

    producer_id: int
    epoch: int = 0
    sent: list[Message] = field(default_factory=list)
    """Of this epoch."""
    transaction: int = -1
    """Under way."""

    @property
    def sequence(self) -> int:
        return self.sent[-1].sequence + self.sent[-1].rows if self.sent else 0


class ProducerWorld(RuleBasedStateMachine):
    """Producers, their messages, and the expected content of the log."""

    safeguards: Safeguards = ALL_SAFEGUARDS

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(10_000)
        self.numbers = 0
        self.has_compacted = False
        self.strangers = iter(STRANGERS)
        self.log: PartitionLog
        self._reset()

    def _reset(self) -> None:
        """A new disk, and nobody has written yet."""
        self.files = SimFiles()
        self.producers = [Producer(n) for n in range(PRODUCERS)]
        self.late: list[Message] = []
        """Of epochs that are over."""
        self.markers: list[Marker] = []
        self.entries: dict[int, Message | Marker] = {}
        """Expected entries of the log, by offset."""
        self.decided: dict[int, bool] = {}
        self.forgotten_at: dict[int, int] = {}
        """The log end when a producer was last forgotten. From a producer that it does not know, the log takes any
        sequence: it may know nothing until there is a message or marker behind that."""
        self.stable = self.durable = self.recovery_point = 0

    def _open(self, *, clean: bool) -> None:
        try:
            self._open_log(clean=clean)
        except LogCorruptError:  # intact batches behind what a power cut took: a repair's business, tested elsewhere
            assert not clean
            self._reset()
            self._open_log(clean=True)

    def _open_log(self, *, clean: bool) -> None:
        self.log = PartitionLog.open(
            DIRECTORY,
            OWNER,
            CONFIG,
            {1: ENVELOPE_SCHEMA}.__getitem__,
            files=self.files,
            clock=self.clock,
            clean=clean,
            high_watermark=self.durable,
            recovery_point=self.recovery_point,
            safeguards=self.safeguards,
        )

    # --- what is true of a message ---

    def _offset_of(self, wanted: Message | Marker) -> int | None:
        """The last one: the marker of a producer that was forgotten may be written again."""
        return max((offset for offset, entry in self.entries.items() if entry == wanted), default=None)

    def _last_offset(self, producer_id: int) -> int:
        return max((offset for offset, entry in self.entries.items() if entry.producer_id == producer_id), default=-1)

    def _last_offset_of_marker(self, producer_id: int) -> int:
        markers = ((offset, entry) for offset, entry in self.entries.items() if isinstance(entry, Marker))
        return max(offset for offset, entry in markers if entry.producer_id == producer_id)

    def _may_be_unknown(self, producer_id: int) -> bool:
        return self._last_offset(producer_id) < self.forgotten_at.get(producer_id, 0)

    def _known_producers(self) -> set[int]:
        """To the log."""
        return {p.producer_id for p in self.log.producers()}

    def _of_epoch(self, producer_id: int, epoch: int) -> list[Message]:
        return [
            e for e in self.entries.values()
            if isinstance(e, Message) and (e.producer_id, e.epoch) == (producer_id, epoch)
        ]  # fmt: skip

    def _under_way(self, producer: Producer) -> list[Message]:
        """Return the messages that are not in the log, behind the last that is. (A log without knowledge of a producer
        accepts any message.)"""
        known = self._of_epoch(producer.producer_id, producer.epoch)
        return producer.sent[producer.sent.index(known[-1]) + 1 :] if known else list(producer.sent)

    def _newest_epoch(self, producer_id: int) -> int:
        return max((e.epoch for e in self.entries.values() if e.producer_id == producer_id), default=-1)

    def _is_remembered(self, message: Message) -> bool:
        is_newest = self._newest_epoch(message.producer_id) == message.epoch
        return is_newest and message in self._of_epoch(message.producer_id, message.epoch)[-REMEMBERED:]

    # --- messages and markers ---

    def _next_message(self, n: int, rows: int) -> Message | None:
        """One more message to send; None: too many are under way."""
        producer = self.producers[n]
        if len(self._under_way(producer)) >= REMEMBERED:
            return None
        if n and producer.transaction < 0:
            self.numbers += 1
            producer.transaction = self.numbers
        self.numbers += 1
        producer.sent.append(Message(self.numbers, n, producer.epoch, producer.sequence, rows, producer.transaction))
        return producer.sent[-1]

    def _deliver(self, message: Message) -> bool:
        """Deliver a message; returns True if it is in the log now."""
        producer = self.producers[message.producer_id]
        before, known = self.log.log_end_offset, self._offset_of(message)
        producers = self._known_producers()
        try:
            guard = None
            if message.transaction >= 0:
                guard = self.log.appender.begin_verification(message.producer_id, message.epoch)
                if guard is not None and producer.transaction != message.transaction:
                    return known is not None  # the coordinator says no
            info = self.log.appender.append(message.payload(), guard=guard, issued=is_issued)
        except PowerCut:  # it was admitted: it may be in the log
            self._check_order(message, producers)
            self.entries[before] = message
            raise
        except REFUSED:
            assert self.log.log_end_offset == before
            assert known is None or not self._is_remembered(message), "a known message was refused"
            return known is not None
        if known is not None:
            assert (info.base_offset, info.duplicate) == (known, True), "a known message was not recognised"
            assert self.log.log_end_offset == before
            return True
        if info.duplicate:
            # A compacted batch has lost its checksum: a batch under the same sequence cannot be told from it.
            # Documented.
            other = self.entries.get(info.base_offset)
            assert self.has_compacted and isinstance(other, Message), "a new message was taken for a known one"
            assert (other.producer_id, other.epoch, other.sequence) == (
                message.producer_id, message.epoch, message.sequence
            ), "a new message was taken for a known one"  # fmt: skip
            return False
        assert (info.base_offset, self.log.log_end_offset) == (before, before + message.rows)
        self._check_order(message, producers)
        self.entries[before] = message
        self._notice_who_is_forgotten(producers | {message.producer_id})
        return True

    def _check_order(self, message: Message, producers: set[int]) -> None:
        """A message that has just been appended: is it the next one? `producers`: those that the log knew before."""
        assert message.epoch >= self._newest_epoch(message.producer_id), "behind a newer epoch"
        earlier = self._of_epoch(message.producer_id, message.epoch)
        if message.producer_id in producers:
            due = earlier[-1].sequence + earlier[-1].rows if earlier else 0
            assert message.sequence == due, "not the next message"
        else:
            assert self._may_be_unknown(message.producer_id), "forgotten"
        if message.transaction >= 0:
            assert message.transaction not in self.decided, "in a transaction that has ended"

    def _end(self, n: int, commit: bool) -> None:
        """A commit is decided only when all is replicated."""
        producer = self.producers[n]
        complete = len(self._of_epoch(n, producer.epoch)) == len(producer.sent)
        self._replicate()
        self.decided[producer.transaction] = commit and complete
        marker = Marker(n, producer.epoch + 1, producer.transaction, commit and complete)
        self.late += producer.sent
        producer.sent, producer.epoch, producer.transaction = [], producer.epoch + 1, -1
        self.markers.append(marker)
        self._write(marker)

    def _write(self, marker: Marker) -> None:
        before, producers = self.log.log_end_offset, self._known_producers()
        try:
            info = self.log.appender.append_marker(marker.producer_id, marker.epoch, 0, commit=marker.commit)
        except PowerCut:
            self.entries[before] = marker
            raise
        assert (info.base_offset, info.duplicate) == (before, False)
        self.entries[before] = marker
        self._notice_who_is_forgotten(producers | {marker.producer_id})

    def _notice_who_is_forgotten(self, expected: set[int]) -> None:
        """Note the forgotten producers, after every append: a new producer replaces another one, or is forgotten at
        once if only its marker is known and there is no other such producer."""
        now = self._known_producers()
        assert len(now) <= CONFIG.producers_max
        forgotten = expected - now
        assert not forgotten or len(now) == CONFIG.producers_max, "forgotten without need"
        self._forget(forgotten)

    def _forget(self, producer_ids: set[int]) -> None:
        """Let the idempotent producer begin again as another one, without messages in transit: for a message of an
        unknown producer, the log cannot know if it is stored already. Transactions continue: their messages are
        verified."""
        for n in producer_ids & set(range(PRODUCERS)):
            last = self.entries.get(self._last_offset(n))
            assert not n or not isinstance(last, Message), "forgotten with an open transaction"
            self.forgotten_at[n] = self.log.log_end_offset
        if 0 in producer_ids:
            producer = self.producers[0]
            self.late = [m for m in self.late if m.producer_id]
            producer.sent = []
            producer.epoch = max(producer.epoch, self._newest_epoch(0) + 1)

    # --- the log's life ---

    def _replicate(self) -> None:
        self.log.flusher.flush()
        self.log.raise_high_watermark(self.log.log_end_offset)
        self.log.truncation.forget(self.log.truncation.count)  # as a checkpoint does
        self.durable, self.recovery_point = self.log.high_watermark, self.log.recovery_point

    def _truncate(self, seed: int) -> None:
        spread = self.log.log_end_offset - self.log.high_watermark
        offset = self.log.high_watermark + seed % (spread + 1)
        self.recovery_point = min(self.recovery_point, offset)
        self.log.truncation.truncate_to(offset)
        self.recovery_point = min(self.recovery_point, self.log.log_end_offset)

    def _after_a_loss(self) -> None:
        end = self.log.log_end_offset
        assert end >= self.durable
        self.entries = {offset: entry for offset, entry in self.entries.items() if offset < end}
        self.forgotten_at = {n: min(offset, end) for n, offset in self.forgotten_at.items()}
        known = self._known_producers()
        forgotten = {n for n in range(PRODUCERS) if n not in known and not self._may_be_unknown(n)}
        # A start may find again who had been forgotten; such a producer takes the place of another.
        assert not forgotten or len(known) == CONFIG.producers_max, "forgotten"
        self._forget(forgotten)
        for marker in self.markers:  # the coordinator drives on
            if self._offset_of(marker) is None and marker.epoch > self._newest_epoch(marker.producer_id):
                self._write(marker)
