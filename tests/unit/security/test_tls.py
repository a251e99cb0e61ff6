"""TLS over real sockets on the loopback: accepted and refused peers, and new certificates while connections are
open."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import stat
import threading
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from sparklog.errors import InvalidConfigError
from sparklog.security.authority import Authority, Identity
from sparklog.security.principal_mapping import certificate_name
from sparklog.security.scram import credential_matches, parse_credential
from sparklog.security.secrets import Secret, parse_properties
from sparklog.security.secure_setup import Place, secure_setup
from sparklog.security.tls import RenewedContext, client_context, handshake_error, server_context
from sparklog.settings import flatten

NOW = datetime.datetime.now(datetime.UTC)
LONG_AGO = NOW - datetime.timedelta(days=1000)
CA, OTHER_CA = Authority("CA", LONG_AGO), Authority("Other CA", NOW)
BROKER = CA.issue("broker", ["localhost", "127.0.0.1"], NOW, broker=True)
ALICE = CA.issue("alice", [], NOW, broker=False)


def settings(identity: Identity | None, authority: Authority | None = CA, **more: str) -> dict[str, Any]:
    given: dict[str, Any] = {name.replace("_", "."): value for name, value in more.items()}
    if identity:
        given |= {"ssl.keystore.certificate.chain": identity.certificate, "ssl.keystore.key": identity.key}
    return given | ({"ssl.truststore.certificates": authority.identity.certificate} if authority else {})


@contextlib.contextmanager
def serving(context: Callable[[], ssl.SSLContext]) -> Iterator[int]:
    """A server that answers each connection with the name in the client's certificate, then echoes; gives its port."""
    threads: list[threading.Thread] = []

    def answer(plain: socket.socket) -> None:
        # a client that is refused, or that refuses, is the test's business: it sees its own side
        with plain, contextlib.suppress(OSError), context().wrap_socket(plain, server_side=True) as tls:
            der = tls.getpeercert(binary_form=True)
            tls.sendall((certificate_name(der) if der else "nobody").encode().ljust(32))
            while data := tls.recv(100):
                tls.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listening.accept()
                plain.settimeout(30)
                threads.append(threading.Thread(target=answer, args=(plain,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
    for thread in [acceptor, *threads]:
        thread.join(30)
        assert not thread.is_alive()


@contextlib.contextmanager
def connected(port: int, context: ssl.SSLContext, host: str = "localhost") -> Iterator[tuple[ssl.SSLSocket, str]]:
    """The connection, and the server's name for the client."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        name = tls.recv(32)
        if not name:
            raise ConnectionResetError("the server has closed")
        yield tls, name.decode().strip()


def greeting(server: dict[str, Any], client: dict[str, Any], host: str = "localhost") -> str:
    context = server_context(server)
    with serving(lambda: context) as port, connected(port, client_context(client), host) as (_, name):
        return name


def test_a_server_is_verified_by_name_and_by_address() -> None:
    assert greeting(settings(BROKER), settings(None)) == "nobody"
    assert greeting(settings(BROKER), settings(None), "127.0.0.1") == "nobody"


def test_a_certificate_names_the_client() -> None:
    for how in ("requested", "required"):
        assert greeting(settings(BROKER, ssl_client_auth=how), settings(ALICE)) == "CN=alice"
    assert greeting(settings(BROKER), settings(ALICE)) == "nobody"  # not asked for
    assert greeting(settings(BROKER, ssl_client_auth="requested"), settings(None)) == "nobody"


@pytest.mark.parametrize("how", ["requested", "required"])
def test_clients_with_a_bad_certificate_are_refused(how: str) -> None:
    server = settings(BROKER, ssl_client_auth=how)
    bad = [
        OTHER_CA.issue("alice", [], NOW, broker=False),
        CA.issue("alice", [], LONG_AGO, days=10, broker=False),
        *([None] if how == "required" else []),
    ]
    for identity in bad:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            greeting(server, settings(identity))


@pytest.mark.parametrize(
    ("broker", "authority", "host", "part"),
    [
        (CA.issue("b", ["localhost"], LONG_AGO, days=10, broker=True), CA, "localhost", "expired"),
        (BROKER, CA, "other.example.com", "not valid for 'other.example.com'"),
        (BROKER, OTHER_CA, "localhost", "self-signed certificate"),
        (BROKER, None, "localhost", "self-signed certificate"),
        (CA.issue("localhost", [], NOW, broker=True), CA, "localhost", "not valid for 'localhost'"),
        (CA.issue("alice", ["localhost"], NOW, broker=False), CA, "localhost", "certificate purpose"),
    ],
    ids=["expired", "other host", "other CA", "system's CAs", "no SAN", "a client's certificate"],
)
def test_brokers_that_clients_refuse(broker: Identity, authority: Authority | None, host: str, part: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError) as e:
        greeting(settings(broker), settings(None, authority), host)
    error = handshake_error(e.value)
    assert isinstance(error, InvalidConfigError)
    assert part in str(error)


def test_the_host_name_is_not_checked_only_where_that_is_said() -> None:
    client = settings(None, ssl_endpoint_identification_algorithm="")
    assert greeting(settings(BROKER), client, "other.example.com") == "nobody"
    with pytest.raises(ssl.SSLCertVerificationError):  # the authority is, always
        greeting(settings(BROKER), settings(None, OTHER_CA, ssl_endpoint_identification_algorithm=""))


def old_client(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = client_context(settings(None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def test_tls_1_1_is_refused() -> None:
    context = server_context(settings(BROKER))
    with serving(lambda: context) as port:
        with (
            pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"),
            connected(port, old_client(ssl.TLSVersion.TLSv1_1)),
        ):
            pass
        with connected(port, old_client(ssl.TLSVersion.TLSv1_2)) as (tls, _):
            assert tls.version() == "TLSv1.2"
            cipher = tls.cipher()
            assert cipher
            assert cipher[0].startswith("ECDHE-")


def test_a_plain_client_gets_no_bytes() -> None:
    context = server_context(settings(BROKER))
    with serving(lambda: context) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
        plain.sendall(b"\x0c\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0")
        with contextlib.suppress(ConnectionResetError):
            assert b"nobody" not in plain.recv(1000)


def continued(pem: str) -> str:
    """A text whose lines end with a backslash after a space in a properties file, as in KIP-651."""
    return pem.strip().replace("\n", " ")


def test_files_and_texts_and_librdkafkas_names(tmp_path: Path) -> None:
    (tmp_path / "both.pem").write_text(BROKER.key.reveal() + BROKER.certificate)
    (tmp_path / "cert.pem").write_text(BROKER.certificate)
    (tmp_path / "key.pem").write_text(BROKER.key.reveal())
    (tmp_path / "ca.pem").write_text(CA.identity.certificate)
    key = serialization.load_pem_private_key(BROKER.key.reveal().encode(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"pw")
    ).decode()
    client = {"ssl.ca.location": str(tmp_path / "ca.pem")}
    servers: list[dict[str, Any]] = [
        {"ssl.keystore.location": str(tmp_path / "both.pem"), "ssl.keystore.type": "PEM"},
        {"ssl.certificate.location": str(tmp_path / "cert.pem"), "ssl.key.location": str(tmp_path / "key.pem")},
        {"ssl.certificate.pem": BROKER.certificate, "ssl.key.pem": BROKER.key.reveal()},
        {"ssl.keystore.certificate.chain": BROKER.certificate.replace("\n", "\\n"), "ssl.keystore.key": BROKER.key},
        {
            "ssl.keystore.certificate.chain": continued(BROKER.certificate + CA.identity.certificate),
            "ssl.keystore.key": Secret(continued(BROKER.key.reveal())),
        },
        {
            "ssl.certificate.pem": BROKER.certificate,
            "ssl.key.pem": continued(encrypted),
            "ssl.key.password": Secret("pw"),
        },
    ]
    for server in servers:
        assert greeting(server, {**client}) == "nobody"
    assert greeting(servers[0], {"ssl.truststore.certificates": continued(CA.identity.certificate)}) == "nobody"
    for password in (None, Secret("wrong")):
        with pytest.raises(InvalidConfigError, match=r"ssl\.key\.password") as e:
            server_context(servers[-1] | {"ssl.key.password": password})
        assert "wrong" not in str(e.value)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({}, "needs a certificate"),
        ({"ssl.keystore.type": "JKS"}, "only PEM"),
        ({"ssl.certificate.pem": BROKER.certificate}, "private key is missing"),
        ({"ssl.key.pem": BROKER.key}, "certificate is missing"),
        ({"ssl.certificate.pem": "x", "ssl.key.pem": BROKER.key}, "no PEM block"),
        (settings(Identity(BROKER.certificate, ALICE.key)), "belong together"),
        (settings(BROKER, ssl_client_auth="maybe"), "ssl.client.auth"),
        (settings(BROKER, None, ssl_client_auth="required"), "ssl.ca.location"),
        (settings(BROKER, ssl_enabled_protocols="TLSv1.1,TLSv1.2"), "ssl.enabled.protocols"),
        ({"ssl.keystore.location": "/nowhere/x.pem"}, "/nowhere/x.pem"),
        ({"ssl.keystore.location": "/dev/zero"}, "is a device, no regular file"),
    ],
)
def test_settings_that_are_refused(given: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidConfigError) as e:
        server_context(given)
    assert part in str(e.value)
    assert "PRIVATE KEY-----\n" not in str(e.value)


@pytest.mark.parametrize("name", ["ssl.truststore.location", "ssl.keystore.location", "ssl.ca.location"])
def test_a_java_store_without_its_type_is_refused_with_the_way_to_pem(name: str, tmp_path: Path) -> None:
    """Kafka takes a store for JKS by default."""
    store = tmp_path / "client.jks"
    store.write_bytes(bytes.fromhex("feedfeed0000000200000001"))
    with pytest.raises(InvalidConfigError, match=r"client\.jks") as e:
        client_context({name: str(store)})
    for command in ("openssl pkcs12 -in", "keytool -importkeystore"):
        assert command in str(e.value)


def serial(tls: ssl.SSLSocket) -> int:
    der = tls.getpeercert(binary_form=True)
    assert der
    return x509.load_der_x509_certificate(der).serial_number


def test_certificates_are_renewed_under_load(tmp_path: Path) -> None:
    """Connections come all the time; none fails, the open one goes on, and the last one sees the newest certificate."""
    path = tmp_path / "broker.pem"

    def install(identity: Identity) -> int:
        fresh = path.with_suffix(".new")
        fresh.write_text(identity.key.reveal() + identity.certificate)
        fresh.replace(path)
        return x509.load_pem_x509_certificate(identity.certificate.encode()).serial_number

    serials = {install(BROKER)}
    renewed = RenewedContext(server_context, {"ssl.keystore.location": str(path)})
    assert not renewed.renew()
    client, failures, seen = client_context(settings(None)), list[Exception](), set[int]()
    with serving(lambda: renewed.current) as port, connected(port, client) as (open_all_along, _):

        def load() -> None:
            try:
                for _ in range(25):
                    with connected(port, client) as (tls, _):
                        tls.sendall(b"x")
                        assert tls.recv(1) == b"x"
                        seen.add(serial(tls))
            except Exception as e:  # noqa: BLE001 (shown below)
                failures.append(e)

        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            serials.add(newest := install(CA.issue("broker", ["localhost"], NOW, broker=True)))
            assert renewed.renew()
        for thread in threads:
            thread.join(60)
        path.write_text("half a file")
        with pytest.raises(InvalidConfigError):
            renewed.renew()
        with connected(port, client) as (tls, _):
            assert serial(tls) == newest
        open_all_along.sendall(b"y")
        assert open_all_along.recv(1) == b"y"
    assert failures == []
    assert seen <= serials


def test_secure_setup_makes_a_cluster_that_works(tmp_path: Path) -> None:
    directory = tmp_path / "secure"
    made = secure_setup(directory, Place("", 9292, ("localhost", "10.0.0.1")), NOW)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {
        "ca.pem": 0o644,
        "ca-key.pem": 0o600,
        "broker.pem": 0o600,
        "admin.pem": 0o600,
        "broker.toml": 0o600,
        "client.properties": 0o600,
    }
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert set(made.files) == set(modes)
    broker = flatten(tomllib.loads((directory / "broker.toml").read_text()))
    client = parse_properties((directory / "client.properties").read_text())
    assert greeting(dict(broker), dict(client)) == "nobody"
    admin = {"ssl.keystore.location": str(directory / "admin.pem"), "ssl.ca.location": str(directory / "ca.pem")}
    assert greeting(dict(broker), {**admin}) == "CN=admin"
    password = Secret(client["sasl.jaas.config"].split('password="')[1].split('"')[0])
    assert credential_matches("SCRAM-SHA-512", password, parse_credential("SCRAM-SHA-512", made.credential))
    others = "".join(path.read_text() for path in directory.iterdir() if path.name != "client.properties")
    assert password.reveal() not in others
    assert password.reveal() not in repr(made)


def test_secure_setup_overwrites_no_file(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    before = tmp_path.stat().st_mode
    with pytest.raises(InvalidConfigError, match="not empty"):
        secure_setup(tmp_path, Place("", 9292, ()), NOW)
    assert tmp_path.stat().st_mode == before
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    for user in ('a"b', "", "a b"):
        with pytest.raises(InvalidConfigError):
            secure_setup(tmp_path / "new", Place("", 9292, ()), NOW, user)
    with pytest.raises(InvalidConfigError, match="host name"):
        secure_setup(tmp_path / "new", Place("", 9292, ("\ud800",)), NOW)
