"""The process behind a Unix socket that a broker offers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from sparklog.client.net import local_peer
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.connection import Connection, connect_for_data
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.local_peer import check_name, check_owner, tcp_owner
from sparklog.client.net.sockets import connect_socket
from sparklog.errors import BrokerNotAvailableError
from tests.unit.client.fake_broker import FakeBroker

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TCP = (
    HEAD
    + "   0: 0100007F:244C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1007        0 1 1 0 100 0 0 10 0\n"
    + "   1: 0100007F:C350 0100007F:244C 01 00000000:00000000 00:00000000 00000000  1001        0 2 1 0 20 4 30 10 -1\n"
    + "   2: 0100007F:244C 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1007        0 3 1 0 20 4 30 10 -1\n"
)
TCP6 = (
    HEAD
    + "   0: 0000000000000000FFFF00000100007F:244C 0000000000000000FFFF00000100007F:C351 01 0:0 00:0 0  1008        0 4\n"
    + "   1: 00000000000000000000000001000000:244C 00000000000000000000000001000000:C352 01 0:0 00:0 0  1009        0 5\n"
)


def test_the_user_at_the_other_end_of_a_connection() -> None:
    for own, peer, expected in (
        (("127.0.0.1", 50_000), ("127.0.0.1", 9292), 1007),
        (("127.0.0.1", 50_001), ("127.0.0.1", 9292), 1008),  # a broker that listens on IPv6, too
        (("::ffff:127.0.0.1", 50_001), ("::ffff:127.0.0.1", 9292), 1008),
        (("::1", 50_002), ("::1", 9292), 1009),
        (("127.0.0.1", 50_003), ("127.0.0.1", 9292), None),
        (("192.168.0.7", 50_000), ("192.168.0.9", 9292), None),  # another host
    ):
        assert tcp_owner((TCP, TCP6), own, peer) == expected, (own, peer)


def test_a_real_connection_is_recognized() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listener = socket.create_server((host, 0), family=family)
        except OSError:
            continue  # a machine without IPv6
        with listener, socket.create_connection(listener.getsockname()[:2]) as client, listener.accept()[0]:
            found = tcp_owner(local_peer._tables(), client.getsockname()[:2], client.getpeername()[:2])
            assert found == os.geteuid()


def test_only_names_of_brokers_sockets_are_connected_to() -> None:
    assert check_name("sparklog-" + "0a" * 16)
    for name in (
        "/tmp/.X11-unix/X0",
        "dbus",
        "sparklog-",
        "sparklog-" + "0A" * 16,
        "sparklog-" + "0a" * 16 + "\n",
        "a\0b",
    ):
        with pytest.raises(PermissionError, match="not the name of a broker's socket"):
            check_name(name)


@pytest.fixture
def bait() -> Iterator[socket.socket]:
    """A Unix socket of another program, which counts nothing but being connected to."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(f"\0sparklog-{os.urandom(16).hex()}")
    sock.listen()
    yield sock
    sock.close()


def name_of(sock: socket.socket) -> str:
    return str(sock.getsockname()[1:].decode())


def test_a_socket_of_another_user_is_not_used(bait: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says whose socket it is; here the client is somebody else, and root is nobody's."""
    monkeypatch.setattr(os, "geteuid", lambda: 4_242)
    monkeypatch.setattr(local_peer, "_ROOT", -1)
    owner = os.getuid()
    with pytest.raises(BrokerNotAvailableError, match=f"belongs to user {owner}, not to the broker's"):
        connect_socket(Endpoint("127.0.0.1", 1), name_of(bait), Deadline(5_000))
    taken, _ = bait.accept()
    assert taken.recv(1) == b""
    taken.close()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as tcp:
        ends = tcp.getsockname(), tcp.getpeername()
        taken, _ = listener.accept()
        with taken, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(bait.getsockname())
            check_owner(sock, *ends)  # the broker's own user has it
            with pytest.raises(PermissionError):
                check_owner(sock, ends[0], (ends[1][0], 9))


def test_data_stay_on_tcp_when_the_broker_names_another_programs_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker(1)
    monkeypatch.setattr(Connection, "offered_socket", lambda self: "some-other-program")
    connection = connect_for_data(Endpoint("127.0.0.1", broker.port))
    assert not connection.uses_local_socket
    connection.close()
    broker.close()
