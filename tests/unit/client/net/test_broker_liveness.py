"""A silent broker is waited for as long as it is a member of its cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from sparklog import Admin, Consumer, Producer
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.broker_liveness import ENDPOINTS_MAX, LATE_S, BrokerLiveness, Membership
from sparklog.client.net.cluster import cluster
from sparklog.client.net.connection import Connection
from sparklog.errors import BrokerNotAvailableError, RequestTimedOutError
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest
from sparklog.protocol.topic_messages import BrokerEndpoint, MetadataRequest, MetadataResponse
from tests.support.clients import TP0, drain, fill
from tests.unit.client.fake_broker import SILENT
from tests.unit.client.fake_cluster import FakeCluster

A, B, C = (Endpoint("127.0.0.1", port) for port in (1, 2, 3))


class Virtual:
    """Time that passes on request, and the other brokers' answers."""

    def __init__(self) -> None:
        self.now = 100.0
        self.left = False
        self.asked: list[float] = []
        self.liveness = BrokerLiveness(A, 1, self.has_departed, lambda: self.now)

    def has_departed(self, broker_id: int, endpoint: Endpoint) -> bool:
        assert (broker_id, endpoint) == (1, A)
        self.asked.append(self.now)
        self.now += 0.5
        return self.left


def test_no_member_is_queried_before_an_answer_is_late() -> None:
    virtual = Virtual()
    for virtual.now in (100.0, 100.2, 100.4):
        virtual.liveness.check(100.0, 0.0)
    assert virtual.asked == []
    virtual.now = 100.0 + LATE_S
    virtual.liveness.check(100.0, 0.0)
    assert virtual.asked == [100.0 + LATE_S]


def test_a_member_is_waited_for_and_checked_again() -> None:
    virtual = Virtual()
    for virtual.now in (103.0, 103.6, 103.9, 104.0, 104.5):
        virtual.liveness.check(100.0, 0.0)
    assert virtual.asked == [103.0, 104.0], "LATE_S after the others have answered"
    assert virtual.liveness.late_at(100.0, 0.0) == 104.5 + LATE_S


def test_a_departed_broker_is_abandoned() -> None:
    virtual = Virtual()
    virtual.now, virtual.left = 103.0, True
    with pytest.raises(RequestTimedOutError, match=r"127\.0\.0\.1:1 .* do not reach it either"):
        virtual.liveness.check(100.0, 0.0)


def test_no_member_is_queried_about_an_unknown_broker() -> None:
    virtual = Virtual()
    virtual.liveness.broker_id, virtual.now, virtual.left = None, 103.0, True
    virtual.liveness.check(100.0, 0.0)
    assert virtual.asked == []


def test_the_brokers_own_wait_and_its_answers_count() -> None:
    virtual = Virtual()
    assert virtual.liveness.late_at(100.0 + 10.0, 99.0) == 110.0 + LATE_S, "a fetch that waits 10 s for data"
    assert virtual.liveness.late_at(100.0, 102.0) == 102.0 + LATE_S, "an answer before this one came at 102"


class ClusterWithSilentMember:
    """A cluster of which A is silent."""

    def __init__(
        self, members: Sequence[int] | None, candidates: Sequence[Endpoint] = (A, B, C), suspected: Sequence[int] = ()
    ) -> None:
        self.members = members
        self.suspected = list(suspected)
        self.known = list(candidates)
        self.asked: list[Endpoint] = []

    def candidates(self) -> list[Endpoint]:
        return self.known

    def broker(self, broker_id: int) -> Endpoint | None:
        return {1: A, 2: B}.get(broker_id)

    def ask_any(self, candidates: Sequence[Endpoint], *args: Any, **named: Any) -> Any:
        self.asked += candidates
        if self.members is None:
            raise BrokerNotAvailableError("none of them")
        endpoints = [BrokerEndpoint(n, "127.0.0.1", n) for n in self.members]
        return MetadataResponse("c", 0, endpoints, [], suspected=self.suspected), B


@pytest.mark.parametrize(("members", "left"), [([2, 3], True), ([1, 2, 3], False), ([], False), (None, False)])
def test_the_other_brokers_decide_the_membership(members: list[int] | None, left: bool) -> None:
    others = ClusterWithSilentMember(members)
    assert Membership(others).has_departed(1, A) is left
    assert others.asked == [B, C]


def test_a_suspected_broker_is_abandoned() -> None:
    assert Membership(ClusterWithSilentMember([1, 2, 3], suspected=[1])).has_departed(1, A)
    assert not Membership(ClusterWithSilentMember([1, 2, 3], suspected=[2])).has_departed(1, A)


def test_the_silent_broker_is_not_queried_at_another_address() -> None:
    others = ClusterWithSilentMember([2], (A, B, C))
    assert Membership(others).has_departed(2, C) is False
    assert others.asked == [A]


def test_a_broker_that_is_alone_is_waited_for() -> None:
    others = ClusterWithSilentMember([2], (A,))
    assert not Membership(others).has_departed(1, A)
    assert others.asked == []


