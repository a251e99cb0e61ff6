"""The preamble of a gateway's connection, which names the gateway's client."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

from sparklog.errors import InvalidRequestError
from sparklog.protocol.gateway import LENGTH, PREAMBLE_BYTES_MAX, OnBehalf, decode_preamble

TIMEOUT_S = 5.0
_CREDENTIALS = struct.Struct("3i")


async def read_preamble(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> OnBehalf:
    """Return the client of a gateway's connection.

    Raises PermissionError for a process of another user, InvalidRequestError, OSError, TimeoutError.
    """
    _, owner, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if owner != os.geteuid():
        raise PermissionError(f"its process belongs to user {owner}, not to the broker's user {os.geteuid()}")
    async with asyncio.timeout(TIMEOUT_S):
        (size,) = LENGTH.unpack(await _exactly(loop, sock, LENGTH.size))
        if size > PREAMBLE_BYTES_MAX:
            raise InvalidRequestError(f"a preamble of {size} bytes; at most {PREAMBLE_BYTES_MAX} are allowed")
        return decode_preamble(await _exactly(loop, sock, size))


async def _exactly(loop: asyncio.AbstractEventLoop, sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = await loop.sock_recv(sock, size - len(data))
        if not part:
            raise InvalidRequestError("the connection ended inside the preamble")
        data += part
    return data
