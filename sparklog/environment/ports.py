"""Ports for programs that have to be told theirs before they listen."""

from __future__ import annotations

import itertools
import random
import socket

FIRST, END = 20_000, 32_768
"""Range of the ports. Linux, macOS and Windows give ports from END on to outgoing connections, so that no connection
takes a port between its choice and the moment when its program listens."""
ATTEMPTS = 1_000
_NUMBERS = itertools.count(random.SystemRandom().randrange(END - FIRST))
"""Numbers of the ports that are tried, in turn: no port is chosen twice for two programs that do not listen yet."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports of an address of this machine on which nothing listens now. Raises OSError if there are too few."""
    ports: dict[int, None] = {}
    for _ in range(ATTEMPTS):
        if len(ports) == count:
            return list(ports)
        port = FIRST + next(_NUMBERS) % (END - FIRST)
        try:
            with socket.socket() as listening:
                listening.bind((host, port))
        except OSError:
            continue
        ports[port] = None
    raise OSError(f"no {count} ports from {FIRST} to {END - 1} of {host} are free")
