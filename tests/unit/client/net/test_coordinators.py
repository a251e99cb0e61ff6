"""Requests to all brokers; coordinators that are remembered, and brokers that are in doubt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.coordinator_key import group_key
from sparklog.client.net.remembered_coordinators import (
    DOUBTED_MAX,
    KEYS_MAX,
    SUSPECT_FOR_S,
    CoordinatorAnswer,
    RememberedCoordinators,
)
from sparklog.client.net.retry import Retries, RetryPolicy, of_all_brokers, request_until
from sparklog.errors import (
    BrokerNotAvailableError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    RequestTimedOutError,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import FindCoordinatorResponse, OffsetFetchRequest, OffsetFetchResponse
from tests.unit.client.fake_broker import DROP
from tests.unit.client.fake_cluster import FakeCluster

ONE, TWO = Endpoint("a", 1), Endpoint("b", 2)
PARTS = {ONE: ["x"], TWO: ["y", "z"]}


class Brokers:
    """The second one is dead, and not missed before it is asked for the third time."""

    def __init__(self) -> None:
        self.there = [ONE, TWO]
        self.now_s = 0.0
        self.asked: list[Endpoint] = []
        self.parts = dict(PARTS)

    def brokers(self, *, timeout_ms: int) -> list[Endpoint]:
        return self.there

    def ask(self, broker: Endpoint | None, timeout_ms: int) -> list[str]:
        assert broker is not None
        self.asked.append(broker)
        if broker == TWO:
            if self.asked.count(TWO) == 3:
                self.there = [ONE]
                self.parts[ONE] = ["x", "y", "z"]
            raise BrokerNotAvailableError("no broker")
        return self.parts[broker]

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def asked_of(brokers: Any, ask: Any, timeout_ms: int = 30_000) -> list[str]:
    attempts = Retries(RetryPolicy.within(timeout_ms), sleep=brokers.sleep, clock=lambda: brokers.now_s)
    return of_all_brokers(brokers, ask, attempts)


def test_all_brokers_are_queried() -> None:
    assert asked_of(Brokers(), lambda broker, _: PARTS[broker]) == ["x", "y", "z"]


def test_items_of_a_dead_broker_come_from_the_others() -> None:
    brokers = Brokers()
    assert asked_of(brokers, brokers.ask) == ["x", "y", "z"]
    assert brokers.asked == [ONE, TWO] * 3 + [ONE]


def test_the_last_error_is_raised_when_the_time_is_over() -> None:
    def gone(broker: Endpoint, timeout_ms: int) -> list[str]:
        raise BrokerNotAvailableError("no broker")

    brokers = Brokers()
    with pytest.raises(BrokerNotAvailableError, match="no broker"):
        asked_of(brokers, gone, 1_000)
    assert 0.5 < brokers.now_s < 1


# Trust in brokers about coordinators: not first the broker that was wrong, nor one that never gets ready


A, B, C = (Endpoint("127.0.0.1", port) for port in (1, 2, 3))
KEY = group_key("readers")


def test_a_coordinator_is_kept_until_it_is_wrong() -> None:
    known = RememberedCoordinators()
    assert known.get(KEY) is None
    known.remember(KEY, CoordinatorAnswer(A, B))
    assert known.get(KEY) == CoordinatorAnswer(A, B)
    known.forget(KEY, CoordinatorAnswer(A, B), 0.0, unready=False)
    assert known.get(KEY) is None


def test_a_broker_that_named_a_wrong_coordinator_is_tried_last() -> None:
    known = RememberedCoordinators()
    known.forget(KEY, CoordinatorAnswer(A, B), 100.0, unready=False)
    assert known.order([A, B, C], 100.0) == [A, C, B], "the one that says that it coordinates nothing was right"


def test_a_coordinator_that_never_gets_ready_is_tried_last() -> None:
    known = RememberedCoordinators()
    known.forget(KEY, CoordinatorAnswer(A, A), 100.0, unready=True)
    assert known.order([A, B, C], 101.0) == [B, C, A]
    known.forget(KEY, CoordinatorAnswer(C, B), 102.0, unready=True)
    assert known.order([A, B, C], 103.0) == [A, B, C], "all are doubted: the one that has been longest comes first"
    known.forget(KEY, CoordinatorAnswer(A, A), 104.0, unready=True)
    assert known.order([A, B, C], 104.0) == [B, C, A]


def test_a_doubt_ends() -> None:
    known = RememberedCoordinators()
    known.doubt(A, 100.0)
    known.doubt(None, 100.0)
    assert known.order([A, B], 100.0 + SUSPECT_FOR_S - 1) == [B, A]
    assert known.order([A, B], 100.0 + SUSPECT_FOR_S) == [A, B]


def test_results_of_a_later_look_up_stay() -> None:
    known = RememberedCoordinators()
    known.remember(KEY, CoordinatorAnswer(C, B))
    known.forget(KEY, CoordinatorAnswer(A, A), 100.0, unready=True)
    assert known.get(KEY) == CoordinatorAnswer(C, B)


def test_it_is_bounded() -> None:
    known = RememberedCoordinators()
    for number in range(max(KEYS_MAX, DOUBTED_MAX) + 5):
        known.remember(group_key(f"g{number}"), CoordinatorAnswer(A, B))
        known.doubt(Endpoint("h", number + 1), float(number))
    assert (len(known._answers), len(known._doubted_at)) == (KEYS_MAX, DOUBTED_MAX)
    assert known.get(group_key("g0")) is None


# Choice of the broker to ask for leaders and coordinators: not first the broker that has just failed


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    made = FakeCluster(2, 2)
    yield made
    made.close()


def asked(brokers: FakeCluster, api: Api) -> list[int]:
    return [sum(a is api for a, _ in broker.requests) for broker in brokers.brokers]


def test_a_doubted_broker_is_tried_last(brokers: FakeCluster) -> None:
    known = cluster(brokers.address)
    known.metadata(["events"])
    assert asked(brokers, Api.METADATA) == [1, 0]
    known.doubt(Endpoint("127.0.0.1", brokers.brokers[0].port))
    known.metadata(["events"])
    assert asked(brokers, Api.METADATA) == [1, 1]


def test_an_undecided_coordinator_gets_no_look_up(brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be cut off from all other brokers, and believe in itself."""
    first = brokers.brokers[0]
    known = cluster(brokers.address)
    known.metadata(["events"])

    def request(self: Cluster, api: Api, *more: object, **named: object) -> object:
        if api is Api.FIND_COORDINATOR:
            return FindCoordinatorResponse(0, "127.0.0.1", first.port)
        raise RequestTimedOutError("not replicated to all in-sync replicas")

    monkeypatch.setattr(Cluster, "request", request)
    with pytest.raises(RequestTimedOutError):
        known.coordinator_request(KEY, Api.OFFSET_FETCH, OffsetFetchRequest("readers", []), OffsetFetchResponse)
    monkeypatch.undo()
    known.metadata(["events"])
    assert asked(brokers, Api.METADATA) == [1, 1]


