"""Transactions of a producer: the state machine, and its conversation with a fake broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparklog.client.net.retry import RetryPolicy
from sparklog.client.producer.producer import Producer
from sparklog.client.producer.transaction_state import State, TransactionState
from sparklog.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CorruptBatchError,
    FencedMemberEpochError,
    InvalidConfigError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    RequestTimedOutError,
    SparklogError,
    TransactionAbortedError,
)
from sparklog.format.batch import ATTRIBUTE_TRANSACTIONAL
from sparklog.protocol.apis import Api
from sparklog.types import GroupMetadata, ProducerIdAndEpoch, TopicPartition
from tests.unit.client.fake_broker import DROP, DROP_AFTER, FakeBroker

ERRORS = [
    ProducerFencedError,
    InvalidProducerEpochError,
    CorruptBatchError,
    RequestTimedOutError,
    TransactionAbortedError,
]
OPEN = (State.IN_TRANSACTION, State.ABORTABLE_ERROR)


class StateMachine(RuleBasedStateMachine):
    """Anything may be called at any time; the model knows one fact: the request of the last END_TXN, if it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.state = TransactionState("t")
        self.unanswered: str | None = None
        self.dead = False

    def attempt(self, call: Any, *arguments: Any) -> bool:
        before = self.state.state
        try:
            call(*arguments)
        except SparklogError:
            assert self.state.state is before
            return False
        assert not self.dead, "a producer that is fenced does nothing any more"
        return True

    @rule()
    def initialise(self) -> None:
        if self.attempt(self.state.check_init):
            self.state.initialised(ProducerIdAndEpoch(1, 0))

    @rule()
    def begin(self) -> None:
        before = self.state.state
        if self.attempt(self.state.begin):
            assert before is State.READY

    @rule()
    def add(self) -> None:
        if self.attempt(self.state.check_open):
            assert self.state.state is State.IN_TRANSACTION

    @rule(commit=st.booleans())
    def ask_for_the_end(self, commit: bool) -> None:
        before = self.state.state
        if self.attempt(self.state.begin_commit if commit else self.state.begin_abort):
            asked = "commit" if commit else "abort"
            assert self.unanswered in (None, asked), "the outcome could be the other one"
            assert before is not State.ABORTABLE_ERROR or not commit
            self.unanswered = asked

    @precondition(lambda self: self.unanswered)
    @rule()
    def end_answered(self) -> None:
        assert self.state.identity is not None
        self.state.ended(self.state.identity._replace(producer_epoch=self.state.identity.producer_epoch + 1))
        assert self.state.state is State.READY
        self.unanswered = None

    @precondition(lambda self: self.unanswered)
    @rule(error=st.sampled_from(ERRORS))
    def end_failed(self, error: type[SparklogError]) -> None:
        asked = self.unanswered
        self.state.coordinator_failed(error("told"))
        if error is RequestTimedOutError:
            return  # nobody knows; it can be asked for again
        self.unanswered = None
        self.dead = (error is not TransactionAbortedError and error is not CorruptBatchError) or asked == "abort"
        assert self.state.state is (State.FATAL_ERROR if self.dead else State.ABORTABLE_ERROR)

    @precondition(lambda self: self.state.state in OPEN)
    @rule(error=st.sampled_from(ERRORS))
    def write_failed(self, error: type[SparklogError]) -> None:
        self.state.write_failed(error("told"))
        self.dead = error is ProducerFencedError
        assert self.state.state is (State.FATAL_ERROR if self.dead else State.ABORTABLE_ERROR)

    @invariant()
    def consistent(self) -> None:
        assert self.dead == (self.state.state is State.FATAL_ERROR)
        if not self.dead:
            ending = self.state.state in (State.COMMITTING, State.ABORTING)
            assert ending == (self.unanswered is not None)
        if self.state.state is State.ABORTABLE_ERROR:
            assert self.state.error is not None
        if self.state.state in (State.READY, State.IN_TRANSACTION, State.COMMITTING):
            assert self.state.error is None


