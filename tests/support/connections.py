"""A connection over a socket pair, the frames sent to it, and a handler that answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sparklog_broker.counters.requests import RequestCounters
from sparklog_broker.network.connection import Connection, ConnectionLimits
from sparklog_broker.network.receive_buffers import ReceiveBuffers
from sparklog_broker.network.reply import Reply
from sparklog_broker.network.transport import PlainTransport

from sparklog.environment.memory_budget import MemoryBudget
from sparklog.environment.send_backlog import SendBacklog
from sparklog.protocol.frames import (
    PREFIX_BYTES,
    RequestPrefix,
    decode_response_prefix,
    encode_request,
    encode_response,
)

MIB = 1024 * 1024
PATIENCE_S = 60.0


class FileRange:
    """A slice of a file that says whether it has been released."""

    def __init__(self, path: Path, position: int, length_bytes: int) -> None:
        self._file = path.open("rb")
        self.position = position
        self.length_bytes = length_bytes
        self.released = 0

    def fileno(self) -> int:
        return self._file.fileno()

    def release(self) -> None:
        self.released += 1
        self._file.close()


class Peer:
    """The client's end, and the connection under test."""

    def __init__(
        self, answer: Any, *, limits: ConnectionLimits | None = None, budget_bytes: int = 64 * MIB, **more: Any
    ) -> None:
        self.loop = asyncio.get_running_loop()
        ours, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.budget = more.pop("budget", MemoryBudget(budget_bytes))
        self.unread = more.pop("unread", SendBacklog(self.budget, 100, self.loop.time))
        self.closed: list[Connection] = []
        self.connection = Connection(
            more.pop("transport", PlainTransport)(ours, self.loop),
            loop=self.loop,
            answer=answer,
            limits=limits or ConnectionLimits(8 * MIB, 60.0, 60.0, 60.0),
            budget=self.budget,
            buffers=more.pop("buffers", ReceiveBuffers(16 * MIB)),
            unread=self.unread,
            requests=more.pop("requests", RequestCounters()),
            on_close=self.closed.append,
            **more,
        )

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.sock, data)

    async def receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = await self.loop.sock_recv(self.sock, count - len(data))
            if not more:
                raise EOFError(f"{len(data)} of {count} bytes")
            data += more
        return data

    async def response(self) -> tuple[int, int, bytes, bytes]:
        """Error code, correlation id, header, payload."""
        prefix = decode_response_prefix(await self.receive(PREFIX_BYTES), 1 << 31)
        body = await self.receive(prefix.body_bytes)
        return prefix.error_code, prefix.correlation_id, body[: prefix.header_bytes], body[prefix.header_bytes :]

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = self.loop.time() + PATIENCE_S
        while not condition():
            assert self.loop.time() < deadline, "the condition did not come true"
            await asyncio.sleep(0.001)

    async def at_end(self) -> bool:
        return await self.loop.sock_recv(self.sock, 1) == b""


@asynccontextmanager
async def peer(answer: Any, **options: Any) -> AsyncIterator[Peer]:
    p = Peer(answer, **options)
    try:
        yield p
    finally:
        p.connection.close()
        p.sock.close()
        await asyncio.sleep(0)
        assert "budget" in options or p.budget.used_bytes == 0, "every byte reserved is given back"
        assert p.closed == [p.connection]


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 30))


async def echo(prefix: RequestPrefix, body: memoryview, _: Connection) -> Reply:
    head, payload = bytes(body[: prefix.header_bytes]), bytes(body[prefix.header_bytes :])
    return Reply([encode_response(prefix.api, 0, prefix.correlation_id, head, len(payload)), payload])


def request(correlation_id: int, header: bytes = b"head", payload: bytes = b"payload") -> bytes:
    return encode_request(3, 0, correlation_id, header, len(payload)) + payload
