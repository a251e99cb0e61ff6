"""Requests of a commit, and a writer's use of the coordinator's answers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark_sparklog.options.options import TRANSACTION_TIMEOUT_MS_MAX, parse_sink_options
from pyspark_sparklog.sink import publication
from pyspark_sparklog.sink.publication import (
    EndRequest,
    Publisher,
    SinkCommitMessage,
    TaskPlace,
    batch_publisher,
    checked,
    end_request_of,
    stream_publisher,
)

from sparklog.client.transactions.shared_transaction import (
    LastCommit,
    Participant,
    SharedTransaction,
    TransactionOutcome,
)
from sparklog.errors import (
    BrokerNotAvailableError,
    ProducerFencedError,
    SparklogError,
    StaleCheckpointError,
    TransactionAbortedError,
    TransactionalIdAuthorizationFailedError,
)
from sparklog.types import UNNAMED_APP_PREFIX
from tests.support.cases import for_each

WRITE = {"sparklog.bootstrap.servers": "127.0.0.1:1"}
PLACE = TaskPlace("query", "run", 7, 0, 0)
BATCH = SharedTransaction("query", 7, "run", 40)


def wrote(producer_id: int, transaction: SharedTransaction = BATCH) -> SinkCommitMessage:
    return SinkCommitMessage(PLACE, transaction, producer_id=producer_id, rows=3)


EMPTY = SinkCommitMessage(PLACE, BATCH)
BEFORE = SinkCommitMessage(PLACE, BATCH, committed_before=True)


class Coordinator:
    """A coordinator with prepared answers, which records its requests."""

    def __init__(self) -> None:
        self.fencing_tokens = 40
        self.asked: list[Any] = []
        self.kept: list[SharedTransaction] = []
        self.lease_ms = 0
        self.answer: Any = None
        """The prepared answer; None: version 7 is committed with the input of the request."""

    def draw_fencing_token(self, cluster: Any, policy: Any) -> int:
        self.fencing_tokens += 1
        return self.fencing_tokens

    def join(
        self, cluster: Any, transaction: SharedTransaction, *, timeout_ms: int, lease_ms: int = 0, policy: Any
    ) -> Any:
        self.asked.append(("join", transaction, timeout_ms, *([lease_ms] if lease_ms else [])))
        return self._answer()

    def end(
        self,
        cluster: Any,
        transaction: SharedTransaction,
        *,
        committed: bool,
        committed_participants: Any = (),
        input_text: str = "",
        policy: Any,
    ) -> Any:
        self.input_text = input_text
        self.asked.append(("commit" if committed else "abort", transaction, tuple(committed_participants)))
        return self._answer() if self.answer is not None else TransactionOutcome(True, LastCommit(7, input_text))

    def keep(self, bootstrap_servers: str, transaction: SharedTransaction, wait_ms: int) -> int:
        self.kept.append(transaction)
        return self.lease_ms

    def _answer(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    made = Coordinator()
    monkeypatch.setattr(publication, "draw_fencing_token", made.draw_fencing_token)
    monkeypatch.setattr(publication, "join_shared_transaction", made.join)
    monkeypatch.setattr(publication, "end_shared_transaction", made.end)
    monkeypatch.setattr(publication, "lease_keepers", made)
    return made


def streaming(**options: str) -> Publisher:
    return stream_publisher(parse_sink_options(WRITE | options, streaming=True))


def batch(**options: str) -> Publisher:
    return batch_publisher(parse_sink_options(WRITE | options, streaming=False))


def test_the_committed_participants_are_the_attempts_that_spark_names() -> None:
    assert end_request_of([wrote(3), EMPTY, wrote(5)]) == EndRequest(BATCH, (3, 5))


def test_a_batch_without_rows_is_ended_all_the_same() -> None:
    """An attempt that lost may have written something, and an older run must not publish this batch any more."""
    assert end_request_of([EMPTY, EMPTY]) == EndRequest(BATCH, ())


def test_a_batch_that_was_committed_before_is_ended_without_committed_participants() -> None:
    """The coordinator returns the input of the earlier commit."""
    assert end_request_of([BEFORE, EMPTY]) == EndRequest(BATCH, ())
    with pytest.raises(SparklogError, match="told 1 tasks that it is committed, and let 1 tasks write"):
        end_request_of([wrote(3), BEFORE])


def test_two_tasks_with_one_producer_id_are_not_committed() -> None:
    with pytest.raises(SparklogError, match="one producer id to several tasks"):
        end_request_of([wrote(3), wrote(3)])


def test_at_least_once_has_no_transaction() -> None:
    assert end_request_of([SinkCommitMessage(PLACE, rows=3)]) is None
    assert end_request_of([]) is None


def test_messages_of_different_runs_are_not_committed_together() -> None:
    other = wrote(5, BATCH._replace(run_id="other"))
    with pytest.raises(SparklogError, match="different transactions"):
        end_request_of([wrote(3), other])


def test_every_task_must_have_reported() -> None:
    assert checked([EMPTY]) == [EMPTY]
    with pytest.raises(SparklogError, match="1 of 2 tasks did not report"):
        checked([EMPTY, None])


def test_a_micro_batch_is_identified_by_query_and_batch(coordinator: Coordinator) -> None:
    publisher: Publisher = pickle.loads(pickle.dumps(streaming()))
    assert publisher.transaction_of(PLACE) == ("query", 7, "run", 41)
    assert streaming().transaction_of(PLACE) == ("query", 7, "run", 42), "later runs have larger fencing tokens"
    with pytest.raises(SparklogError, match="at-least-once"):
        publisher.transaction_of(TaskPlace("", "", -1, 0, 0))


def test_a_batch_write_has_a_name_of_its_own_or_the_chosen_one(coordinator: Coordinator) -> None:
    first, second = batch(), batch()
    one, other = first.transaction_of(PLACE), second.transaction_of(PLACE)
    assert one is not None
    assert other is not None
    assert one.app_id != other.app_id
    assert first.transaction_of(PLACE._replace(partition_id=1)) == one, "all its tasks have it"
    named = batch(txnAppId="nightly", txnVersion="5").transaction_of(PLACE)
    assert named is not None
    assert named[:2] == ("nightly", 5)


@pytest.mark.parametrize(
    ("lease_ms", "given", "timeout_ms"),
    [(0, {}, 3_600_000), (40, {}, TRANSACTION_TIMEOUT_MS_MAX), (40, {"sparklog.transaction.timeout.ms": "9"}, 9)],
)
def test_a_batch_write_with_a_lease_has_only_the_chosen_timeout(
    coordinator: Coordinator, lease_ms: int, given: dict[str, str], timeout_ms: int
) -> None:
    coordinator.lease_ms = lease_ms
    publisher = batch(**given)
    transaction = publisher.transaction_of(PLACE)
    assert transaction is not None and coordinator.kept == [transaction]
    publisher.join(transaction)
    assert coordinator.asked == [("join", transaction, timeout_ms, *([lease_ms] if lease_ms else []))]
    streaming()
    batch(**{"sparklog.delivery.guarantee": "at-least-once"})
    assert coordinator.kept == [transaction], "streams have none, nor has what is no transaction"


def test_at_least_once_sends_no_request_to_the_coordinator(coordinator: Coordinator) -> None:
    publisher = streaming(**{"sparklog.delivery.guarantee": "at-least-once"})
    assert coordinator.fencing_tokens == 40
    assert publisher.transaction_of(PLACE) is None
    publisher.commit([SinkCommitMessage(PLACE, rows=3)])
    publisher.abort([None, SinkCommitMessage(PLACE, rows=3)])
    assert coordinator.asked == []


def test_a_task_joins_or_learns_that_the_batch_is_done(coordinator: Coordinator) -> None:
    publisher = streaming(**{"sparklog.transaction.timeout.ms": "1000"})
    coordinator.answer = Participant("id", 3, 0)
    assert publisher.join(BATCH) == Participant("id", 3, 0)
    coordinator.answer = LastCommit(7, "")
    assert publisher.join(BATCH) is None
    assert coordinator.asked == [("join", BATCH, 1000)] * 2
    coordinator.answer = ProducerFencedError("newer")
    with pytest.raises(ProducerFencedError, match=r"version 7 of query: a newer run has taken over.*\(run\).*stop it"):
        publisher.join(BATCH)


def test_a_task_of_a_batch_below_the_last_one_fails(coordinator: Coordinator) -> None:
    coordinator.answer = LastCommit(8, "")
    with pytest.raises(
        StaleCheckpointError, match=r"batch 7 of query is not written.*up to 8.*new checkpoint.*txnAppId"
    ):
        streaming().join(BATCH)
    assert batch(txnAppId="nightly", txnVersion="7").join(BATCH) is None, "as Delta does"


def given(rows: int, checksum: int | None = 5) -> SinkCommitMessage:
    return SinkCommitMessage(PLACE, BATCH, committed_before=True, input_rows=rows, checksum=checksum)


def test_a_batch_with_the_last_number_is_skipped_if_it_is_the_same(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = streaming()
    publisher.commit([SinkCommitMessage(PLACE, BATCH, producer_id=3, input_rows=3, checksum=7)])
    coordinator.answer = TransactionOutcome(True, LastCommit(7, coordinator.input_text))
    same = [given(1, 2), given(2, 5)]
    publisher.commit(same)
    assert "its 3 rows were not written again" in caplog.text
    others = [[given(3, 8)], [given(4, 7)], [given(3, None)], [given(1, 2), given(2, None)]]
    stranger = PLACE._replace(query_id="other")
    for other in [*others, [SinkCommitMessage(stranger, BATCH, committed_before=True, input_rows=3, checksum=7)]]:
        with pytest.raises(StaleCheckpointError, match=r"other input .* rows are not in the topic"):
            publisher.commit(other)
    publisher.commit([EMPTY])  # nothing to lose
    coordinator.answer = TransactionOutcome(True, LastCommit(8, coordinator.input_text))
    with pytest.raises(StaleCheckpointError, match="batches up to 8 have been committed"):
        publisher.commit([EMPTY])


def test_a_commit_of_unknown_input_is_not_taken_for_the_same(coordinator: Coordinator) -> None:
    """Such as that of a batch write under the stream's name."""
    coordinator.answer = TransactionOutcome(True, LastCommit(7, ""))
    with pytest.raises(StaleCheckpointError, match=r"no micro-batch\): its 3 rows are not in the topic"):
        streaming().commit([given(3)])
    streaming().commit([EMPTY])