TestStateMachine = StateMachine.TestCase
TestStateMachine.settings = hypothesis_settings(max_examples=100, stateful_step_count=30, deadline=None)


def producer(fake: FakeBroker, **settings: Any) -> Producer:
    return Producer(fake.address, transactional_id="t", retry_backoff_ms=1, **settings)


def written(fake: FakeBroker) -> list[tuple[int, int, int]]:
    assert all(h.attributes & ATTRIBUTE_TRANSACTIONAL for h in fake.headers())
    return [(h.producer_id, h.producer_epoch, h.base_sequence) for h in fake.headers()]


def ends(fake: FakeBroker) -> list[tuple[int, bool]]:
    return [(m.producer_epoch, m.committed) for api, m in fake.requests if api is Api.END_TXN]


def failing(api: Api, *verdicts: Any) -> Any:
    left = list(verdicts)
    return lambda asked, message: left.pop(0) if asked is api and left else None


def test_each_transaction_has_the_epoch_of_the_answer_before(fake: FakeBroker) -> None:
    with producer(fake) as p:
        for _ in range(3):
            with p.transaction():
                p.send("events", b"a")
                p.send_batch("events", {"value": [b"b", b"c"]})
    assert written(fake) == [(500, 0, 0), (500, 0, 1), (500, 1, 0), (500, 1, 1), (500, 2, 0), (500, 2, 1)]
    assert ends(fake) == [(0, True), (1, True), (2, True)]
    assert {m.transactional_id for api, m in fake.requests if api is Api.PRODUCE} == {"t"}


def test_a_transaction_without_records_sends_no_request(fake: FakeBroker) -> None:
    with producer(fake) as p:
        with p.transaction():
            pass
        p.begin_transaction()
        p.abort_transaction()
    assert ends(fake) == []


def test_an_exception_aborts(fake: FakeBroker) -> None:
    with producer(fake) as p:
        with pytest.raises(KeyError), p.transaction():
            p.send("events", b"a").result(30)
            late = p.send_batch("events", {"value": [b"b"]})
            raise KeyError("mine")
        assert isinstance(late.exception(30), TransactionAbortedError | type(None))
        with p.transaction():
            p.send("events", b"c")
    assert ends(fake) == [(0, False), (1, True)]


@pytest.mark.parametrize("verdict", [DROP, DROP_AFTER, ConcurrentTransactionsError.code])
def test_an_end_is_repeated(fake: FakeBroker, verdict: Any) -> None:
    fake.hook = failing(Api.END_TXN, verdict)
    with producer(fake) as p, p.transaction():
        p.send("events", b"a")
    assert ends(fake) == [(0, True), (0, True)]


def test_the_first_failure_is_raised_by_commit_and_only_an_abort_is_possible(fake: FakeBroker) -> None:
    fake.hook = failing(Api.PRODUCE, CorruptBatchError.code)
    with producer(fake) as p:
        p.init_transactions()
        p.begin_transaction()
        assert isinstance(p.send("events", b"a").exception(30), CorruptBatchError)
        with pytest.raises(CorruptBatchError):
            p.send("events", b"b")
        for _ in range(2):
            with pytest.raises(CorruptBatchError):
                p.commit_transaction()
        with pytest.raises(InvalidTxnStateError):
            p.begin_transaction()
        p.abort_transaction()
        with p.transaction():
            p.send("events", b"c")
    assert ends(fake) == [(0, False), (1, True)]
    assert written(fake) == [(500, 1, 0)]


def test_records_that_time_out_fail_the_transaction_for_good(fake: FakeBroker) -> None:
    fake.hook = lambda api, message: 14 if api is Api.PRODUCE else None
    with producer(fake, delivery_timeout_ms=50) as p:
        with pytest.raises(TransactionAbortedError, match=r"delivery\.timeout\.ms") as caught, p.transaction():
            p.send("events", b"a")
        assert isinstance(caught.value.__cause__, RequestTimedOutError)
        fake.hook = lambda api, message: None
        p._accumulator.delivery_timeout_s = 60
        with p.transaction():
            p.send("events", b"b")
    assert ends(fake) == [(0, False), (1, True)]


