"""Questions to leaders: asked again at the present leader, for the missing answers, until the time is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparklog import Admin, Consumer, TopicPartition
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.leader_questions import LedGroup, until_led
from sparklog.client.net.retry import Retries, RetryPolicy, request_until
from sparklog.client.reading.offset_lookup import look_up_offsets, timestamp_of
from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    SparklogError,
    StorageFullError,
    UnknownTopicOrPartitionError,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import DeleteRecordsResult
from sparklog.protocol.transaction_messages import AbortTransactionRequest, AbortTransactionResponse
from sparklog.types import LATEST_TIMESTAMP, READ_COMMITTED, READ_UNCOMMITTED
from tests.support.clients import fill
from tests.unit.client.fake_broker import DROP, DROP_AFTER, FakeBroker
from tests.unit.client.fake_cluster import FakeCluster

TPS = [TopicPartition("events", p) for p in range(4)]
GONE = NotLeaderError("it leads no more")


class Counted:
    """Attempts without a clock: `between` happens in each pause, and after `most` pauses the time is over."""

    attempt_ms = 30_000

    def __init__(self, most: int = 5, between: Callable[[int], None] = lambda number: None) -> None:
        self.most = most
        self.between = between
        self.pauses = 0

    def pause(self, error: SparklogError) -> None:
        if not error.retriable or self.pauses == self.most:
            raise error
        self.pauses += 1
        self.between(self.pauses)


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    """Three brokers, which lead four partitions of 10 to 40 records; the client knows the leaders."""
    made = FakeCluster(3, 4)
    for p in range(4):
        fill(made.brokers[0], p + 1, partition=p)
    cluster(made.address).metadata(["events"])
    yield made
    made.close()


@pytest.fixture
def admin(brokers: FakeCluster) -> Iterator[Admin]:
    with Admin(brokers.address) as made:
        yield made


def asked(brokers: FakeCluster, api: Api) -> list[int]:
    return [sum(a is api for a, _ in broker.requests) for broker in brokers.brokers]


def ends(found: dict[TopicPartition, Any]) -> list[int]:
    return [found[tp].offset for tp in TPS]


def test_a_leader_that_has_been_replaced_is_looked_for_anew(brokers: FakeCluster, admin: Admin) -> None:
    brokers.move(0, 1)
    assert ends(admin.list_offsets(dict.fromkeys(TPS, "latest"))) == [10, 20, 30, 40]
    assert asked(brokers, Api.LIST_OFFSETS) == [1, 2, 1], "the others have answered, and are not asked again"


def test_a_leader_that_is_dead_is_looked_for_anew(brokers: FakeCluster, admin: Admin) -> None:
    """The first broker to be asked for the leader is the dead one itself."""
    brokers.brokers[0].close()
    brokers.move(0, 2)
    brokers.move(3, 1)
    assert ends(admin.list_offsets(dict.fromkeys(TPS, "latest"))) == [10, 20, 30, 40]


def test_a_leader_that_comes_later_is_waited_for(brokers: FakeCluster) -> None:
    brokers.leaders[1] = (-1, 1)
    shared = cluster(brokers.address)
    shared.metadata(["events"])
    attempts = Counted(between=lambda number: brokers.move(1, 2) if number == 3 else None)
    assert look_up_offsets(shared, {TPS[1]: [LATEST_TIMESTAMP]}, attempts)[TPS[1]][0].offset == 20
    assert attempts.pauses == 3


def test_when_the_time_is_over_the_error_says_why(brokers: FakeCluster) -> None:
    brokers.brokers[1].hook = lambda api, message: NotLeaderError.code if api is Api.LIST_OFFSETS else None
    attempts = Counted(2)
    with pytest.raises(NotLeaderError):
        look_up_offsets(cluster(brokers.address), {tp: [LATEST_TIMESTAMP] for tp in TPS}, attempts)
    assert asked(brokers, Api.LIST_OFFSETS) == [1, 3, 1]


def test_retries_end_with_the_time_of_their_policy() -> None:
    """On virtual time: pauses double up to the longest, and no attempt may take longer than the remaining time."""
    now, pauses = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    retries = Retries(RetryPolicy(3_000, 1_000, 100, 400), sleep=sleep, clock=lambda: now[0])
    assert retries.attempt_ms == 1_000
    with pytest.raises(StorageFullError):
        while True:
            retries.pause(StorageFullError("full"))
    assert 102.9 <= now[0] < 103, "the attempts go on until the limit"
    assert all(low * 0.8 <= p <= low * 1.2 for p, low in zip(pauses, (0.1, 0.2, 0.4, 0.4), strict=False))
    assert retries.attempt_ms == max(1, int((103 - now[0]) * 1000))
    with pytest.raises(OffsetOutOfRangeError):
        Retries(RetryPolicy()).pause(OffsetOutOfRangeError("not retriable"))


def test_a_single_attempt_has_its_whole_time() -> None:
    attempt = Retries(RetryPolicy.one_attempt(5_000), clock=lambda: 100.0)
    assert attempt.attempt_ms == 5_000
    with pytest.raises(NotLeaderError):
        attempt.pause(NotLeaderError("retriable"))


def test_a_permanent_error_is_not_retried(brokers: FakeCluster, admin: Admin) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.list_offsets({TPS[0]: "latest", TopicPartition("events", 9): "latest"})
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.list_offsets({TopicPartition("none", 0): "latest"})
    brokers.brokers[0].hook = lambda api, message: InvalidRequestError.code if api is Api.LIST_OFFSETS else None
    with pytest.raises(InvalidRequestError):
        admin.list_offsets({TPS[0]: "latest"})


def test_many_partitions_without_a_leader_cost_two_questions(brokers: FakeCluster) -> None:
    for p in range(4):
        brokers.leaders[p] = (-1, 1)
    shared = cluster(brokers.address)
    shared.metadata(["events"])
    before = brokers.count(Api.METADATA)
    found = shared.leaders(TPS)
    assert all(isinstance(e, BrokerNotAvailableError) for e in found.values())
    assert brokers.count(Api.METADATA) - before <= 2


def test_answers_of_one_moment_are_requested_together_and_all_again(brokers: FakeCluster) -> None:
    """The answers of a failed round are not kept: they would be of another moment."""
    groups: list[LedGroup] = []

    def ask(group: LedGroup) -> dict[TopicPartition, int | SparklogError]:
        groups.append(group)
        answers: dict[TopicPartition, int | SparklogError] = dict.fromkeys(group.partitions, len(groups))
        return answers | ({TPS[2]: GONE} if len(groups) < 3 else {})

    shared = cluster(brokers.address)
    assert until_led(shared, TPS, ask, Counted(), together=True) == dict.fromkeys(TPS, 3)
    assert all(set(group.partitions) == set(TPS) and group.for_others for group in groups)
    assert len({group.leader for group in groups}) == 3, "another one is asked each time: one may be cut off"
    with pytest.raises(NotLeaderError):
        until_led(shared, TPS, lambda group: dict.fromkeys(group.partitions, GONE), Counted(2), together=True)


def test_no_common_request_before_each_leader_is_located(brokers: FakeCluster) -> None:
    brokers.leaders[1] = (-1, 1)
    shared = cluster(brokers.address)
    shared.metadata(["events"])
    attempts = Counted(between=lambda number: brokers.move(1, 2) if number == 2 else None)
    questions = {tp: [LATEST_TIMESTAMP] for tp in TPS}
    found = look_up_offsets(shared, questions, attempts, isolation=READ_COMMITTED, all_at_once=True)
    assert [found[tp][0].offset for tp in TPS] == [10, 20, 30, 40]
    assert brokers.count(Api.LIST_OFFSETS) == 1


def test_records_are_deleted_where_the_leader_is(brokers: FakeCluster, admin: Admin) -> None:
    brokers.move(0, 1)
    brokers.brokers[2].hook = lambda api, message: DROP if api is Api.DELETE_RECORDS else None
    brokers.move(2, 0)
    assert admin.delete_records({TPS[0]: 5, TPS[2]: 7}) == {TPS[0]: 5, TPS[2]: 7}


def test_an_offset_beyond_an_end_deletes_no_record(brokers: FakeCluster, admin: Admin) -> None:
    brokers.move(1, 2)
    with pytest.raises(OffsetOutOfRangeError, match=r"events-0 ends at 10, events-1 ends at 20.*Nothing was deleted"):
        admin.delete_records({TPS[0]: 999, TPS[1]: 21, TPS[2]: 8})
    assert brokers.brokers[0].log_start == {}
    assert not brokers.count(Api.DELETE_RECORDS)


def test_the_error_of_a_deletion_names_the_completed_part(brokers: FakeCluster, admin: Admin) -> None:
    """The end of a partition moves back between the check and the deletion; another one's leader does not answer."""
    second = brokers.brokers[1]

    def refuse(p: Any) -> Any:
        return DeleteRecordsResult(p.topic, p.partition, OffsetOutOfRangeError.code, message="it ends at 1")

    second._delete = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"^it ends at 1. 1 of 3 partitions failed: events-1; deleted: events-0, events-2$",
    ) as failed:
        admin.delete_records({TPS[0]: 5, TPS[1]: 4, TPS[2]: 8})
    outcomes = failed.value.outcomes
    assert outcomes is not None
    assert [str(outcomes[tp]) for tp in TPS[:3]] == ["5", "it ends at 1", "8"]

    brokers.brokers[2].hook = lambda api, message: DROP if api is Api.DELETE_RECORDS else None
    with Admin(brokers.address, request_timeout_ms=2_000) as hasty, pytest.raises(SparklogError) as late:
        hasty.delete_records({TPS[0]: 6, TPS[2]: 9})
    assert late.value.outcomes is not None
    assert late.value.outcomes[TPS[0]] == 6
    assert late.value.retriable
    assert str(late.value).endswith("1 of 2 partitions failed: events-2; deleted: events-0")