@for_each("version", [-1, 6])
def test_a_coordinator_that_contradicts_itself_is_not_believed(coordinator: Coordinator, version: int) -> None:
    coordinator.answer = LastCommit(version, "")
    for publisher in (streaming(), batch(txnAppId="nightly", txnVersion="7")):
        with pytest.raises(SparklogError, match=f"version 7 .* is committed, and that version {version}"):
            publisher.join(BATCH)
        coordinator.answer = TransactionOutcome(True, LastCommit(version, ""))
        for messages in ([given(3)], [wrote(3)]):
            with pytest.raises(SparklogError, match=f"version 7 .* is committed, and that version {version}"):
                publisher.commit(messages)
        coordinator.answer = LastCommit(version, "")


def test_a_repeated_commit_of_other_rows_is_not_taken_for_the_same(coordinator: Coordinator) -> None:
    """The coordinator has decided the version already, by the commit of other participants."""
    publisher = streaming()
    publisher.commit([SinkCommitMessage(PLACE, BATCH, producer_id=3, input_rows=3, checksum=7)])
    coordinator.answer = TransactionOutcome(True, LastCommit(7, coordinator.input_text))
    publisher.commit([SinkCommitMessage(PLACE, BATCH, producer_id=4, input_rows=3, checksum=7)])
    with pytest.raises(StaleCheckpointError, match="other input"):
        publisher.commit([SinkCommitMessage(PLACE, BATCH, producer_id=4, input_rows=3, checksum=8)])


