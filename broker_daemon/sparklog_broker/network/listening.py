"""Listening sockets: their binding, and open listeners with the rules of their connections."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import sys
from collections.abc import Sequence

from sparklog.security.handshake import ListenerRules
from sparklog.security.listeners import Listener
from sparklog.security.tls import RenewedContext
from sparklog_broker.config import format_address

LISTEN = "--listen HOST:PORT"


class ListenError(Exception):
    """The broker cannot listen at the configured address. The message contains the remedy."""


def bind(host: str, port: int, setting: str = LISTEN) -> socket.socket:
    """Return a bound socket that does not listen yet. Binding comes before the broker opens files, so that a wrong
    address changes nothing. `setting`: the setting or option that an error message advises to change. Raises
    ListenError: The address is unknown, in use, or not permitted."""
    where = format_address(host, port)
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as e:
        raise ListenError(f"cannot listen on {where}: host name {host!r} cannot be resolved; use {setting}") from e
    # A name may have IPv4 and IPv6 addresses: prefer IPv4, which clients of `localhost` always try.
    family, kind, protocol, _, address = min(addresses, key=lambda f: f[0] != socket.AF_INET)
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as e:
        sock.close()
        raise ListenError(bind_error_text(where, e, setting)) from e
    sock.setblocking(False)
    return sock


def bind_local() -> socket.socket | None:
    """Return a bound Unix socket with an unguessable name in the abstract namespace, or None on systems without one.

    A crash leaves no file behind, and only processes in this network namespace can connect.
    """
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


def bind_error_text(where: str, error: OSError, setting: str = LISTEN) -> str:
    """Return the reason why an address cannot be bound, and the remedy."""
    match error.errno:
        case errno.EADDRINUSE:
            hint = f"the port is in use; stop the program that uses it, or choose another port with {setting}"
        case errno.EACCES:
            hint = f"not permitted; choose a port above 1023 with {setting}"
        case errno.EADDRNOTAVAIL:
            hint = f"this machine does not have the address; choose another address with {setting}"
        case _:
            hint = error.strerror or str(error)
    return f"cannot listen on {where}: {hint}"


class OpenListener:
    """An open listener with its bound socket `sock`.

    `local`: True to open a Unix socket, too, for clients on this host. They authenticate as on the listener, so a
    listener that authenticates by client certificate has no Unix socket.
    """

    def __init__(
        self,
        listener: Listener,
        sock: socket.socket,
        rules: ListenerRules,
        tls: RenewedContext | None = None,
        *,
        local: bool = False,
    ) -> None:
        self.listener = listener
        self.sock = sock
        self.rules = rules
        self.tls = tls
        proves_by_certificate = tls is not None and not rules.mechanisms
        self.local = bind_local() if local and not proves_by_certificate else None
        self.is_gateway = sock.family == socket.AF_UNIX
        """True for the Unix socket of a gateway, whose connections begin with the name of the gateway's client."""

    @property
    def name(self) -> str:
        """The listener's name, as in `listeners`."""
        return self.listener.name

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context for a connection that is accepted now; None without TLS."""
        return None if self.tls is None else self.tls.current

    @property
    def address(self) -> str:
        """The listener's address as `HOST:PORT`."""
        host, port = self.sock.getsockname()[:2]
        return format_address(host, port)

    @property
    def local_name(self) -> str:
        """Name of the abstract Unix socket beside the listener; "" if there is none."""
        return "" if self.local is None else self.local.getsockname()[1:].decode()

    @property
    def address_of_local(self) -> tuple[str, int]:
        """The TCP address of this listener for clients on this host."""
        host, port = self.sock.getsockname()[:2]
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port

    @property
    def sockets(self) -> list[socket.socket]:
        return [self.sock] if self.local is None else [self.sock, self.local]


def bind_all(listeners: Sequence[Listener]) -> list[tuple[Listener, socket.socket]]:
    """Bind all listeners, or none. A listener without a host listens on all IPv4 addresses. Raises ListenError."""
    bound: list[tuple[Listener, socket.socket]] = []
    try:
        for listener in listeners:
            host = listener.host or "0.0.0.0"
            bound.append((listener, bind(host, listener.port, LISTEN if len(listeners) == 1 else "listeners")))
    except BaseException:
        close_all(bound)
        raise
    return bound


def close_all(sockets: Sequence[tuple[Listener, socket.socket]]) -> None:
    """Close the sockets. A second call has no effect."""
    for _, sock in sockets:
        sock.close()
