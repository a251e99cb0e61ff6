"""Requests to another broker on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sparklog.errors import BrokerNotAvailableError, InvalidRequestError, RequestTimedOutError, error_from_code
from sparklog.protocol import frames
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import decode_error, decode_response, encode
from sparklog.protocol.messages import HandshakeRequest, HandshakeResponse
from sparklog.protocol.negotiation import HANDSHAKE_ONLY, SpokenVersions
from sparklog.version import __version__
from sparklog_broker.cluster.secure_connect import SecureConnect
from sparklog_broker.config import parse_address

M = TypeVar("M", bound=Message)

InSpoken = Callable[[SpokenVersions], Message]
"""Returns a request that depends on the versions that the other broker supports."""

Connect = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens a stream to a host and port. Simulations have their own."""


def is_due(connect: Connect, writer: asyncio.StreamWriter) -> bool:
    """True if a connection that `connect` has opened should be replaced."""
    return isinstance(connect, SecureConnect) and connect.is_due(writer)


CLIENT_NAME = "sparklog-broker"
CONNECT_TIMEOUT_S = 5.0


class Peer:
    """A connection to another broker at one address. It carries one request at a time; other requests wait. It is
    opened for the first request. A failure closes the connection, and the next request opens another connection.
    """

    def __init__(self, address: str, connect: Connect = asyncio.open_connection, *, answer_bytes_max: int) -> None:
        self.address = address
        self._connect = connect
        self._answer_bytes_max = answer_bytes_max
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._spoken = HANDSHAKE_ONLY
        self._next_id = 0
        self._is_torn = False
        self._turn = asyncio.Lock()

    async def request(
        self, api: Api, message: Message | InSpoken, response: type[M], *, timeout_s: float
    ) -> tuple[M, bytes]:
        """Return the reply and its payload.

        Raises the peer's error, BrokerNotAvailableError (no connection, a broken connection, or no known address),
        RequestTimedOutError, UnsupportedVersionError, UnsupportedApiError, InvalidRequestError (the received bytes are
        not a reply), and the errors of `SecureConnect`.
        """
        async with self._turn:
            try:
                async with asyncio.timeout(timeout_s):
                    if self._streams is not None and is_due(self._connect, self._streams[1]):
                        self.close()
                    if self._streams is None:
                        await self._open()
                    return await self._exchange(api, message, response)
            except TimeoutError as e:
                self.close()
                raise RequestTimedOutError(f"{self.address} has not answered {api.name} within {timeout_s} s") from e
            except (OSError, EOFError) as e:
                self.close()
                raise BrokerNotAvailableError(f"no connection to the broker at {self.address}: {e}") from e
            finally:
                if self._is_torn or (
                    self._streams is not None and is_due(self._connect, self._streams[1])
                ):  # a request was interrupted: its reply may still arrive
                    self.close()

    def close(self) -> None:
        """Close the connection. A second call has no effect."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        self._is_torn = False

    def _close_if_idle(self) -> None:
        if not self._turn.locked():
            self.close()

    async def _open(self) -> None:
        if not self.address:
            raise BrokerNotAvailableError("the broker is not registered, so its address is unknown")
        host, port = parse_address(self.address, "endpoint")
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            self._streams = await self._connect(host, port)
        if isinstance(self._connect, SecureConnect):
            self._connect.close_when_idle(self._streams[1], self._close_if_idle)
        self._spoken = HANDSHAKE_ONLY
        hello = HandshakeRequest(CLIENT_NAME, __version__, "")
        answer, _ = await self._exchange(Api.HANDSHAKE, hello, HandshakeResponse)
        self._spoken = SpokenVersions(answer.apis, f"the broker at {self.address} (sparklog {answer.broker_version})")

    async def _exchange(self, api: Api, message: Message | InSpoken, response: type[M]) -> tuple[M, bytes]:
        assert self._streams is not None
        reader, writer = self._streams
        version = self._spoken.version_of(api)
        header = encode(message if isinstance(message, Message) else message(self._spoken), version.older)
        self._is_torn = True  # until the whole reply has been read
        self._next_id = (self._next_id + 1) & 0xFFFF_FFFF
        writer.write(frames.encode_request(api, version.number, self._next_id, header))
        await writer.drain()
        prefix = frames.decode_response_prefix(await reader.readexactly(frames.PREFIX_BYTES), self._answer_bytes_max)
        body = await reader.readexactly(prefix.body_bytes)
        if prefix.api != api or prefix.correlation_id != self._next_id:
            raise InvalidRequestError(f"{self.address} sent the response to another request than {api.name}")
        self._is_torn = False
        view = memoryview(body)
        if prefix.error_code:
            raise error_from_code(prefix.error_code, decode_error(view[: prefix.header_bytes]))
        return decode_response(api, view[: prefix.header_bytes], response), body[prefix.header_bytes :]