def test_records_of_former_brokers_are_bounded() -> None:
    others = ClusterWithSilentMember([2])
    membership = Membership(others)
    for port in range(1, ENDPOINTS_MAX + 2):
        membership.remember(port, Endpoint("h", port))
    assert membership.liveness_of(Endpoint("h", 1)).broker_id is None
    assert membership.liveness_of(Endpoint("h", 2)).broker_id == 2


def test_a_cluster_is_not_kept_for_it() -> None:
    membership = Membership(ClusterWithSilentMember([2]))
    assert not membership.has_departed(1, A)


# -- with brokers


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    """Three; the first leads the partition, and shall become silent. Answers are late soon."""
    made = FakeCluster(3, 3)
    cluster(made.address)._membership.late_s = 0.2
    for p in range(3):
        fill(made.brokers[0], 1, partition=p)
    cluster(made.address).metadata(["events"])
    yield made
    made.close()


def cut_off(brokers: FakeCluster, *, leaves: bool = True) -> None:
    """The first broker keeps its connections and says nothing; the others find another leader."""
    brokers.brokers[0].is_mute = True
    if leaves:
        brokers.gone.add(0)
        brokers.move(0, 1)


def test_a_request_to_a_departed_broker_goes_elsewhere(brokers: FakeCluster) -> None:
    """Long before its time is over: the test would take ten minutes."""
    with Admin(brokers.address, request_timeout_ms=600_000) as admin:
        assert admin.list_offsets({TP0: "latest"})[TP0].offset == 10
        cut_off(brokers)
        assert admin.list_offsets({TP0: "latest"})[TP0].offset == 10


def test_a_broker_that_departed_before_its_handshake_is_abandoned(brokers: FakeCluster) -> None:
    """It accepts the connection, as the kernel of a process that is stopped does."""
    with Admin(brokers.address, request_timeout_ms=600_000) as admin:
        cluster(brokers.address).metadata(["events"])
        brokers.brokers[0].close_connections()
        cut_off(brokers)
        assert admin.list_offsets({TP0: "latest"})[TP0].offset == 10


def test_a_broker_that_departed_before_its_connection_is_abandoned(brokers: FakeCluster) -> None:
    """Nothing but its address is known by then."""
    known = cluster(brokers.address)
    cut_off(brokers)
    known.doubt(Endpoint("127.0.0.1", brokers.brokers[0].port))
    known.metadata(["events"])
    with pytest.raises(RequestTimedOutError, match="do not reach it either"):
        known.connect(Endpoint("127.0.0.1", brokers.brokers[0].port), timeout_ms=600_000)


def test_a_member_that_is_slow_is_waited_for(brokers: FakeCluster) -> None:
    cut_off(brokers, leaves=False)
    before = brokers.count(Api.METADATA)
    with (
        Admin(brokers.address, request_timeout_ms=3_000) as admin,
        pytest.raises(RequestTimedOutError, match="in time"),
    ):
        admin.list_offsets({TP0: "latest"})
    assert brokers.count(Api.METADATA) - before >= 2, "and asked about again and again"


def test_a_consumer_goes_on_at_the_next_leader(brokers: FakeCluster) -> None:
    with Consumer(
        brokers.address, local_read="off", auto_offset_reset="earliest", request_timeout_ms=500_000
    ) as consumer:
        consumer.assign([TP0])
        assert len(drain(consumer, 10)) == 10
        cut_off(brokers)
        fill(brokers.brokers[0], 1)
        assert len(drain(consumer, 10)) == 10


@pytest.mark.parametrize("left", [True, False])
def test_a_request_that_the_broker_does_not_read_is_abandoned(brokers: FakeCluster, left: bool) -> None:
    """The request exceeds the kernel's buffers, and the broker does not read."""
    reads_again = threading.Event()
    asked: list[int] = []

    def has_departed(broker_id: int, endpoint: Endpoint) -> bool:
        asked.append(broker_id)
        if not left:
            reads_again.set()
        return left

    def stop_reading(api: Api, message: Any) -> str | None:
        if api is Api.METADATA:
            reads_again.wait(60)
        return None if api is Api.HANDSHAKE else SILENT

    broker = brokers.brokers[1]
    broker.hook = stop_reading
    endpoint = Endpoint("127.0.0.1", broker.port)
    connection = Connection(endpoint, timeout_ms=600_000, liveness=BrokerLiveness(endpoint, None, has_departed))
    request = ProduceRequest(1, 1_000, [ProducePartition("events", 1, 64 << 20)])
    try:
        connection.send(Api.METADATA, MetadataRequest([]))
        if left:
            with pytest.raises(RequestTimedOutError):
                connection.send(Api.PRODUCE, request, [bytes(64 << 20)])
        else:
            connection.send(Api.PRODUCE, request, [bytes(64 << 20)])
        assert set(asked) == {1}
        assert connection.closed is left
    finally:
        reads_again.set()
        connection.close()


def test_a_producer_goes_on_at_the_next_leader(brokers: FakeCluster) -> None:
    timeouts: dict[str, Any] = {"request_timeout_ms": 500_000, "delivery_timeout_ms": 600_000}
    with Producer(brokers.address, **timeouts) as producer:
        producer.send("events", value=b"before", partition=0).result(30)
        cut_off(brokers)
        producer.send("events", value=b"after", partition=0).result(60)
    assert brokers.brokers[0].end(("events", 0)) == 12
