"""TLS and SASL of a real broker: accepted and refused peers, and the client's errors."""

from __future__ import annotations

import itertools
import re
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.connection import Connection, connect_for_data
from sparklog.errors import (
    BrokerNotAvailableError,
    IllegalSaslStateError,
    InvalidConfigError,
    ResourceNotFoundError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.codec import encode
from sparklog.protocol.frames import encode_request
from sparklog.protocol.messages import FetchPartition, FetchRequest, HandshakeRequest, ProducePartition, ProduceRequest
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse
from sparklog.security.authority import Authority
from sparklog.security.client_security import client_security
from tests.support.cli import run_here
from tests.support.waiting import until
from tests.system.secure_broker import PASSWORD, SecureBroker, now, write_identity


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    broker = SecureBroker(
        tmp_path_factory.mktemp("secure"),
        more='sasl.enabled.mechanisms = "SCRAM-SHA-512,SCRAM-SHA-256"\n'
        'listener.name.both.sasl.enabled.mechanisms = "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN"\n'
        'audit.log.file = "audit.log"\nmetrics.listen = "127.0.0.1:0"\n'
        "connection.failed.authentication.delay.ms = 10",
    )
    with Admin(broker.addresses["LOCAL"]) as admin:
        admin.set_user_password("alice", PASSWORD)
    yield broker
    assert broker.stop() == 0, broker.process.stderr


def connect(secure: SecureBroker, listener: str, settings: dict[str, Any]) -> Connection:
    endpoint = parse_bootstrap(secure.addresses[listener])[0]
    return Connection(endpoint, timeout_ms=60_000, security=client_security(settings))


WAYS: list[tuple[str, dict[str, str]]] = [
    ("TLS", {"security.protocol": "SSL"}),
    ("SASL", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}),
    ("BOTH", {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}),
    ("BOTH", {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}),
]


def settings_of(
    secure: SecureBroker, given: dict[str, str], name: str = "alice", password: str = PASSWORD
) -> dict[str, str]:
    settings = dict(given)
    if "SSL" in given["security.protocol"]:
        settings["ssl.ca.location"] = str(secure.ca)
    if "SASL" in given["security.protocol"]:
        settings |= {"sasl.username": name, "sasl.password": password}
    return settings


@pytest.mark.parametrize(("listener", "given"), WAYS, ids=[f"{a}-{b.get('sasl.mechanism', '')}" for a, b in WAYS])
def test_records_are_read_over_every_kind_of_listener(
    secure: SecureBroker, listener: str, given: dict[str, str]
) -> None:
    settings = settings_of(secure, given)
    topic = f"t-{listener}-{given.get('sasl.mechanism', '')}".lower()
    values = [bytes([i % 251]) * size for i, size in enumerate((10, 70_000, 900_000, 3, 2_000_000))]
    with Producer(secure.addresses[listener], security=settings) as producer:
        for value in values:
            producer.send(topic, value)
    with Consumer(secure.addresses[listener], security=settings, consumer_timeout_ms=60_000) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found = [record.value for record in itertools.islice(consumer, len(values))]
    assert found == values


def test_a_certificate_is_a_name_where_clients_have_to_show_one(secure: SecureBroker, tmp_path: Path) -> None:
    good = write_identity(tmp_path, "carol", secure.authority.issue("carol", [], now(), 1, broker=False))
    mutual = {"security.protocol": "SSL", "ssl.ca.location": str(secure.ca)}
    connect(secure, "MUTUAL", mutual | good).close()
    stranger = Authority("another CA", now())
    bad = write_identity(tmp_path, "eve", stranger.issue("carol", [], now(), 1, broker=False))
    for wrong in ({}, bad):
        with pytest.raises(InvalidConfigError, match="certificate"):
            connect(secure, "MUTUAL", mutual | wrong)


def test_a_connection_ends_when_its_certificate_expires(secure: SecureBroker, tmp_path: Path) -> None:
    own = write_identity(tmp_path, "short", secure.authority.issue("short", [], now(), 15 / 86_400, broker=False))
    context = ssl.create_default_context(cafile=str(secure.ca))
    context.load_cert_chain(own["ssl.certificate.location"], own["ssl.key.location"])
    host, _, port = secure.addresses["MUTUAL"].rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        encrypted.sendall(encode_request(Api.HANDSHAKE, 0, 1, encode(HandshakeRequest(), 0)))
        assert encrypted.recv(16), "it is let in"
        while encrypted.recv(65_536):
            pass
    until(lambda: "the certificate of the client has expired" in secure.process.stderr, "the reason in the log")


