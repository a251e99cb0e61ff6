"""Connecting a client's socket: to an address, or to a Unix socket that a broker has offered."""

from __future__ import annotations

import errno
import socket

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.local_peer import Address, check_name, check_owner
from sparklog.errors import BrokerNotAvailableError
from sparklog.protocol.local_socket import enlarge_send_buffer

TcpEnds = tuple[Address, Address] | tuple[None, None]
_CONNECT_S_MIN = 0.001
"""Shortest timeout in s for a connection attempt: a timeout of 0 would mean not to wait at all."""

START_ADVICE = ": start one with `sparklog broker`, or check the bootstrap servers (SPARKLOG_BOOTSTRAP_SERVERS)"
"""End of the error of a broker that cannot be reached."""


def own_address(sock: socket.socket) -> str:
    """Return HOST:PORT of this end of the connection; "" for a Unix socket."""
    name = sock.getsockname()
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""


def tcp_ends(sock: socket.socket) -> TcpEnds:
    """Return the addresses of this end and of the other end. Both are None for a Unix socket, or if the other end is
    gone."""
    if sock.family == socket.AF_UNIX:
        return None, None
    try:
        return sock.getsockname()[:2], sock.getpeername()[:2]
    except OSError:
        return None, None


def connect_socket(
    endpoint: Endpoint, local_socket: str, deadline: Deadline, offered_by: TcpEnds = (None, None)
) -> socket.socket:
    """Return a connected, blocking socket: to the Unix socket `local_socket`, or if that is empty to `endpoint`.
    `offered_by`: the ends of the TCP connection through which the broker has offered `local_socket`; see `local_peer`.
    Raises BrokerNotAvailableError."""
    try:
        if local_socket:
            return _connect_local(local_socket, deadline.left_s, offered_by)
        sock = _connect_tcp(endpoint, deadline)
        if sock.getsockname() == sock.getpeername():
            # no process listens on a port of the ephemeral range, and the kernel has connected the socket to itself
            sock.close()
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
    except (OSError, UnicodeError) as e:  # a name that another broker has told may be none
        raise BrokerNotAvailableError(f"no broker at {endpoint} ({reason(e)}){START_ADVICE}") from e
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(None)
    return sock


def _connect_tcp(endpoint: Endpoint, deadline: Deadline) -> socket.socket:
    """Connect to the first of the host's addresses that answers. Each address gets its share of the time."""
    addresses = socket.getaddrinfo(*endpoint, type=socket.SOCK_STREAM)
    failure: OSError = OSError("the host name has no address")
    for number, (*kind, _, address) in enumerate(addresses):
        sock = socket.socket(*kind)
        try:
            sock.settimeout(max(deadline.left_s / (len(addresses) - number), _CONNECT_S_MIN))
            sock.connect(address)
        except BaseException as e:
            sock.close()
            if not isinstance(e, OSError):
                raise
            failure = e
        else:
            return sock
    raise failure


def _connect_local(name: str, timeout_s: float, offered_by: TcpEnds) -> socket.socket:
    check_name(name)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        enlarge_send_buffer(sock)
        sock.settimeout(max(timeout_s, _CONNECT_S_MIN))
        sock.connect(f"\0{name}")
        check_owner(sock, *offered_by)
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


def reason(e: OSError | UnicodeError) -> str:
    """Return the reason of an error in words, for an error's text."""
    return (getattr(e, "strerror", None) or str(e) or type(e).__name__).lower()
