"""Servers that accept connections and then fail to act as a broker."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.unit.client.fake_broker import FakeBroker


@contextlib.contextmanager
def accepts_and_is_silent() -> Iterator[str]:
    """The kernel accepts, nobody ever reads."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def does_not_accept() -> Iterator[str]:
    """A listener with a full queue: the kernel drops new connections, as a firewall does."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def trickles(bytes_each: bytes = b"\x00", interval_s: float = 0.05) -> Iterator[str]:
    """Answers with the beginning of a frame of 1 MiB, byte by byte."""
    frame = (1 << 20).to_bytes(4, "little") + bytes_each * (1 << 20)
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            for byte in frame:
                connection.send(bytes([byte]))
                if ended.wait(interval_s):
                    return

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = [threading.Thread(target=accept, args=(listener,), daemon=True)]
        threads[0].start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(30)


@contextlib.contextmanager
def shakes_hands_and_is_silent() -> Iterator[str]:
    """Answers handshakes, and nothing else."""
    broker = FakeBroker()
    broker.hook = lambda api, message: None if api.name == "HANDSHAKE" else "silent"
    try:
        yield broker.address
    finally:
        broker.close()


@contextlib.contextmanager
def tells_metadata_and_is_silent() -> Iterator[str]:
    """Answers handshakes and METADATA, and nothing else."""
    broker = FakeBroker()
    broker.hook = lambda api, message: None if api.name in ("HANDSHAKE", "METADATA") else "silent"
    try:
        yield broker.address
    finally:
        broker.close()


SERVERS = [
    accepts_and_is_silent,
    does_not_accept,
    trickles,
    shakes_hands_and_is_silent,
    tells_metadata_and_is_silent,
]