def test_deleting_all_records_twice_keeps_those_appended_between(brokers: FakeCluster, admin: Admin) -> None:
    """The first answer is lost, and records are appended before it is asked again."""
    first = brokers.brokers[0]

    def lose_the_answer(api: Api, message: Any) -> str | None:
        if api is not Api.DELETE_RECORDS:
            return None
        fill(first, 1)
        first.hook = lambda api, message: None
        return DROP_AFTER

    first.hook = lose_the_answer
    assert admin.delete_records({TPS[0]: -1}) == {TPS[0]: 10}
    assert first.end(("events", 0)) == 20


def test_segments_batches_and_producers_are_requested_from_the_leader(
    brokers: FakeCluster, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeBroker, "data_dir", tmp_path)
    calls: list[Callable[[], int]] = [
        lambda: sum(b.records for b in admin.describe_batches(TPS[3], 0)),
        lambda: admin.describe_segments(TPS[3])[0].next_offset,
        lambda: len(admin.describe_producers(TPS[3]).producers),
    ]
    told = []
    for number, call in enumerate(calls, start=1):
        cluster(brokers.address).metadata(["events"])
        brokers.move(3, number % 3)
        told.append(call())
    assert told == [40, 40, 0]


def test_a_transaction_is_aborted_at_the_new_leader(brokers: FakeCluster, admin: Admin) -> None:
    brokers.move(0, 2)
    admin.abort_hanging_transaction(TPS[0], 7)
    assert asked(brokers, Api.ABORT_TRANSACTION) == [1, 0, 1]


