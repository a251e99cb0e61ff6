"""The Unix socket beside TCP on which a broker serves clients of its own host."""

from __future__ import annotations

import socket

SEND_BUFFER_BYTES = 2 * 1024 * 1024
"""Size in bytes of the socket's send buffer. With the kernel's 208 KiB, an answer of some MiB takes a dozen rounds,
each with a wake-up of the other side. The kernel may allow less (net.core.wmem_max)."""


def enlarge_send_buffer(sock: socket.socket) -> None:
    """Enlarge the send buffer, at both ends: in a Unix socket, the sender's buffer holds the data in transit. TCP sizes
    its buffers itself."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
