"""The coordinator's rules by example, and its records on the disk."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from sparklog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    LogCorruptError,
    ProducerFencedError,
    SparklogError,
    TransactionAbortedError,
)
from sparklog.replication.transactions import (
    Abort,
    AddPartitions,
    Answer,
    Coordinator,
    Effects,
    End,
    EndShared,
    IdReserve,
    InitProducer,
    Join,
    JoinAnswer,
    Marker,
    Refuse,
    Renew,
    RenewAnswer,
    Request,
    TransactionLimits,
    WriteMarkers,
    records,
)
from sparklog.replication.transactions.coordinator import EXPIRY_INTERVAL_MS
from sparklog.replication.transactions.model import State
from sparklog.types import ProducerIdAndEpoch, TopicPartition, shared_transactional_id
from tests.support.cases import for_each

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
APP = shared_transactional_id("app")


class Desk:
    """A coordinator whose records are durable at once; markers wait until `write` is called."""

    def __init__(self, before: Desk | None = None, limits: TransactionLimits | None = None) -> None:
        self.log: list[tuple[bytes, bytes | None]] = [] if before is None else before.log
        self.ids = IdReserve()
        for i in range(100):
            self.ids.add(1000 + i + (0 if before is None else 100))
        self.coordinator = Coordinator(self.ids, limits)
        for record in self.log:
            self.coordinator.replay(*record)
        self.answers: dict[Hashable, object] = {}
        self.due: list[tuple[str, Marker]] = []
        self.count = 0
        self.take(self.coordinator.loaded(0))

    def take(self, effects: Effects) -> None:
        self.log += effects.records
        for action in effects.actions:
            match action:
                case Answer(token, result):
                    self.answers[token] = result
                case Refuse(token, error):
                    self.answers[token] = error
                case WriteMarkers(transactional_id, markers):
                    self.due += [(transactional_id, m) for m in markers]

    def send(self, request: Request, now_ms: int = 0) -> int:
        self.count += 1
        self.take(self.coordinator.handle(request, self.count, now_ms))
        return self.count

    def ask(self, request: Request, now_ms: int = 0) -> object:
        """The answer, None if there is none yet."""
        return self.answers.get(self.send(request, now_ms))

    def write(self) -> list[Marker]:
        """Writes all markers."""
        written = [m for _, m in self.due]
        while self.due:
            transactional_id, marker = self.due.pop(0)
            self.take(self.coordinator.markers_written(transactional_id, [marker], 0))
        return written

    def init(self) -> ProducerIdAndEpoch:
        found = self.ask(InitProducer("id", 60_000))
        assert isinstance(found, ProducerIdAndEpoch)
        return found

    def joined(self, version: int, run: str, fencing_token: int) -> int:
        found = self.ask(Join(APP, version, run, fencing_token, 60_000))
        assert isinstance(found, JoinAnswer)
        assert found.identity is not None
        return found.identity.producer_id

    def refused(self, request: Request) -> type[SparklogError]:
        found = self.ask(request)
        assert isinstance(found, SparklogError), found
        return type(found)


def test_an_end_is_answered_when_the_last_marker_is_in() -> None:
    desk = Desk()
    me = desk.init()
    assert desk.ask(AddPartitions("id", *me, (T0, T1))) is True
    end = desk.send(End("id", *me, True))
    assert end not in desk.answers
    (first, second) = [m for _, m in desk.due]
    assert first == Marker(T0, me.producer_id, me.producer_epoch + 1, True)
    desk.take(desk.coordinator.markers_written("id", [first], 0))
    assert end not in desk.answers
    desk.take(desk.coordinator.markers_written("id", [second], 0))
    assert desk.answers[end] == ProducerIdAndEpoch(me.producer_id, me.producer_epoch + 1)


def test_an_empty_transaction_ends_without_markers_and_with_a_new_epoch() -> None:
    desk = Desk()
    me = desk.init()
    assert desk.ask(End("id", *me, False)) == ProducerIdAndEpoch(me.producer_id, me.producer_epoch + 1)
    assert desk.refused(AddPartitions("id", *me, (T0,))) is TransactionAbortedError, "a batch of it that comes late"


def test_the_largest_epoch_is_never_used() -> None:
    desk = Desk()
    me = desk.init()
    while me.producer_epoch < 32_765:
        answer = desk.ask(End("id", *me, False))
        assert isinstance(answer, ProducerIdAndEpoch)
        me = answer
    desk.ask(AddPartitions("id", *me, (T0,)))
    end = desk.send(End("id", *me, True))
    desk = restarted(desk)
    (marker,) = desk.write()
    assert marker.producer_epoch == 32_766
    after = desk.ask(End("id", *me, True))  # the repetition has the answer that was lost
    assert isinstance(after, ProducerIdAndEpoch)
    assert after.producer_id != me.producer_id
    assert after.producer_epoch == 0
    assert desk.refused(AddPartitions("id", me.producer_id, 32_766, (T0,))) is ProducerFencedError
    assert end > 0


@pytest.mark.parametrize("epoch", [32_763, 32_764, 32_765])
def test_a_producer_that_has_the_largest_epoch_gets_another_id(epoch: int) -> None:
    desk = Desk()
    before = ProducerIdAndEpoch(900, epoch)
    value = records.PlainValue(records.VERSION, int(State.EMPTY), *before, -1, -1, -1, 60_000, -1, 0, [])
    desk.log.append((records.encode_key(records.PLAIN, "id"), records.encode_value(value)))
    after = restarted(desk).init()
    assert after == (ProducerIdAndEpoch(900, epoch + 1) if epoch < 32_765 else ProducerIdAndEpoch(1100, 0))


def restarted(desk: Desk) -> Desk:
    return Desk(desk)


def test_the_same_end_again_and_the_other_one() -> None:
    desk = Desk()
    me = desk.init()
    desk.ask(AddPartitions("id", *me, (T0,)))
    desk.send(End("id", *me, True))
    again = desk.send(End("id", *me, True))
    assert desk.refused(End("id", *me, False)) is InvalidTxnStateError
    desk.write()
    assert (
        desk.answers[again]
        == desk.ask(End("id", *me, True))
        == ProducerIdAndEpoch(me.producer_id, me.producer_epoch + 1)
    )


def test_a_client_may_keep_its_epoch() -> None:
    desk = Desk()
    me = desk.init()
    for commit in (True, False, True):
        desk.ask(AddPartitions("id", *me, (T0,)))
        end = desk.send(End("id", *me, commit, keeps_epoch=True))
        if commit:
            desk = restarted(desk)  # the decision is driven on with the same marker
            end = desk.send(End("id", *me, commit, keeps_epoch=True))
        assert desk.write() == [Marker(T0, *me, commit, keeps_epoch=True)]
        assert desk.answers[end] == me
        assert desk.ask(End("id", *me, commit, keeps_epoch=True)) == me, "repeated"
        assert desk.refused(End("id", *me, not commit, keeps_epoch=True)) is InvalidTxnStateError
        assert desk.due == []
    assert desk.ask(InitProducer("id", 60_000, *me)) == me._replace(producer_epoch=me.producer_epoch + 1)
    assert desk.refused(AddPartitions("id", *me, (T0,))) is ProducerFencedError


COMMIT, ABORT = True, False
BUMPS, KEEPS = False, True
"""Producers of transaction version 2 and 1."""
BEFORE, NOW = "the identity before the end", "the present identity"
ENDED, REFUSED, WAITS, FENCED = "ended", InvalidTxnStateError, None, ProducerFencedError
END_CASES = [  # state, how the last end was sent, result, sender, how it is sent now -> answer
    ("Empty", BUMPS, COMMIT, NOW, BUMPS, REFUSED),
    ("Empty", BUMPS, ABORT, NOW, BUMPS, ENDED),
    ("Empty", BUMPS, COMMIT, NOW, KEEPS, REFUSED),
    ("Empty", BUMPS, ABORT, NOW, KEEPS, REFUSED),
    ("Ongoing", BUMPS, COMMIT, NOW, BUMPS, WAITS),
    ("Ongoing", BUMPS, ABORT, NOW, BUMPS, WAITS),
    ("Ongoing", KEEPS, COMMIT, NOW, KEEPS, WAITS),
    ("Ongoing", KEEPS, ABORT, NOW, KEEPS, WAITS),
    *((state, BUMPS, result, NOW, now, FENCED)
      for state in ("PrepareCommit", "PrepareAbort") for result in (COMMIT, ABORT) for now in (BUMPS, KEEPS)),
    *((state, KEEPS, result, NOW, BUMPS, FENCED)
      for state in ("PrepareCommit", "PrepareAbort") for result in (COMMIT, ABORT)),
    ("PrepareCommit", BUMPS, COMMIT, BEFORE, BUMPS, WAITS),
    ("PrepareCommit", BUMPS, ABORT, BEFORE, BUMPS, REFUSED),
    ("PrepareAbort", BUMPS, COMMIT, BEFORE, BUMPS, TransactionAbortedError),
    ("PrepareAbort", BUMPS, ABORT, BEFORE, BUMPS, WAITS),
    ("PrepareCommit", KEEPS, COMMIT, NOW, KEEPS, WAITS),
    ("PrepareCommit", KEEPS, ABORT, NOW, KEEPS, REFUSED),
    ("PrepareAbort", KEEPS, COMMIT, NOW, KEEPS, REFUSED),
    ("PrepareAbort", KEEPS, ABORT, NOW, KEEPS, WAITS),
    ("CompleteCommit", BUMPS, COMMIT, BEFORE, BUMPS, "repeated"),
    ("CompleteCommit", BUMPS, ABORT, BEFORE, BUMPS, REFUSED),
    ("CompleteAbort", BUMPS, COMMIT, BEFORE, BUMPS, TransactionAbortedError),
    ("CompleteAbort", BUMPS, ABORT, BEFORE, BUMPS, "repeated"),
    ("CompleteCommit", BUMPS, COMMIT, NOW, BUMPS, REFUSED),
    ("CompleteCommit", BUMPS, ABORT, NOW, BUMPS, ENDED),
    ("CompleteAbort", BUMPS, COMMIT, NOW, BUMPS, REFUSED),
    ("CompleteAbort", BUMPS, ABORT, NOW, BUMPS, ENDED),
    ("CompleteCommit", BUMPS, COMMIT, NOW, KEEPS, REFUSED),
    ("CompleteCommit", BUMPS, ABORT, NOW, KEEPS, REFUSED),
    ("CompleteAbort", BUMPS, COMMIT, NOW, KEEPS, REFUSED),
    ("CompleteAbort", BUMPS, ABORT, NOW, KEEPS, "repeated"),
    ("CompleteCommit", KEEPS, COMMIT, NOW, KEEPS, "repeated"),
    ("CompleteCommit", KEEPS, ABORT, NOW, KEEPS, REFUSED),
    ("CompleteAbort", KEEPS, COMMIT, NOW, KEEPS, REFUSED),
    ("CompleteAbort", KEEPS, ABORT, NOW, KEEPS, "repeated"),
    ("CompleteCommit", KEEPS, COMMIT, NOW, BUMPS, REFUSED),
    ("CompleteCommit", KEEPS, ABORT, NOW, BUMPS, ENDED),
    ("CompleteAbort", KEEPS, COMMIT, NOW, BUMPS, REFUSED),
    ("CompleteAbort", KEEPS, ABORT, NOW, BUMPS, ENDED),
]  # fmt: skip


@for_each("state, last, result, sender, now, answer", END_CASES)
def test_an_end_is_accepted_by_state_result_and_epoch(
    state: str, last: bool, result: bool, sender: str, now: bool, answer: object
) -> None:
    desk = Desk()
    before = desk.init()
    if state != "Empty":
        desk.ask(AddPartitions("id", *before, (T0,)))
    if state not in ("Empty", "Ongoing"):
        desk.send(End("id", *before, state.endswith("Commit"), last))
        if state.startswith("Complete"):
            desk.write()
    desk = restarted(desk)  # the rules hold for a coordinator that has loaded the state, too
    summary = desk.coordinator.summary("id")
    assert summary.state == state
    present = ProducerIdAndEpoch(summary.producer_id, summary.producer_epoch)
    outcome = desk.ask(End("id", *(before if sender == BEFORE else present), result, now))
    if isinstance(answer, type):
        assert type(outcome) is answer
    elif answer == ENDED:
        assert outcome == present._replace(producer_epoch=present.producer_epoch + 1)
    else:
        assert outcome == (present if answer == "repeated" else None)
    after = desk.coordinator.summary("id").state
    if state.startswith(("Prepare", "Complete")) and answer != ENDED:
        assert after == state, "a refused or repeated end changes nothing"


def test_a_begun_transaction_without_records_can_be_ended_either_way() -> None:
    for commit in (True, False):
        desk = Desk()
        me = desk.init()
        assert desk.ask(AddPartitions("id", *me, ())) is True
        assert len(desk.log) == 2
        assert desk.ask(AddPartitions("id", *me, ())) is True
        assert len(desk.log) == 2, "an open transaction is not stored again"
        desk = restarted(desk)
        assert desk.coordinator.summary("id").state == "Ongoing"
        assert desk.ask(End("id", *me, commit, keeps_epoch=True)) == me
        assert desk.coordinator.summary("id").state == ("CompleteCommit" if commit else "CompleteAbort")


def test_a_timeout_takes_a_kept_epoch_away() -> None:
    desk = Desk()
    me = desk.init()
    desk.ask(AddPartitions("id", *me, (T0,)))
    desk.send(End("id", *me, True, keeps_epoch=True))
    desk.write()
    desk.ask(AddPartitions("id", *me, (T0,)))
    desk.take(desk.coordinator.tick(60_000))
    assert desk.write() == [Marker(T0, me.producer_id, me.producer_epoch + 1, False)]
    for request in (AddPartitions("id", *me, (T0,)), End("id", *me, True, keeps_epoch=True)):
        assert desk.refused(request) is TransactionAbortedError, "the rest of it must not be committed alone"
    after = ProducerIdAndEpoch(me.producer_id, me.producer_epoch + 1)
    assert desk.ask(End("id", *me, False, keeps_epoch=True)) == after
    assert desk.ask(InitProducer("id", 60_000, *me)) == after._replace(producer_epoch=after.producer_epoch + 1)


def test_a_new_instance_aborts_and_fences_the_old_one() -> None:
    desk = Desk()
    old = desk.init()
    desk.ask(AddPartitions("id", *old, (T0,)))
    waiting = desk.send(InitProducer("id", 60_000))
    assert waiting not in desk.answers
    assert desk.refused(AddPartitions("id", *old, (T1,))) is TransactionAbortedError
    assert [m.commit for m in desk.write()] == [False]
    assert desk.answers[waiting] == ProducerIdAndEpoch(old.producer_id, old.producer_epoch + 2)
    for request in (End("id", *old, True), End("id", *old, False), AddPartitions("id", *old, (T0,))):
        assert desk.refused(request) is ProducerFencedError
    assert desk.refused(InitProducer("id", 60_000, *old)) is ProducerFencedError
    assert desk.refused(End("id", old.producer_id, 99, True)) is InvalidProducerEpochError
    assert desk.refused(End("id", 4711, 0, True)) is InvalidProducerIdMappingError


def test_an_init_with_an_identity_may_be_repeated() -> None:
    desk = Desk()
    me = desk.init()
    newer = desk.ask(InitProducer("id", 60_000, *me))
    assert newer == ProducerIdAndEpoch(me.producer_id, me.producer_epoch + 1)
    assert desk.ask(InitProducer("id", 60_000, *me)) == newer, "the answer was lost"


def test_without_a_producer_id_at_hand_the_client_tries_again() -> None:
    desk = Desk()
    while desk.ids.take() is not None:
        pass
    assert desk.refused(InitProducer("id", 60_000)) is ConcurrentTransactionsError
    assert desk.refused(Join(APP, 0, "run", 1, 60_000)) is ConcurrentTransactionsError
    assert restarted(desk).refused(Abort("id")) is InvalidProducerIdMappingError


def test_a_newer_run_takes_over_for_good() -> None:
    desk = Desk()
    old = desk.joined(0, "old", 10)
    desk.ask(AddPartitions(APP, old, 0, (T0,)))
    waiting = desk.send(Join(APP, 0, "new", 20, 60_000))
    assert waiting not in desk.answers
    assert desk.refused(Join(APP, 0, "old", 10, 60_000)) is ProducerFencedError, "at once"
    desk = restarted(desk)
    assert desk.refused(AddPartitions(APP, old, 0, (T1,))) is InvalidTxnStateError
    assert desk.write() == [Marker(T0, old, 1, False)]
    assert desk.refused(EndShared(APP, 0, "old", 10, True, frozenset({old}))) is ProducerFencedError
    assert desk.refused(Join(APP, 1, "old", 30, 60_000)) is ProducerFencedError, "also with a fencing token drawn later"
    new = desk.joined(0, "new", 20)
    assert desk.refused(EndShared(APP, 0, "new", 20, True, frozenset({old, new}))) is InvalidProducerIdMappingError
    assert desk.ask(EndShared(APP, 0, "new", 20, True, frozenset({new}))) is True


def test_an_aborted_version_is_not_joined_again_by_the_same_attempt() -> None:
    desk = Desk()
    desk.joined(3, "run", 10)
    assert desk.ask(EndShared(APP, 3, "run", 10, False)) is False
    assert desk.refused(Join(APP, 3, "run", 10, 60_000)) is TransactionAbortedError
    assert desk.refused(EndShared(APP, 3, "run", 10, True)) is TransactionAbortedError
    assert desk.refused(Join(APP, 2, "run", 10, 60_000)) is ProducerFencedError, "the run was further"
    desk.joined(3, "run", 11)
    assert desk.refused(Join(APP, 3, "run", 10, 60_000)) is ProducerFencedError
    assert desk.refused(EndShared(APP, 3, "run", 10, False)) is ProducerFencedError


def test_an_end_before_any_join_is_kept() -> None:
    desk = Desk()
    assert desk.ask(EndShared(APP, 3, "run", 10, False)) is False
    assert desk.refused(Join(APP, 3, "run", 10, 60_000)) is TransactionAbortedError
    assert desk.ask(EndShared(APP, 4, "run", 11, True)) is True
    assert desk.ask(Join(APP, 4, "run", 11, 60_000)) == JoinAnswer(None)
    assert desk.ask(Join(APP, 2, "run2", 12, 60_000)) == JoinAnswer(None)
    assert desk.ask(EndShared(APP, 4, "run2", 12, False)) is True, "an abort does not undo a commit"
    assert desk.refused(EndShared(APP, 5, "run2", 12, True, frozenset({1}))) is TransactionAbortedError
    assert restarted(desk).ask(Join(APP, 4, "run3", 13, 60_000)) == JoinAnswer(None)


def test_a_run_that_goes_on_gives_up_the_version_before() -> None:
    desk = Desk()
    one = desk.joined(0, "run", 10)
    desk.ask(AddPartitions(APP, one, 0, (T0,)))
    waiting = desk.send(Join(APP, 1, "run", 11, 60_000))
    assert desk.write() == [Marker(T0, one, 1, False)]
    assert isinstance(desk.answers[waiting], JoinAnswer)


def test_an_operator_gets_the_number_of_markers() -> None:
    desk = Desk()
    me = desk.init()
    desk.ask(AddPartitions("id", *me, (T0, T1)))
    aborted = desk.send(Abort("id"))
    desk.write()
    assert desk.answers[aborted] == 2
    one = desk.joined(0, "run", 10)
    desk.ask(AddPartitions(APP, one, 0, (T0,)))
    aborted = desk.send(Abort(APP))
    desk.write()
    assert desk.answers[aborted] == 1
    assert desk.refused(Abort(APP)) is InvalidTxnStateError


def test_participants_are_deleted_from_the_log_with_the_completion() -> None:
    desk = Desk()
    ids = [desk.joined(0, "run", 10) for _ in range(3)]
    for one in ids:
        desk.ask(AddPartitions(APP, one, 0, (T0,)))
    desk.send(EndShared(APP, 0, "run", 10, True, frozenset(ids[:1])))
    assert sorted(m.commit for m in desk.write()) == [False, False, True]
    last = dict(desk.log)
    assert [value for key, value in last.items() if records.decode(key, None)[0] == records.PARTICIPANT] == [None] * 3


def test_records_are_as_documented() -> None:
    """Stored records must be readable forever."""
    desk = Desk()
    me = desk.init()
    desk.ask(AddPartitions("id", *me, (T1, T0)), 5)
    key, value = desk.log[-1]
    assert key.hex() == "9300a5706c61696ea26964"
    assert value is not None
    assert value.hex() == "9b0001cd03e800ffffffcdea6005059192a174920001"
    desk.ask(Join(APP, 7, "run", 9, 60_000), 6)
    desk.ask(AddPartitions(APP, 1001, 0, (T0,)))
    found = {records.decode(k, v)[0]: (k.hex(), v.hex() if v else None) for k, v in desk.log}
    assert found["shared"] == (
        "9300a6736861726564ac5f5f7368617265643a617070",
        "9800ffa372756e09900699" + "07a372756e090106cdea6090" + "a000" + "a0",
    )
    assert found["participant"] == (
        "9400ab7061727469636970616e74ac5f5f7368617265643a617070cd03e9",
        "94000709" + "9192a1749100",
    )


def test_a_record_of_an_older_broker_has_neither_input_nor_lease() -> None:
    desk = Desk()
    key = records.encode_key(records.SHARED, APP)
    desk.coordinator.replay(key, bytes.fromhex("9700ffa372756e09900697" + "07a372756e090106cdea6090"))
    desk.take(desk.coordinator.loaded(7))
    assert desk.ask(Renew(APP, 7, "run"), 8) == RenewAnswer(known=True, is_open=True)
    desk.take(desk.coordinator.tick(60_005))
    assert desk.ask(Renew(APP, 7, "run"), 60_005) == RenewAnswer(known=True, is_open=True), "its timeout, no lease"


def test_the_last_commit_is_answered_with_its_input() -> None:
    desk = Desk()
    first = desk.joined(3, "run", 10)
    assert desk.ask(EndShared(APP, 3, "run", 10, True, frozenset({first}), "three")) is True
    desk.joined(4, "run", 11)
    assert desk.ask(EndShared(APP, 4, "run", 11, False, frozenset(), "aborted")) is False
    assert desk.ask(EndShared(APP, 3, "new", 12, True, frozenset(), "three again")) is True
    again = Desk()
    for key, value in desk.log:
        again.coordinator.replay(key, value)
    again.take(again.coordinator.loaded(0))
    for one in (desk, again):
        assert one.coordinator.last_committed(APP) == (3, "three")


def test_a_lease_ends_unless_it_is_renewed() -> None:
    desk = Desk()
    assert desk.ask(Renew(APP, 0, "run")) == RenewAnswer(known=False, is_open=False), "nobody has joined yet"
    desk.ask(Join(APP, 0, "run", 10, 60_000, 1_000), 0)
    desk.ask(Join(APP, 0, "run", 10, 60_000, 1_000), 900)
    desk.take(desk.coordinator.tick(1_800))
    assert desk.ask(Renew(APP, 0, "run"), 1_800) == RenewAnswer(known=True, is_open=True), "who joins renews"
    assert desk.ask(Renew(APP, 0, "other"), 2_700) == RenewAnswer(known=False, is_open=False)
    desk.take(desk.coordinator.tick(2_799))
    assert desk.coordinator.summary(APP).state == "Ongoing"
    desk.take(desk.coordinator.tick(2_800))
    assert desk.ask(Renew(APP, 0, "run"), 2_800) == RenewAnswer(known=True, is_open=False)
    assert desk.refused(EndShared(APP, 0, "run", 10, True)) is TransactionAbortedError


def test_a_lease_begins_anew_with_the_broker_and_does_not_prolong_the_timeout() -> None:
    desk = Desk()
    desk.ask(Join(APP, 0, "run", 10, 60_000, 1_000), 0)
    again = Desk()
    for key, value in desk.log:
        again.coordinator.replay(key, value)
    again.take(again.coordinator.loaded(50_000))
    again.take(again.coordinator.tick(50_999))
    assert again.ask(Renew(APP, 0, "run"), 59_999) == RenewAnswer(known=True, is_open=True)
    again.take(again.coordinator.tick(60_000))
    assert again.ask(Renew(APP, 0, "run"), 60_000) == RenewAnswer(known=True, is_open=False)


@for_each("key", [b"", b"\x93\x01\xa5plain\xa2id", b"\x93\x00\xa5other\xa2id", b"\x90"])
def test_a_record_of_a_newer_broker_is_reported(key: bytes) -> None:
    with pytest.raises(LogCorruptError):
        Desk().coordinator.replay(key, b"\x90")


def test_a_value_of_a_newer_broker_is_refused() -> None:
    value = records.PlainValue(records.VERSION + 1, int(State.EMPTY), 1, 0, -1, -1, -1, 60_000, -1, 0, [])
    with pytest.raises(LogCorruptError, match="version 1: use a newer broker"):
        Desk().coordinator.replay(records.encode_key(records.PLAIN, "id"), records.encode_value(value))


# --- how much is kept ---


def test_a_refused_request_has_no_effect() -> None:
    desk = Desk()
    refused = (
        InitProducer("", 1),
        InitProducer("i" * 2_000, 1),
        InitProducer("id", 10**9),
        InitProducer("id", 1, 7, 0),
        AddPartitions("id", 7, 0, (T0,)),
        End("id", 7, 0, True),
        Join(shared_transactional_id("a" * 2_000), 0, "run", 5, 1),
        Join(APP, 0, "r" * 2_000, 5, 1),
        Join(APP, 0, "", 5, 1),
        Join(APP, 0, "run", -1, 1),
        EndShared(APP, 0, "run", -1, True),
        Abort("id"),
        Abort(APP),
    )
    for request in refused:
        desk.refused(request)
    assert desk.log == []
    assert desk.coordinator.is_empty


def test_the_largest_timeout_is_allowed() -> None:
    desk = Desk(limits=TransactionLimits(timeout_max_ms=60_000))
    assert isinstance(desk.ask(InitProducer("id", 60_000)), ProducerIdAndEpoch)
    assert desk.refused(InitProducer("other", 60_001)) is InvalidTransactionTimeoutError


def test_an_id_is_removed_at_its_expiration_and_not_before() -> None:
    desk = Desk(limits=TransactionLimits(id_expiration_ms=EXPIRY_INTERVAL_MS))
    idle, busy = (desk.ask(InitProducer(name, 600_000), 1) for name in ("idle", "busy"))
    desk.take(desk.coordinator.tick(0))
    desk.take(desk.coordinator.tick(EXPIRY_INTERVAL_MS))
    assert desk.coordinator.summary("idle").state == "Empty", "a millisecond is left"
    assert isinstance(busy, ProducerIdAndEpoch) and idle != busy
    desk.ask(AddPartitions("busy", *busy, (T0,)), EXPIRY_INTERVAL_MS)
    desk.take(desk.coordinator.tick(2 * EXPIRY_INTERVAL_MS, EXPIRY_INTERVAL_MS + 1))
    assert desk.coordinator.summary("busy").state == "Ongoing"
    with pytest.raises(InvalidProducerIdMappingError):
        desk.coordinator.summary("idle")


def test_for_a_new_id_the_one_goes_that_was_used_longest_ago() -> None:
    desk = Desk(limits=TransactionLimits(ids_max=3))
    identities = {name: desk.ask(InitProducer(name, 60_000)) for name in ("a", "b", "c")}
    assert desk.ask(AddPartitions("a", *identities["a"], (T0,))) is True  # type: ignore[call-arg, misc]
    desk.ask(InitProducer("b", 60_000))
    desk.ask(InitProducer("d", 60_000))
    assert set(desk.coordinator.ids()) == {"a", "b", "d"}
    assert set(restarted(desk).coordinator.ids()) == {"a", "b", "d"}
    for name in ("b", "d"):
        me = desk.ask(InitProducer(name, 60_000))
        assert desk.ask(AddPartitions(name, *me, (T0,))) is True  # type: ignore[call-arg, misc]
    assert desk.refused(InitProducer("e", 60_000)) is ConcurrentTransactionsError


def test_applications_and_participants_are_limited() -> None:
    desk = Desk(limits=TransactionLimits(ids_max=1, participants_max=2))
    desk.joined(0, "run", 5)
    desk.joined(0, "run", 5)
    assert desk.refused(Join(APP, 0, "run", 5, 60_000)) is InvalidTxnStateError
    assert desk.refused(Join(shared_transactional_id("other"), 0, "run", 5, 60_000)) is ConcurrentTransactionsError


def test_a_forged_fencing_token_locks_no_run_out() -> None:
    """It was taken before fencing tokens were checked, and is on the disk."""
    desk = Desk()
    desk.joined(0, "stranger", 2**63 - 1)
    desk.ask(EndShared(APP, 0, "stranger", 2**63 - 1, False))
    assert desk.refused(Join(APP, 1, "run", 5, 60_000)) is ProducerFencedError
    desk = Desk(desk)
    desk.joined(1, "run", 5)
    assert desk.refused(Join(APP, 2, "stranger", 2**63 - 1, 60_000)) is ProducerFencedError
