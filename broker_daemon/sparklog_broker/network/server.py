"""Acceptance of connections on all listeners, and periodic checks of the connections' deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

from sparklog.environment.memory_budget import MemoryBudget
from sparklog.environment.partial_requests import PartialRequests
from sparklog.environment.send_backlog import SendBacklog
from sparklog.errors import InvalidConfigError, SparklogError, TooManyConnectionsError
from sparklog.protocol.local_socket import enlarge_send_buffer
from sparklog.security.connection_limits import ConnectionLimits, Connections
from sparklog.security.quotas import QuotaTable, canonical_ip
from sparklog.settings import MIB
from sparklog_broker import descriptors
from sparklog_broker.config import BrokerConfig
from sparklog_broker.counters.authentication import AuthenticationCounters
from sparklog_broker.counters.requests import RequestCounters
from sparklog_broker.network.connection import Addresses, Answer, Connection, State
from sparklog_broker.network.connection import ConnectionLimits as Limits
from sparklog_broker.network.listening import LISTEN, ListenError, OpenListener, bind_error_text
from sparklog_broker.network.preamble import read_preamble
from sparklog_broker.network.receive_buffers import ReceiveBuffers
from sparklog_broker.network.tls_handshake import SecuredSocket, TlsHandshake
from sparklog_broker.network.tls_transport import TlsTransport
from sparklog_broker.network.transport import PlainTransport, Transport

log = logging.getLogger(__name__)

ACCEPTS_PER_EVENT = 100
BACKLOG = 1024
ACCEPT_PAUSE_S = 0.5
ACCEPT_COMPLAINT_S = 60.0
"""Shortest time between two log lines about failed accepts, in s."""
SWEEP_S_MAX = 5.0
SWEEP_S_STOPPING = 0.1
SWEEPS_PER_TIMEOUT = 4
TLS_SHARE_OF_TIMEOUT = 1 / 3
"""Share of a peer's time for authentication that its TLS handshake is allowed to take."""
RECEIVE_BUFFERS_KEPT_BYTES = 32 * MIB
"""Memory of completed requests' buffers that is kept for later requests, in bytes."""


Greet = Callable[[Connection, OpenListener, bytes | None], None]
"""Called for each new connection before the first read, with its listener and the peer's certificate (DER; None
without)."""

LIMIT_SETTINGS = (
    "max.connections",
    "connections.max.idle.ms",
    "request.read.timeout.ms",
    "response.write.timeout.ms",
)
"""Settings that `Server.set_limits` applies."""


