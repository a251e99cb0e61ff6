"""A listening socket that accepts connections on the event loop, each with the TLS context that is current then.

An `asyncio.Server` has one context for its life. If it is closed because of another context, a connection that it has
accepted in the same turn of the event loop stays open and is never served, without an error.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from sparklog.security.tls import RenewedContext

log = logging.getLogger(__name__)

BACKLOG = 1024
RETRY_S = 1.0
"""Pause in s after an error of the system, such as too many open descriptors."""


class ListeningSocket:
    """A listening socket and its connections whose handshake is not over. Event-loop thread only."""

    def __init__(
        self,
        sock: socket.socket,
        create_protocol: Callable[[], asyncio.BaseProtocol],
        context: RenewedContext | None = None,
        *,
        handshake_s: float | None = None,
    ) -> None:
        """`sock`: a bound socket, which its owner closes. `create_protocol`: called for each connection. `context`:
        None for connections without TLS. `handshake_s`: longest time in s for a TLS handshake; None: asyncio's."""
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._create_protocol = create_protocol
        self._context = context
        self._handshake_s = handshake_s if context is not None else None
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._watch()

    def close(self) -> None:
        """Stop accepting, and end the connections whose handshake is not over."""
        self._loop.remove_reader(self._sock)
        if self._retry is not None:
            self._retry.cancel()
        for task in self._opening:
            task.cancel()

    def _watch(self) -> None:
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        """Accept the waiting connections, at most BACKLOG of them in a turn of the event loop."""
        for _ in range(BACKLOG):
            try:
                client, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                log.warning("no connection can be accepted now: %s", e)
                self._loop.remove_reader(self._sock)
                self._retry = self._loop.call_later(RETRY_S, self._watch)
                return
            task = self._loop.create_task(self._open(client))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, client: socket.socket) -> None:
        client.setblocking(False)
        context = None if self._context is None else self._context.current
        try:
            await self._loop.connect_accepted_socket(
                self._create_protocol, client, ssl=context, ssl_handshake_timeout=self._handshake_s
            )
        except OSError as e:  # of the TLS handshake
            log.debug("a connection has ended before it was open: %s", e)
