"""Requests to another broker: for any behaviour of the peer, the caller gets an answer or a typed error, and the next
request works."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable

import pytest
from sparklog_broker.cluster.broker_peers import BrokerPeers
from sparklog_broker.cluster.peer_connection import PeerConnection, PlainConnect
from sparklog_broker.cluster.peers import Peer

from sparklog.errors import (
    BrokerNotAvailableError,
    FrameTooLargeError,
    InvalidRequestError,
    NotControllerError,
    RequestTimedOutError,
    UnsupportedApiError,
)
from sparklog.protocol import frames
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.cluster_messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)
from sparklog.protocol.codec import encode
from sparklog.protocol.messages import ApiRange, ErrorBody, HandshakeResponse
from sparklog.settings import MIB

ASKED = ControlledShutdownRequest(1, 17)
Answer = Callable[[frames.RequestPrefix], bytes]


def handshake(prefix: frames.RequestPrefix) -> bytes:
    apis = [ApiRange(int(api), spec.version_min, spec.version_max) for api, spec in APIS.items()]
    return framed(prefix, encode(HandshakeResponse(2, "c", "9", apis, 1 << 20)))


def framed(prefix: frames.RequestPrefix, header: bytes, error: int = 0, correlation: int | None = None) -> bytes:
    return frames.encode_response(
        prefix.api, error, prefix.correlation_id if correlation is None else correlation, header
    )


def good(prefix: frames.RequestPrefix) -> bytes:
    return framed(prefix, encode(ControlledShutdownResponse(3)))


async def play(answers: list[Answer], scene: Callable[[Peer], Awaitable[None]], *, hello: Answer = handshake) -> int:
    """A broker that gives one of `answers` to each request, b"" closes; how often it was connected to."""
    connections = 0
    left = list(answers)
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writers.append(writer)
        try:
            while True:
                prefix = frames.decode_request_prefix(await reader.readexactly(16), 1 << 20)
                await reader.readexactly(prefix.body_bytes)
                data = hello(prefix) if prefix.api == Api.HANDSHAKE else left.pop(0)(prefix)
                if not data:
                    break
                writer.write(data)
        except (asyncio.IncompleteReadError, OSError):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    peer = Peer(f"127.0.0.1:{port}", PlainConnect())
    try:
        await scene(peer)
    finally:
        peer.close()
        server.close()
        for writer in writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return connections


async def ask(peer: Peer, timeout_s: float = 5.0) -> int:
    answer, payload = await peer.request(
        Api.CONTROLLED_SHUTDOWN, ASKED, ControlledShutdownResponse, timeout_s=timeout_s
    )
    assert payload == b""
    return answer.remaining


def test_one_connection_serves_many_requests_also_at_once() -> None:
    async def scene(peer: Peer) -> None:
        assert await ask(peer) == 3
        assert await asyncio.gather(*(ask(peer) for _ in range(4))) == [3] * 4

    assert asyncio.run(play([good] * 5, scene)) == 1


def test_payloads_are_whole_and_their_memory_is_not_shared_while_they_are_in_use() -> None:
    sizes = [3 * MIB, 100, 0, 2 * MIB, 3 * MIB]

    def filled(number: int) -> Answer:
        def answer(prefix: frames.RequestPrefix) -> bytes:
            header = encode(ReplicaFetchResponse(number, []))
            size = sizes[number]
            head = frames.encode_response(prefix.api, 0, prefix.correlation_id, header, size)
            return head + bytes([number + 1]) * size

        return answer

    async def scene(peer: Peer) -> None:
        request = ReplicaFetchRequest(1, 17, 0, 1, 0, 0, [])
        payloads = []
        for number, size in enumerate(sizes):
            answer, payload = await peer.request(Api.REPLICA_FETCH, request, ReplicaFetchResponse, timeout_s=60)
            assert (answer.session_id, len(payload)) == (number, size)
            payloads.append(payload)
        assert all(set(payload) <= {number + 1} for number, payload in enumerate(payloads))

    assert asyncio.run(play([filled(number) for number in range(len(sizes))], scene)) == 1


def test_a_request_that_waits_ends_with_the_connection() -> None:
    async def scene(peer: Peer) -> None:
        asking = asyncio.ensure_future(ask(peer))
        while peer._connection is None or not peer._connection._exchange.pending:
            await asyncio.sleep(0)
        peer.close()
        with pytest.raises(BrokerNotAvailableError):
            await asking

    asyncio.run(play([good], scene))


def test_an_error_leaves_the_connection_open() -> None:
    def refusing(prefix: frames.RequestPrefix) -> bytes:
        return framed(prefix, encode(ErrorBody("not me")), NotControllerError.code)

    async def scene(peer: Peer) -> None:
        with pytest.raises(NotControllerError, match="not me"):
            await ask(peer)
        assert await ask(peer) == 3

    assert asyncio.run(play([refusing, good], scene)) == 1


@pytest.mark.parametrize(
    ("spoiled", "error"),
    [
        (lambda prefix: b"", BrokerNotAvailableError),
        (lambda prefix: good(prefix)[:-1] if prefix.api else b"", RequestTimedOutError),
        (lambda prefix: framed(prefix, good(prefix), correlation=99), InvalidRequestError),
        (lambda prefix: framed(prefix, b"\xc1"), InvalidRequestError),
        (lambda prefix: b"\xff" * 16, FrameTooLargeError),
    ],
)
def test_after_any_failure_the_next_request_has_a_connection_of_its_own(
    spoiled: Answer, error: type[Exception]
) -> None:
    async def scene(peer: Peer) -> None:
        with pytest.raises(error):
            await ask(peer, timeout_s=0.3 if error is RequestTimedOutError else 60)
        assert await ask(peer) == 3

    assert asyncio.run(play([spoiled, good], scene)) in (1, 2)


def test_a_port_without_a_listener() -> None:
    async def scene() -> None:
        with pytest.raises(BrokerNotAvailableError, match="no connection to the broker at 127"):
            await ask(Peer("127.0.0.1:1", PlainConnect()))

    asyncio.run(scene())


def test_an_api_that_the_peer_does_not_have() -> None:
    def old(prefix: frames.RequestPrefix) -> bytes:
        return framed(prefix, encode(HandshakeResponse(2, "c", "0.1.0", [ApiRange(0, 0, 0)], 1 << 20)))

    async def scene(peer: Peer) -> None:
        with pytest.raises(UnsupportedApiError, match="upgrade the broker"):
            await ask(peer)

    asyncio.run(play([], scene, hello=old))


def test_a_cancelled_wait_for_a_turn_takes_no_other_request_along() -> None:
    async def scene(peer: Peer) -> None:
        first = asyncio.ensure_future(ask(peer))
        second = asyncio.ensure_future(ask(peer))
        await asyncio.sleep(0)
        second.cancel()
        assert await first == 3
        assert await ask(peer) == 3

    asyncio.run(play([good, good], scene))


def test_a_broker_without_an_address_is_unreachable() -> None:
    async def scene() -> None:
        with pytest.raises(BrokerNotAvailableError, match="is not registered"):
            await Peer("", PlainConnect()).request(
                Api.CONTROLLED_SHUTDOWN, ASKED, ControlledShutdownResponse, timeout_s=30
            )

    asyncio.run(scene())


@pytest.mark.parametrize(("host", "address"), [("::1", "[::1]:9292"), ("10.0.0.1", "10.0.0.1:9292")])
def test_brokers_are_reached_by_either_kind_of_address(host: str, address: str) -> None:
    asked: list[tuple[str, int]] = []

    async def connect(to: str, port: int) -> PeerConnection:
        asked.append((to, port))
        raise ConnectionRefusedError

    async def scene() -> None:
        peers = BrokerPeers(lambda _: (host, 9292), connect)
        with pytest.raises(BrokerNotAvailableError, match=re.escape(address)):
            await peers.request(2, Api.CONTROLLED_SHUTDOWN, ASKED, ControlledShutdownResponse, timeout_s=30)

    asyncio.run(scene())
    assert asked == [(host, 9292)]
