"""Quotas of connections on a real broker: peers by address, users by name, over plain TCP and over TLS with SCRAM."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog import Admin
from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.connection import Connection
from sparklog.errors import SparklogError, TooManyConnectionsError, error_from_code
from sparklog.protocol.apis import Api
from sparklog.protocol.codec import decode_error_body, encode
from sparklog.protocol.frames import PREFIX_BYTES, decode_response_prefix, encode_request
from sparklog.protocol.messages import HandshakeRequest
from sparklog.security.client_security import client_security
from sparklog.security.quotas import Entity
from tests.support.waiting import until
from tests.system.broker_process import PATIENCE_S, BrokerProcess
from tests.system.secure_broker import PASSWORD, SecureBroker

HELLO = encode_request(Api.HANDSHAKE, 0, 1, encode(HandshakeRequest("test", "0"), 0))
CLIENT, HOSTILE, HASTY = "127.0.0.1", "127.0.0.2", "127.0.0.3"


class Peer:
    """A connection from an address of this machine after the handshake. Raises the broker's error."""

    def __init__(self, broker: BrokerProcess, host: str) -> None:
        self.sock = socket.create_connection((broker.host, broker.port), PATIENCE_S, (host, 0))
        try:
            self.sock.sendall(HELLO)
            prefix = decode_response_prefix(self._read(PREFIX_BYTES), 1 << 20)
            body = self._read(prefix.body_bytes)
            if prefix.error_code:
                raise error_from_code(prefix.error_code, decode_error_body(body).message)
        except BaseException:
            self.sock.close()
            raise

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.sock.recv(count - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data

    def close(self) -> None:
        self.sock.close()


def outcome(broker: BrokerProcess, host: str) -> str:
    try:
        Peer(broker, host).close()
    except TooManyConnectionsError as e:
        return str(e)
    except OSError:
        return "closed"
    return ""


def outcome_of_a_burst(broker: BrokerProcess, host: str) -> str:
    """Return the answer to the last of many simultaneous connections: at one a second they exceed the allowed wait."""
    for _ in range(20):
        socket.create_connection((broker.host, broker.port), PATIENCE_S, (host, 0)).close()
    return outcome(broker, host)


def refused_count(broker: BrokerProcess) -> float:
    with urllib.request.urlopen(broker.metrics_url, timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("sparklog_connections_refused_total ")
    )


def test_numbers_and_rates_of_addresses_and_users(tmp_path: Path) -> None:
    settings = f'max.connections.per.ip = 50\nmax.connections.per.ip.overrides = "{HOSTILE}:2"\n'
    broker = BrokerProcess(tmp_path / "data", settings=settings, work_dir=tmp_path)
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                stack.callback(Peer(broker, HOSTILE).close)
            with pytest.raises(TooManyConnectionsError, match=r"has 2 connections already .*all from 127\.0\.0\.2"):
                Peer(broker, HOSTILE)
            stack.callback(Peer(broker, CLIENT).close)
        until(lambda: not outcome(broker, HOSTILE), "the address has its room back")
        with Admin(broker.address) as admin:
            admin.alter_client_quotas(Entity(ip=HASTY), {"connection_creation_rate": 1.0})
            until(
                lambda: "more than 1 new connections a second" in outcome_of_a_burst(broker, HASTY),
                "a burst is refused",
            )
            assert outcome(broker, CLIENT) == ""
            admin.alter_client_quotas(Entity(""), {"max_connections": 3.0})
            with contextlib.ExitStack() as stack:
                refusals: list[TooManyConnectionsError] = []
                while not refusals:
                    try:
                        stack.callback(Peer(broker, CLIENT).close)
                    except TooManyConnectionsError as e:
                        refusals.append(e)
                assert "user 'ANONYMOUS' has 3 connections to this broker already (max_connections)" in str(refusals[0])
                assert admin.describe_client_quotas().quotas[Entity("")] == {"max_connections": 3.0}
            admin.alter_client_quotas(Entity(""), {"max_connections": None})
        assert broker.stop() == 0
        broker = BrokerProcess(tmp_path / "data", settings=settings, work_dir=tmp_path)
        assert outcome(broker, CLIENT) == ""
        until(
            lambda: "more than 1 new connections a second" in outcome_of_a_burst(broker, HASTY),
            "a restart keeps the quota",
        )
    finally:
        broker.stop()


def test_a_peer_that_connects_in_a_loop_does_not_slow_others(tmp_path: Path) -> None:
    """One peer connects as fast as it can, and does not wait to be answered. It is refused, and takes nothing of the
    rate of all: that would have been used up at once, and the others refused, too."""
    settings = 'max.connection.creation.rate = 60\nmetrics.listen = "127.0.0.1:0"\n'
    broker = BrokerProcess(tmp_path / "data", settings=settings, work_dir=tmp_path)
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                socket.create_connection((broker.host, broker.port), PATIENCE_S, (HOSTILE, 0)).close()

    threads = [threading.Thread(target=loop) for _ in range(2)]
    try:
        with Admin(broker.address) as admin:
            admin.alter_client_quotas(Entity(ip=HOSTILE), {"connection_creation_rate": 1.0})
            for thread in threads:
                thread.start()
            until(lambda: "more than 1 new connections a second" in outcome(broker, HOSTILE), "the loop is refused")
            until(lambda: refused_count(broker) > 200, "hundreds are refused")
            assert [outcome(broker, CLIENT) for _ in range(20)] == [""] * 20
            assert admin.describe_client_quotas().throttled == []
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        assert broker.stop() == 0


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[SecureBroker]:
    broker = SecureBroker(tmp_path, more='sasl.enabled.mechanisms = "SCRAM-SHA-256"')
    with Admin(broker.addresses["LOCAL"]) as admin:
        for name in ("alice", "bob"):
            admin.set_user_password(name, PASSWORD)
    yield broker
    assert broker.stop() == 0, broker.process.stderr


def test_connections_of_a_user_over_tls(secure: SecureBroker) -> None:
    endpoint = parse_bootstrap(secure.addresses["BOTH"])[0]

    def connect(name: str) -> Connection:
        given = {"security.protocol": "SASL_SSL", **secure.client(name, mechanism="SCRAM-SHA-256")}
        return Connection(endpoint, timeout_ms=60_000, security=client_security(given | secure.tls()))

    def told(name: str) -> str:
        try:
            connect(name).close()
        except SparklogError as e:
            assert isinstance(e, TooManyConnectionsError)
            return str(e)
        return ""

    with Admin(secure.addresses["LOCAL"]) as admin:
        admin.alter_client_quotas(Entity("alice"), {"max_connections": 2.0, "max_topics": 5.0})
        first, second = connect("alice"), connect("alice")
        assert "user 'alice' has 2 connections" in told("alice")
        assert told("bob") == "", "another user"
        assert admin.describe_client_quotas().used[Entity("alice")] == {"max_connections": 2, "max_topics": 0}
        first.close()
        until(lambda: told("alice") == "", "who closes one may open another")
        second.close()
        admin.alter_client_quotas(Entity("alice"), {"max_connections": None, "connection_creation_rate": 1.0})
        until(
            lambda: "more than 1 new connections a second (connection_creation_rate)" in told("alice"),
            "who comes too fast",
        )
        assert told("bob") == ""
