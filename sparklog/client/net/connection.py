"""One blocking connection to a broker: handshake, requests out, responses in.

Requests can be sent ahead (`send`) and their answers taken later (`receive`), in the same order. A connection on which
anything went wrong in the middle of a frame is closed and never used again.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import ssl
import struct
import time
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import pyarrow as pa
from msgspec import Struct

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.broker_liveness import BrokerLiveness
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.read_ahead import READ_AHEAD_BYTES, ReadAhead
from sparklog.client.net.reused_memory import ReusedMemory
from sparklog.client.net.session import SASL_APIS, Session
from sparklog.client.net.sockets import TcpEnds, connect_socket, own_address, reason, tcp_ends
from sparklog.client.net.tls_stream import TlsStream, secure, speaks_tls
from sparklog.errors import (
    BrokerNotAvailableError,
    ClosedError,
    FrameTooLargeError,
    InvalidRequestError,
    RequestTimedOutError,
    SparklogError,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.exchange import Exchange
from sparklog.protocol.frames import PREFIX_BYTES
from sparklog.protocol.messages import HandshakeRequest, HandshakeResponse
from sparklog.security.client_security import PLAINTEXT, ClientSecurity
from sparklog.security.tls import handshake_error
from sparklog.version import __version__

CONNECT_TIMEOUT_MS = 10_000
THROTTLE_MS_MAX = 3_600_000
"""Longest pause in ms that a broker can impose on a request."""
_IOV_MAX = 512
_TIMEOUT_SLACK = 1 / 32
"""Fraction by which a timeout is allowed to be longer, so that the kernel's timeout need not be set for each
request."""

_LOOK_S_MIN = 0.01

M = TypeVar("M", bound=Message)
Part = bytes | bytearray | memoryview


class _Deadline(Struct, gc=False):
    """The end of the wait for one answer. A quota's pause moves it."""

    timeout_at: float
    """Monotonic time at which the request's timeout is over."""
    expected_at: float
    """Monotonic time at which a healthy broker has answered."""


_open: dict[int, weakref.ref[Connection]] = {}
"""Open connections of this process by id, which a forked child has to drop."""