def test_a_broker_whose_certificate_is_of_another_authority_is_not_talked_to(
    secure: SecureBroker, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    other.write_text(Authority("another CA", now()).identity.certificate)
    with pytest.raises(InvalidConfigError, match=r"set ssl\.ca\.location to the authority that has signed it"):
        connect(secure, "TLS", {"security.protocol": "SSL", "ssl.ca.location": str(other)})
    with pytest.raises(InvalidConfigError, match=r"ssl\.ca\.location"):
        connect(secure, "TLS", {"security.protocol": "SSL"})


def test_protocols_that_do_not_fit_end_with_an_error_that_says_so(secure: SecureBroker) -> None:
    with pytest.raises(InvalidConfigError, match=r"speaks TLS: set security\.protocol"):
        connect(secure, "TLS", {})
    with pytest.raises(InvalidConfigError, match=r"does security\.protocol fit the listener"):
        connect(secure, "LOCAL", settings_of(secure, {"security.protocol": "SSL"}))
    with pytest.raises(IllegalSaslStateError, match=r"no SASL: set security\.protocol"):
        connect(secure, "TLS", settings_of(secure, WAYS[2][1]))
    connection = connect(secure, "SASL", {})
    with pytest.raises(IllegalSaslStateError, match=r"security\.protocol"):
        connection.request(Api.METADATA, MetadataRequest(), MetadataResponse)
    assert connection.closed
    with pytest.raises(UnsupportedSaslMechanismError, match="SCRAM-SHA-512, SCRAM-SHA-256"):
        oauth = {"sasl.oauthbearer.token.endpoint.url": (secure.directory / "token").as_uri()}
        (secure.directory / "token").write_text("a.b.c")
        settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "ssl.ca.location": str(secure.ca)}
        connect(secure, "BOTH", settings | oauth)


@pytest.mark.parametrize(("listener", "given"), WAYS[1:], ids=[b["sasl.mechanism"] for _, b in WAYS[1:]])
def test_unknown_users_and_wrong_passwords_look_alike_and_are_logged_without_them(
    secure: SecureBroker, listener: str, given: dict[str, str]
) -> None:
    texts = set()
    for name, password in (("alice", "wrong-pony"), ("mallory", PASSWORD)):
        with pytest.raises(SaslAuthenticationFailedError) as failed:
            connect(secure, listener, settings_of(secure, given, name, password))
        texts.add(str(failed.value))
    assert len(texts) == 1
    log = secure.process.stderr
    assert f"{listener}: {given['sasl.mechanism']}: credentials are wrong" in log
    audit = secure.directory / "data" / "audit.log"
    until(lambda: f'"detail":"{listener}: {given["sasl.mechanism"]}: credentials' in audit.read_text(), "a line")
    assert '"kind":"authentication"' in audit.read_text()
    assert "wrong-pony" not in log + audit.read_text()
    assert PASSWORD not in log


def test_the_unix_socket_is_for_authenticated_peers_and_authenticates_again(secure: SecureBroker) -> None:
    endpoint = parse_bootstrap(secure.addresses["SASL"])[0]
    unknown = Connection(endpoint)
    assert unknown.broker.local_socket == ""
    unknown.close()
    security = client_security(settings_of(secure, WAYS[1][1]))
    known = connect_for_data(endpoint, security=security)
    assert known.uses_local_socket
    offered = known.broker.local_socket
    known.close()
    on_socket = Connection(endpoint, local_socket=offered)
    with pytest.raises(IllegalSaslStateError):
        on_socket.request(Api.METADATA, MetadataRequest(), MetadataResponse)
    encrypted = client_security(secure.tls() | {"security.protocol": "SSL"})
    anonymous = connect_for_data(parse_bootstrap(secure.addresses["TLS"])[0], security=encrypted)
    assert not anonymous.uses_local_socket
    anonymous.close()


def test_a_users_connections_end_when_the_user_is_removed(secure: SecureBroker) -> None:
    settings = settings_of(secure, WAYS[1][1], "dave", "dave-first")
    with Admin(secure.addresses["LOCAL"]) as admin:
        admin.set_user_password("dave", "dave-first", only_new=True)
        with pytest.raises(InvalidConfigError, match="already"):
            admin.set_user_password("dave", "other", only_new=True)
        open_one = connect(secure, "SASL", settings)
        admin.set_user_password("dave", "dave-second", only_existing=True)
        assert open_one.is_idle()  # a session goes on
        with pytest.raises(SaslAuthenticationFailedError):
            connect(secure, "SASL", settings)
        assert [u.mechanisms for u in admin.describe_users(["dave", "nobody"])] == [
            {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}
        ]
        admin.remove_user("dave")
        until(lambda: not open_one.is_idle(), "the end of dave's connection")
        with pytest.raises(BrokerNotAvailableError):
            open_one.request(Api.METADATA, MetadataRequest(), MetadataResponse)
        with pytest.raises(ResourceNotFoundError):
            admin.remove_user("dave")
        with pytest.raises(ResourceNotFoundError):
            admin.set_user_password("dave", "x", only_existing=True)
    with pytest.raises(SaslAuthenticationFailedError):
        connect(secure, "SASL", settings_of(secure, WAYS[1][1], "dave", "dave-second"))


