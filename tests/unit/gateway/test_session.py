"""A client's connection: limits of size, time and memory, and the order of answers."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from sparklog.gateway.gateway import Gateway
from sparklog.gateway.limits import Limits, MemoryBudget
from sparklog.gateway.server import GatewayServer
from sparklog.gateway.session import ServedApi, Session
from sparklog.gateway.wire.apis import Api
from sparklog.gateway.wire.codec import Body
from sparklog.security.listeners import Listener, SecurityProtocol

API_VERSIONS = struct.pack(">hhih", 18, 0, 7, -1)


async def versions(session: Session, request: Body, version: int) -> Body:
    return {"error_code": 0, "api_keys": []}


async def failing(session: Session, request: Body, version: int) -> Body:
    raise RuntimeError("a defect")


APIS = {18: ServedApi(Api("ApiVersions", 18, 0, 4), versions), 60: ServedApi(Api("DescribeCluster", 60, 0, 2), failing)}


def with_gateway(
    body: Callable[[GatewayServer, Any], Awaitable[None]], limits: Limits, protocol: SecurityProtocol
) -> None:
    """Runs `body` with a gateway that has no broker; `connect` opens a client's streams."""

    async def main() -> None:
        gateway = Gateway(limits=limits)
        sock = socket.create_server(("127.0.0.1", 0))
        server = GatewayServer(gateway, APIS, [(Listener("L", "127.0.0.1", 0, protocol), sock)])
        await server.start()

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection(*sock.getsockname())

        try:
            await body(server, connect)
        finally:
            await server.stop()
        assert gateway.memory.used == 0

    asyncio.run(asyncio.wait_for(main(), 60))


def run(body: Any, *, protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT, **limits: Any) -> None:
    with_gateway(body, Limits(**limits), protocol)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


async def answer(reader: asyncio.StreamReader) -> bytes:
    """An answer; empty: the connection has ended."""
    try:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return b""


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


def test_memory_is_granted_in_the_order_of_requests() -> None:
    async def main() -> None:
        memory, order = MemoryBudget(100), []

        async def take(name: str, size: int) -> None:
            await memory.take(size)
            order.append(name)

        await take("first", 80)
        waiting = [asyncio.create_task(take(name, size)) for name, size in (("large", 90), ("small", 5))]
        await asyncio.sleep(0)
        assert order == ["first"], "a small request does not overtake a large one"
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        memory.free(80)
        await waiting[1]
        assert order == ["first", "small"] and memory.used == 5
        memory.free(5)
        await memory.take(1_000)  # more than there is, when all is free
        assert memory.used == 1_000

    asyncio.run(main())
