"""Listening and accepting, and the clock that all connections' deadlines are checked by."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import sys
from collections import Counter
from functools import partial

from sparklog.errors import SparklogError, TooManyConnectionsError
from sparklog.protocol.local_socket import enlarge_send_buffer
from sparklog.settings import MIB
from sparklog_broker import descriptors
from sparklog_broker.config import BrokerConfig, format_address
from sparklog_broker.counters.requests import RequestCounters
from sparklog_broker.network.connection import Addresses, Answer, Connection, ConnectionLimits, State
from sparklog_broker.network.memory import MemoryBudget
from sparklog_broker.network.receive_buffers import ReceiveBuffers
from sparklog_broker.network.unread_answers import UnreadAnswers

log = logging.getLogger(__name__)

ACCEPTS_PER_EVENT = 100
BACKLOG = 1024
ACCEPT_PAUSE_S = 0.5
ACCEPT_COMPLAINT_S = 60.0
"""So often at most the log says that connections cannot be accepted."""
SWEEP_S_MAX = 5.0
SWEEP_S_STOPPING = 0.1
SWEEPS_PER_TIMEOUT = 4
RECEIVE_BUFFERS_KEPT_BYTES = 32 * MIB
"""Of answered requests, for the next ones of all connections."""


class ListenError(Exception):
    """The broker cannot listen where it was told to; the message says what to do."""


LISTEN = "--listen HOST:PORT"


def bind(host: str, port: int, setting: str = LISTEN) -> socket.socket:
    """A bound socket that does not listen yet, so that a wrong address is found before any file is touched. `setting`:
    what to change then.

    Raises ListenError.
    """
    where = format_address(host, port)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as e:
        raise ListenError(f"cannot listen on {where}: host {host!r} is not known; use {setting}") from e
    # A name may stand for both kinds of address; clients of `localhost` try IPv4 too.
    family, kind, protocol, _, address = min(found, key=lambda f: f[0] != socket.AF_INET)
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as e:
        sock.close()
        raise ListenError(_why_not(where, e, setting)) from e
    sock.setblocking(False)
    return sock


def bind_local() -> socket.socket | None:
    """A bound Unix socket with a name nobody can guess in the abstract namespace: no file that a crash leaves behind,
    and only processes that share our network can reach it. None: this system has none."""
    if not sys.platform.startswith("linux"):
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"\0sparklog-{os.urandom(16).hex()}")
    except OSError:
        sock.close()
        return None
    sock.setblocking(False)
    return sock


def _why_not(where: str, error: OSError, setting: str = LISTEN) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            hint = f"the port is in use; stop the program that has it, or choose another with {setting}"
        case errno.EACCES:
            hint = f"not permitted; choose a port above 1023 with {setting}"
        case errno.EADDRNOTAVAIL:
            hint = f"this machine has no such address; choose another with {setting}"
        case _:
            hint = error.strerror or str(error)
    return f"cannot listen on {where}: {hint}"


class Server:
    """Accepts connections on `sock` (bound) and on a Unix socket beside it, and keeps them. Event-loop thread only."""

    def __init__(
        self,
        sock: socket.socket,
        config: BrokerConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        answer: Answer,
        budget: MemoryBudget,
        requests: RequestCounters,
    ) -> None:
        self._sock = sock
        self._local = bind_local() if config.local_socket_enabled else None
        self._loop = loop
        self._answer = answer
        self._connections_wanted = config.max_connections
        self._descriptors = descriptors.of_process(config)
        self._connections_per_ip_max = config.connections_max_per_ip
        self._budget = budget
        self._requests = requests
        self.unread = UnreadAnswers(budget, self._descriptors.files // 2, loop.time)
        self._buffers = ReceiveBuffers(min(RECEIVE_BUFFERS_KEPT_BYTES, config.queued_max_request_bytes))
        self._limits = ConnectionLimits(
            frame_bytes_max=config.socket_request_max_bytes,
            read_timeout_s=config.request_read_timeout_ms / 1000,
            idle_timeout_s=config.connections_max_idle_ms / 1000,
            write_timeout_s=config.response_write_timeout_ms / 1000,
        )
        shortest_s = min(self._limits.read_timeout_s, self._limits.idle_timeout_s, self._limits.write_timeout_s)
        self._sweep_s = min(SWEEP_S_MAX, shortest_s / SWEEPS_PER_TIMEOUT)
        self._sweep: asyncio.TimerHandle | None = None
        self._connections: set[Connection] = set()
        self._refused: set[Connection] = set()
        """Those of them that are only told why they are not taken."""
        self._per_ip: Counter[str] = Counter()
        self.accepted_count = 0
        self.refused_count = 0
        self._complained_at = -ACCEPT_COMPLAINT_S
        self._all_closed: asyncio.Event = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it listens, as `HOST:PORT`."""
        host, port = self._sock.getsockname()[:2]
        return format_address(host, port)

    @property
    def local_name(self) -> str:
        """The abstract Unix socket it listens on, too; "": there is none."""
        return "" if self._local is None else self._local.getsockname()[1:].decode()

    @property
    def connection_count(self) -> int:
        """Without those that are refused. Any thread."""
        return len(self._connections) - len(self._refused)

    def start(self) -> None:
        """Begins to accept. Raises ListenError."""
        where = self.address
        try:
            for listener in self._listeners():
                listener.listen(BACKLOG)
        except OSError as e:
            raise ListenError(_why_not(where, e)) from e
        for listener in self._listeners():
            self._accept_from(listener)
        log.info(
            "at most %d connections, %d segment files open at once",
            self._descriptors.connections,
            self._descriptors.files,
        )
        if self._descriptors.connections < self._connections_wanted:
            log.warning(
                "max.connections = %d, but the limit of open files (`ulimit -n`) leaves room for %d: raise it",
                self._connections_wanted,
                self._descriptors.connections,
            )
        self._check_deadlines()

    def _listeners(self) -> list[socket.socket]:
        return [self._sock] if self._local is None else [self._sock, self._local]

    def _accept_from(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            self._loop.add_reader(listener.fileno(), partial(self._on_acceptable, listener))

    def _on_acceptable(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_EVENT):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except (OSError, MemoryError) as e:
                self._pause_accepting(listener, e)
                return
            try:
                if listener is self._local:
                    enlarge_send_buffer(sock)
                    self._add(sock, self._addresses_of_local())
                else:
                    self._add(sock, None)
            except Exception as e:  # noqa: BLE001 - it is this connection's: the others are accepted
                sock.close()
                self._complain(e)

    def _pause_accepting(self, listener: socket.socket, error: Exception) -> None:
        """The listener stays readable: trying at once would keep the loop busy."""
        self._complain(error)
        self._loop.remove_reader(listener.fileno())
        self._loop.call_later(ACCEPT_PAUSE_S, self._accept_from, listener)

    def _complain(self, error: Exception) -> None:
        now = self._loop.time()
        if now - self._complained_at >= ACCEPT_COMPLAINT_S:
            self._complained_at = now
            reason = error.strerror if isinstance(error, OSError) else error or type(error).__name__
            log.error("cannot accept a connection: %s; trying again (see `ulimit -n`)", reason)

    def _addresses_of_local(self) -> Addresses:
        """A Unix socket's peer is on this host, and would reach us by TCP where we listen."""
        host, port = self._sock.getsockname()[:2]
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return Addresses((loopback.get(host, host), port), "127.0.0.1", "a client on this host")

    def _add(self, sock: socket.socket, addresses: Addresses | None) -> None:
        connection = Connection(
            sock,
            loop=self._loop,
            answer=self._answer,
            limits=self._limits,
            budget=self._budget,
            buffers=self._buffers,
            unread=self.unread,
            requests=self._requests,
            on_close=self._remove,
            addresses=addresses,
        )
        if connection.state is State.CLOSED:
            return
        self._connections.add(connection)
        self.accepted_count += 1
        refusal = self._refusal(connection.peer_host)
        if refusal is None:
            self._per_ip[connection.peer_host] += 1
            return
        self.refused_count += 1
        self._refused.add(connection)
        if len(self._refused) <= self._descriptors.refusals:
            connection.refuse(refusal)
        else:
            connection.close()

    def _refusal(self, host: str) -> SparklogError | None:
        """Why one more connection from `host` is not taken."""
        if len(self._connections) - len(self._refused) > self._descriptors.connections:
            allowed, name = self._descriptors.connections, "max.connections"
        elif self._per_ip[host] >= self._connections_per_ip_max:
            allowed, name = self._connections_per_ip_max, f"connections.max.per.ip, all from {host}"
        else:
            return None
        return TooManyConnectionsError(f"the broker has {allowed} connections already ({name}); close some or raise it")

    def _remove(self, connection: Connection) -> None:
        if connection in self._refused:
            self._refused.discard(connection)
        elif connection in self._connections:
            self._per_ip[connection.peer_host] -= 1
            if not self._per_ip[connection.peer_host]:
                del self._per_ip[connection.peer_host]
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def _check_deadlines(self) -> None:
        now = self._loop.time()
        for connection in list(self._connections):
            connection.check_deadlines(now)
        self._sweep = self._loop.call_later(self._sweep_s, self._check_deadlines)

    def stop_accepting(self) -> None:
        """New connections are refused by the kernel from now on."""
        for listener in self._listeners():
            if listener.fileno() >= 0:
                self._loop.remove_reader(listener.fileno())
                listener.close()

    async def stop(self, timeout_s: float) -> None:
        """Lets running requests finish, for at most `timeout_s`, then closes every connection."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.stop()
        if self._sweep is not None:  # peers that keep their end open are let go after a moment, not at the next sweep
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