def test_an_unanswered_end_can_be_repeated_but_not_reversed(fake: FakeBroker) -> None:
    with producer(fake) as p:
        p.init_transactions()
        p.begin_transaction()
        p.send("events", b"a").result(30)
        fake.hook = lambda api, message: ConcurrentTransactionsError.code if api is Api.END_TXN else None
        assert p._transactions is not None
        patient = p._transactions._policy
        p._transactions._policy = RetryPolicy.one_attempt(30_000)
        with pytest.raises(ConcurrentTransactionsError):
            p.commit_transaction()
        p._transactions._policy = patient
        with pytest.raises(InvalidTxnStateError, match="commit_transaction"):
            p.abort_transaction()
        with pytest.raises(InvalidTxnStateError):
            p.send("events", b"b")
        fake.hook = lambda api, message: None
        p.commit_transaction()
    assert {committed for _, committed in ends(fake)} == {True}


@pytest.mark.parametrize("api", [Api.END_TXN, Api.PRODUCE])
def test_a_fenced_producer_is_done_for(fake: FakeBroker, api: Api) -> None:
    fake.hook = failing(api, ProducerFencedError.code)
    p = producer(fake)
    with pytest.raises(ProducerFencedError), p.transaction():
        p.send("events", b"a")
    for call in (p.begin_transaction, p.abort_transaction, p.commit_transaction, lambda: p.send("events", b"b")):
        with pytest.raises(ProducerFencedError):
            call()
    p.close()


CALLS_THAT_RAISE: list[Callable[[Producer], object]] = [
    lambda p: p.commit_transaction(),
    lambda p: p.abort_transaction(),
    lambda p: p.begin_transaction(),
    lambda p: p.send_offsets_to_transaction({TopicPartition("events", 0): 1}, "group"),
    lambda p: p.send("events", b"b"),
]


def fenced_producer(fake: FakeBroker) -> Producer:
    """Return a producer in a transaction whose sender has learned that the producer is fenced."""
    fake.hook = failing(Api.PRODUCE, ProducerFencedError.code)
    p = producer(fake)
    p.init_transactions()
    p.begin_transaction()
    p.send("events", b"a")
    p._core._wait(30)
    return p


@pytest.mark.parametrize("call", CALLS_THAT_RAISE)
def test_closing_does_not_raise_the_failure_of_a_transaction_again(
    call: Callable[[Producer], object], fake: FakeBroker
) -> None:
    """The sender learns that the producer is fenced before the application's next call does."""
    p = fenced_producer(fake)
    with pytest.raises(ProducerFencedError):
        call(p)
    p.close()


def test_closing_raises_the_failure_of_a_transaction_that_no_call_has_raised(fake: FakeBroker) -> None:
    p = fenced_producer(fake)
    with pytest.raises(ProducerFencedError):
        p.close()


def test_a_transaction_that_timed_out_is_aborted_and_the_next_one_goes_on(fake: FakeBroker) -> None:
    fake.hook = failing(Api.END_TXN, TransactionAbortedError.code)
    with producer(fake) as p:
        with pytest.raises(TransactionAbortedError), p.transaction():
            p.send("events", b"a")
        with p.transaction():
            p.send("events", b"b")
    assert ends(fake) == [(0, True), (0, False), (1, True)]


