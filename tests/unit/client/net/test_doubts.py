"""Choice of the broker to ask for leaders and coordinators: not first the broker that has just failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.coordinator_key import group_key
from sparklog.client.net.retry import Retries, RetryPolicy, request_until
from sparklog.errors import (
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    RequestTimedOutError,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import FindCoordinatorResponse, OffsetFetchRequest, OffsetFetchResponse
from tests.unit.client.fake_broker import DROP
from tests.unit.client.fake_cluster import FakeCluster

KEY = group_key("readers")


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