def test_a_stream_can_count_under_a_name_of_its_own(coordinator: Coordinator) -> None:
    assert streaming(txnAppId="mine").transaction_of(PLACE) == ("mine", 7, "run", 41)


def test_a_commit_names_the_next_step_when_it_fails(coordinator: Coordinator) -> None:
    publisher = streaming()
    publisher.commit([wrote(3)])
    assert coordinator.asked == [("commit", BATCH, (3,))]
    for answer in (TransactionOutcome(False, LastCommit(6, "")), TransactionAbortedError("timed out")):
        coordinator.answer = answer
        with pytest.raises(
            TransactionAbortedError, match=r"sparklog\.transaction\.timeout\.ms = 3600000.*run it again"
        ):
            publisher.commit([wrote(3)])


def test_a_denial_names_the_option_that_sets_the_transactional_id(coordinator: Coordinator) -> None:
    coordinator.answer = TransactionalIdAuthorizationFailedError("Describe on the transactional-id 'x' is not allowed")
    named = {"txnAppId": "mine", "txnVersion": "1"}
    for publisher, app_id, origin in (
        (streaming(), "query", "the query's id, which each new checkpoint changes"),
        (streaming(txnAppId="mine"), "mine", "the option txnAppId names it"),
        (batch(**named), "mine", "the option txnAppId names it"),
        (batch(), UNNAMED_APP_PREFIX, "each write draws one"),
    ):
        transaction = publisher.transaction_of(PLACE)
        assert transaction is not None
        with pytest.raises(TransactionalIdAuthorizationFailedError) as e:
            publisher.join(transaction)
        assert all(part in str(e.value) for part in (f"'{app_id}", origin, "set txnAppId to a name", "acl add"))