def test_offsets_go_with_the_transaction(fake: FakeBroker) -> None:
    offsets = {TopicPartition("events", 0): 5}
    with producer(fake) as p:
        with p.transaction():
            p.send_offsets_to_transaction(offsets, "plain")
            p.send_offsets_to_transaction(offsets, GroupMetadata("g", "m", 3))
            p.send_offsets_to_transaction({}, "plain")
        fake.offset_code = FencedMemberEpochError.code
        with pytest.raises(FencedMemberEpochError), p.transaction():
            p.send_offsets_to_transaction(offsets, GroupMetadata("g", "m", 3))
    asked = [m for api, m in fake.requests if api is Api.TXN_OFFSET_COMMIT]
    assert [(m.group_id, m.member_id, m.member_epoch, m.offsets[0].offset) for m in asked[:2]] == [
        ("plain", "", -1, 5),
        ("g", "m", 3, 5),
    ]
    assert ends(fake) == [(0, True), (1, False)]


def test_offsets_are_sent_again_after_a_retriable_error_of_an_offset(fake: FakeBroker) -> None:
    attempts: list[Api] = []

    def hook(api: Api, message: Any) -> None:
        if api is Api.TXN_OFFSET_COMMIT:
            attempts.append(api)
            fake.offset_code = 0 if len(attempts) > 2 else CoordinatorLoadingError.code

    fake.hook = hook
    with producer(fake) as p, p.transaction():
        p.send_offsets_to_transaction({TopicPartition("events", 0): 5}, "group")
    assert len(attempts) == 3
    assert ends(fake) == [(0, True)]


@pytest.mark.parametrize(
    ("offsets", "group", "says"),
    [
        ({TopicPartition("events", 0): -1}, "g", "cannot commit -1 for events-0"),
        ({TopicPartition("events", 0): "5"}, "g", "cannot commit '5' for events-0"),
        ({"events": 5}, "g", "TopicPartition"),
        (5, "g", "not as 5"),
        ({TopicPartition("events", 0): 5}, None, "group_metadata"),
    ],
)
def test_invalid_offsets_and_groups_are_refused_and_the_transaction_continues(
    fake: FakeBroker, offsets: Any, group: Any, says: str
) -> None:
    with producer(fake) as p, p.transaction():
        p.send("events", b"a")
        with pytest.raises(InvalidRequestError, match=says):
            p.send_offsets_to_transaction(offsets, group)
    assert [api for api, _ in fake.requests if api is Api.TXN_OFFSET_COMMIT] == []
    assert ends(fake) == [(0, True)]


def test_a_block_may_end_its_transaction_itself_but_closing_is_no_commit(fake: FakeBroker) -> None:
    with producer(fake) as p:
        for end in (p.abort_transaction, p.commit_transaction):
            with p.transaction():
                p.send("events", b"a").result(30)
                end()
        with pytest.raises(InvalidTxnStateError, match="no transaction to commit"), p.transaction():
            p.send("events", b"b").result(30)
            p.close()
    assert ends(fake) == [(0, False), (1, True), (2, False)]


def test_calls_out_of_order_name_the_missing_call(fake: FakeBroker) -> None:
    with producer(fake) as p:
        with pytest.raises(InvalidTxnStateError, match="init_transactions"):
            p.begin_transaction()
        with pytest.raises(InvalidTxnStateError, match="init_transactions"):
            p.send("events", b"a")
        p.init_transactions()
        with pytest.raises(InvalidTxnStateError, match="begin_transaction"):
            p.send_batch("events", {"value": [b"a"]})
        with pytest.raises(InvalidTxnStateError, match="no transaction to commit"):
            p.commit_transaction()
    with Producer(fake.address) as p, pytest.raises(InvalidTxnStateError, match="transactional_id"):
        p.begin_transaction()
    for settings in ({"acks": 1}, {"enable_idempotence": False}):
        with pytest.raises(InvalidConfigError, match=r"transactional\.id"):
            producer(fake, **settings)
    with pytest.raises(InvalidConfigError, match="__shared:"):
        Producer(fake.address, transactional_id="__shared:x")


def test_closing_aborts_the_open_transaction(fake: FakeBroker) -> None:
    p = producer(fake)
    p.init_transactions()
    p.begin_transaction()
    p.send("events", b"a").result(30)
    p.close()
    assert ends(fake) == [(0, False)]
