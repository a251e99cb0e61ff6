"""The Unix socket beside TCP on which a broker serves clients of its own host."""

from __future__ import annotations

import socket

SEND_BUFFER_BYTES = 2 * 1024 * 1024
"""The kernel's 208 KiB are written and read a dozen times for an answer of some MiB, and each time one side wakes the
other. It may allow less (net.core.wmem_max)."""


def enlarge_send_buffer(sock: socket.socket) -> None:
    """Enlarge the send buffer, at both ends: in a Unix socket, the sender's buffer holds the data in transit. TCP sizes
    its buffers itself."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
