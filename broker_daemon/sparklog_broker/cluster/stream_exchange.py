"""Requests to another broker on asyncio's streams, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.exchange import Exchange
from sparklog.protocol.frames import PREFIX_BYTES
from sparklog.protocol.messages import HandshakeRequest, HandshakeResponse
from sparklog.protocol.negotiation import SpokenVersions
from sparklog.version import __version__

M = TypeVar("M", bound=Message)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
InSpoken = Callable[[SpokenVersions], Message]
"""Returns a request that depends on the versions that the other broker supports."""

CLIENT_NAME = "sparklog-broker"


class StreamExchange:
    """The transport of an `Exchange` over a reader and a writer."""

    def __init__(self, streams: Streams, place: str) -> None:
        """`place`: the other broker in errors."""
        self.reader, self.writer = streams
        self._exchange: Exchange[None] = Exchange(place)
        self._has_ended = False

    @property
    def is_usable(self) -> bool:
        """True if the next request can be sent: no earlier request was interrupted, whose response may still arrive,
        and the other broker has sent no error after which it closes the connection."""
        return not self._exchange.pending and not self._has_ended

    async def shake_hands(self) -> None:
        """Agree on the versions of all APIs. Raises as `ask`."""
        await self.ask(Api.HANDSHAKE, HandshakeRequest(CLIENT_NAME, __version__, ""), HandshakeResponse)

    async def ask(self, api: Api, message: Message | InSpoken, response: type[M]) -> tuple[M, bytes]:
        """Send a request, and return the response and its payload. Raises the other broker's error, the errors of
        `Exchange`, OSError and EOFError."""
        exchange = self._exchange
        request = message if isinstance(message, Message) else message(exchange.versions)
        self.writer.write(exchange.send(api, request, None))
        await self.writer.drain()
        prefix = exchange.read_prefix(await self.reader.readexactly(PREFIX_BYTES))
        body = await self.reader.readexactly(prefix.body_bytes)
        answer = exchange.read_header(memoryview(body)[: prefix.header_bytes])
        self._has_ended = answer.ends_connection
        return answer.result(response), body[prefix.header_bytes :]

    def close(self) -> None:
        self.writer.close()
