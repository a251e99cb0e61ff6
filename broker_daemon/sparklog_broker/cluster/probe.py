"""Probes: attempts to connect to another broker, to find out if its process or its machine is gone."""

from __future__ import annotations

import asyncio
import errno
import socket

from sparklog_broker.cluster.peer_connection import Connect, PeerConnection, PlainConnect
from sparklog_broker.cluster.secure_connect import SecureConnect
from sparklog_broker.config import parse_address

ATTEMPTS, INTERVAL_S = 3, 0.1
"""Number of attempts to connect, and time in s between their starts. After as much time again, none has a reply."""
OWN_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EPERM})
"""Errors of this machine, which say nothing about the other broker."""
LOOP_TURNS = 5
"""Turns of the event loop in which a reply is processed that arrived while the loop was late."""


async def is_reachable(connect: Connect, address: str) -> bool:
    """Return False if the broker's machine refuses a connection, or replies to none of ATTEMPTS attempts.

    The probe does not depend on the speed of the broker: the kernel accepts connections also for a busy or stopped
    process, and refuses them as soon as the process has ended. TLS and authentication are left out.
    """
    plain: Connect = PlainConnect() if isinstance(connect, SecureConnect) else connect
    host, port = parse_address(address, "endpoint")
    attempts: set[asyncio.Future[PeerConnection]] = set()
    try:
        for _ in range(ATTEMPTS):
            attempts.add(asyncio.ensure_future(plain(host, port)))
            await asyncio.wait(attempts, timeout=INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
            for _ in range(LOOP_TURNS):
                await asyncio.sleep(0)
            replies = [_is_accepted(attempt) for attempt in attempts if attempt.done()]
            if replies:
                return any(replies)
        return False
    finally:
        for attempt in attempts:
            attempt.add_done_callback(_close)
            attempt.cancel()


def _close(attempt: asyncio.Future[PeerConnection]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def _is_accepted(attempt: asyncio.Future[PeerConnection]) -> bool:
    """Return True if the attempt does not show that the process or the machine is gone."""
    error = attempt.exception()
    if not isinstance(error, OSError) or isinstance(error, socket.gaierror | ConnectionResetError):
        return True
    return error.errno in OWN_ERRORS
