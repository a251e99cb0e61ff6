"""The gateway's listeners. They accept clients and limit the number of connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from sparklog.gateway.gateway import Gateway
from sparklog.gateway.listening import ListeningSocket
from sparklog.gateway.memory import LOOKS_PER_STALL
from sparklog.gateway.session import ServedApi, Session
from sparklog.gateway.stream import ClientStream
from sparklog.protocol.gateway import CLAIM_PING_S
from sparklog.security.listeners import Listener
from sparklog.security.tls import RenewedContext

log = logging.getLogger(__name__)

STOP_S = 5.0
UNSENT_BYTES = 256 * 1024
"""Bytes of answers that the kernel keeps for a client beyond those on their way. Otherwise it would take megabytes for
each client that does not read."""


def addresses_of(sockets: Sequence[tuple[Listener, socket.socket]]) -> list[str]:
    """Return the addresses of bound sockets as HOST:PORT."""
    addresses = []
    for _, sock in sockets:
        host, port = sock.getsockname()[:2]
        addresses.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return addresses


class GatewayServer:
    """The server of one gateway: its listeners and connections. Event-loop thread only."""

    def __init__(
        self,
        gateway: Gateway,
        apis: Mapping[int, ServedApi],
        sockets: Sequence[tuple[Listener, socket.socket]],
        contexts: Mapping[str, RenewedContext] | None = None,
    ) -> None:
        """`apis`: the served APIs by their numbers. `sockets`: listeners with their bound sockets. `contexts`: TLS by
        the listeners' names; a listener without an entry does not encrypt."""
        self._gateway = gateway
        self._apis = dict(apis)
        self._sockets = list(sockets)
        self._contexts = dict(contexts or {})
        self._listening: list[ListeningSocket] = []
        self._sessions: dict[Session, asyncio.Task[None]] = {}
        self._hosts: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        """Tasks that run until `stop`."""
        self.refused = 0
        """Number of connections that were closed at once because of a limit."""

    @property
    def addresses(self) -> list[str]:
        """Addresses of the listeners as HOST:PORT."""
        return addresses_of(self._sockets)

    def start(self) -> None:
        """Start to accept connections. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._watch()))
        if self._gateway.is_started_by_hand:
            self._tasks.append(loop.create_task(self._keep_claim()))
        for listener, sock in self._sockets:
            self._listening.append(
                ListeningSocket(
                    sock,
                    partial(ClientStream, partial(self._on_connected, listener)),
                    self._contexts.get(listener.name),
                    handshake_s=self._gateway.limits.authentication_s,
                )
            )

    def _on_connected(self, listener: Listener, stream: ClientStream) -> None:
        session = Session(self._gateway, listener, self._apis, stream)
        limits = self._gateway.limits
        unknown = 0 if session.is_identified else sum(not s.is_identified for s in self._sessions)
        if (
            len(self._sessions) >= limits.connections
            or self._hosts[session.peer_host] >= limits.connections_per_host
            or unknown >= limits.unknown_connections
        ):
            self.refused += 1
            stream.close()
            return
        sock = stream.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._sessions[session] = asyncio.get_running_loop().create_task(self._run(session))
        self._hosts[session.peer_host] += 1

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        except Exception:
            log.exception("%s: the gateway failed; disconnecting", session.peer_host)
        finally:
            del self._sessions[session]
            self._hosts[session.peer_host] -= 1
            if not self._hosts[session.peer_host]:
                del self._hosts[session.peer_host]

    async def _watch(self) -> None:
        """Disconnect slow clients while others wait for memory, and notice the ends of clients whose requests wait,
        until cancelled."""
        gateway = self._gateway
        while True:
            await asyncio.sleep(gateway.limits.stall_s / LOOKS_PER_STALL)
            gateway.slow_clients.check(lambda: list(self._sessions), gateway.clock_s())
            for session in list(self._sessions):
                session.look_for_end()

    async def _keep_claim(self) -> None:
        """Keep the gateway's claim on the broker every CLAIM_PING_S, until cancelled."""
        while True:
            await asyncio.sleep(CLAIM_PING_S)
            connections = (session.authenticated_connection for session in list(self._sessions))
            await self._gateway.keep_claim(one for one in connections if one is not None)

    async def stop(self) -> None:
        """Stop accepting, close all connections, and wait up to STOP_S for their sessions; then cancel them."""
        for task in self._tasks:
            task.cancel()
        for listening in self._listening:
            listening.close()
        for _, sock in self._sockets:
            sock.close()
        tasks = list(self._sessions.values())
        for session in list(self._sessions):
            session.end()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