def test_unrepeatable_requests_are_not_sent_again_after_an_unclear_attempt(brokers: FakeCluster) -> None:
    outcomes: list[SparklogError] = [NotLeaderError("no"), RequestTimedOutError("late")]

    class Scripted:
        def reach(self, *, timeout_ms: int) -> None:
            pass

        def leader(self, tp: TopicPartition, *, timeout_ms: int) -> Endpoint:
            return Endpoint("a", 1)

        def request(self, *args: object, **named: object) -> object:
            raise outcomes.pop(0)

        def look_again(self, topics: list[str], endpoint: Endpoint) -> None:
            assert (topics, endpoint) == (["events"], Endpoint("a", 1))

    scripted: Any = Scripted()
    request = AbortTransactionRequest(None, "events", 0, 7)
    with pytest.raises(RequestTimedOutError):
        request_until(
            scripted,
            Api.ABORT_TRANSACTION,
            request,
            AbortTransactionResponse,
            Retries(RetryPolicy(), sleep=lambda seconds: None, clock=lambda: 0.0),
            leader_of=TPS[0],
            once=True,
        )
    assert outcomes == []


def test_partitions_are_assigned_without_a_leader(brokers: FakeCluster) -> None:
    brokers.leaders[1] = (-1, 1)
    with Consumer(brokers.address) as consumer:
        consumer.assign([TPS[0], TPS[1]])
        assert consumer.assignment() == TPS[:2]
        with pytest.raises(UnknownTopicOrPartitionError):
            consumer.assign([TopicPartition("events", 9)])


