"""Connections and the shared cluster state, against a fake broker."""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Any

import pytest

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster, cluster, forget
from sparklog.client.net.connection import Connection
from sparklog.errors import (
    BrokerNotAvailableError,
    ClosedError,
    FrameTooLargeError,
    InvalidRequestError,
    RequestTimedOutError,
    SparklogError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from sparklog.protocol import frames
from sparklog.protocol import messages as m
from sparklog.protocol import topic_messages as topics
from sparklog.protocol.apis import Api
from sparklog.protocol.codec import encode
from sparklog.types import TopicPartition
from tests.support.ports import free_port
from tests.unit.client.fake_broker import DROP, SILENT, FakeBroker, garbage_server

ALL = topics.MetadataRequest(None)


def endpoint(fake: FakeBroker) -> Endpoint:
    return Endpoint("127.0.0.1", fake.port)


def only(api: Api, verdict: Any) -> Any:
    return lambda a, message: verdict if a is api else None


def test_a_port_without_a_listener() -> None:
    port = free_port()
    with pytest.raises(BrokerNotAvailableError, match=f"127.0.0.1:{port}.*sparklog broker"):
        Connection(Endpoint("127.0.0.1", port))


def test_an_unread_answer_is_not_late(fake: FakeBroker) -> None:
    connection = Connection(endpoint(fake))
    connection.send(Api.METADATA, ALL, timeout_ms=1)
    assert select.select([connection], [], [], 30)[0]
    while time.monotonic() <= connection.due:
        time.sleep(0.001)
    assert connection.receive(topics.MetadataResponse)[0].topics[0].name == "events"
    connection.close()


def test_requests_may_be_sent_ahead(fake: FakeBroker) -> None:
    connection = Connection(endpoint(fake))
    connection.send(Api.METADATA, ALL)
    connection.send(Api.METADATA, topics.MetadataRequest(["nope"]))
    assert connection.in_flight == 2 and not connection.is_idle()
    assert connection.receive(topics.MetadataResponse)[0].topics[0].name == "events"
    assert connection.receive(topics.MetadataResponse)[0].topics[0].error_code == 3
    assert connection.is_idle()
    connection.close()
    with pytest.raises(ClosedError):
        connection.send(Api.METADATA, ALL)


def test_an_answer_that_has_come_with_another_is_kept(fake: FakeBroker) -> None:
    fake.answers_at_once[Api.METADATA] = 2
    connection = Connection(endpoint(fake))
    for names in (None, ["nope"]):
        connection.send(Api.METADATA, topics.MetadataRequest(names))
    assert not connection.has_read_ahead
    assert connection.receive(topics.MetadataResponse)[0].topics[0].name == "events"
    assert connection.has_read_ahead
    assert connection.receive(topics.MetadataResponse)[0].topics[0].error_code == 3
    assert not connection.has_read_ahead
    connection.close()


def test_an_error_answer_leaves_the_connection_open(fake: FakeBroker) -> None:
    connection = Connection(endpoint(fake))
    fake.hook = only(Api.METADATA, 3)
    with pytest.raises(UnknownTopicOrPartitionError, match="as told"):
        connection.request(Api.METADATA, ALL, topics.MetadataResponse)
    fake.hook = only(Api.METADATA, 7)
    with pytest.raises(InvalidRequestError):
        connection.request(Api.METADATA, ALL, topics.MetadataResponse)
    assert connection.closed


def test_a_timeout_closes_the_connection(fake: FakeBroker) -> None:
    fake.hook = only(Api.METADATA, SILENT)
    connection = Connection(endpoint(fake))
    with pytest.raises(RequestTimedOutError):
        connection.request(Api.METADATA, ALL, topics.MetadataResponse, timeout_ms=50)
    assert connection.closed


def test_a_broken_connection(fake: FakeBroker) -> None:
    fake.hook = only(Api.METADATA, DROP)
    connection = Connection(endpoint(fake))
    with pytest.raises(BrokerNotAvailableError, match="broke"):
        connection.request(Api.METADATA, ALL, topics.MetadataResponse)
    assert connection.closed


def test_abort_wakes_a_waiting_thread(fake: FakeBroker) -> None:
    asked = threading.Event()

    def hook(api: Api, message: Any) -> str | None:
        if api is Api.METADATA:
            asked.set()
            return SILENT
        return None

    fake.hook = hook
    connection = Connection(endpoint(fake))
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            connection.request(Api.METADATA, ALL, topics.MetadataResponse)
        except SparklogError as e:
            caught.append(e)

    thread = threading.Thread(target=wait)
    thread.start()
    assert asked.wait(30)
    connection.abort()
    thread.join(30)
    assert isinstance(caught[0], BrokerNotAvailableError)


def handshake(apis: list[m.ApiRange], *, broker_version: str = "9", request_bytes_max: int = 1) -> bytes:
    answer = m.HandshakeResponse(0, "cluster", broker_version, apis, request_bytes_max)
    return frames.encode_response(0, 0, 1, encode(answer))


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", SparklogError),
        (b"\0" * 16, InvalidRequestError),
        (b"", BrokerNotAvailableError),
        (b"\1\2", BrokerNotAvailableError),
        (frames.encode_response(0, 0, 99, b"\x90"), InvalidRequestError),
        (frames.encode_response(0, 0, 1, b"\xc1"), InvalidRequestError),
        (frames.encode_response(0, 8, 1, encode(m.ErrorBody("too new"))), UnsupportedVersionError),
        (frames.encode_response(0, 8, 1, encode(m.ErrorBody("too new", 1, 2))), UnsupportedVersionError),
        (handshake([m.ApiRange(0, 0, 0), m.ApiRange(0, 0, 0)]), InvalidRequestError),
        (handshake([m.ApiRange(4, 2, 1)]), InvalidRequestError),
        (handshake([m.ApiRange(4, -1, 0)]), InvalidRequestError),
        (handshake([m.ApiRange(4, 0, 65_536)]), InvalidRequestError),
        (handshake([m.ApiRange(65_536, 0, 0)]), InvalidRequestError),
        (handshake([m.ApiRange(i, 0, 0) for i in range(1_001)]), InvalidRequestError),
        (handshake([], broker_version="9" * 201), InvalidRequestError),
        (handshake([], request_bytes_max=-1), InvalidRequestError),
    ],
)
def test_a_peer_that_is_no_broker(reply: bytes, error: type[Exception]) -> None:
    listener, address = garbage_server(reply)
    with listener, pytest.raises(error):
        Connection(Endpoint("127.0.0.1", int(address.rpartition(":")[2])), timeout_ms=60_000)


