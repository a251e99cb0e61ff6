"""Checks of the process behind a Unix socket that a broker offers. The client sends nothing to the process before they
have passed.

A hostile broker can offer any socket, such as one of another program, or of a user's process that wants to see a
password. So the socket's name must have the form of a broker's (`NAME`). The socket's process, as the kernel knows it
(SO_PEERCRED), must belong to root, to the client's own user, or to the user whose process is at the other end of the
TCP connection that the name came through. The kernel's tables of connections know that user only on the same host.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

NAME = re.compile(r"sparklog-[0-9a-f]{32}")
"""Names of brokers' sockets, in the abstract namespace."""
TABLE_BYTES_MAX = 16 * 1024 * 1024
"""Size in bytes up to which a table of connections is read: about 100,000 connections."""
_ROOT = 0
_ESTABLISHED = "01"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_CREDENTIALS = struct.Struct("3i")
_WORD = struct.Struct("=I")

Address = tuple[str, int]
"""Host (an IP address) and port."""


def check_name(name: str) -> str:
    """Return the name of a socket if a broker can have it. Raises PermissionError."""
    if NAME.fullmatch(name) is None:
        raise PermissionError(
            f"the broker offers the Unix socket {name[:64]!r}, which is not the name of a broker's socket"
        )
    return name


def check_owner(sock: socket.socket, own: Address | None, peer: Address | None) -> None:
    """Check that the connected Unix socket belongs to a trusted process. `own` and `peer` are the ends of the TCP
    connection to the broker; None if there is no such connection. Raises PermissionError."""
    _, owner, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if owner in (_ROOT, os.geteuid()):
        return
    broker = None if own is None or peer is None else tcp_owner(_tables(), own, peer)
    if owner != broker:
        raise PermissionError(
            f"the Unix socket that the broker offers belongs to user {owner}, not to the broker's user"
        )


def tcp_owner(tables: Iterable[str], own: Address, peer: Address) -> int | None:
    """Return the user of the process at the other end of the connection from `own` to `peer`. `tables` have the form of
    /proc/net/tcp. None if it is no process of this host."""
    ends = {(theirs, ours) for theirs, ours in zip(_hex(peer), _hex(own), strict=True)}
    for table in tables:
        for line in table.splitlines()[1:]:
            fields = line.split()
            if len(fields) > 7 and fields[3] == _ESTABLISHED and (fields[1], fields[2]) in ends:
                return int(fields[7])
    return None


def _tables() -> Iterable[str]:
    for path in _TABLES:
        try:
            with path.open(encoding="ascii") as file:
                yield file.read(TABLE_BYTES_MAX)
        except OSError:  # no IPv6, or another system
            continue


def _hex(address: Address) -> tuple[str, str]:
    """Return the address as the tables of IPv4 and of IPv6 write it: words in the machine's byte order."""
    parsed = ipaddress.ip_address(address[0].partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else parsed
    long = parsed.packed if isinstance(parsed, ipaddress.IPv6Address) else bytes(10) + b"\xff\xff" + parsed.packed
    port = f":{address[1]:04X}"
    return ("" if mapped is None else _words(mapped.packed)) + port, _words(long) + port


def _words(packed: bytes) -> str:
    return "".join(f"{word:08X}" for (word,) in _WORD.iter_unpack(packed))
