"""One connection to the broker, in sparklog's protocol, on an event loop.

Requests are sent at the call, and answers come in the same order. Each connection of a Kafka client has its own
`BrokerConnection`, so that the broker knows the client's principal and keeps the order of the client's requests.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparklog.client.net.paging import Page, PageRequests
from sparklog.environment.memory_budget import MemoryBudget
from sparklog.errors import BrokerNotAvailableError, FrameTooLargeError, SparklogError
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.exchange import Exchange
from sparklog.protocol.frames import PREFIX_BYTES, ResponsePrefix
from sparklog.protocol.gateway import OnBehalf, encode_preamble
from sparklog.protocol.local_socket import enlarge_send_buffer
from sparklog.protocol.messages import HandshakeRequest, HandshakeResponse
from sparklog.version import __version__

CLIENT_NAME = "sparklog-kafka-gateway"
CONNECT_TIMEOUT_S = 10.0
NO_CLIENT = OnBehalf("127.0.0.1", 0, "127.0.0.1", 0)
"""The client in the preamble of the gateway's own connection, which asks for the broker's id."""
HELD_BYTES_MIN = 64 * 1024
"""Size in bytes from which an answer takes memory of the gateway's budget, until `release`."""

DECODED_BYTES_PER_BYTE = 16
"""Assumed memory of an answer's decoded form, and of the client's answer that is made of it, for each received byte."""
SMALL_PART_BYTES = 16 * 1024
"""Parts of a large payload below this size in bytes are joined, so that thousands of them are not sent one by one."""
JOINED_BYTES_MAX = 64 * 1024
"""Largest payload in bytes that is joined with the request's head before it is sent."""

M = TypeVar("M", bound=Message)
P = TypeVar("P", bound=Page)
Part = bytes | bytearray | memoryview


