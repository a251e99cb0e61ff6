"""Connections between brokers over a simulated network.

One `write` is one message, which the other broker gets as a whole. So it sees a partial frame only if the connection
ends between two writes of that frame.
"""

from __future__ import annotations

import asyncio

from sparklog_broker.cluster.peer_connection import KEPT_BYTES_MAX, Connect, PeerConnection
from sparklog_broker.network.receive_buffers import SharedBuffers

from sparklog.testing._sim_loop import SimLoop
from sparklog.testing._sim_net import SimConnection, SimNet


class SimTransport(asyncio.Transport):
    """The methods of asyncio's transport that `PeerConnection` uses."""

    def __init__(self, loop: SimLoop, connection: SimConnection, protocol: PeerConnection) -> None:
        super().__init__()
        self._loop = loop
        self._connection = connection
        self._protocol = protocol
        connection.on_message = self._feed
        connection.on_lost = lambda: protocol.connection_lost(None)

    def _feed(self, message: bytes) -> None:
        position = 0
        while position < len(message) and self._connection.is_open:
            view = self._protocol.get_buffer(-1)
            size = min(len(view), len(message) - position)
            view[:size] = message[position : position + size]
            position += size
            self._protocol.buffer_updated(size)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.send(bytes(data))

    def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


def connection_opener(net: SimNet, loop: SimLoop, from_host: str) -> Connect:
    """Return the function that opens connections for the process of `loop` on `from_host`. The function raises
    ConnectionRefusedError."""
    buffers = SharedBuffers(KEPT_BYTES_MAX)

    async def connect(host: str, port: int) -> PeerConnection:
        await asyncio.sleep(net.delay_s())
        connection = net.connect(loop, from_host, host)
        protocol = PeerConnection(f"the broker at {host}", buffers)
        protocol.connection_made(SimTransport(loop, connection, protocol))
        return protocol

    return connect