def test_a_missing_leader_differs_from_a_deleted_topic(brokers: FakeCluster) -> None:
    shared: Cluster = cluster(brokers.address)
    found = shared.leaders([*TPS, TopicPartition("events", 9), TopicPartition("none", 0)])
    wrong = {tp: type(e) for tp, e in found.items() if isinstance(e, SparklogError)}
    assert wrong == dict.fromkeys(
        [TopicPartition("events", 9), TopicPartition("none", 0)], UnknownTopicOrPartitionError
    )


def test_a_leader_behind_a_new_topic_is_queried_again(brokers: FakeCluster, admin: Admin) -> None:
    """The cluster's metadata name the existing topics; a broker may hear of one later than others."""
    left = [UnknownTopicOrPartitionError.code] * 2
    brokers.brokers[1].hook = lambda api, message: left.pop() if api is Api.LIST_OFFSETS and left else None
    assert ends(admin.list_offsets(dict.fromkeys(TPS, "latest"))) == [10, 20, 30, 40]


def test_a_topic_that_was_deleted_is_not_waited_for(brokers: FakeCluster, admin: Admin) -> None:
    admin.list_offsets({TPS[0]: "latest"})
    first = brokers.brokers[0]
    del first.topics["events"]
    first.hook = lambda api, message: UnknownTopicOrPartitionError.code if api is Api.LIST_OFFSETS else None
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.list_offsets({TPS[0]: "latest"})
    assert asked(brokers, Api.LIST_OFFSETS)[0] == 2


@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
def test_only_read_committed_asks_for_all_ends_at_once(brokers: FakeCluster, isolation: int) -> None:
    """Whole transactions are a promise of read_committed; without it each leader answers for itself."""
    client = cluster(brokers.address)
    questions = {tp: [LATEST_TIMESTAMP] for tp in TPS}
    look_up_offsets(client, questions, Counted(), isolation=isolation, all_at_once=True)
    requests = [message for b in brokers.brokers for api, message in b.requests if api is Api.LIST_OFFSETS]
    together = isolation == READ_COMMITTED
    assert {message.all_at_once for message in requests} == {together}
    assert len(requests) == (1 if together else 3)


def test_a_time_or_the_number_of_a_name_is_looked_up_and_no_other_number() -> None:
    for spec in (LATEST_TIMESTAMP, -5, 0, 2**62):
        assert timestamp_of(spec) == spec
    assert timestamp_of("latest") == LATEST_TIMESTAMP
    for wrong in (-6, 2**62 + 1, "newest", 1.5):
        with pytest.raises(InvalidRequestError, match="use earliest, latest"):
            timestamp_of(wrong)  # type: ignore[arg-type]
