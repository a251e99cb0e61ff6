"""Sessions and certificates of a real broker over time: authenticated again, ended, renewed under load."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog import Admin, Producer
from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.connection import Connection
from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.protocol import frames
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.codec import encode
from sparklog.protocol.messages import HandshakeRequest
from sparklog.protocol.security_messages import SaslAuthenticateRequest, SaslHandshakeRequest
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse
from sparklog.security.client_security import client_security
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess
from tests.system.secure_broker import PASSWORD, SecureBroker

LIFETIME_MS = 1_500
MORE = f"""
connection.failed.authentication.delay.ms = 10
connections.max.reauth.ms = {LIFETIME_MS}
listener.name.both.sasl.enabled.mechanisms = "OAUTHBEARER,SCRAM-SHA-512"
sasl.oauthbearer.expected.audience = "sparklog"
"""


def signed(key: Any, lifetime_s: float, name: str = "alice", audience: str = "sparklog") -> str:
    import jwt

    claims = {"sub": name, "aud": audience, "exp": time.time() + lifetime_s}
    return jwt.encode(claims, key, "RS256", headers={"kid": "one"})


@pytest.fixture(scope="module")
def key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, key: Any) -> Iterator[SecureBroker]:
    from jwt.algorithms import RSAAlgorithm

    directory = tmp_path_factory.mktemp("sessions")
    jwk = json.loads(RSAAlgorithm.to_jwk(key.public_key())) | {"kid": "one", "alg": "RS256", "use": "sig"}
    (directory / "jwks.json").write_text(json.dumps({"keys": [jwk]}))
    more = f'{MORE}sasl.oauthbearer.jwks.endpoint.url = "file://{directory / "jwks.json"}"\n'
    broker = SecureBroker(directory, more=more + "sasl.oauthbearer.clock.skew.seconds = 0")
    with Admin(broker.addresses["LOCAL"]) as admin:
        admin.set_user_password("alice", PASSWORD)
    yield broker
    assert broker.stop() == 0, broker.process.stderr


def scram(secure: SecureBroker) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }


def test_clients_authenticate_again_in_time_and_lose_no_record(secure: SecureBroker) -> None:
    """A producer that never stops, over several lifetimes of its session, with requests in flight all the time."""
    acked = 0
    end = time.monotonic() + 3 * LIFETIME_MS / 1000
    with Producer(secure.addresses["SASL"], security=scram(secure), linger_ms=1) as producer:
        while time.monotonic() < end:
            pending = [producer.send("again", b"x" * 1000) for _ in range(50)]
            acked += sum(future.result(60).offset >= 0 for future in pending)
    assert acked >= 50
    expired = [line for line in secure.process.stderr.splitlines() if "has expired" in line]
    assert not any("a client on this host" in line for line in expired), "the producer's own, on the Unix socket"
    connection = Connection(parse_bootstrap(secure.addresses["SASL"])[0], security=client_security(scram(secure)))
    with closing(connection):
        for _ in range(3):
            until(lambda: connection.wants_rest, "the session is to be renewed", look_share=0)
            connection.request(Api.METADATA, MetadataRequest(), MetadataResponse)
            assert not connection.wants_rest


def test_a_session_that_is_not_renewed_ends(secure: SecureBroker) -> None:
    connection = Connection(parse_bootstrap(secure.addresses["SASL"])[0], security=client_security(scram(secure)))
    with closing(connection):
        until(lambda: not connection.is_idle(), "the end of the session")
    assert "the session of User:alice has expired" in secure.process.stderr


def test_tokens(secure: SecureBroker, key: Any, tmp_path: Path) -> None:
    """Good ones are let in for as long as they are good; forged, foreign and expired ones are not."""
    from cryptography.hazmat.primitives.asymmetric import rsa

    token = tmp_path / "token"
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
        "ssl.ca.location": str(secure.ca),
    }
    endpoint = parse_bootstrap(secure.addresses["BOTH"])[0]
    token.write_text(signed(key, 0.7))
    with closing(Connection(endpoint, security=client_security(settings))) as connection:
        connection.request(Api.METADATA, MetadataRequest(), MetadataResponse)
        until(lambda: not connection.is_idle(), "the token's end")
    other = rsa.generate_private_key(65537, 2048)
    for wrong in (signed(key, -1), signed(other, 60), signed(key, 60, audience="billing"), "a.b.c"):
        token.write_text(wrong)
        with pytest.raises(SaslAuthenticationFailedError):
            Connection(endpoint, security=client_security(settings))
        assert wrong not in secure.process.stderr


@pytest.mark.parametrize(
    ("hosts", "days", "message"),
    [
        (("127.0.0.1",), -0.01, "expired: the certificate has to be renewed"),
        (("broker.example",), 1, "an address in the certificate"),
    ],
)
def test_a_brokers_certificate_that_is_expired_or_for_another_host(
    tmp_path: Path, hosts: tuple[str, ...], days: float, message: str
) -> None:
    broker = SecureBroker(tmp_path, hosts=hosts, days=days)
    try:
        with pytest.raises(InvalidConfigError, match=message):
            settings = broker.tls() | {"security.protocol": "SSL"}
            Connection(parse_bootstrap(broker.addresses["TLS"])[0], security=client_security(settings))
    finally:
        assert broker.stop() == 0


def test_an_open_listener_needs_allow_insecure(tmp_path: Path) -> None:
    refused = BrokerProcess(tmp_path / "data", listen="0.0.0.0:0", work_dir=tmp_path)
    assert refused.wait() == 2
    assert "allow.insecure = true" in refused.stderr
    assert not (tmp_path / "data").exists()
    warned = BrokerProcess(tmp_path / "data", settings="allow.insecure = true", listen="0.0.0.0:0", work_dir=tmp_path)
    assert warned.stop() == 0
    assert "every client that reaches PLAINTEXT://:0 has access" in warned.stderr


def test_open_metrics_cause_a_warning(tmp_path: Path) -> None:
    settings = 'metrics.listen = "{}:0"'
    local = BrokerProcess(tmp_path / "data", settings=settings.format("[::1]"), work_dir=tmp_path)
    assert local.stop() == 0
    assert "WARNING" not in local.stderr
    open_to_all = BrokerProcess(tmp_path / "data", settings=settings.format("0.0.0.0"), work_dir=tmp_path)
    assert open_to_all.stop() == 0
    assert "every client that reaches 0.0.0.0:0 sees the names of topics and groups" in open_to_all.stderr


ALLOWED = {Api.HANDSHAKE, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}
MESSAGES = st.one_of(
    st.just((Api.HANDSHAKE, encode(HandshakeRequest()))),
    st.sampled_from(["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "NONE", ""]).map(
        lambda m: (Api.SASL_HANDSHAKE, encode(SaslHandshakeRequest(m)))
    ),
    st.one_of(
        st.binary(max_size=200), st.just(b"n,,n=alice,r=abcdefgh"), st.just(b"\0alice\0" + PASSWORD.encode())
    ).map(lambda token: (Api.SASL_AUTHENTICATE, encode(SaslAuthenticateRequest(token)))),
    st.tuples(st.sampled_from(list(Api)), st.binary(max_size=100)),
    st.tuples(st.integers(0, 0xFFFF), st.binary(max_size=100)),
)


@given(st.lists(MESSAGES, min_size=1, max_size=6))
@settings(max_examples=60)
def test_only_the_authentication_is_answered_before_the_peer_is_authenticated(
    secure: SecureBroker, sent: list[tuple[int, bytes]]
) -> None:
    with socket.create_connection(parse_bootstrap(secure.addresses["SASL"])[0], 20) as sock:
        for number, (api, header) in enumerate(sent):
            version = APIS[Api(api)].version_max if api in set(Api) else 0
            frame = frames.encode_request(Api(api) if api in set(Api) else api, version, number, header)
            try:
                sock.sendall(frame)
                answer = sock.recv(frames.PREFIX_BYTES, socket.MSG_WAITALL)
                if len(answer) < frames.PREFIX_BYTES:
                    return
                prefix = frames.decode_response_prefix(answer, 1 << 20)
                sock.recv(prefix.body_bytes, socket.MSG_WAITALL)
            except ConnectionError:
                return
            assert prefix.error_code != 0 or api in ALLOWED, f"API {api} has been answered"
