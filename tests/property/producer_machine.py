"""A state machine of several producers that write to one log through a bad network, and of readers.

It knows nothing of the log's rules, only what must be true: no message is in the log twice or out of its producer's
order, nothing of an epoch behind something of a newer one, what is sent again is answered with its first offsets, and
readers of committed records, wherever they begin, see all of a committed transaction and nothing of an aborted or
undecided one. Markers and messages come late and repeatedly; brokers stop, crash and lose power.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparklog.errors import (
    CoordinatorFencedError,
    InvalidProducerEpochError,
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
    }
)
REFUSED = (InvalidProducerEpochError, InvalidTxnStateError, OutOfOrderSequenceError)
PRODUCERS = 3
"""The first one is only idempotent, the others write in transactions."""
REMEMBERED = 5


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
        """The log end when a producer expired; of what comes next, any sequence is taken."""
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
        return next((offset for offset, entry in self.entries.items() if entry == wanted), None)

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
        try:
            guard = None
            if message.transaction >= 0:
                guard = self.log.begin_verification(message.producer_id, message.epoch)
                if guard is not None and producer.transaction != message.transaction:
                    return known is not None  # the coordinator says no
            info = self.log.append(message.payload(), guard=guard)
        except PowerCut:  # it was admitted: it may be in the log
            self._check_order(message)
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
        assert not info.duplicate, "a new message was taken for a known one"
        assert (info.base_offset, self.log.log_end_offset) == (before, before + message.rows)
        self._check_order(message)
        self.entries[before] = message
        return True

    def _is_remembered(self, message: Message) -> bool:
        is_newest = self._newest_epoch(message.producer_id) == message.epoch
        return is_newest and message in self._of_epoch(message.producer_id, message.epoch)[-REMEMBERED:]

    def _check_order(self, message: Message) -> None:
        """A message that has just been appended: is it the next one?"""
        assert message.epoch >= self._newest_epoch(message.producer_id), "behind a newer epoch"
        earlier = self._of_epoch(message.producer_id, message.epoch)
        forgotten = self.forgotten_at.get(message.producer_id, -1)
        if any(e.producer_id == message.producer_id and at >= forgotten for at, e in self.entries.items()):
            due = earlier[-1].sequence + earlier[-1].rows if earlier else 0
            assert message.sequence == due, "not the next message"
        if message.transaction >= 0:
            assert message.transaction not in self.decided, "in a transaction that has ended"

    @rule()
    def bump_the_epoch(self) -> None:
        """The idempotent producer gives up what it has sent."""
        producer = self.producers[0]
        self.late += producer.sent
        producer.sent, producer.epoch = [], producer.epoch + 1

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
        before = self.log.log_end_offset
        try:
            info = self.log.append_marker(marker.producer_id, marker.epoch, 0, commit=marker.commit)
        except PowerCut:
            self.entries[before] = marker
            raise
        assert (info.base_offset, info.duplicate) == (before, False)
        self.entries[before] = marker

    @precondition(lambda self: self.markers)
    @rule(data=st.data())
    def marker_again(self, data: st.DataObject) -> None:
        marker = data.draw(st.sampled_from(self.markers[-6:]))
        before = self.log.log_end_offset
        try:
            info = self.log.append_marker(marker.producer_id, marker.epoch, 0, commit=marker.commit)
        except (InvalidProducerEpochError, CoordinatorFencedError):
            return
        if self.log.log_end_offset == before:
            assert info.base_offset == self._offset_of(marker)
        else:
            raise AssertionError("a marker was written twice")

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
        forgotten = {p.producer_id for p in self.log.producers()}
        self.log.expire_producers(2**62)
        forgotten -= {p.producer_id for p in self.log.producers()}
        try:
            self.log.append(message.payload(), guard=guard)
        except REFUSED:
            self._forget(forgotten)
            return
        raise AssertionError("a message came into a transaction that has ended")

    def _forget(self, producer_ids: set[int]) -> None:
        """Producers begin anew as others, which is what expiration means: no message of theirs is under way."""
        for n in producer_ids:
            producer = self.producers[n]
            self.forgotten_at[n] = self.log.log_end_offset
            self.late = [m for m in self.late if m.producer_id != n]
            self.markers = [m for m in self.markers if m.producer_id != n]
            producer.sent = []
            producer.transaction = -1
            producer.epoch = max(producer.epoch, self._newest_epoch(n) + 1)

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
            assert known <= set(self.log.producers()), "forgotten"  # who has expired may be known again
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