class Connection:
    """A connection to one broker. Not thread-safe: one thread at a time sends and receives; other threads can only call
    `abort`."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_ms: int = 30_000,
        local_socket: str = "",
        offered_by: TcpEnds = (None, None),
        security: ClientSecurity = PLAINTEXT,
        client_id: str = "",
        liveness: BrokerLiveness | None = None,
    ) -> None:
        """Connect and shake hands, all within `timeout_ms`.

        `local_socket`: use the Unix socket of that name, which the broker at `endpoint` has offered through the TCP
        connection with the ends `offered_by`. `client_id`: the client's name for the broker (`client.id`). `liveness`:
        decides about late answers; a broker that has left the cluster is not waited for.

        Raises BrokerNotAvailableError (no process listens there), RequestTimedOutError, UnsupportedVersionError (the
        broker does not shake hands with this client), InvalidRequestError (the peer is no broker),
        TooManyConnectionsError, InvalidConfigError (TLS) and SaslAuthenticationFailedError.
        """
        self.endpoint = endpoint
        self.timeout_ms = timeout_ms
        self._client_id = client_id
        self._exchange: Exchange[_Deadline] = Exchange(f"the broker at {endpoint}")
        self._closed = False
        self._muted_until = 0.0
        self._memory = ReusedMemory()
        self._ahead = ReadAhead()
        self._timeouts_s = {socket.SO_SNDTIMEO: 0.0, socket.SO_RCVTIMEO: 0.0}
        deadline = Deadline(timeout_ms)
        connecting = Deadline(min(timeout_ms, CONNECT_TIMEOUT_MS))
        self.uses_local_socket = bool(local_socket)
        self._session = Session(security)
        self._liveness = liveness
        self._socket: Any = connect_socket(endpoint, local_socket, connecting, offered_by)
        self.tcp_ends = tcp_ends(self._socket)
        self._tls: TlsStream | None = None
        if security.protocol.tls and not local_socket:
            self._socket = self._tls = secure(self._socket, endpoint, security, connecting)
        key = id(self)
        _open[key] = weakref.ref(self, lambda _: _open.pop(key, None))
        self.used_at = time.monotonic()
        try:
            self.broker = self._shake_hands(deadline)
            self._authenticate(deadline.left_ms())
        except BaseException:
            self.close()
            raise
        if liveness is not None:
            liveness.broker_id = self.broker.broker_id

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def in_flight(self) -> int:
        """Number of requests without a received answer."""
        return len(self._exchange.pending)

    @property
    def due(self) -> float:
        """Monotonic time at which the next answer is late, or its timeout is over; only while a request is in
        flight."""
        return min(self.answer_due, self.late_at)

    @property
    def late_at(self) -> float:
        """Monotonic time from which `check_late` asks other brokers about this one; infinity if no answer is
        expected."""
        if self._liveness is None or not self._exchange.pending:
            return math.inf
        return self._liveness.late_at(self._exchange.pending[0].note.expected_at, self.used_at)

    def check_late(self) -> None:
        """Ask other brokers about the broker if the next answer is late. Raises RequestTimedOutError if it has left."""
        if self._liveness is not None and self._exchange.pending:
            self._liveness.check(self._exchange.pending[0].note.expected_at, self.used_at)

    @property
    def has_read_ahead(self) -> bool:
        """True if a part of the next answer has been read already, so that the socket need not become readable."""
        return not self._ahead.is_empty or (self._tls is not None and self._tls.pending)

    @property
    def wants_rest(self) -> bool:
        """True if the connection has to authenticate again as soon as nothing is in flight; no request must be sent
        before."""
        return self._session.is_due()

    def read_ahead(self) -> bool:
        """Read as much of the next answer as has come, without waiting.

        Returns True if `receive` will not wait either: the whole answer is here, or the connection is broken.
        """
        return self._ahead.fill(self._socket)

    @property
    def is_answer_large(self) -> bool:
        """True if the next answer has begun to come and is too large to be read ahead."""
        return self._ahead.is_answer_large

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def request(
        self,
        api: Api,
        message: Message,
        response: type[M],
        payload: Sequence[Part] = (),
        *,
        timeout_ms: int | None = None,
    ) -> tuple[M, pa.Buffer]:
        """Send a request and wait for its answer: the decoded header and the payload (possibly of 0 bytes).

        Raises the broker's error, RequestTimedOutError, BrokerNotAvailableError if the connection breaks, and as
        `send`.
        """
        self.send(api, message, payload, timeout_ms=timeout_ms)
        return self.receive(response)

    def send(
        self,
        api: Api,
        message: Message,
        payload: Sequence[Part] = (),
        *,
        timeout_ms: int | None = None,
        answered: bool = True,
        wait_ms: int = 0,
    ) -> None:
        """Send a request in the newest version that client and broker share. `receive` takes its answer later.

        `answered=False`: no answer will come (acks=0). `wait_ms`: the time for which the broker is allowed to wait
        before it answers.

        Raises UnsupportedApiError if the broker lacks the API, UnsupportedVersionError if it shares no version with
        this client or would ignore a field of the message, FrameTooLargeError if it does not take so large a request.
        Nothing is sent then, and the connection stays usable. Any other error closes the connection.
        """
        self._check_open()
        if not self._exchange.pending and self._session.is_due() and api not in SASL_APIS:
            self._authenticate(self.timeout_ms)
        size = sum(len(p) for p in payload)
        begun = max(time.monotonic(), self._muted_until)
        deadline = begun + (self.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        if answered:
            head = self._exchange.send(api, message, _Deadline(deadline, begun + wait_ms / 1000), size)
        else:
            head = self._exchange.send_unanswered(api, message, size)
        try:
            self._send_all([head, *payload], deadline)
        except BaseException:
            self.close()
            raise
        self.used_at = time.monotonic()

    def receive(self, response: type[M]) -> tuple[M, pa.Buffer]:
        """Wait for the answer to the oldest request without one. Raises as `request`."""
        self._check_open()
        now, late_at = time.monotonic(), self.late_at
        expected = self._exchange.pending[0].note
        deadline = expected.timeout_at
        if now >= deadline and self._is_readable():  # the answer has come in time, but was not read
            deadline = time.monotonic() + self.timeout_ms / 1000
        try:
            if late_at <= now < deadline and not self._is_readable():
                self._wait_on(deadline, expected.expected_at)
            header, payload = self._receive_frame(deadline)
            answer = self._exchange.read_header(header)
        except BaseException:
            self.close()
            raise
        if answer.throttle_ms > 0:  # a quota's delay is not the request's time
            self._wait_for(answer.throttle_ms)
        if answer.error is None:
            self.used_at = time.monotonic()
        elif answer.ends_connection:
            self.close()
        return answer.result(response), payload

    def _wait_for(self, throttle_ms: int) -> None:
        """Extend the time of current and future requests by a pause of the broker (a quota), during which it reads
        nothing."""
        throttle_s = min(throttle_ms, THROTTLE_MS_MAX) / 1_000
        self._muted_until = time.monotonic() + throttle_s
        for request in self._exchange.pending:
            request.note.timeout_at += throttle_s
            request.note.expected_at += throttle_s

    @property
    def answer_due(self) -> float:
        """Monotonic time at which the timeout of the oldest request is over; infinity without requests."""
        return self._exchange.pending[0].note.timeout_at if self._exchange.pending else math.inf

    def abort(self) -> None:
        """Break the connection from another thread: a thread that waits on it gets BrokerNotAvailableError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def is_idle(self) -> bool:
        """True if the connection is open with nothing in flight, and the broker has not closed it."""
        return not (self._closed or self._exchange.pending or self._is_readable())

    def _is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return self.has_read_ahead or bool(poll.poll(0))

    def _authenticate(self, timeout_ms: int) -> None:
        """Authenticate with SASL, the first time or again; do nothing if SASL is not configured.

        Raises SaslAuthenticationFailedError and the errors of `request`; then the connection is closed.
        """
        try:
            self._session.authenticate(self, timeout_ms)
        except BaseException:
            self.close()
            raise

    @property
    def principal(self) -> str:
        """The client's principal, such as User:alice; "" without SASL."""
        return self._session.principal

    def offered_socket(self) -> str:
        """Return the Unix socket that the broker offers an authenticated client; "" if it offers none."""
        if self._session.is_authenticated and not self.broker.local_socket:
            self.broker = self._shake_hands(Deadline(self.timeout_ms))
        return self.broker.local_socket

    def close(self) -> None:
        """Close the socket. A second call does nothing."""
        self._closed = True
        _open.pop(id(self), None)
        self._socket.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the connection to {self.endpoint} is closed")

    def _shake_hands(self, deadline: Deadline) -> HandshakeResponse:
        hello = HandshakeRequest("sparklog-python", __version__, own_address(self._socket), self._client_id)
        try:
            answer, _ = self.request(Api.HANDSHAKE, hello, HandshakeResponse, timeout_ms=deadline.left_ms())
        except (BrokerNotAvailableError, InvalidRequestError, FrameTooLargeError):
            other = speaks_tls(self._ahead.buffer, self.endpoint) if self._tls is None else None
            if other is not None:
                raise other from None
            raise
        return answer

    def _wait_on(self, deadline: float, expected_at: float) -> float:
        """Decide if a silent broker is still waited for. Returns the number of seconds until the next decision.

        Raises TimeoutError when the time is over, RequestTimedOutError if the broker has left the cluster.
        """
        if self._liveness is None or time.monotonic() >= deadline:
            raise TimeoutError
        self._liveness.check(expected_at, self.used_at)
        return max(self._liveness.late_at(expected_at, self.used_at) - time.monotonic(), _LOOK_S_MIN)

    def _set_timeout(self, option: int, deadline: float, step_s: float = math.inf) -> None:
        """Limit the next blocking call to `step_s` or the deadline.

        The limit is the kernel's, not Python's: Python would make the socket non-blocking. A large answer would then
        come in hundreds of pieces, and each piece waits for the interpreter lock.
        """
        remaining = min(deadline - time.monotonic(), step_s)
        if remaining <= 0:
            raise TimeoutError
        longest = remaining * (1 + _TIMEOUT_SLACK)
        if remaining <= self._timeouts_s[option] <= longest:
            return
        timeout_s = (remaining + longest) / 2
        seconds = int(timeout_s)
        timeval = struct.pack("@ll", seconds, max(int((timeout_s - seconds) * 1e6), 1))
        self._socket.setsockopt(socket.SOL_SOCKET, option, timeval)
        self._timeouts_s[option] = timeout_s

    def _send_all(self, parts: Sequence[Part], deadline: float) -> None:
        views = [memoryview(p).cast("B") for p in parts if len(p)]
        first, begun = 0, time.monotonic()
        # TLS cannot continue a message that was sent in part
        step_s = math.inf if self._liveness is None or self._tls is not None else self._liveness.late_s
        try:
            while first < len(views):
                try:
                    self._set_timeout(socket.SO_SNDTIMEO, deadline, step_s)
                    sent = self._socket.sendmsg(views[first : first + _IOV_MAX])
                except (TimeoutError, BlockingIOError):
                    if self._tls is not None:
                        raise
                    step_s = self._wait_on(deadline, begun)
                    continue
                while first < len(views) and sent >= len(views[first]):
                    sent -= len(views[first])
                    first += 1
                if sent:
                    views[first] = views[first][sent:]
        except (TimeoutError, BlockingIOError) as e:
            raise self._timed_out() from e
        except OSError as e:
            raise self._broken(e) from e

    def _receive_frame(self, deadline: float) -> tuple[bytes | bytearray, pa.Buffer]:
        """Return the header and the payload of the next answer."""
        ahead, exchange = self._ahead, self._exchange
        header: bytes | bytearray
        if ahead.missing_bytes <= 0:  # all of it has been read ahead
            prefix = exchange.read_prefix(ahead.take(PREFIX_BYTES))
            header = ahead.take(prefix.header_bytes)
            return header, pa.py_buffer(ahead.take(prefix.body_bytes - prefix.header_bytes))
        try:
            start = bytearray(PREFIX_BYTES)
            self._receive_into(memoryview(start), deadline)
            prefix = exchange.read_prefix(start)
            header = bytearray(prefix.header_bytes)
            self._receive_into(memoryview(header), deadline)
            payload = self._memory.take(prefix.body_bytes - prefix.header_bytes)
            if payload.size:
                self._receive_into(memoryview(payload).cast("B"), deadline)
        except (TimeoutError, BlockingIOError) as e:
            raise self._timed_out() from e
        except OSError as e:
            raise self._broken(e) from e
        except MemoryError as e:
            raise FrameTooLargeError(f"not enough memory for the response of {self.endpoint}") from e
        return header, payload

    def _receive_into(self, view: memoryview, deadline: float) -> None:
        """Fill `view` from the data read ahead and from the socket. If only a few bytes are missing, the bytes that
        follow are read ahead in the same call."""
        received = self._ahead.take_into(view)
        # the same step for each answer: the kernel need not be told of it again
        step_s = math.inf if self._liveness is None else self._liveness.late_s
        while received < len(view):
            missing = view[received:]
            try:
                self._set_timeout(socket.SO_RCVTIMEO, deadline, step_s)
                if len(missing) >= READ_AHEAD_BYTES:
                    count = self._socket.recv_into(missing, 0, socket.MSG_WAITALL)
                else:
                    count = self._ahead.receive_into(missing, self._socket)
            except (TimeoutError, BlockingIOError):
                step_s = self._wait_on(deadline, self._exchange.pending[0].note.expected_at)
                continue
            if count == 0:
                raise ConnectionResetError("closed by the broker")
            received += count

    def _timed_out(self) -> SparklogError:
        return RequestTimedOutError(
            f"no answer from the broker at {self.endpoint} in time; it may be overloaded or stopped "
            "(see its log, or raise request.timeout.ms)"
        )

    def _broken(self, e: OSError) -> SparklogError:
        if isinstance(e, ssl.SSLError) and "ALERT" in (e.reason or ""):
            return handshake_error(e, f"the broker at {self.endpoint}")
        return BrokerNotAvailableError(f"the connection to the broker at {self.endpoint} broke: {reason(e)}")