@pytest.fixture
def three() -> Iterator[FakeCluster]:
    """The first, which is asked first, takes itself for the coordinator; the others know that it is the third."""
    made = FakeCluster(3, 3)
    made.coordinators = {0: 0, 1: 2, 2: 2}
    cluster(made.address).metadata(["events"])
    yield made
    made.close()


def fetch_offsets(brokers: FakeCluster, pauses: list[float]) -> None:
    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        assert len(pauses) < 20, "it asks the same one again and again"

    request_until(
        cluster(brokers.address),
        Api.OFFSET_FETCH,
        OffsetFetchRequest("readers", []),
        OffsetFetchResponse,
        Retries(RetryPolicy(timeout_ms=60_000), sleep=sleep, clock=lambda: 0.0),
        coordinator=KEY,
    )


@pytest.mark.parametrize("code", [CoordinatorLoadingError.code, NotCoordinatorError.code, DROP])
def test_a_broker_that_wrongly_names_itself_coordinator_is_tried_last(three: FakeCluster, code: int | str) -> None:
    """It is cut off from the others, and for ever loading, or knows only that it coordinates nothing."""
    three.brokers[0].hook = lambda api, message: code if api is Api.OFFSET_FETCH else None
    pauses: list[float] = []
    fetch_offsets(three, pauses)
    assert len(pauses) == 1
    assert asked(three, Api.FIND_COORDINATOR) == [1, 1, 0]
    fetch_offsets(three, pauses)
    assert (len(pauses), asked(three, Api.FIND_COORDINATOR)) == (1, [1, 1, 0]), "and what was found is kept"


def test_a_broker_that_names_a_replaced_coordinator_is_tried_last(three: FakeCluster) -> None:
    three.coordinators[0] = 1
    three.brokers[1].hook = lambda api, message: NotCoordinatorError.code if api is Api.OFFSET_FETCH else None
    pauses: list[float] = []
    fetch_offsets(three, pauses)
    assert (len(pauses), asked(three, Api.FIND_COORDINATOR)) == (1, [1, 1, 0])
    cluster(three.address).close()
    fetch_offsets(three, pauses)
    assert (len(pauses), asked(three, Api.FIND_COORDINATOR)) == (2, [2, 2, 0]), "a cluster that was closed begins anew"


def test_a_broker_that_names_a_dead_coordinator_is_tried_last(three: FakeCluster) -> None:
    three.coordinators[0] = 1
    three.brokers[1].close()
    pauses: list[float] = []
    fetch_offsets(three, pauses)
    assert len(pauses) == 1
    assert asked(three, Api.FIND_COORDINATOR) == [1, 0, 1]


def test_a_broker_without_a_coordinator_is_tried_last(three: FakeCluster) -> None:
    def knows_none(api: Api, message: Any) -> int | None:
        return CoordinatorNotAvailableError.code if api is Api.FIND_COORDINATOR else None

    three.brokers[0].hook = knows_none
    pauses: list[float] = []
    fetch_offsets(three, pauses)
    assert (len(pauses), asked(three, Api.FIND_COORDINATOR)) == (1, [1, 1, 0])


def test_a_coordinator_that_gets_ready_is_waited_for(three: FakeCluster) -> None:
    """All name it, and it is loading: the others are asked in turn, and it is not asked whether it is the one."""
    three.coordinators = {0: 2, 1: 2, 2: 2}
    left = [CoordinatorLoadingError.code] * 5
    three.brokers[2].hook = lambda api, message: left.pop() if api is Api.OFFSET_FETCH and left else None
    pauses: list[float] = []
    fetch_offsets(three, pauses)
    assert len(pauses) == 5
    assert asked(three, Api.FIND_COORDINATOR) == [3, 3, 0]
