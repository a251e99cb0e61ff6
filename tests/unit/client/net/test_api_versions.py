"""The version of an API that a client uses, and its error when there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import pytest

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.connection import Connection
from sparklog.client.producer.producer import Producer
from sparklog.errors import UnsupportedApiError, UnsupportedVersionError
from sparklog.protocol import frames, negotiation
from sparklog.protocol import messages as m
from sparklog.protocol import topic_messages as topics
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Since
from sparklog.protocol.codec import encode
from sparklog.protocol.negotiation import SpokenVersions
from tests.unit.client.fake_broker import FakeBroker, garbage_server

ALL = topics.MetadataRequest(None)


class NewerRequest(topics.MetadataRequest):
    """A request of a later release."""

    ignorable: Annotated[int, Since(1, ignorable=True)] = 0
    needed: Annotated[int, Since(1)] = 0


@pytest.fixture
def newer_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The versions of a later release."""
    negotiation._agree.cache_clear()
    monkeypatch.setitem(APIS, Api.METADATA, APIS[Api.METADATA]._replace(version_max=1))
    monkeypatch.setitem(APIS, Api.CREATE_PARTITIONS, APIS[Api.CREATE_PARTITIONS]._replace(version_min=1, version_max=4))
    yield
    negotiation._agree.cache_clear()


def test_a_broker_with_other_versions(fake: FakeBroker, newer_table: None) -> None:
    """Common APIs work; for others, nothing is sent, and the connection continues."""
    fake.apis = {Api.METADATA: (0, 0), Api.PRODUCE: (5, 9)}
    connection = Connection(Endpoint("127.0.0.1", fake.port))
    request = NewerRequest(["events"], paged=True, ignorable=7)
    assert connection.request(Api.METADATA, request, topics.MetadataResponse)[0].topics[0].name == "events"
    assert fake.requests[-1] == (Api.METADATA, topics.MetadataRequest(["events"], paged=True)), (
        "the fields of version 0"
    )
    sent = len(fake.requests)
    told = rf"the broker at {fake.address} \(sparklog 0\) has versions 5 to 9 of PRODUCE, this client has version 0: upgrade the client"
    with pytest.raises(UnsupportedVersionError, match=told) as failure:
        connection.send(Api.PRODUCE, m.ProduceRequest(1, 1, [m.ProducePartition("events", 0, 1)]), [b"x"])
    assert failure.value.supported == (5, 9)
    with pytest.raises(
        UnsupportedApiError,
        match=r"does not have the API FETCH, this client has version 0 of it: upgrade the broker",
    ):
        connection.send(Api.FETCH, m.FetchRequest(0, 0, 0, 0, [m.FetchPartition("events", 0, 0, 0)]))
    with pytest.raises(UnsupportedVersionError, match=r"version 0 of NewerRequest, .* has no field 'needed'"):
        connection.send(Api.METADATA, NewerRequest(needed=1))
    assert connection.is_idle() and len(fake.requests) == sent
    assert connection.request(Api.METADATA, ALL, topics.MetadataResponse)[0].topics
    connection.close()


def test_versions_cost_one_request_per_connection(fake: FakeBroker) -> None:
    connection = Connection(Endpoint("127.0.0.1", fake.port))
    for _ in range(3):
        connection.request(Api.METADATA, ALL, topics.MetadataResponse)
    connection.close()
    assert [api for api, _ in fake.requests] == [Api.HANDSHAKE, *[Api.METADATA] * 3]


def test_an_api_whose_versions_the_client_has_outgrown(newer_table: None) -> None:
    spoken = SpokenVersions([m.ApiRange(Api.CREATE_PARTITIONS, 0, 0), m.ApiRange(Api.METADATA, 0, 9)], "the broker")
    with pytest.raises(
        UnsupportedVersionError,
        match="has version 0 of CREATE_PARTITIONS, this client has versions 1 to 4: upgrade the broker",
    ):
        spoken.version_of(Api.CREATE_PARTITIONS)
    newest = APIS[Api.METADATA].version_max
    assert spoken.version_of(Api.METADATA) == (newest, None)


def test_a_handshake_that_is_refused_names_both_ranges() -> None:
    reply = frames.encode_response(0, 8, 1, encode(m.ErrorBody("HANDSHAKE version 0: this broker speaks 2 to 3", 2, 3)))
    listener, address = garbage_server(reply)
    told = "has versions 2 to 3 of HANDSHAKE, this client has version 0: upgrade the client"
    with listener, pytest.raises(UnsupportedVersionError, match=told):
        Connection(Endpoint("127.0.0.1", int(address.rpartition(":")[2])), timeout_ms=60_000)


def test_a_producer_says_which_side_to_upgrade(fake: FakeBroker) -> None:
    fake.apis[Api.PRODUCE] = (5, 9)
    producer = Producer(fake.address, acks="1", enable_idempotence=False)
    with pytest.raises(UnsupportedVersionError, match="upgrade the client"):
        producer.send("events", b"x").result(30)
    producer.close()
