"""The listeners of the schema registry: they accept connections, and limit their number."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from sparklog.gateway.gateway import Gateway
from sparklog.gateway.listening import ListeningSocket
from sparklog.gateway.rest.http_session import READ_BYTES, HttpSession
from sparklog.gateway.rest.service import SchemaService
from sparklog.gateway.rest.subject_topics import SubjectTopics
from sparklog.security.listeners import Listener
from sparklog.security.tls import RenewedContext

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 1_000
CONNECTIONS_PER_HOST_MAX = 250
BODIES_MAX = 16
"""Large bodies that are received at once."""
STOP_S = 5.0


class RestServer:
    """The server of the schema registry. Event-loop thread only."""

    def __init__(
        self,
        gateway: Gateway,
        sockets: Sequence[tuple[Listener, socket.socket]],
        contexts: Mapping[str, RenewedContext],
    ) -> None:
        """`sockets`: listeners with their bound sockets. `contexts`: TLS by the listeners' names."""
        self._gateway = gateway
        self._sockets = list(sockets)
        self._contexts = dict(contexts)
        self._service = SchemaService(
            gateway.registry, SubjectTopics(gateway.topics, changes_topics=gateway.creates_typed_topics)
        )
        self._listening: list[ListeningSocket] = []
        self._bodies = asyncio.Semaphore(BODIES_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._hosts: Counter[str] = Counter()

    def start(self) -> None:
        """Start to accept connections. Raises OSError."""
        for listener, sock in self._sockets:
            create = partial(self._protocol, listener)
            self._listening.append(ListeningSocket(sock, create, self._contexts.get(listener.name)))

    def _protocol(self, listener: Listener) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(READ_BYTES), partial(self._accept, listener))

    def _accept(self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = HttpSession(self._gateway, self._service, listener, self._bodies, reader, writer)
        host = session.peer_host
        if len(self._tasks) >= CONNECTIONS_MAX or self._hosts[host] >= CONNECTIONS_PER_HOST_MAX:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._run(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, session: HttpSession) -> None:
        self._hosts[session.peer_host] += 1
        try:
            await session.run()
        except Exception:
            log.exception("%s: the schema registry failed; disconnecting", session.peer_host)
        finally:
            self._hosts -= Counter([session.peer_host])

    async def stop(self) -> None:
        """Stop accepting, and close all connections."""
        for listening in self._listening:
            listening.close()
        for _, sock in self._sockets:
            sock.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)
