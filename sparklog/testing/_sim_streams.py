"""Streams over a simulated network, for code that needs a function like `asyncio.open_connection`.

One `write` is one message, which the reader gets as a whole. So a peer sees a partial frame only if the connection ends
between two writes of that frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sparklog.testing._sim_loop import SimLoop
from sparklog.testing._sim_net import SimConnection, SimNet


class SimWriter:
    """The methods of `asyncio.StreamWriter` that the product uses."""

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
    """Return a function like `asyncio.open_connection` for the process of `loop` on `from_host`. The function raises
    ConnectionRefusedError."""

    async def connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        await asyncio.sleep(net.delay_s())
        connection = net.connect(loop, from_host, host)
        reader = asyncio.StreamReader(limit=2**30, loop=loop)
        connection.on_message = reader.feed_data
        connection.on_lost = reader.feed_eof
        return reader, SimWriter(connection)  # type: ignore[return-value]

    return connect
