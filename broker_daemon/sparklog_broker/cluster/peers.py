"""Requests to another broker on one connection."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from sparklog.errors import BrokerNotAvailableError, RequestTimedOutError
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog_broker.cluster.peer_connection import Connect, InSpoken, PeerConnection
from sparklog_broker.cluster.secure_connect import SecureConnect
from sparklog_broker.config import parse_address

M = TypeVar("M", bound=Message)

CONNECT_TIMEOUT_S = 5.0


class Peer:
    """A connection to another broker at one address. It carries one request at a time; other requests wait. It is
    opened for the first request. A failure closes the connection, and the next request opens another connection.
    """

    def __init__(self, address: str, connect: Connect) -> None:
        self.address = address
        self._connect = connect
        self._connection: PeerConnection | None = None
        self._turn = asyncio.Lock()

    async def request(
        self, api: Api, message: Message | InSpoken, response: type[M], *, timeout_s: float
    ) -> tuple[M, memoryview]:
        """Return the reply and its payload.

        Raises the peer's error, BrokerNotAvailableError (no connection, a broken connection, or no known address),
        RequestTimedOutError, UnsupportedVersionError, UnsupportedApiError, InvalidRequestError (the received bytes are
        not a reply), and the errors of `SecureConnect`.
        """
        async with self._turn:
            try:
                async with asyncio.timeout(timeout_s):
                    self._close_if_worn_out()
                    connection = self._connection or await self._open()
                    return await connection.ask(api, message, response)
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
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _close_if_idle(self) -> None:
        if not self._turn.locked():
            self.close()

    def _close_if_worn_out(self) -> None:
        """Close a connection on which no further request can be sent, or which `SecureConnect` wants to replace."""
        connection, connect = self._connection, self._connect
        if connection is None:
            return
        if not connection.is_usable or (isinstance(connect, SecureConnect) and connect.is_due(connection)):
            self.close()

    async def _open(self) -> PeerConnection:
        """Connect and shake hands. Raises as `request`."""
        if not self.address:
            raise BrokerNotAvailableError("the broker is not registered, so its address is unknown")
        host, port = parse_address(self.address, "endpoint")
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connection = self._connection = await self._connect(host, port)
        if isinstance(self._connect, SecureConnect):
            self._connect.close_when_idle(connection, self._close_if_idle)
        try:
            await connection.shake_hands()
        except BaseException:
            self.close()
            raise
        return connection
