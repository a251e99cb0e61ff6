"""A state machine of several producers that write to one log through a bad network, and of readers.

It knows nothing of the log's rules, only what must be true: no message is in the log twice or out of its producer's
order, nothing of an epoch behind something of a newer one, what is sent again is answered with its first offsets, what is
answered as stored is stored, and readers of committed records, wherever they begin, see all of a committed transaction and
nothing of an aborted or undecided one. Markers and messages come late and repeatedly; brokers stop, crash and lose power.
Strangers write under ids that nobody was given, under those of others, and under so many of their own that others are
forgotten. That happens to nobody with an open transaction, and to nobody before there are too many or it has expired.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparklog.errors import (
    ConcurrentTransactionsError,
    CoordinatorFencedError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    LogCorruptError,
    OutOfOrderSequenceError,
)
from sparklog.format.batch import iterate_batches
from sparklog.format.offset_column import decode_rows
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.compaction.cleaner import compact_log, due_for_compaction
from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.model import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog
from sparklog.log.producers import ALL_SAFEGUARDS, Safeguards
from sparklog.testing.sim_files import PowerCut, SimFiles
from tests.unit.log.producer_support import produced
from tests.unit.log.support import ManualClock

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
    """A client and, of the same id, what the coordinator knows."""

    producer_id: int
    epoch: int = 0
    sent: list[Message] = field(default_factory=list)
    """Of this epoch."""
    transaction: int = -1
    """Under way."""

    @property
    def sequence(self) -> int:
        return self.sent[-1].sequence + self.sent[-1].rows if self.sent else 0


class ProducerMachine(RuleBasedStateMachine):
    """See the module."""

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
        """By offset: what must be in the log."""
        self.decided: dict[int, bool] = {}
        self.forgotten_at: dict[int, int] = {}
        """The log end when a producer was last forgotten. From a producer that it does not know, the log takes any
        sequence: it may know nothing until there is a message or marker behind that."""
        self.stable = self.durable = self.recovery_point = 0

    @initialize()
    def start(self) -> None:
        self._open(clean=True)

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
        """What is not in the log, behind the last that is. (A log that knows nothing of a producer takes any message.)"""
        known = self._of_epoch(producer.producer_id, producer.epoch)
        return producer.sent[producer.sent.index(known[-1]) + 1 :] if known else list(producer.sent)

    def _newest_epoch(self, producer_id: int) -> int:
        return max((e.epoch for e in self.entries.values() if e.producer_id == producer_id), default=-1)

    # --- messages ---

    @rule(
        n=st.integers(0, PRODUCERS - 1),
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
        deliver=st.booleans(),
    )
    def send(self, n: int, sizes: list[int], deliver: bool) -> None:
        for rows in sizes:
            message = self._next_message(n, rows)
            if message is not None and deliver:
                self._deliver(message)

    @rule(
        first=st.integers(1, PRODUCERS - 1),
        batches=st.lists(st.integers(1, PRODUCERS - 1), min_size=1, max_size=6),
        ends=st.lists(st.tuples(st.integers(1, PRODUCERS - 1), st.booleans()), max_size=3),
        replicated=st.booleans(),
    )
    def write_transactions(
        self, first: int, batches: list[int], ends: list[tuple[int, bool]], replicated: bool
    ) -> None:
        """Several at a time, all of it delivered."""
        for n in [first, *batches]:
            if self._next_message(n, 1) is not None:
                self.deliver_the_next(n)
        for n, commit in ends:
            self.end(n, commit)
        if replicated:
            self._replicate()

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

    @rule(n=st.integers(0, PRODUCERS - 1), back=st.integers(1, 7))
    def deliver_again(self, n: int, back: int) -> None:
        """One of the last messages, whether it has come before or not."""
        sent = self.producers[n].sent
        if sent:
            self._deliver(sent[-min(back, len(sent))])

    @rule(n=st.integers(0, PRODUCERS - 1))
    def deliver_the_next(self, n: int) -> None:
        """All that is under way, in order."""
        for message in self._under_way(self.producers[n]):
            assert self._deliver(message), "the next message of a producer was refused"

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def deliver_late(self, data: st.DataObject) -> None:
        self._deliver(data.draw(st.sampled_from(self.late[-12:])))

    def _deliver(self, message: Message) -> bool:
        """Whether the message is in the log now."""
        producer = self.producers[message.producer_id]
        before, known = self.log.log_end_offset, self._offset_of(message)
        producers = self._known_producers()
        try:
            guard = None
            if message.transaction >= 0:
                guard = self.log.begin_verification(message.producer_id, message.epoch)
                if guard is not None and producer.transaction != message.transaction:
                    return known is not None  # the coordinator says no
            info = self.log.append(message.payload(), guard=guard, issued=is_issued)
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
            # A compacted batch has lost its checksum: a batch under the same sequence cannot be told from it. Documented.
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

    def _is_remembered(self, message: Message) -> bool:
        is_newest = self._newest_epoch(message.producer_id) == message.epoch
        return is_newest and message in self._of_epoch(message.producer_id, message.epoch)[-REMEMBERED:]

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

    @rule()
    def bump_the_epoch(self) -> None:
        """The idempotent producer gives up what it has sent."""
        producer = self.producers[0]
        self.late += producer.sent
        producer.sent, producer.epoch = [], producer.epoch + 1

    # --- strangers ---

    @rule(n=st.integers(0, PRODUCERS - 1), ahead=st.sampled_from([0, 1, 5_000, 32_000]))
    def write_as_nobody(self, n: int, ahead: int) -> None:
        """Under an id that nobody was given, or an epoch that its producer cannot have come to."""
        before = self.log.log_end_offset, self.log.producers()
        producer = self.producers[n]
        who = (n, producer.epoch + ahead) if ahead > 1 else (PRODUCERS + n, ahead)
        try:
            self.log.append(produced(who[0], 0, epoch=who[1]), issued=is_issued)
        except REFUSED:
            assert (self.log.log_end_offset, self.log.producers()) == before
            return
        raise AssertionError("nobody has written")

    @rule(rows=st.integers(1, 3))
    def write_as_another(self, rows: int) -> None:
        """What the idempotent producer is about to write is overtaken by something else under its name."""
        producer = self.producers[0]
        self.deliver_the_next(0)
        own = self._next_message(0, rows)
        assert own is not None
        self.numbers += 1
        forged = replace(own, number=self.numbers)
        producer.sent[-1] = forged
        self._deliver(forged)
        producer.sent[-1] = own
        assert not self._deliver(own), "acknowledged, and not stored"
        self.bump_the_epoch()

    @rule(count=st.integers(1, 12))
    def many_write_once(self, count: int) -> None:
        for producer_id in islice(self.strangers, count):
            producers = self._known_producers()
            self.numbers += 1
            message = Message(self.numbers, producer_id, 0, 0, 1, -1)
            before = self.log.log_end_offset
            self.log.append(message.payload(), issued=is_issued)
            self.entries[before] = message
            self._notice_who_is_forgotten(producers | {producer_id})

    def _notice_who_is_forgotten(self, expected: set[int]) -> None:
        """After every append: whoever comes new takes the place of another, or goes at once when nothing but its marker
        is known and no other such producer is there."""
        now = self._known_producers()
        assert len(now) <= CONFIG.producers_max
        forgotten = expected - now
        assert not forgotten or len(now) == CONFIG.producers_max, "forgotten without need"
        self._forget(forgotten)

    # --- transactions ---

    @rule(n=st.integers(1, PRODUCERS - 1), commit=st.booleans())
    def end(self, n: int, commit: bool) -> None:
        if self.producers[n].transaction >= 0:
            self._end(n, commit)

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
            info = self.log.append_marker(marker.producer_id, marker.epoch, 0, commit=marker.commit)
        except PowerCut:
            self.entries[before] = marker
            raise
        assert (info.base_offset, info.duplicate) == (before, False)
        self.entries[before] = marker
        self._notice_who_is_forgotten(producers | {marker.producer_id})

    @precondition(lambda self: self.markers)
    @rule(data=st.data())
    def marker_again(self, data: st.DataObject) -> None:
        marker = data.draw(st.sampled_from(self.markers[-6:]))
        before, producers = self.log.log_end_offset, self._known_producers()
        try:
            info = self.log.append_marker(marker.producer_id, marker.epoch, 0, commit=marker.commit)
        except (InvalidProducerEpochError, CoordinatorFencedError):
            return
        written = self._offset_of(marker)
        if self.log.log_end_offset == before:
            assert info.base_offset == written
            return
        # A producer that was forgotten had no open transaction: a second marker ends nothing, as readers see.
        is_forgotten = written is not None and written < self.forgotten_at.get(marker.producer_id, 0)
        assert is_forgotten, "a marker was written twice"
        self.entries[before] = marker
        self._notice_who_is_forgotten(producers | {marker.producer_id})

    @rule(n=st.integers(1, PRODUCERS - 1))
    def end_while_verified(self, n: int) -> None:
        """The first message of a transaction is delayed between verification and append; meanwhile the transaction is
        aborted for its timeout, and the log forgets who has ended."""
        producer = self.producers[n]
        if producer.transaction < 0 or self._of_epoch(n, producer.epoch) or not producer.sent:
            return
        message = producer.sent[0]
        guard = self.log.begin_verification(n, message.epoch)
        self._end(n, commit=False)
        self._replicate()
        forgotten = self._known_producers()
        self.log.expire_producers(2**62)
        forgotten -= self._known_producers()
        try:
            self.log.append(message.payload(), guard=guard)
        except REFUSED:
            self._forget(forgotten)
            return
        raise AssertionError("a message came into a transaction that has ended")

    def _forget(self, producer_ids: set[int]) -> None:
        """The idempotent producer begins anew as another, and nothing of it is under way: of what comes from a producer
        that is not known, nobody can say whether it is stored already. Transactions go on: their messages are verified."""
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
        self.log.flush()
        self.log.raise_high_watermark(self.log.log_end_offset)
        self.log.forget_truncation(self.log.truncation_count)  # as a checkpoint does
        self.durable, self.recovery_point = self.log.high_watermark, self.log.recovery_point

    @rule()
    def replicate(self) -> None:
        self._replicate()

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def compact(self) -> None:
        self.log.begin_segment()
        self.clock.time_ms += 700
        self.has_compacted = True
        due = due_for_compaction(self.log)
        if due is not None:
            compact_log(due, OffsetMap(1 << 16))
        self.recovery_point = self.log.recovery_point

    @rule(how=st.sampled_from(["clean", "crash", "power", "power", "truncate"]), seed=st.integers(0, 2**32))
    def lose(self, how: str, seed: int) -> None:
        known, stable = set(self.log.producers()), self.log.last_stable_offset
        if how == "truncate":
            self._truncate(seed)
        else:
            self.log.raise_high_watermark(self.durable)
            self.log.close(seal=how == "clean")
            if how == "power":
                self.files.power_cut(random.Random(seed))
            if how == "clean":
                self.recovery_point = self.log.recovery_point
            self._open(clean=how == "clean")
        if how in ("clean", "crash"):
            now = set(self.log.producers())  # who has expired may be known again
            assert known <= now or len(now) == CONFIG.producers_max, "forgotten"
            assert self.log.last_stable_offset == stable
        self._after_a_loss()

    @rule(
        action=st.sampled_from(
            ["write", "write", "end", "replicate", "roll", "compact", "compact", "close", "truncate"]
        ),
        n=st.integers(1, PRODUCERS - 1),
        calls=st.integers(0, 12),
        seed=st.integers(0, 2**32),
    )
    def lose_power_in(self, action: str, n: int, calls: int, seed: int) -> None:
        """The power goes off in the middle of something, and again in the start that follows."""
        self.files.cut_at = len(self.files.calls) + calls
        try:
            if action == "write":
                self.write_transactions(n, [n, n], [(n, bool(seed % 2))], bool(seed % 3))
            elif action == "close":
                self.log.close()
            elif action == "truncate":
                self._truncate(seed)
            elif action == "end":
                self.end(n, bool(seed % 2))
            else:
                getattr(self, action)()
        except PowerCut:
            pass
        rng = random.Random(seed)
        self.files.power_cut(rng, cut_at=seed % 6)
        with suppress(PowerCut):
            self._open(clean=False)
        self.files.power_cut(rng)
        self._open(clean=False)
        self._after_a_loss()

    def _truncate(self, seed: int) -> None:
        spread = self.log.log_end_offset - self.log.high_watermark
        offset = self.log.high_watermark + seed % (spread + 1)
        self.recovery_point = min(self.recovery_point, offset)
        self.log.truncate_to(offset)
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

    # --- readers ---

    @invariant()
    def offsets_are_in_order(self) -> None:
        stable = self.log.last_stable_offset
        assert self.stable <= stable <= self.log.high_watermark
        self.stable = stable

    @rule(data=st.data())
    def read_committed(self, data: st.DataObject) -> None:
        stable = self.log.last_stable_offset
        start = data.draw(st.sampled_from(sorted({0, *(o for o in self.entries if o < stable)})))
        aborted = self.log.aborted_transactions(start, stable)
        found = set()
        offset = start
        while (piece := self.log.read(offset, 3000, end=stable)) is not None:
            data_bytes = piece.read()
            for position, header in iterate_batches(data_bytes):
                hidden = header.attributes & 2 and any(
                    a.producer_id == header.producer_id and a.first_offset <= header.base_offset <= a.last_offset
                    for a in aborted
                )
                if header.record_count and not hidden:
                    raw = data_bytes[position : position + header.size_bytes]
                    rows, _ = decode_rows(raw, ENVELOPE_SCHEMA, header)
                    found |= set(rows.column(ENVELOPE_SCHEMA.get_field_index("value")).to_pylist())
            offset = piece.next_offset
            piece.release()
        expected = set()
        for at, entry in self.entries.items():
            if start <= at < stable and isinstance(entry, Message):
                assert entry.transaction < 0 or entry.transaction in self.decided, "undecided, and to be read"
                if entry.transaction < 0 or self.decided[entry.transaction]:
                    expected.add(b"%d" % entry.number)
        assert found == expected

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(seal=False)
