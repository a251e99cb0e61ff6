"""A client's TLS connection with the methods of a socket that `Connection` needs.

Timeouts of the socket are set in Python here, not in the kernel: after a timeout of the kernel OpenSSL would continue
to read.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.deadline import Deadline
from sparklog.errors import BrokerNotAvailableError, InvalidConfigError, RequestTimedOutError
from sparklog.security.client_security import ClientSecurity
from sparklog.security.tls import RenewedContext, client_context, handshake_error

CONTEXTS_MAX = 64
RENEWAL_S = 10.0
"""Shortest interval in s between checks for changed certificates and keys. They are checked when a connection is
created."""
GATHERED_BYTES_MAX = 16 * 1024
"""Size in bytes up to which small parts are joined before they are sent, because each call makes a TLS record of its
own."""

WAITED_FOR_BYTES = 128 * 1024
"""Number of bytes of a large answer that are received before the client wakes for it."""
IN_OPENSSL_BYTES_MAX = 2 * 17 * 1024
"""Largest number of bytes of an answer that OpenSSL has taken from the socket already: a partial record and an unread
one. The socket can deliver this much less than is missing."""


class TlsStream:
    """Wraps a connected socket. Raises as a socket does; `ssl.SSLError` is an OSError."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._timeouts_s = {socket.SO_RCVTIMEO: 0.0, socket.SO_SNDTIMEO: 0.0}

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Set a socket option. Timeouts become Python's timeouts; other options are passed on."""
        if level == socket.SOL_SOCKET and option in self._timeouts_s:
            seconds, microseconds = struct.unpack("@ll", value)
            self._timeouts_s[option] = seconds + microseconds / 1e6
        else:
            self._sock.setsockopt(level, option, value)

    def recv_into(self, room: Any, size: int = 0, flags: int = 0) -> int:
        """Receive bytes into a buffer: MSG_WAITALL fills all of it, MSG_DONTWAIT does not wait."""
        view = memoryview(room)[: size or None]
        try:
            self._sock.settimeout(0.0 if flags & socket.MSG_DONTWAIT else self._timeouts_s[socket.SO_RCVTIMEO])
            if flags & socket.MSG_WAITALL:
                return self._fill(view)
            return self._sock.recv_into(view)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as e:
            raise BlockingIOError from e

    def _fill(self, view: memoryview) -> int:
        """Fill the view, or less of it if the peer has ended. Each read gives one TLS record. For a large answer the
        method lets the kernel wait for several records: otherwise a client that is quicker than the broker would sleep
        and wake for each record."""
        count = 0
        if len(view) >= 2 * WAITED_FOR_BYTES:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, WAITED_FOR_BYTES)
            try:
                count = self._read_until(view, len(view) - WAITED_FOR_BYTES - IN_OPENSSL_BYTES_MAX)
            finally:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return count + self._read_until(view[count:], len(view) - count, has_some=count > 0)

    def _read_until(self, view: memoryview, enough: int, *, has_some: bool = False) -> int:
        """Read at least `enough` bytes. Returns fewer at the end of the stream, or when the time is over.

        If the time is over before any byte has come, it raises TimeoutError, unless the caller has bytes from before
        (`has_some`).
        """
        read, count = self._sock.read, 0
        while count < enough:
            try:
                more: int = read(len(view) - count, view[count:])  # type: ignore[assignment]
            except TimeoutError:
                if count or has_some:
                    break
                raise
            if not more:
                break
            count += more
        return count

    def sendmsg(self, parts: Sequence[Any]) -> int:
        """Send all buffers."""
        self._sock.settimeout(self._timeouts_s[socket.SO_SNDTIMEO])
        total = 0
        small = bytearray()
        for part in parts:
            total += len(part)
            if len(small) + len(part) <= GATHERED_BYTES_MAX:
                small += part
                continue
            self._sock.sendall(small)
            small.clear()
            if len(part) > GATHERED_BYTES_MAX:
                self._sock.sendall(part)
            else:
                small += part
        if small:
            self._sock.sendall(small)
        return total

    @property
    def pending(self) -> bool:
        """True if bytes can be read although the socket is not readable."""
        return self._sock.pending() > 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def getsockname(self) -> Any:
        return self._sock.getsockname()

    def shutdown(self, how: int) -> None:
        """Shut down the socket from any thread. The TLS session is not ended, because another thread can be inside
        OpenSSL."""
        socket.socket.shutdown(self._sock, how)

    def close(self) -> None:
        self._sock.close()


class _Context:
    """The TLS context for one client security; thread-safe."""

    def __init__(self, security: ClientSecurity) -> None:
        self._renewed_context = RenewedContext(client_context, dict(security.tls))
        self._lock = threading.Lock()
        self._due = time.monotonic() + RENEWAL_S

    def current(self) -> ssl.SSLContext:
        with self._lock:
            if time.monotonic() >= self._due:
                self._due = time.monotonic() + RENEWAL_S
                self._renewed_context.renew()
            return self._renewed_context.current


@lru_cache(maxsize=CONTEXTS_MAX)
def _context(security: ClientSecurity) -> _Context:
    return _Context(security)


def secure(sock: socket.socket, endpoint: Endpoint, security: ClientSecurity, deadline: Deadline) -> TlsStream:
    """Do the TLS handshake on `sock` and check the broker's certificate for the host of `endpoint`. The result owns
    `sock`; after an error it is closed.

    Raises InvalidConfigError (wrong certificates, or the listener does not speak TLS), BrokerNotAvailableError,
    RequestTimedOutError.
    """
    broker = f"the broker at {endpoint}"
    try:
        context = _context(security).current()
        sock.settimeout(max(deadline.left_s, 0.001))
        return TlsStream(context.wrap_socket(sock, server_hostname=endpoint.host))
    except TimeoutError as e:
        sock.close()
        raise RequestTimedOutError(
            f"no TLS handshake with {broker} in time: it may be overloaded, or the listener does not speak TLS"
        ) from e
    except (ssl.SSLEOFError, ConnectionError) as e:
        sock.close()
        raise BrokerNotAvailableError(
            f"{broker} closed the connection during the TLS handshake: it may have too many connections, or the "
            "listener does not speak TLS (security.protocol)"
        ) from e
    except ssl.SSLError as e:
        sock.close()
        raise handshake_error(e, broker) from e
    except OSError as e:
        sock.close()
        raise BrokerNotAvailableError(f"no TLS connection to {broker}: {e}") from e
    except BaseException:
        sock.close()
        raise


def speaks_tls(begun: memoryview, endpoint: Endpoint) -> InvalidConfigError | None:
    """Return the error of a plaintext client if its peer's answer begins with a TLS alert, else None."""
    if bytes(begun[:2]) != b"\x15\x03":
        return None
    return InvalidConfigError(
        f"the listener at {endpoint} speaks TLS: set security.protocol to SSL or SASL_SSL (and ssl.ca.location)"
    )
