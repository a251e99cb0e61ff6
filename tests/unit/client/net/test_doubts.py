"""Whom a client asks who leads: not first the broker that could not do what it should."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.coordinator_key import group_key
from sparklog.errors import RequestTimedOutError
from sparklog.protocol.group_messages import FindCoordinatorResponse, OffsetFetchRequest, OffsetFetchResponse
from sparklog.protocol.messages import Api
from tests.unit.client.fake_cluster import FakeCluster

KEY = group_key("readers")


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    made = FakeCluster(2, 2)
    yield made
    made.close()


def asked(brokers: FakeCluster, api: Api) -> list[int]:
    return [sum(a is api for a, _ in broker.requests) for broker in brokers.brokers]


def test_a_doubted_broker_is_asked_last(brokers: FakeCluster) -> None:
    known = cluster(brokers.address)
    known.metadata(["events"])
    assert asked(brokers, Api.METADATA) == [1, 0]
    known.doubt(Endpoint("127.0.0.1", brokers.brokers[0].port))
    known.metadata(["events"])
    assert asked(brokers, Api.METADATA) == [1, 1]


def test_a_coordinator_that_cannot_decide_is_not_asked_whether_it_is_one(
    brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be cut off from all other brokers, and believe in itself."""
    first = brokers.brokers[0]
    known = cluster(brokers.address)
    known.metadata(["events"])

    def request(self: Cluster, api: Api, *more: object, **named: object) -> object:
        if api is Api.FIND_COORDINATOR:
            return FindCoordinatorResponse(0, "127.0.0.1", first.port)
        raise RequestTimedOutError("not on all in-sync replicas")

    monkeypatch.setattr(Cluster, "request", request)
    with pytest.raises(RequestTimedOutError):
        known.coordinator_request(KEY, Api.OFFSET_FETCH, OffsetFetchRequest("readers", []), OffsetFetchResponse)
    monkeypatch.undo()
    known.metadata(["events"])
    assert asked(brokers, Api.METADATA) == [1, 1]