def connect_for_data(
    endpoint: Endpoint,
    *,
    timeout_ms: int = 30_000,
    security: ClientSecurity = PLAINTEXT,
    client_id: str = "",
    liveness: BrokerLiveness | None = None,
) -> Connection:
    """Return a connection for large data only.

    It uses the broker's Unix socket if the broker offers one that this process can reach, because the kernel then needs
    half the time. Do not use it for metadata: the addresses in them depend on the address at which the client reaches
    the broker. Raises the errors of `Connection`.
    """
    deadline = Deadline(timeout_ms)
    options: dict[str, Any] = {"security": security, "client_id": client_id, "liveness": liveness}
    connection = Connection(endpoint, timeout_ms=timeout_ms, **options)
    offered = connection.offered_socket()
    if not offered:
        return connection
    try:
        local = Connection(
            endpoint, timeout_ms=deadline.left_ms(), local_socket=offered, offered_by=connection.tcp_ends, **options
        )
        local.timeout_ms = timeout_ms
    except SparklogError:  # no more connections, or another network namespace
        return connection
    connection.close()
    return local


def drop_after_fork() -> None:
    """Close a forked child's copies of all sockets; the parent's connections stay as they are."""
    for reference in list(_open.values()):
        connection: Any = reference()
        if connection is not None:
            connection._closed = True
            connection._exchange.pending.clear()
            with contextlib.suppress(OSError):
                connection._socket.close()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=drop_after_fork)