def test_a_frame_the_broker_would_refuse_is_not_sent(fake: FakeBroker) -> None:
    connection = Connection(endpoint(fake))
    connection.broker.request_bytes_max = 1000
    with pytest.raises(FrameTooLargeError, match=r"socket\.request\.max\.bytes"):
        connection.send(Api.METADATA, ALL, [bytes(2000)])
    assert connection.is_idle()
    connection.close()


# -- the cluster


def test_bootstrap_servers_are_tried_in_turn(fake: FakeBroker) -> None:
    dead = f"127.0.0.1:{free_port()}"
    both = f"{dead},{fake.address}"
    assert cluster(both).topic("events").partitions == 1
    forget(both)
    with pytest.raises(BrokerNotAvailableError, match=dead):
        Cluster(f"{dead},{dead}").metadata()


def test_one_cluster_per_address_and_connections_are_reused(fake: FakeBroker) -> None:
    shared = cluster(fake.address)
    assert cluster(fake.address) is shared
    for _ in range(5):
        shared.metadata()
    assert fake.connections == 1


def test_metadata_are_cached_until_invalidated(fake: FakeBroker) -> None:
    shared = cluster(fake.address)
    first = shared.topic("events")
    assert shared.topic("events") is first
    shared.invalidate("events")
    assert shared.topic("events") is not first
    with pytest.raises(UnknownTopicOrPartitionError, match="sparklog topic create nope"):
        shared.topic("nope")
    with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 0"):
        shared.leader(TopicPartition("events", 1))


def test_an_idle_connection_that_died_is_replaced(fake: FakeBroker) -> None:
    shared = cluster(fake.address)
    shared.metadata()
    verdicts = [DROP]
    fake.hook = lambda api, message: verdicts.pop() if api is Api.METADATA and verdicts else None
    assert shared.metadata().cluster_id == "cluster"
    assert fake.connections == 2


def test_a_request_that_must_not_happen_twice_is_not_repeated(fake: FakeBroker) -> None:
    shared = cluster(fake.address)
    shared.metadata()
    fake.hook = only(Api.DELETE_TOPIC, DROP)
    with pytest.raises(BrokerNotAvailableError):
        shared.request(Api.DELETE_TOPIC, topics.DeleteTopicRequest("events"), topics.DeleteTopicResponse)
    assert [a for a, _ in fake.requests].count(Api.DELETE_TOPIC) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(fake: FakeBroker) -> None:
    shared = cluster(fake.address)
    shared.metadata()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            mine = cluster(fake.address)
            if mine is not shared and mine.topic("events").partitions == 1:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert shared.metadata().cluster_id == "cluster"
    assert fake.connections == 2


def test_old_metadata_are_used_while_the_broker_is_away(fake: FakeBroker) -> None:
    shared = cluster(fake.address)
    first = shared.topic("events")
    shared.expire("events")
    fake.hook = only(Api.METADATA, DROP)
    assert shared.topic("events") is first
    with pytest.raises(BrokerNotAvailableError):
        shared.topic("events", refresh=True)
    shared.expire("events")
    fake.hook = lambda api, message: None
    assert shared.topic("events") is not first


def test_connections_returned_after_forget_end_with_the_cluster(fake: FakeBroker) -> None:
    shared = cluster(fake.address)
    forget(fake.address)
    with shared.connection() as connection:  # by a consumer that is still at work
        pass
    assert not connection.closed
    del shared
    assert connection.closed
