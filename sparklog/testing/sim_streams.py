"""Streams over a simulated network, for code that takes a function like `asyncio.open_connection`.

Each `write` is one message, and each message that arrives is fed whole: a peer sees partial frames only when the
connection ends, as on a network whose segments are large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sparklog.testing.sim_loop import SimLoop
from sparklog.testing.sim_net import SimConnection, SimNet


class SimWriter:
    """The used part of `asyncio.StreamWriter`."""

    def __init__(self, connection: SimConnection) -> None:
        self._connection = connection

    def write(self, data: bytes) -> None:
        self._connection.send(bytes(data))

    async def drain(self) -> None:
        if not self._connection.is_open:
            raise ConnectionResetError("the connection is closed")

    def close(self) -> None:
        self._connection.close()


def stream_opener(
    net: SimNet, loop: SimLoop, from_host: str
) -> Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Return a replacement of `asyncio.open_connection` for the process of `loop` on `from_host`. Raises
    ConnectionRefusedError."""

    async def connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        await asyncio.sleep(net.delay_s())
        connection = net.connect(loop, from_host, host)
        reader = asyncio.StreamReader(limit=2**30, loop=loop)
        connection.on_message = reader.feed_data
        connection.on_lost = reader.feed_eof
        return reader, SimWriter(connection)  # type: ignore[return-value]

    return connect