def test_an_abort_needs_one_message_and_never_raises(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = streaming()
    publisher.abort([None, wrote(3)])
    assert coordinator.asked == [("abort", BATCH, ())]
    assert "committed before the failure" in caplog.text, "the coordinator said so: the commit stays"
    publisher.abort([None])
    assert "no task reported the failed transaction" in caplog.text
    coordinator.answer = BrokerNotAvailableError("gone")
    publisher.abort([wrote(3)])
    assert "could not be aborted" in caplog.text


def test_an_abort_without_a_message_goes_by_the_run_that_has_committed_last(coordinator: Coordinator) -> None:
    options = parse_sink_options(WRITE, streaming=True)
    stream_publisher(options, "/c").commit([wrote(3)])
    stream_publisher(options, "/other").abort([None], 8)
    stream_publisher(options, "").abort([None], 8)
    last = stream_publisher(options, "/c")
    last.abort([None], 8)
    assert coordinator.asked[1:] == [("abort", ("query", 8, "run", last.fencing_token), ())]


def test_ending_a_batch_draws_a_fencing_token_only_when_needed(coordinator: Coordinator) -> None:
    options = parse_sink_options(WRITE, streaming=True)
    ends = stream_publisher(options, "/ended", ends_only=True)
    ends.commit([wrote(5), EMPTY])
    ends.abort([wrote(5)])
    assert (ends.fencing_token, coordinator.fencing_tokens) == (None, 40)
    assert coordinator.asked == [("commit", BATCH, (5,)), ("abort", BATCH, ())]
    ends.abort([None], 8)
    assert coordinator.asked[2:] == [("abort", ("query", 8, "run", 41), ())], (
        "a fencing token later than that of the batch's tasks"
    )
    with pytest.raises(SparklogError, match="can only end a batch"):
        ends.transaction_of(PLACE)


def test_an_abort_without_a_fencing_token_does_not_raise(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends = stream_publisher(parse_sink_options(WRITE, streaming=True), "/away", ends_only=True)
    ends.commit([wrote(5)])

    def away(cluster: Any, policy: Any) -> int:
        raise BrokerNotAvailableError("no broker")

    monkeypatch.setattr(publication, "draw_fencing_token", away)
    ends.abort([None], 8)
    assert "could not be aborted" in caplog.text and len(coordinator.asked) == 1


def test_at_least_once_ends_without_a_fencing_token(coordinator: Coordinator) -> None:
    options = parse_sink_options(WRITE | {"sparklog.delivery.guarantee": "at-least-once"}, streaming=True)
    stream_publisher(options, ends_only=True).abort([None], 3)
    assert (coordinator.asked, coordinator.fencing_tokens) == ([], 40)


def test_a_batch_write_is_aborted_without_any_message(coordinator: Coordinator) -> None:
    publisher = batch(txnAppId="nightly", txnVersion="5")
    publisher.abort([None, None])
    ((what, transaction, _),) = coordinator.asked
    assert (what, transaction[:2]) == ("abort", ("nightly", 5))
