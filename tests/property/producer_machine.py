"""A state machine of several producers that write to one log through a bad network, and of readers: the possible
events. `producer_world.py` has the invariants.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from sparklog.errors import (
    CoordinatorFencedError,
    InvalidProducerEpochError,
)
from sparklog.format.batch import iterate_batches
from sparklog.format.offset_column import decode_rows
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.housekeeping.cleaner import compact_log, due_for_compaction
from sparklog.testing._sim_files import PowerCut
from tests.property.producer_world import CONFIG, PRODUCERS, REFUSED, Message, ProducerWorld, is_issued
from tests.support.producers import produced


class ProducerMachine(ProducerWorld):
    """See the module."""

    @initialize()
    def start(self) -> None:
        self._open(clean=True)

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

    @rule()
    def bump_the_epoch(self) -> None:
        """Make the idempotent producer abandon its unacknowledged batches."""
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
            self.log.appender.append(produced(who[0], 0, epoch=who[1]), issued=is_issued)
        except REFUSED:
            assert (self.log.log_end_offset, self.log.producers()) == before
            return
        raise AssertionError("nobody has written")

    @rule(rows=st.integers(1, 3))
    def write_as_another(self, rows: int) -> None:
        """Write another batch under the idempotent producer's name, before its own next one."""
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
            self.log.appender.append(message.payload(), issued=is_issued)
            self.entries[before] = message
            self._notice_who_is_forgotten(producers | {producer_id})

    # --- transactions ---

    @rule(n=st.integers(1, PRODUCERS - 1), commit=st.booleans())
    def end(self, n: int, commit: bool) -> None:
        if self.producers[n].transaction >= 0:
            self._end(n, commit)

    @precondition(lambda self: self.markers)
    @rule(data=st.data())
    def marker_again(self, data: st.DataObject) -> None:
        marker = data.draw(st.sampled_from(self.markers[-6:]))
        before, producers = self.log.log_end_offset, self._known_producers()
        try:
            info = self.log.appender.append_marker(marker.producer_id, marker.epoch, 0, commit=marker.commit)
        except (InvalidProducerEpochError, CoordinatorFencedError):
            return
        written = self._offset_of(marker)
        if self.log.log_end_offset == before:
            assert written is not None and info.base_offset == self._last_offset_of_marker(marker.producer_id)
            return
        # A producer that was forgotten had no open transaction: a second marker ends nothing, as readers see.
        is_forgotten = written is not None and written < self.forgotten_at.get(marker.producer_id, 0)
        assert is_forgotten, "a marker was written twice"
        self.entries[before] = marker
        self._notice_who_is_forgotten(producers | {marker.producer_id})

    @rule(n=st.integers(1, PRODUCERS - 1))
    def end_while_verified(self, n: int) -> None:
        """The first message of a transaction is delayed between verification and append; meanwhile the transaction is
        aborted for its timeout, and the log forgets the producer that has ended it."""
        producer = self.producers[n]
        if producer.transaction < 0 or self._of_epoch(n, producer.epoch) or not producer.sent:
            return
        message = producer.sent[0]
        guard = self.log.appender.begin_verification(n, message.epoch)
        self._end(n, commit=False)
        self._replicate()
        forgotten = self._known_producers()
        self.log.appender.expire_producers(2**62)
        forgotten -= self._known_producers()
        try:
            self.log.appender.append(message.payload(), guard=guard)
        except REFUSED:
            self._forget(forgotten)
            return
        raise AssertionError("a message came into a transaction that has ended")

    # --- the log's life ---

    @rule()
    def replicate(self) -> None:
        self._replicate()

    @rule()
    def roll(self) -> None:
        self.log.appender.roll()

    @rule()
    def compact(self) -> None:
        self.log.appender.begin_segment()
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
            now = set(self.log.producers())  # who has expired may be known again, in its own newest epoch
            again = self._known_producers() & self.forgotten_at.keys()
            lost = {state for state in known - now if state.producer_id not in again}
            assert not lost or len(now) == CONFIG.producers_max, "forgotten"
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
        aborted = self.log.reader.aborted_transactions(start, stable)
        found = set()
        offset = start
        while (piece := self.log.reader.read(offset, 3000, end=stable)) is not None:
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
