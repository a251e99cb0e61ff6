"""A gateway without a broker, with handlers of the test, on a real socket."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from sparklog.gateway.gateway import Gateway
from sparklog.gateway.limits import Limits
from sparklog.gateway.server import GatewayServer
from sparklog.gateway.session import ServedApi
from sparklog.security.listeners import Listener, SecurityProtocol


def with_apis(
    body: Callable[[GatewayServer, Gateway, Any], Awaitable[None]],
    apis: dict[int, ServedApi],
    limits: Limits,
    protocol: SecurityProtocol,
) -> None:
    """Run `body` with a gateway that serves `apis`; `connect` opens a client's streams. At the end the gateway holds no
    memory."""

    async def main() -> None:
        gateway = Gateway(limits=limits)
        sock = socket.create_server(("127.0.0.1", 0))
        server = GatewayServer(gateway, apis, [(Listener("L", "127.0.0.1", 0, protocol), sock)])
        server.start()

        async def connect(limit: int = 64 * 1024) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection(*sock.getsockname(), limit=limit)

        try:
            await body(server, gateway, connect)
        finally:
            await server.stop()
            gateway.close()
        assert gateway.memory.used_bytes == 0

    asyncio.run(asyncio.wait_for(main(), 60))


def framed(data: bytes) -> bytes:
    """Return the frame of a request."""
    return struct.pack(">i", len(data)) + data


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Read an answer; empty: the connection has ended."""
    try:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return b""
