"""The idempotent producer and participants of shared transactions against a fake broker that keeps the broker's
rule."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from sparklog.client.net.cluster import cluster
from sparklog.client.net.retry import Retries, RetryPolicy
from sparklog.client.producer.producer import Producer
from sparklog.client.transactions import shared_transaction
from sparklog.client.transactions.shared_transaction import (
    LastCommit,
    Participant,
    SharedTransaction,
    draw_fencing_token,
    end_shared_transaction,
    join_shared_transaction,
)
from sparklog.errors import (
    ClusterAuthorizationFailedError,
    ConcurrentTransactionsError,
    CorruptBatchError,
    InvalidConfigError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnStateError,
    MessageTooLargeError,
    ProducerFencedError,
    RequestTimedOutError,
    SparklogError,
    StorageFullError,
    TopicAuthorizationFailedError,
    TransactionAbortedError,
    UnsupportedApiError,
)
from sparklog.format.batch import ATTRIBUTE_TRANSACTIONAL
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.apis import Api
from tests.support.clients import stored
from tests.support.expired_batches import expire_after_a_failure
from tests.unit.client.fake_broker import DROP, DROP_AFTER, FakeBroker


def verdicts(*given: Any) -> Callable[[Api, Any], Any]:
    left = list(given)
    return lambda api, message: left.pop(0) if api is Api.PRODUCE and left else None


def written(fake: FakeBroker) -> list[tuple[int, int, int]]:
    return [(h.producer_id, h.producer_epoch, h.base_sequence) for h in fake.headers()]


def test_sequences_follow_one_another(fake: FakeBroker) -> None:
    with Producer(fake.address) as producer:
        for count in (3, 1, 2):
            producer.send_batch("events", {"value": [b"x"] * count}).result(30)
        producer.send("events", b"y").result(30)
    assert written(fake) == [(1001, 0, 0), (1001, 0, 3), (1001, 0, 4), (1001, 0, 6)]


def test_each_partition_has_sequences_of_its_own(fake4: FakeBroker) -> None:
    with Producer(fake4.address) as producer:
        for partition in (0, 1, 0, 1):
            producer.send("events", b"x", partition=partition).result(30)
    for partition in (0, 1):
        assert [h.base_sequence for h in fake4.headers(partition=partition)] == [0, 1]


@pytest.mark.parametrize("given", [[DROP_AFTER], [DROP_AFTER, DROP_AFTER, DROP], [None, DROP_AFTER, 14, DROP_AFTER]])
def test_a_lost_answer_stores_no_record_twice(fake: FakeBroker, given: list[Any]) -> None:
    fake.hook = verdicts(*given)
    with Producer(fake.address, batch_size_bytes=1000, linger_ms=0, retry_backoff_ms=1) as producer:
        futures = [producer.send("events", b"%03d" % i + bytes(97)) for i in range(100)]
        producer.flush()
    assert [v[:3] for v in stored(fake)] == [b"%03d" % i for i in range(100)]
    assert [f.result(0).offset for f in futures] == list(range(100))


@pytest.mark.parametrize("trouble", [[DROP, DROP], [StorageFullError.code] * 3])
def test_an_identity_is_requested_until_one_is_granted(fake4: FakeBroker, trouble: list[Any]) -> None:
    left = list(trouble)
    fake4.hook = lambda api, message: left.pop(0) if api is Api.INIT_PRODUCER_ID and left else None
    with Producer(fake4.address, retry_backoff_ms=1) as producer:
        futures = [producer.send("events", b"x", partition=p) for p in range(4)]
        assert all(f.result(30).offset == 0 for f in futures)
    assert len({h.producer_id for p in range(4) for h in fake4.headers(partition=p)}) == 1


def test_without_an_identity_no_record_is_stored_and_the_reason_is_raised(fake: FakeBroker) -> None:
    fake.hook = lambda api, message: UnsupportedApiError.code if api is Api.INIT_PRODUCER_ID else None
    with Producer(fake.address) as producer:
        assert isinstance(producer.send("events", b"x").exception(30), UnsupportedApiError)
    assert stored(fake) == []


def test_a_denied_identity_names_the_topic_that_may_not_be_written(fake: FakeBroker) -> None:
    fake.hook = lambda api, message: ClusterAuthorizationFailedError.code if api is Api.INIT_PRODUCER_ID else None
    with Producer(fake.address) as producer:
        error = producer.send("events", b"x").exception(30)
    assert isinstance(error, TopicAuthorizationFailedError)
    assert "Write is not allowed on topic 'events'" in str(error)
    assert stored(fake) == []


def test_without_idempotence_it_would_be_stored_twice(fake: FakeBroker) -> None:
    fake.hook = verdicts(DROP_AFTER)
    with Producer(fake.address, enable_idempotence=False, retry_backoff_ms=1) as producer:
        producer.send("events", b"x").result(30)
    assert stored(fake) == [b"x", b"x"]
    assert written(fake) == [(-1, -1, -1)] * 2


def test_several_requests_of_a_partition_are_under_way_and_at_most_five_batches(fake: FakeBroker) -> None:
    with Producer(fake.address, request_timeout_ms=500, retry_backoff_ms=1) as producer:
        producer.send("events", b"first").result(30)
        five_came = threading.Event()
        came = 0

        def silent(api: Api, message: Any) -> str | None:
            nonlocal came
            if api is not Api.PRODUCE:
                return None
            came += message.partitions[0].length_bytes // 200_000
            if came >= 5:
                five_came.set()
            return "silent"

        fake.hook = silent
        futures = [producer.send_batch("events", {"value": [b"%d" % i + bytes(200_000)]}) for i in range(20)]
        assert five_came.wait(30)
        assert len(producer._queues[("events", 0)].sequences.in_flight) == 5  # type: ignore[index, union-attr]
        fake.hook = lambda api, message: None
        assert [f.result(30)[0].offset for f in futures] == list(range(1, 21))
    assert [v[:5].rstrip(b"\0") for v in stored(fake)] == [b"first"] + [b"%d" % i for i in range(20)]


def test_small_batches_wait_for_the_request_before_them_and_travel_together(fake: FakeBroker) -> None:
    answer = threading.Event()

    def hook(api: Api, message: Any) -> None:
        if api is Api.PRODUCE and len(fake.headers()) == 1:
            answer.wait(30)

    with Producer(fake.address) as producer:
        producer.send("events", b"first").result(30)
        fake.hook = hook
        futures = [producer.send_batch("events", {"value": [b"%d" % i]}) for i in range(5)]
        answer.set()
        assert [f.result(30)[0].offset for f in futures] == [1, 2, 3, 4, 5]
    assert len([api for api, _ in fake.requests if api is Api.PRODUCE]) <= 3


def test_a_batch_that_fails_for_good_begins_an_epoch(fake: FakeBroker) -> None:
    def hook(api: Api, message: Any) -> int | None:
        return 6 if api is Api.PRODUCE and message.partitions[0].length_bytes > 5000 else None

    fake.hook = hook
    with Producer(fake.address) as producer:
        futures = [producer.send_batch("events", {"value": [v]}) for v in (b"a", bytes(10_000), b"b", b"c")]
        errors = [type(f.exception(30)) for f in futures]
    assert errors == [type(None), MessageTooLargeError, type(None), type(None)]
    assert stored(fake) == [b"a", b"b", b"c"]
    assert {e for _, e, _ in written(fake)} == {0, 1}
    assert len({pid for pid, _, _ in written(fake)}) == 1


@pytest.mark.parametrize("error", [InvalidProducerEpochError, InvalidProducerIdMappingError])
def test_an_identity_that_the_broker_does_not_take_is_replaced(fake: FakeBroker, error: type[SparklogError]) -> None:
    with Producer(fake.address, linger_ms=0) as producer:
        producer.send("events", b"a").result(30)
        fake.hook = verdicts(error.code)
        with pytest.raises(error):
            producer.send("events", b"lost").result(30)
        producer.send("events", b"b").result(30)
    assert stored(fake) == [b"a", b"b"]
    assert written(fake) == [(1001, 0, 0), (1002, 0, 0)]


def test_a_batch_that_timed_out_unknown_is_not_sent_again(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.hook = verdicts(DROP_AFTER, *[StorageFullError.code] * 10_000)
    with Producer(fake.address, retry_backoff_ms=5) as producer:
        with monkeypatch.context() as patch, pytest.raises(RequestTimedOutError):
            expire_after_a_failure(patch)
            producer.send("events", b"x").result(30)
        fake.hook = lambda api, message: None
        assert producer.send("events", b"y").result(30).offset == 1
    assert written(fake) == [(1001, 0, 0), (1001, 1, 0)]


def test_idempotence_goes_with_acks_all_only(fake: FakeBroker) -> None:
    for settings in ({"acks": 1}, {"acks": 0}, {"acks": "all", "enable_idempotence": False}):
        with Producer(fake.address, **settings) as producer:
            assert producer.settings["enable.idempotence"] is False
    with Producer(fake.address, acks=-1) as producer:
        assert producer.settings["enable.idempotence"] is True
    with pytest.raises(InvalidConfigError, match="acks=all"):
        Producer(fake.address, acks=1, enable_idempotence=True)
    with pytest.raises(InvalidConfigError, match="at most 5"):
        Producer(fake.address, max_in_flight_requests_per_connection=6)
    Producer(fake.address, max_in_flight_requests_per_connection=6, enable_idempotence=False).close()


def test_participants_use_their_identity_once(fake: FakeBroker) -> None:
    with Producer(fake.address) as producer:
        producer.send("events", b"before").result(30)
        for participant in (Participant("__shared:q", 7, 0), Participant("__shared:q", 8, 0)):
            with producer.participation(participant):
                producer.send_batch("events", {"value": [b"1", b"2"]})
                producer.send("events", b"3")
        producer.send("events", b"after").result(30)
    pids = [h.producer_id for h in fake.headers()]
    assert [p for p in pids if p < 1000] == [7, 7, 8, 8]
    assert len(set(pids)) == 4
    assert [bool(h.attributes & ATTRIBUTE_TRANSACTIONAL) for h in fake.headers()] == [p < 1000 for p in pids]
    named = [message.transactional_id for api, message in fake.requests if api is Api.PRODUCE]
    assert set(named) == {None, "__shared:q"}
    assert len(stored(fake)) == 8


def test_the_first_failure_ends_a_participation(fake: FakeBroker) -> None:
    fake.hook = verdicts(CorruptBatchError.code)
    with Producer(fake.address) as producer:
        with pytest.raises(CorruptBatchError), producer.participation(Participant("__shared:q", 7, 0)):
            assert isinstance(producer.send("events", b"x").exception(30), CorruptBatchError)
            with pytest.raises(CorruptBatchError):
                producer.send("events", b"y")
        with producer.participation(Participant("__shared:q", 8, 0)):
            producer.send("events", b"z")
    assert stored(fake) == [b"z"]
    assert written(fake) == [(8, 0, 0)]


def test_leaving_a_participation_by_an_exception_drops_unsent_records(fake: FakeBroker) -> None:
    with Producer(fake.address, linger_ms=60_000) as producer:
        with pytest.raises(KeyError), producer.participation(Participant("__shared:q", 7, 0)):
            future = producer.send("events", b"x")
            raise KeyError("mine")
        assert isinstance(future.exception(0), TransactionAbortedError)
    assert stored(fake) == []


def test_a_participation_needs_an_idempotent_producer_without_pending_records(fake: FakeBroker) -> None:
    participant = Participant("__shared:q", 7, 0)
    with Producer(fake.address, linger_ms=60_000) as producer:
        producer.send("events", b"x")
        with pytest.raises(InvalidTxnStateError, match="flush"), producer.participation(participant):
            pass
    with (
        Producer(fake.address, acks=1) as producer,
        pytest.raises(InvalidTxnStateError, match="idempotence"),
        producer.participation(participant),
    ):
        pass


def test_the_calls_of_shared_transactions_are_tried_again(fake: FakeBroker) -> None:
    answers: dict[Api, list[Any]] = {
        Api.INIT_PRODUCER_ID: [DROP, 34, None],
        Api.JOIN_SHARED_TXN: [37, None],
        Api.END_SHARED_TXN: [DROP_AFTER, ConcurrentTransactionsError.code, None, ProducerFencedError.code],
    }
    fake.hook = lambda api, message: answers[api].pop(0) if answers.get(api) else None
    known, policy = cluster(fake.address), RetryPolicy(timeout_ms=60_000, backoff_ms=1)
    fencing_token = draw_fencing_token(known, policy)
    transaction = SharedTransaction("q", 3, "run", fencing_token)
    assert join_shared_transaction(known, transaction, timeout_ms=60_000, policy=policy) == ("__shared:q", 77, 0)
    assert end_shared_transaction(
        known, transaction, committed=True, committed_participants=[77], policy=policy
    ).committed
    with pytest.raises(ProducerFencedError):
        end_shared_transaction(known, transaction, committed=True, committed_participants=[77], policy=policy)
    (ended, *_) = [message for api, message in fake.requests if api is Api.END_SHARED_TXN]
    assert ended == txn.EndSharedTxnRequest("q", 3, "run", fencing_token, True, [77])
    fake.committed = True
    assert isinstance(join_shared_transaction(known, transaction, timeout_ms=60_000, policy=policy), LastCommit)


def test_a_fencing_token_is_0_or_more(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = SimpleNamespace(producer_id=0)
    monkeypatch.setattr(shared_transaction, "request_until", lambda *_, **__: drawn)
    assert draw_fencing_token(cluster(fake.address)) == 0
    drawn.producer_id = -1
    with pytest.raises(InvalidRequestError, match="fencing token -1: a token is 0 or more"):
        draw_fencing_token(cluster(fake.address))


def test_a_call_that_fails_for_too_long_raises_its_last_error(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.hook = lambda api, message: ConcurrentTransactionsError.code if api is Api.INIT_PRODUCER_ID else None
    pauses_s: list[float] = []
    in_virtual_time = partial(Retries, sleep=pauses_s.append, clock=lambda: sum(pauses_s))
    monkeypatch.setattr(shared_transaction, "Retries", in_virtual_time)
    with pytest.raises(ConcurrentTransactionsError):
        draw_fencing_token(cluster(fake.address), RetryPolicy(timeout_ms=600_000, backoff_ms=60_000))
    assert len(pauses_s) > 1 and 500 < sum(pauses_s) < 600
