"""A connection to another broker, which carries one request after the other.

The body of a response is received directly into memory of its size. Large responses, those with batches for replicas,
get a buffer of an earlier response that is not in use any more: new memory costs a page fault per 4 KiB, about as much
as receiving into it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sparklog.errors import SparklogError
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.exchange import Exchange
from sparklog.protocol.frames import PREFIX_BYTES, ResponsePrefix
from sparklog.protocol.messages import HandshakeRequest, HandshakeResponse
from sparklog.protocol.negotiation import SpokenVersions
from sparklog.settings import MIB
from sparklog.version import __version__
from sparklog_broker.config import format_address
from sparklog_broker.network.receive_buffers import SharedBuffers

M = TypeVar("M", bound=Message)
InSpoken = Callable[[SpokenVersions], Message]
"""Returns a request that depends on the versions that the other broker supports."""
Response = tuple[Any, memoryview]
"""The decoded header and the payload."""

CLIENT_NAME = "sparklog-broker"
KEPT_BYTES_MAX = 32 * MIB
"""Memory for the responses of all connections that stays allocated, in bytes."""


class PeerConnection(asyncio.BufferedProtocol):
    """The transport of an `Exchange` with another broker. Event-loop thread only."""

    def __init__(self, place: str, buffers: SharedBuffers) -> None:
        """`place`: the other broker in errors."""
        self._buffers = buffers
        self._exchange: Exchange[tuple[type[Message], asyncio.Future[Response]]] = Exchange(place)
        self._transport: asyncio.Transport
        self._has_ended = False
        self._failure: Exception | None = None
        self._prefix: ResponsePrefix | None = None
        """Prefix of the response whose body is received; None: a prefix is received."""
        self._view = self._prefix_view = memoryview(bytearray(PREFIX_BYTES))
        self._received = 0
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def is_usable(self) -> bool:
        """True if the next request can be sent: no earlier request was interrupted, whose response may still arrive,
        and the other broker has sent no error after which it closes the connection."""
        return not self._exchange.pending and not self._has_ended

    async def shake_hands(self) -> None:
        """Agree on the versions of all APIs. Raises as `ask`."""
        await self.ask(Api.HANDSHAKE, HandshakeRequest(CLIENT_NAME, __version__, ""), HandshakeResponse)

    async def ask(self, api: Api, message: Message | InSpoken, response: type[M]) -> tuple[M, memoryview]:
        """Send a request, and return the response and its payload. Raises the other broker's error, the errors of
        `Exchange`, OSError and EOFError."""
        if self._failure is not None:
            raise self._failure
        request = message if isinstance(message, Message) else message(self._exchange.versions)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._transport.write(self._exchange.send(api, request, (response, answer)))
        try:
            await self._writable.wait()
            return await answer
        finally:
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # a caller that has given up asks for no outcome

    def close(self) -> None:
        """Close the connection. A request that waits fails with EOFError."""
        self._transport.close()

    # --- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the connection is open; called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes; called by asyncio."""
        return self._view[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes; called by asyncio."""
        self._received += nbytes
        if self._received < len(self._view):
            return
        try:
            if self._prefix is not None:
                self._on_body(self._prefix, self._view)
                return
            prefix = self._exchange.read_prefix(self._view)
            if prefix.body_bytes:
                self._prefix = prefix
                self._expect(self._buffers.take(prefix.body_bytes).data[: prefix.body_bytes])
            else:
                self._on_body(prefix, memoryview(b""))
        except (SparklogError, MemoryError) as e:  # the bytes are no response: the caller gets the reason
            self._fail(e)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended; called by asyncio."""
        self._fail(exc or EOFError("the connection was closed"))

    def pause_writing(self) -> None:
        """Pause writing, because the transport holds much data that the other broker has not taken."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Resume writing, because the other broker has taken enough data."""
        self._writable.set()

    # --- responses

    def _expect(self, view: memoryview) -> None:
        self._view, self._received = view, 0

    def _on_body(self, prefix: ResponsePrefix, body: memoryview) -> None:
        self._prefix = None
        self._expect(self._prefix_view)
        received = self._exchange.read_header(body[: prefix.header_bytes])
        self._has_ended = received.ends_connection
        response, answer = received.request.note
        if answer.done():
            return  # the caller has given up
        try:
            answer.set_result((received.result(response), body[prefix.header_bytes :]))
        except SparklogError as e:
            answer.set_exception(e)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._has_ended = True
        self._writable.set()
        for pending in self._exchange.pending:
            _, answer = pending.note
            if not answer.done():
                answer.set_exception(error)


Connect = Callable[[str, int], Awaitable[PeerConnection]]
"""Opens a connection to a host and port. Simulations have their own."""


class PlainConnect:
    """Opens connections without TLS and authentication."""

    def __init__(self) -> None:
        self._buffers = SharedBuffers(KEPT_BYTES_MAX)

    async def __call__(self, host: str, port: int) -> PeerConnection:
        """Open a connection. Raises OSError."""
        return await open_connection(host, port, self._buffers)


async def open_connection(
    host: str, port: int, buffers: SharedBuffers, context: ssl.SSLContext | None = None
) -> PeerConnection:
    """Open a connection. `context`: TLS; None: plain text. Raises OSError."""
    place = f"the broker at {format_address(host, port)}"
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: PeerConnection(place, buffers),
        host,
        port,
        ssl=context,
        server_hostname=host if context is not None else None,
    )
    return connection