def test_authenticated_peers_are_counted(secure: SecureBroker) -> None:
    with closing(connect(secure, "SASL", settings_of(secure, WAYS[1][1]))):
        with pytest.raises(SaslAuthenticationFailedError):
            connect(secure, "SASL", settings_of(secure, WAYS[1][1], password="no"))
        with urllib.request.urlopen(secure.process.metrics_url, timeout=30) as page:
            text = page.read().decode()
    for series in (
        'authentications_total{mechanism="SCRAM-SHA-256"}',
        'authentication_failures_total{reason="credentials"}',
    ):
        assert re.search(rf"(?m)^sparklog_{re.escape(series)} [1-9]", text), series


def test_slow_and_hostile_handshakes_hold_no_resource(secure: SecureBroker) -> None:
    """Peers that connect and say nothing, garbage, or half of a handshake: others get in meanwhile, and all are gone
    when they have closed."""
    before = secure.process.open_files()
    host, port = parse_bootstrap(secure.addresses["TLS"])[0]
    held = []
    for begun in (b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\xff" * 5000):
        for _ in range(20):
            sock = socket.create_connection((host, port), 20)
            sock.sendall(begun)
            held.append(sock)
    connect(secure, "TLS", settings_of(secure, WAYS[0][1])).close()
    for sock in held:
        sock.close()
    until(lambda: secure.process.open_files() <= before, "the end of all handshakes")


def test_peers_that_disconnect_inside_large_frames_free_all_memory(secure: SecureBroker) -> None:
    """While a thread encrypts an answer, or decrypts a request, for them."""
    settings = settings_of(secure, WAYS[0][1])
    with Producer(secure.addresses["TLS"], security=settings) as producer:
        for _ in range(8):
            producer.send("large", bytes(1_000_000))
    probe = connect(secure, "TLS", settings)
    with closing(probe):
        before = secure.process.open_files()
        for number in range(40):
            connection = connect(secure, "TLS", settings)
            if number % 2:
                asked = FetchRequest(0, 1, 1 << 24, 0, [FetchPartition("large", 0, 0, 1 << 23)])
                connection.send(Api.FETCH, asked)
                assert connection._socket.recv_into(bytearray(number * 10_000 + 1), 0, 0)
            else:
                request = encode(ProduceRequest(1, 1_000, [ProducePartition("large", 0, 4_000_000)]))
                frame = encode_request(Api.PRODUCE, 0, 7, request, 4_000_000)
                connection._socket.sendmsg([frame, bytes(number * 90_000)])
            connection.close()
        until(lambda: secure.process.open_files() <= before, "the end of all connections")
        probe.request(Api.METADATA, MetadataRequest(), MetadataResponse)
    assert "Traceback" not in secure.process.stderr


def test_users_on_the_command_line(secure: SecureBroker) -> None:
    """A password comes from stdin (or a prompt), and stands in no argument and no output."""

    def run(*arguments: str, stdin: str = "", code: int = 0) -> str:
        done = run_here("user", *arguments, "-b", secure.addresses["LOCAL"], stdin=stdin)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    assert run("add", "erin", stdin="erin-first\nmore\n") == "added user erin\n"
    listed = run("list")
    assert "erin" in listed
    assert "SCRAM-SHA-256, SCRAM-SHA-512" in listed
    connect(secure, "SASL", settings_of(secure, WAYS[1][1], "erin", "erin-first")).close()
    assert "set-password" in run("add", "erin", stdin="other\n", code=1)
    assert run("set-password", "erin", "--mechanism", "SCRAM-SHA-256", stdin="erin-second\n").startswith("changed")
    connect(secure, "SASL", settings_of(secure, WAYS[1][1], "erin", "erin-second")).close()
    assert run("remove", "erin") == "removed user erin\n"
    assert "user 'erin' does not exist" in run("remove", "erin", code=1)
    assert "user 'erin' does not exist" in run("set-password", "erin", stdin="x\n", code=1)
    assert "stdin" in run("add", "frank", code=2)
    # another name that clients would send as an existing one: the existing user's password stays
    assert run("add", "fine", stdin="x\n") == "added user fine\n"
    for command in ("add", "set-password"):
        assert "write 'fine'" in run(command, "\ufb01ne", stdin="y\n", code=1)
    connect(secure, "SASL", settings_of(secure, WAYS[1][1], "fine", "x")).close()
    assert run("remove", "fine") == "removed user fine\n"
