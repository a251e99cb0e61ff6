"""Requests to another broker on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sparklog.errors import BrokerNotAvailableError, RequestTimedOutError
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog_broker.cluster.secure_connect import SecureConnect
from sparklog_broker.cluster.stream_exchange import InSpoken, StreamExchange, Streams
from sparklog_broker.config import parse_address

M = TypeVar("M", bound=Message)

Connect = Callable[[str, int], Awaitable[Streams]]
"""Opens a stream to a host and port. Simulations have their own."""

CONNECT_TIMEOUT_S = 5.0


class Peer:
    """A connection to another broker at one address. It carries one request at a time; other requests wait. It is
    opened for the first request. A failure closes the connection, and the next request opens another connection.
    """

    def __init__(self, address: str, connect: Connect = asyncio.open_connection) -> None:
        self.address = address
        self._connect = connect
        self._exchange: StreamExchange | None = None
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
                    self._close_if_worn_out()
                    exchange = self._exchange or await self._open()
                    return await exchange.ask(api, message, response)
            except TimeoutError as e:
                self.close()
                raise RequestTimedOutError(f"{self.address} has not answered {api.name} within {timeout_s} s") from e
            except (OSError, EOFError) as e:
                self.close()
                raise BrokerNotAvailableError(f"no connection to the broker at {self.address}: {e}") from e
            finally:
                self._close_if_worn_out()

    def close(self) -> None:
        """Close the connection. A second call has no effect."""
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def _close_if_idle(self) -> None:
        if not self._turn.locked():
            self.close()

    def _close_if_worn_out(self) -> None:
        """Close a connection on which no further request can be sent, or which `SecureConnect` wants to replace."""
        exchange, connect = self._exchange, self._connect
        if exchange is None:
            return
        if not exchange.is_usable or (isinstance(connect, SecureConnect) and connect.is_due(exchange.writer)):
            self.close()

    async def _open(self) -> StreamExchange:
        """Connect and shake hands. Raises as `request`."""
        if not self.address:
            raise BrokerNotAvailableError("the broker is not registered, so its address is unknown")
        host, port = parse_address(self.address, "endpoint")
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            streams = await self._connect(host, port)
        exchange = self._exchange = StreamExchange(streams, f"the broker at {self.address}")
        if isinstance(self._connect, SecureConnect):
            self._connect.close_when_idle(exchange.writer, self._close_if_idle)
        try:
            await exchange.shake_hands()
        except BaseException:
            self.close()
            raise
        return exchange
