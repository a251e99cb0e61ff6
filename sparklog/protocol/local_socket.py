"""The Unix socket beside TCP on which a broker serves clients of its own host."""

from __future__ import annotations

import socket

SEND_BUFFER_BYTES = 2 * 1024 * 1024
"""Size in bytes of the socket's send buffer. With the kernel's default of 208 KiB, an answer of some MiB needs a dozen
system calls, and each wakes up the receiver. The kernel can set a smaller size (net.core.wmem_max)."""


def enlarge_send_buffer(sock: socket.socket) -> None:
    """Enlarge the send buffer of a Unix socket. Both ends call the function, because the sender's buffer holds the data
    in transit. TCP sizes its buffers itself."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