class BrokerPlace(NamedTuple):
    """The address of the gateway's broker."""

    host: str
    port: int
    local_socket: str = ""
    """Name of the broker's abstract Unix socket; "": the connection uses TCP."""
    context: ssl.SSLContext | None = None
    """TLS for TCP; None: the broker's listener does not encrypt."""
    takes_preamble: bool = False
    """True for the Unix sockets that the broker has created for this gateway."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Waiting(NamedTuple):
    """The caller that waits for a response."""

    response: type[Message]
    answer: asyncio.Future[tuple[Any, memoryview]]


class BrokerConnection(asyncio.BufferedProtocol):
    """A connection to the broker, created by `connect`. Event-loop thread only. The body of an answer is received
    directly into memory of its size."""

    def __init__(self, place: BrokerPlace, memory: MemoryBudget) -> None:
        self.place = place
        self.broker: HandshakeResponse
        self._memory = memory
        self.held_bytes = 0
        """Bytes of the budget that answers hold until `release`."""
        self._exchange: Exchange[_Waiting] = Exchange(f"the broker at {place}")
        self._failure: SparklogError | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection has failed or was closed."""
        self._transport: asyncio.Transport
        self._prefix: ResponsePrefix | None = None
        self._view = memoryview(bytearray(PREFIX_BYTES))
        self._received = 0
        self.written_bytes = 0
        """Bytes of all requests so far."""
        self._waiting: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def connect(
        cls,
        place: BrokerPlace,
        memory: MemoryBudget,
        client_id: str = "",
        client: OnBehalf | None = None,
        *,
        gateway: str = "",
    ) -> BrokerConnection:
        """Connect and send the HANDSHAKE. `client_id`: name of the client for quotas and logs; "": none. `client`: the
        client of a preamble; None for NO_CLIENT. Without a preamble it is not used. `gateway`: name of a gateway that
        was started by hand; "" for the broker's own gateway. Raises BrokerNotAvailableError and SparklogError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if place.local_socket:
                    _, connection = await loop.create_unix_connection(
                        lambda: cls(place, memory), f"\0{place.local_socket}"
                    )
                    enlarge_send_buffer(connection._transport.get_extra_info("socket"))
                    if place.takes_preamble:
                        connection._transport.write(encode_preamble(client or NO_CLIENT))
                else:
                    _, connection = await loop.create_connection(
                        lambda: cls(place, memory), place.host, place.port, ssl=place.context
                    )
                try:
                    await connection.shake_hands(client_id, gateway)
                except BaseException:
                    connection.close()
                    raise
                return connection
        except (OSError, TimeoutError) as e:
            raise BrokerNotAvailableError(f"no broker at {place} ({e or type(e).__name__})") from e

    async def shake_hands(self, client_id: str, gateway: str = "") -> None:
        """Send the HANDSHAKE, and keep the broker's identity and versions. Raises as `request`."""
        name = self._transport.get_extra_info("sockname")
        own = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""
        hello = HandshakeRequest(CLIENT_NAME, __version__, own, client_id, gateway)
        self.broker, _ = await self.request(Api.HANDSHAKE, hello, HandshakeResponse)

    # --- requests

    @property
    def closed(self) -> bool:
        """True if the connection has failed or was closed, so that no request can be sent."""
        return self._failure is not None

    async def request(
        self, api: Api, message: Message, response: type[M], payload: Sequence[Part] = ()
    ) -> tuple[M, memoryview]:
        """Send a request and wait for its answer. Returns the decoded header and the payload. Raises the broker's
        error, or an error of `send`."""
        return await self.send(api, message, response, payload)

    async def ask(self, api: Api, message: Message, response: type[M]) -> M:
        """Send a request whose answer has no payload, and wait for the answer. Raises as `request`."""
        return (await self.send(api, message, response))[0]

    async def pages(
        self, api: Api, request: M, response: type[P], following: Callable[[P], Mapping[str, object]]
    ) -> AsyncIterator[P]:
        """Yield the pages of a long answer; `following` as for `PageRequests`. Raises as `request`, and
        InvalidRequestError for a broker whose pages do not end."""
        requests: PageRequests[M, P] = PageRequests(following)
        kind: Any = response
        current: M | None = request
        while current is not None:
            page: P = await self.ask(api, current, kind)
            current = requests.after(current, page)
            yield page

    def send(
        self, api: Api, message: Message, response: type[M], payload: Sequence[Part] = ()
    ) -> asyncio.Future[tuple[M, memoryview]]:
        """Send a request. The returned future has its answer or the broker's error. Raises UnsupportedApiError,
        UnsupportedVersionError, or, on a closed connection, the error that has ended it."""
        self._check_open()
        answer: asyncio.Future[tuple[M, memoryview]] = asyncio.get_running_loop().create_future()
        size = sum(map(len, payload))
        try:
            head = self._exchange.send(api, message, _Waiting(response, answer), size)
        except FrameTooLargeError as e:  # the outcome of this request, as if the broker had refused it
            answer.set_exception(e)
        else:
            self._write(head, payload, size)
        return answer

    def send_unanswered(self, api: Api, message: Message, payload: Sequence[Part] = ()) -> None:
        """Send a request without an answer (acks 0). Raises as `send`."""
        self._check_open()
        size = sum(map(len, payload))
        self._write(self._exchange.send_unanswered(api, message, size), payload, size)

    @property
    def is_paused(self) -> bool:
        """True while the transport holds too much data that the broker has not taken."""
        return not self._writable.is_set()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the transport holds."""
        return self._transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait while the transport holds too much data that the broker has not taken."""
        await self._writable.wait()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _write(self, head: bytes, payload: Sequence[Part], size: int) -> None:
        self.written_bytes += size
        if size > JOINED_BYTES_MAX:
            small: list[Part] = [head]
            for part in payload:
                if len(part) >= SMALL_PART_BYTES:
                    self._transport.write(b"".join(small))
                    self._transport.write(part)
                    small.clear()
                else:
                    small.append(part)
            self._transport.write(b"".join(small))
        else:
            self._transport.write(b"".join((head, *payload)))

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
            if self._prefix is None:
                self._on_prefix(self._exchange.read_prefix(self._view))
            else:
                self._on_body(self._prefix, self._view)
        except SparklogError as e:
            self._fail(e)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended; called by asyncio."""
        reason = exc or "it has ended"
        self._fail(BrokerNotAvailableError(f"the connection to the broker at {self.place} broke: {reason}"))

    def pause_writing(self) -> None:
        """Pause writing, because the transport holds much data that the broker has not taken."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Resume writing, because the broker has taken enough data."""
        self._writable.set()

    # --- answers

    def _on_prefix(self, prefix: ResponsePrefix) -> None:
        self._prefix = prefix
        if prefix.body_bytes > HELD_BYTES_MIN:
            self._transport.pause_reading()
            self._waiting = asyncio.get_running_loop().create_task(self._wait_for_memory(prefix))
        elif prefix.body_bytes:
            self._expect(prefix.body_bytes)
        else:
            self._on_body(prefix, memoryview(b""))

    async def _wait_for_memory(self, prefix: ResponsePrefix) -> None:
        size = prefix.body_bytes * (1 if prefix.api == Api.FETCH else DECODED_BYTES_PER_BYTE)
        await self._memory.acquire(self, size)
        self.held_bytes += size
        if self._failure is not None:
            self.release()
            return
        self._expect(prefix.body_bytes)
        self._transport.resume_reading()

    def _expect(self, size: int) -> None:
        self._view = np.empty(size, np.uint8).data  # not filled with zeros
        self._received = 0

    def _on_body(self, prefix: ResponsePrefix, body: memoryview) -> None:
        self._prefix = None
        self._expect(PREFIX_BYTES)
        response = self._exchange.read_header(body[: prefix.header_bytes])
        answer = response.request.note.answer
        if answer.done():
            return
        try:
            answer.set_result((response.result(response.request.note.response), body[prefix.header_bytes :]))
        except SparklogError as e:
            answer.set_exception(e)

    def release(self) -> None:
        """Give back the memory that answers took from the budget, after the client's answer is encoded."""
        held, self.held_bytes = self.held_bytes, 0
        if held:
            self._memory.release(self, held)

    def _fail(self, error: SparklogError) -> None:
        self._failure = self._failure or error
        if not self.ended.done():
            self.ended.set_result(None)
        self._transport.abort()
        self._writable.set()
        if self._waiting is not None:
            self._waiting.cancel()
        while self._exchange.pending:
            answer = self._exchange.pending.popleft().note.answer
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # a client that has gone asks for no outcome

    def close(self) -> None:
        """Close the connection. Requests that wait for answers fail."""
        self._fail(BrokerNotAvailableError(f"the connection to the broker at {self.place} is closed"))
        self.release()
