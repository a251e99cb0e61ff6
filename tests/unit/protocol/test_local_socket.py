"""Capacity of a Unix socket."""

from __future__ import annotations

import socket

from sparklog.protocol.local_socket import enlarge_send_buffer


def fits(sock: socket.socket) -> int:
    """Return the number of bytes that the kernel accepts without a reader."""
    sock.setblocking(False)
    taken = 0
    try:
        while True:
            taken += sock.send(b"x" * 16_384)
    except BlockingIOError:
        return taken


def test_more_fits_into_an_enlarged_socket() -> None:
    before = [*socket.socketpair()]
    after = [*socket.socketpair()]
    enlarge_send_buffer(after[0])
    assert fits(after[0]) > fits(before[0])
    for sock in before + after:
        sock.close()