class Server:
    """Accepts connections on its listeners, and keeps the open connections. Event-loop thread only.

    `threads` encrypt and decrypt large amounts of data of TLS connections; the event loop does so for small amounts
    (`tls_transport.py`). `authentication_threads` run the TLS handshakes.
    """

    def __init__(
        self,
        listeners: Sequence[OpenListener],
        config: BrokerConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        answer: Answer,
        budget: MemoryBudget,
        requests: RequestCounters,
        threads: Executor | None = None,
        authentication_threads: Executor | None = None,
        authentication: AuthenticationCounters | None = None,
        greet: Greet = lambda connection, listener, certificate: None,
        peers: Connections | None = None,
        protected_listener: str | None = None,
        gateways: Sequence[OpenListener] = (),
    ) -> None:
        """`peers`: counts connections by address and user; None for no limits. `protected_listener`: the inter-broker
        listener, which is exempt from limits of number and rate. `gateways`: Unix sockets for this broker's gateways.
        """
        self.listeners = tuple(listeners)
        self._gateways = tuple(gateways)
        self._preambles: set[asyncio.Task[None]] = set()
        """Tasks that read the preambles of gateways' connections."""
        self._threads = threads
        self._authentication_threads = authentication_threads
        self._greet = greet
        self._loop = loop
        self._answer = answer
        self._connections_max = config.max_connections
        self._descriptors = descriptors.of_process(config)
        self._budget = budget
        self._requests = requests
        self.unread = SendBacklog(budget, self._descriptors.files // 2, loop.time)
        stall_s = config.request_read_stall_ms / 1000
        self.partial_requests = PartialRequests(budget, stall_s)
        self._buffers = ReceiveBuffers(min(RECEIVE_BUFFERS_KEPT_BYTES, config.queued_max_request_bytes))
        self._limits = Limits(
            frame_bytes_max=config.socket_request_max_bytes,
            read_timeout_s=config.request_read_timeout_ms / 1000,
            idle_timeout_s=config.connections_max_idle_ms / 1000,
            write_timeout_s=config.response_write_timeout_ms / 1000,
        )
        self._stall_s = stall_s
        self._sweep_s = self._sweep_pause_s()
        self._sweep: asyncio.TimerHandle | None = None
        self._connections: set[Connection] = set()
        self._strangers: dict[Connection | TlsHandshake, str] = {}
        """TLS handshakes in progress, and connections that were not authenticated when last checked, with the peers'
        hosts; the oldest first."""
        self._strangers_max = config.security.authenticating_max
        self._authentication = AuthenticationCounters() if authentication is None else authentication
        self._refused: set[Connection] = set()
        """Connections that get only the error of their refusal."""
        self._peers = peers if peers is not None else Connections(ConnectionLimits(), QuotaTable())
        self._protected_listener = protected_listener
        self.accepted_count = 0
        self.refused_count = 0
        self._complained_at = -ACCEPT_COMPLAINT_S
        self._all_closed: asyncio.Event = asyncio.Event()

    def _sweep_pause_s(self) -> float:
        limits = self._limits
        shortest_s = min(limits.read_timeout_s, limits.idle_timeout_s, limits.write_timeout_s, self._stall_s)
        return min(SWEEP_S_MAX, shortest_s / SWEEPS_PER_TIMEOUT)

    def set_limits(self, config: BrokerConfig) -> None:
        """Apply LIMIT_SETTINGS, also to open connections. A lower limit of connections closes none."""
        self._limits.read_timeout_s = config.request_read_timeout_ms / 1000
        self._limits.idle_timeout_s = config.connections_max_idle_ms / 1000
        self._limits.write_timeout_s = config.response_write_timeout_ms / 1000
        self._connections_max = config.max_connections
        self._descriptors = descriptors.of_process(config)
        self._sweep_s = self._sweep_pause_s()
        if self._sweep is not None:  # the next sweep was scheduled by the old timeouts
            self._sweep.cancel()
            self._check_deadlines()

    @property
    def address(self) -> str:
        """Address of the first listener, as `HOST:PORT`."""
        return self.listeners[0].address

    @property
    def places(self) -> dict[str, tuple[str, int]]:
        """Addresses of the listeners by name."""
        return {one.name: (str(one.sock.getsockname()[0]), int(one.sock.getsockname()[1])) for one in self.listeners}

    @property
    def addresses(self) -> list[str]:
        """Addresses of all listeners: the first listener as `HOST:PORT`, further listeners as `NAME://HOST:PORT`."""
        return [self.address, *(f"{one.name}://{one.address}" for one in self.listeners[1:])]

    @property
    def connection_count(self) -> int:
        """Number of connections, without refused connections. Callable on any thread."""
        return len(self._connections) - len(self._refused)

    def start(self) -> None:
        """Begin to accept connections. Raises ListenError."""
        for listener in (*self.listeners, *self._gateways):
            try:
                for sock in listener.sockets:
                    sock.listen(BACKLOG)
            except OSError as e:
                raise ListenError(bind_error_text(listener.address, e, LISTEN)) from e
        for listener in (*self.listeners, *self._gateways):
            for sock in listener.sockets:
                self._accept_from(listener, sock)
        log.info(
            "at most %d connections, %d segment files open at once",
            self._descriptors.connections,
            self._descriptors.files,
        )
        if self._descriptors.connections < self._connections_max:
            log.warning(
                "max.connections = %d, but the limit of open files (`ulimit -n`) leaves room for %d: raise it",
                self._connections_max,
                self._descriptors.connections,
            )
        self._check_deadlines()

    def _accept_from(self, listener: OpenListener, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self._loop.add_reader(sock.fileno(), partial(self._on_acceptable, listener, sock))

    def _on_acceptable(self, listener: OpenListener, accepting: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_EVENT):
            try:
                sock, peer = accepting.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except (OSError, MemoryError) as e:
                self._pause_accepting(listener, accepting, e)
                return
            try:
                context = listener.context
                if listener.is_gateway:
                    self._take_from_gateway(sock, listener)
                elif accepting is listener.local:
                    enlarge_send_buffer(sock)
                    self._add(sock, listener, addresses=_on_this_host(listener))
                elif context is not None:
                    self._shake_hands(sock, listener, context, peer)
                else:
                    self._add(sock, listener)
            except Exception as e:  # noqa: BLE001 - only this connection has failed: accept others
                sock.close()
                self._complain(e)

    def _take_from_gateway(self, sock: socket.socket, listener: OpenListener) -> None:
        """Read the preamble of a gateway's connection, then add the connection."""
        sock.setblocking(False)
        task = self._loop.create_task(self._read_preamble(sock, listener))
        self._preambles.add(task)
        task.add_done_callback(self._preambles.discard)

    async def _read_preamble(self, sock: socket.socket, listener: OpenListener) -> None:
        try:
            client = await read_preamble(self._loop, sock)
        except (OSError, TimeoutError, SparklogError) as e:
            log.info("%s: a gateway's connection is refused: %s", listener.name, e)
            sock.close()
            return
        enlarge_send_buffer(sock)
        host, port = client.client_host, client.client_port
        name = f"{host}:{port} (through the gateway)"
        addresses = Addresses((client.local_host, client.local_port), host, name, is_gateway=True)
        self._add(sock, listener, addresses=addresses, certificate=client.certificate or None)

    def _pause_accepting(self, listener: OpenListener, sock: socket.socket, error: Exception) -> None:
        """Stop accepting on this socket for ACCEPT_PAUSE_S. The socket stays readable, so that retries at once would
        occupy the loop."""
        self._complain(error)
        self._loop.remove_reader(sock.fileno())
        self._loop.call_later(ACCEPT_PAUSE_S, self._accept_from, listener, sock)

    def _complain(self, error: Exception) -> None:
        now = self._loop.time()
        if now - self._complained_at >= ACCEPT_COMPLAINT_S:
            self._complained_at = now
            reason = error.strerror if isinstance(error, OSError) else error or type(error).__name__
            log.error("cannot accept a connection: %s; trying again (see `ulimit -n`)", reason)

    def _shake_hands(
        self, sock: socket.socket, listener: OpenListener, context: ssl.SSLContext, peer: tuple[Any, ...]
    ) -> None:
        """Begin a TLS handshake. A peer beyond the limits is disconnected without an error frame, which would need a
        handshake."""
        host = str(peer[0])
        self.accepted_count += 1
        admitted = self._admit(host, listener)
        if self._authentication_threads is None or isinstance(admitted, SparklogError):
            if not isinstance(admitted, SparklogError):
                self._peers.closed(_address(host), None)
            self.refused_count += 1
            sock.close()
            return
        handshake = TlsHandshake(
            sock,
            context,
            loop=self._loop,
            threads=self._authentication_threads,
            timeout_s=listener.rules.authentication_timeout_ms / 1000 * TLS_SHARE_OF_TIMEOUT,
            peer_name=f"{host}:{peer[1]}",
            done=partial(self._hands_shaken, listener, host),
            delay_s=admitted / 1000,
        )
        self._note_stranger(handshake, host)

    def _hands_shaken(
        self, listener: OpenListener, host: str, handshake: TlsHandshake, secured: SecuredSocket | None
    ) -> None:
        self._strangers.pop(handshake, None)
        if secured is None:
            self._peers.closed(_address(host), None)
            self._authentication.failed["tls"] += 1
            self._check_all_closed()
            return
        self._add(secured.sock, listener, certificate=secured.certificate, admitted=True)

    def _note_stranger(self, stranger: Connection | TlsHandshake, host: str) -> None:
        """Record an unauthenticated peer. If there are too many, disconnect the oldest one."""
        self._strangers[stranger] = host
        if len(self._strangers) <= self._strangers_max:
            return
        for former in [
            c for c in self._strangers if isinstance(c, Connection) and (c.is_identified or c not in self._connections)
        ]:
            del self._strangers[former]
        while len(self._strangers) > self._strangers_max:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest)
            self._authentication.failed["too-many"] += 1
            oldest.close()

    def _add(
        self,
        sock: socket.socket,
        listener: OpenListener,
        *,
        addresses: Addresses | None = None,
        certificate: bytes | None = None,
        admitted: bool = False,
    ) -> None:
        """Add a connection. `admitted`: True if `_admit` has counted the connection before its TLS handshake."""
        connection = Connection(
            self._transport_of(sock),
            loop=self._loop,
            answer=self._answer,
            limits=self._limits,
            budget=self._budget,
            buffers=self._buffers,
            unread=self.unread,
            requests=self._requests,
            on_close=self._remove,
            addresses=addresses,
            listener=listener.name,
            local_socket=listener.local_name,
        )
        if connection.state is State.CLOSED:
            if admitted:
                self._peers.closed(_address(connection.peer_host), None)
            return
        self._connections.add(connection)
        self.accepted_count += not admitted
        outcome = 0 if admitted else self._admit(connection.peer_host, listener)
        if not isinstance(outcome, SparklogError):
            connection.mute_now(outcome)
            try:
                self._greet(connection, listener, certificate)
            except Exception:  # a peer that was not greeted is not served
                log.exception("connection of %s closed: the handshake failed", connection.peer_name)
                connection.close()
                return
            if not connection.is_identified:
                self._note_stranger(connection, connection.peer_host)
            return
        self.refused_count += 1
        self._refused.add(connection)
        if len(self._refused) <= self._descriptors.refusals:
            connection.refuse(outcome)
        else:
            connection.close()

    def _transport_of(self, sock: socket.socket) -> Transport:
        if not isinstance(sock, ssl.SSLSocket):
            return PlainTransport(sock, self._loop)
        assert self._threads is not None
        return TlsTransport(sock, self._loop, self._threads)

    def _admit(self, host: str, listener: OpenListener) -> int | SparklogError:
        """Count one more connection from `host`. Returns the time in ms for which the connection is not read, or the
        error that refuses it. A refused connection is not counted.
        """
        shaking = sum(isinstance(stranger, TlsHandshake) for stranger in self._strangers)
        if len(self._connections) + shaking - len(self._refused) > self._descriptors.connections:
            return TooManyConnectionsError(
                f"the broker has {self._descriptors.connections} connections already (max.connections); close some or "
                "raise it"
            )
        is_protected = listener.name == self._protected_listener
        try:
            return self._peers.opened(_address(host), int(self._loop.time() * 1000), protected=is_protected)
        except TooManyConnectionsError as e:
            return e

    def _remove(self, connection: Connection) -> None:
        if connection in self._refused:
            self._refused.discard(connection)
        elif connection in self._connections:
            self._peers.closed(_address(connection.peer_host), connection.counted_user)
        self._strangers.pop(connection, None)
        self._connections.discard(connection)
        self._check_all_closed()

    def _check_all_closed(self) -> None:
        if not self._connections:
            self._all_closed.set()

    def _check_deadlines(self) -> None:
        now = self._loop.time()
        for connection in list(self._connections):
            connection.check_deadlines(now)
        self.partial_requests.check(list(self._connections), now)
        self._sweep = self._loop.call_later(self._sweep_s, self._check_deadlines)

    def stop_accepting(self) -> None:
        """Close the listening sockets. The kernel then refuses new connections."""
        for sock in [sock for listener in (*self.listeners, *self._gateways) for sock in listener.sockets]:
            if sock.fileno() >= 0:
                self._loop.remove_reader(sock.fileno())
                sock.close()

    async def stop(self, timeout_s: float) -> None:
        """Let present requests finish for at most `timeout_s`, then close every connection."""
        self.stop_accepting()
        for stranger in [s for s in self._strangers if isinstance(s, TlsHandshake)]:
            stranger.close()
        for connection in list(self._connections):
            connection.stop()
        if self._sweep is not None:  # sweep soon, to close lingering connections
            self._sweep.cancel()
            self._sweep_s = min(self._sweep_s, SWEEP_S_STOPPING)
            self._check_deadlines()
        if self._connections:
            self._all_closed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), timeout_s)
        if self._sweep is not None:
            self._sweep.cancel()
        unfinished = sum(c.busy for c in self._connections)
        if unfinished:
            log.warning("%d requests did not finish within %.0f s", unfinished, timeout_s)
        for connection in list(self._connections):
            connection.close()


def _on_this_host(listener: OpenListener) -> Addresses:
    """Return the addresses of a Unix socket's connection."""
    return Addresses(listener.address_of_local, "127.0.0.1", "a client on this host")


def _address(host: str) -> str:
    """Return a peer's host as the limits count it: an IPv4 address that is mapped into IPv6 becomes the IPv4
    address."""
    try:
        return canonical_ip(host)
    except InvalidConfigError:  # a socket pair
        return host
