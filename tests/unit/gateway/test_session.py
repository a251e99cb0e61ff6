"""A client's connection: limits of size, time and memory, and the order of answers."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from sparklog.gateway.gateway import Gateway
from sparklog.gateway.limits import Limits
from sparklog.gateway.server import GatewayServer
from sparklog.gateway.session import ServedApi, Session
from sparklog.gateway.stream import AHEAD_BYTES
from sparklog.kafka.wire.apis import Api
from sparklog.kafka.wire.codec import Body
from sparklog.security.listeners import SecurityProtocol
from tests.unit.gateway.served import answer, framed, with_apis

API_VERSIONS = struct.pack(">hhih", 18, 0, 7, -1)


async def versions(session: Session, request: Body, version: int) -> Body:
    return {"error_code": 0, "api_keys": []}


async def failing(session: Session, request: Body, version: int) -> Body:
    raise RuntimeError("a defect")


WAITING, ENDED, SENT = asyncio.Event(), asyncio.Event(), asyncio.Event()


async def waiting(session: Session, request: Body, version: int) -> Body:
    WAITING.set()
    try:
        await asyncio.Event().wait()
    finally:
        ENDED.set()
    return {}


async def sending(session: Session, request: Body, version: int) -> None:
    await asyncio.sleep(0.05)  # the client has gone meanwhile
    SENT.set()


APIS = {
    18: ServedApi(Api("ApiVersions", 18, 0, 4), versions),
    60: ServedApi(Api("DescribeCluster", 60, 0, 2), failing),
    1: ServedApi(Api("Fetch", 1, 4, 12), waiting),
    0: ServedApi(Api("Produce", 0, 3, 12), sending),
}


def run(body: Any, *, protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT, **limits: Any) -> None:
    with_apis(lambda server, _, connect: body(server, connect), APIS, Limits(**limits), protocol)


def test_a_request_that_stops_half_way_ends_its_connection_and_gives_memory_back() -> None:
    async def body(server: GatewayServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(struct.pack(">i", 3_000_000) + bytes(1_500_000))
        assert await answer(reader) == b""
        writer.close()

    run(body, read_s=0.2)


def test_an_announced_size_holds_no_memory() -> None:
    async def body(server: GatewayServer, connect: Any) -> None:
        others = [await connect() for _ in range(5)]
        for _, writer in others:
            writer.write(struct.pack(">i", 50_000_000))
        reader, writer = await connect()
        writer.write(framed(API_VERSIONS))
        assert (await answer(reader))[:4] == b"\0\0\0\7"
        for _, each in [*others, (reader, writer)]:
            each.close()

    run(body, memory_bytes=1_000_000)


def test_connections_beyond_the_limits_are_closed() -> None:
    async def body(server: GatewayServer, connect: Any) -> None:
        streams = [await connect() for _ in range(3)]
        for reader, writer in streams[:2]:
            writer.write(framed(API_VERSIONS))
            assert await answer(reader)
        assert await answer(streams[2][0]) == b""
        assert server.refused == 1
        for _, writer in streams:
            writer.close()

    run(body, connections_per_host=2)
    run(body, connections=2)
    run(body, unknown_connections=2, protocol=SecurityProtocol.SASL_PLAINTEXT)


def test_unauthenticated_connections_are_closed_in_time() -> None:
    async def body(server: GatewayServer, connect: Any) -> None:
        reader, writer = await connect()
        while True:
            writer.write(framed(API_VERSIONS))
            if not await answer(reader):
                break
            await asyncio.sleep(0.01)
        writer.close()

    run(body, authentication_s=0.3, protocol=SecurityProtocol.SASL_PLAINTEXT)


def test_only_the_authentication_is_answered_first() -> None:
    async def body(server: GatewayServer, connect: Any) -> None:
        for data in (struct.pack(">hhih", 3, 0, 7, -1) + bytes(4), struct.pack(">i", 200_000)):
            reader, writer = await connect()
            writer.write(framed(data) if len(data) > 4 else data)
            assert await answer(reader) == b""
            writer.close()

    run(body, protocol=SecurityProtocol.SASL_PLAINTEXT)


def test_a_defect_ends_one_connection(caplog: Any) -> None:
    async def body(server: GatewayServer, connect: Any) -> None:
        reader, writer = await connect()
        other_reader, other_writer = await connect()
        writer.write(framed(struct.pack(">hhih", 60, 0, 7, -1) + b"\0\0\0"))
        assert await answer(reader) == b""
        other_writer.write(framed(API_VERSIONS))
        assert await answer(other_reader)
        writer.close()
        other_writer.close()

    run(body)
    assert "the gateway failed" in caplog.text


def test_a_defect_at_a_produce_request_ends_its_connection(caplog: Any) -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(framed(struct.pack(">hhih", 0, 3, 7, -1) + b"\xff\xff\0\1" + bytes(8)))
        assert await asyncio.wait_for(answer(reader), 30) == b""
        writer.close()

    apis = {0: ServedApi(Api("Produce", 0, 3, 12), failing)}
    with_apis(body, apis, Limits(), SecurityProtocol.PLAINTEXT)
    assert "the gateway failed at a PRODUCE request" in caplog.text


def test_a_waiting_request_ends_with_its_connection() -> None:
    async def body(server: GatewayServer, connect: Any) -> None:
        _, writer = await connect()
        writer.write(framed(struct.pack(">hhih", 1, 4, 7, -1) + bytes(17 + 4)))
        await WAITING.wait()
        writer.close()
        await asyncio.wait_for(ENDED.wait(), 30)

    run(body)


def test_a_waiting_request_ends_though_its_client_has_sent_more_than_is_read() -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        _, writer = await connect()
        writer.write(framed(struct.pack(">hhih", 1, 4, 7, -1) + bytes(17 + 4)))
        await begun.wait()
        writer.write(framed(API_VERSIONS) * (2 * AHEAD_BYTES // len(framed(API_VERSIONS))))
        await writer.drain()
        while not any(session._stream._is_paused for session in server._sessions):
            await asyncio.sleep(0.001)
        writer.close()
        await asyncio.wait_for(ended.wait(), 30)

    async def wait_for_ever(session: Session, request: Body, version: int) -> Body:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return {}

    begun, ended = asyncio.Event(), asyncio.Event()
    apis = {1: ServedApi(Api("Fetch", 1, 4, 12), wait_for_ever)}
    with_apis(body, apis, Limits(stall_s=0.2), SecurityProtocol.PLAINTEXT)


def test_a_produce_request_that_waits_for_the_broker_ends_with_its_connection() -> None:
    begun = ended = 0

    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        _, writer = await connect()
        for _ in range(3):
            writer.write(framed(struct.pack(">hhih", 0, 3, 7, -1) + b"\xff\xff\0\1" + bytes(8)))
        while begun < 3:
            await asyncio.sleep(0.001)
        writer.close()
        while server._sessions:
            await asyncio.sleep(0.01)
        assert ended == begun == 3

    async def wait_for_acks(session: Session, request: Body, version: int) -> Body:
        nonlocal begun, ended
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1
        return {}

    apis = {0: ServedApi(Api("Produce", 0, 3, 12), wait_for_acks)}
    with_apis(body, apis, Limits(), SecurityProtocol.PLAINTEXT)


def test_a_request_that_has_arrived_takes_effect_though_its_client_has_gone() -> None:
    """A consumer that is interrupted sends LEAVE_GROUP, and closes the connection before the answer to a heartbeat."""
    begun, left = asyncio.Event(), asyncio.Event()

    async def answer_late(session: Session, request: Body, version: int) -> Body:
        begun.set()
        while not session._stream._is_lost:
            await asyncio.sleep(0)
        return {"error_code": 0, "api_keys": []}

    async def leave(session: Session, request: Body, version: int) -> Body:
        left.set()
        return {"error_code": 0}

    async def body(server: GatewayServer, _: object, connect: Any) -> None:
        _, writer = await connect()
        writer.write(framed(API_VERSIONS) + framed(struct.pack(">hhih", 13, 0, 7, -1) + b"\0\1g" + b"\0\1m"))
        await begun.wait()
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()
        await asyncio.wait_for(left.wait(), 30)

    apis = {
        18: ServedApi(Api("ApiVersions", 18, 0, 4), answer_late),
        13: ServedApi(Api("LeaveGroup", 13, 0, 5), leave),
    }
    with_apis(body, apis, Limits(), SecurityProtocol.PLAINTEXT)


def test_produced_records_reach_the_broker_though_their_client_has_gone() -> None:
    async def body(server: GatewayServer, connect: Any) -> None:
        _, writer = await connect()
        writer.write(framed(struct.pack(">hhih", 0, 3, 7, -1) + b"\xff\xff\0\1" + bytes(8)))
        writer.close()
        await asyncio.wait_for(SENT.wait(), 30)

    run(body)
