"""A client's TLS stream on a real socket, whose peer is a thread with OpenSSL."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from sparklog.client.net.tls_stream import IN_OPENSSL_BYTES_MAX, WAITED_FOR_BYTES, TlsStream
from sparklog.security.tls import client_context, server_context
from tests.campaigns.benchmarks.secure_servers import Certificates, make_certificates

WAIT_S = 30.0
RECORD_BYTES = 16 * 1024
DATA = os.urandom(8 * WAITED_FOR_BYTES)
Serve = Callable[[ssl.SSLSocket], None]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class Peer:
    """Serves one connection. `stream`: the client's end of it."""

    def __init__(self, certificates: Certificates, serve: Serve) -> None:
        server = server_context({"ssl.keystore.location": str(certificates.broker)})
        client = client_context({"ssl.ca.location": str(certificates.authority)})
        with socket.create_server(("127.0.0.1", 0)) as listening:
            plain = socket.create_connection(listening.getsockname(), WAIT_S)
            accepted, _ = listening.accept()

        def run() -> None:
            with server.wrap_socket(accepted, server_side=True) as sock:
                serve(sock)

        self.thread = threading.Thread(target=run)
        self.thread.start()
        self.sock = client.wrap_socket(plain, server_hostname="127.0.0.1")
        self.stream = TlsStream(self.sock)
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(WAIT_S), 0))

    def close(self) -> None:
        self.stream.close()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def connect(certificates: Certificates) -> Iterator[Callable[[Serve], Peer]]:
    made: list[Peer] = []

    def connect(serve: Serve) -> Peer:
        made.append(Peer(certificates, serve))
        return made[-1]

    yield connect
    for peer in made:
        peer.close()


def hold(event: threading.Event) -> None:
    event.wait(WAIT_S)


def low_mark(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def wait_for_low_mark(sock: socket.socket, wanted: int) -> bool:
    deadline = time.monotonic() + WAIT_S
    while low_mark(sock) != wanted and time.monotonic() < deadline:
        os.sched_yield()
    return low_mark(sock) == wanted


@pytest.mark.parametrize(
    "size",
    [1, RECORD_BYTES, WAITED_FOR_BYTES, 2 * WAITED_FOR_BYTES - 1, 2 * WAITED_FOR_BYTES, 2 * WAITED_FOR_BYTES + 1,
     WAITED_FOR_BYTES + IN_OPENSSL_BYTES_MAX, 5 * WAITED_FOR_BYTES + 4_321],
)  # fmt: skip
@pytest.mark.parametrize("piece", [1_000, RECORD_BYTES, 3 * RECORD_BYTES + 1, len(DATA)])
def test_all_bytes_come_without_a_further_wait(connect: Callable[[Serve], Peer], size: int, piece: int) -> None:
    go_on = threading.Event()

    def serve(sock: ssl.SSLSocket) -> None:
        for at in range(0, size, piece):
            sock.sendall(DATA[at : min(at + piece, size)])
        go_on.wait(WAIT_S)  # the peer has nothing more to say, and does not hang up either

    peer = connect(serve)
    try:
        room = bytearray(size)
        assert peer.stream.recv_into(room, 0, socket.MSG_WAITALL) == size
        assert room == DATA[:size]
        assert low_mark(peer.sock) == 1
    finally:
        go_on.set()


def test_many_records_are_waited_for_and_the_last_ones_one_by_one(connect: Callable[[Serve], Peer]) -> None:
    begun = threading.Event()
    last = len(DATA) - IN_OPENSSL_BYTES_MAX // 2  # the client sleeps over less than WAITED_FOR_BYTES and a record

    def serve(sock: ssl.SSLSocket) -> None:
        sock.sendall(DATA[:RECORD_BYTES])
        begun.wait(WAIT_S)
        assert wait_for_low_mark(peer.sock, WAITED_FOR_BYTES)  # else it would wake for each record
        sock.sendall(DATA[RECORD_BYTES:last])
        assert wait_for_low_mark(peer.sock, 1)  # else it would not wake for what is left
        sock.sendall(DATA[last:])

    peer = connect(serve)
    begun.set()
    room = bytearray(len(DATA))
    assert peer.stream.recv_into(room, 0, socket.MSG_WAITALL) == len(DATA)
    assert room == DATA


def test_a_peer_that_ends_in_the_middle(connect: Callable[[Serve], Peer]) -> None:
    sent = 3 * WAITED_FOR_BYTES + 77
    peer = connect(lambda sock: sock.sendall(DATA[:sent]))
    room = bytearray(len(DATA))
    assert peer.stream.recv_into(room, 0, socket.MSG_WAITALL) == sent
    assert room[:sent] == DATA[:sent]
    assert low_mark(peer.sock) == 1


def test_a_peer_that_stalls_in_the_middle(connect: Callable[[Serve], Peer]) -> None:
    go_on = threading.Event()

    def serve(sock: ssl.SSLSocket) -> None:
        sock.sendall(DATA[: 2 * WAITED_FOR_BYTES + 1])
        go_on.wait(WAIT_S)

    peer = connect(serve)
    try:
        peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 50_000))
        room, count = memoryview(bytearray(len(DATA))), 0
        with pytest.raises(TimeoutError):
            while count < len(DATA):
                count += peer.stream.recv_into(room[count:], 0, socket.MSG_WAITALL)
        assert count == 2 * WAITED_FOR_BYTES + 1, "what has come when the time is over is not lost"
        assert room[:count] == DATA[:count]
        assert low_mark(peer.sock) == 1
    finally:
        go_on.set()


def test_no_wait_without_a_read(connect: Callable[[Serve], Peer]) -> None:
    go_on = threading.Event()
    peer = connect(lambda sock: hold(go_on))
    try:
        with pytest.raises(BlockingIOError):
            peer.stream.recv_into(bytearray(10), 0, socket.MSG_DONTWAIT)
    finally:
        go_on.set()
