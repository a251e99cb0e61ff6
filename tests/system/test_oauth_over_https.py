"""OAUTHBEARER with a real https server that gives tokens and keys, and that has a certificate of its own authority."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from sparklog_broker.security.tokens import UNKNOWN_KEY_INTERVAL_S
from starlette.testclient import TestClient

from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.cli.errors import hint_for
from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.connection import Connection
from sparklog.console.app import make_app
from sparklog.console.sessions import login_security
from sparklog.console.web import Options
from sparklog.environment import real_environment
from sparklog.errors import BrokerNotAvailableError, SaslAuthenticationFailedError
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse
from sparklog.security.authority import Authority
from sparklog.security.client_security import SecuritySettings, TokenEndpoint, client_security
from sparklog.security.secrets import Secret
from sparklog.security.token_source import TokenSource
from tests.support.cli import Result, run_here
from tests.support.waiting import until
from tests.system.console_client import BASE, ORIGIN, fields_of, get
from tests.system.secure_broker import SecureBroker, now, write_identity


class Issuer:
    """Gives tokens of its newest key at /token, its public keys at /jwks; /elsewhere leads to plain text.

    `port` 0: any. `name`: first part of the ids of its keys.
    """

    def __init__(self, directory: Path, authority: Authority, *, port: int = 0, name: str = "key") -> None:
        self._name = name
        self.answers = threading.Event()
        """Clear: /jwks hangs until it is set."""
        self.answers.set()
        self.asked: dict[str, int] = {}
        self.keys: list[Any] = []
        self.more: dict[str, object] = {}
        self.new_key()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.count(self.path)
                if self.path == "/elsewhere":
                    self.send_response(302)
                    self.send_header("Location", "http://127.0.0.1:1/jwks")
                    self.end_headers()
                else:
                    issuer.answers.wait()
                    self._answer(issuer.jwks())

            def do_POST(self) -> None:
                issuer.count(self.path)
                self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/elsewhere" or self.headers["Authorization"] != "Basic bWU6cHN0":  # me:pst
                    self.send_error(401)
                else:
                    self._answer({"access_token": issuer.token(), "token_type": "Bearer", "expires_in": 0})

            def _answer(self, content: object) -> None:
                data = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        own = write_identity(directory, "issuer", authority.issue("issuer", ["localhost"], now(), 1, broker=True))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own["ssl.certificate.location"], own["ssl.key.location"])
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.url = f"https://localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def new_key(self) -> None:
        self.keys.append(rsa.generate_private_key(65537, 2048))

    def count(self, path: str) -> None:
        self.asked[path] = self.asked.get(path, 0) + 1

    def jwks(self) -> object:
        public = [json.loads(RSAAlgorithm.to_jwk(key.public_key())) for key in self.keys]
        return {"keys": [key | {"kid": f"{self._name}-{i}", "alg": "RS256"} for i, key in enumerate(public)]}

    def token(self, key: Any = None, kid: str = "", **other: object) -> str:
        claims = {"sub": "alice", "aud": "sparklog", "exp": time.time() + 300} | other
        headers = {"kid": kid or f"{self._name}-{len(self.keys) - 1}"}
        return jwt.encode(claims, key or self.keys[-1], "RS256", headers=headers)

    def close(self) -> None:
        """A second call has no effect."""
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Issuer, SecureBroker, Path]]:
    directory = tmp_path_factory.mktemp("oauth")
    authority = Authority("the issuer's CA", now())
    ca = directory / "issuer-ca.pem"
    ca.write_text(authority.identity.certificate)
    issuer = Issuer(directory, authority)
    broker = SecureBroker(directory, more=settings_of_broker(issuer, ca))
    yield issuer, broker, ca
    assert broker.stop() == 0, broker.process.stderr
    issuer.close()


def settings_of_broker(issuer: Issuer, ca: Path) -> str:
    return f"""
connection.failed.authentication.delay.ms = 1
listener.name.both.sasl.enabled.mechanisms = "OAUTHBEARER"
sasl.oauthbearer.expected.audience = "sparklog"
sasl.oauthbearer.jwks.endpoint.url = "{issuer.url}/jwks"
https.ca.location = "{ca}"
"""


def settings(issuer: Issuer, broker: SecureBroker, ca: Path) -> dict[str, str]:
    login = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{login} required clientId="me" clientSecret="pst";',
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        "https.ca.location": str(ca),
        "ssl.ca.location": str(broker.ca),
    }


def log_in(broker: SecureBroker, given: dict[str, str]) -> None:
    endpoint = parse_bootstrap(broker.addresses["BOTH"])[0]
    with closing(Connection(endpoint, timeout_ms=60_000, security=client_security(given))) as connection:
        connection.request(Api.METADATA, MetadataRequest(), MetadataResponse)


def test_a_new_key_is_accepted_at_once_and_invented_ones_do_not_hammer_the_issuer(
    world: tuple[Issuer, SecureBroker, Path], tmp_path: Path
) -> None:
    issuer, broker, ca = world
    log_in(broker, settings(issuer, broker, ca))
    asked, begun = issuer.asked["/jwks"], time.monotonic()
    issuer.new_key()  # the next periodic look would be in an hour
    log_in(broker, settings(issuer, broker, ca))
    assert issuer.asked["/jwks"] == asked + 1
    stranger = rsa.generate_private_key(65537, 2048)
    token = tmp_path / "token"
    hostile = {n: v for n, v in settings(issuer, broker, ca).items() if n.startswith(("security", "ssl", "sasl.mech"))}
    hostile["sasl.oauthbearer.token.endpoint.url"] = token.as_uri()
    for i in range(20):
        token.write_text(issuer.token(stranger, f"made-up-{i}"))
        with pytest.raises(SaslAuthenticationFailedError):
            log_in(broker, hostile)
    assert issuer.asked["/jwks"] <= asked + 2 + (time.monotonic() - begun) / UNKNOWN_KEY_INTERVAL_S
    log_in(broker, settings(issuer, broker, ca))


def test_a_dead_issuer_that_comes_back_with_other_keys(tmp_path: Path) -> None:
    """First it hangs, then its port is closed, then another one has the port; a client stays connected all the time."""
    authority = Authority("the issuer's CA", now())
    ca, held = tmp_path / "issuer-ca.pem", tmp_path / "token"
    ca.write_text(authority.identity.certificate)
    with ExitStack() as stack:

        def start(**more: Any) -> Issuer:
            issuer = Issuer(tmp_path, authority, **more)
            stack.callback(issuer.close)
            return issuer

        issuer = start()
        times = "sasl.oauthbearer.jwks.endpoint.refresh.ms = 1000\nsasl.oauthbearer.jwks.endpoint.outage.ms = 1000"
        broker = SecureBroker(tmp_path, more=settings_of_broker(issuer, ca) + times)
        stack.callback(broker.stop)
        login = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": held.as_uri(),
            "ssl.ca.location": str(broker.ca),
        }
        connections: list[Connection] = []

        def connect(token: str) -> bool:
            held.write_text(token)
            endpoint = parse_bootstrap(broker.addresses["BOTH"])[0]
            connection = Connection(endpoint, timeout_ms=60_000, security=client_security(login))
            connections.append(stack.enter_context(closing(connection)))
            return True

        def refusal(token: str) -> str:
            try:
                connect(token)
            except SaslAuthenticationFailedError as e:
                return str(e)
            return ""

        def is_served() -> bool:
            return bool(connections[0].request(Api.METADATA, MetadataRequest(), MetadataResponse)[0].brokers)

        until(lambda: refusal(issuer.token()) == "", "a connection")  # on a slow machine the keys may be too old
        issuer.answers.clear()
        until(lambda: "could not be read for 1 s" in refusal(issuer.token()), "the end of the keys' time")
        assert is_served()
        issuer.close()
        until(lambda: "Connection refused" in broker.process.stderr, "a read of the closed port")
        assert is_served()
        other = start(port=issuer.port, name="other")
        until(lambda: refusal(other.token()) == "", "the keys of the other issuer")
        until(lambda: "the token's key (kid) is not in the issuer's set" in refusal(issuer.token()), "the other keys")
        assert is_served()
        assert broker.stop() == 0, broker.process.stderr


def test_every_client_logs_in_with_a_token_and_a_wrong_token_opens_none(
    world: tuple[Issuer, SecureBroker, Path], topic: str, tmp_path: Path
) -> None:
    """The Python clients, the command line, and the login of the console."""
    issuer, broker, ca = world
    address, given = broker.addresses["BOTH"], settings(issuer, broker, ca)
    with Admin(address, security=given) as admin:
        admin.create_topic(topic)
    with Producer(address, security=given) as producer, Consumer(address, security=given) as consumer:
        producer.send(topic, b"x").result()
        assert consumer.end_offsets(TopicPartition(topic, 0)) == {TopicPartition(topic, 0): 1}
    from_file = {n: v for n, v in given.items() if n.startswith(("security", "ssl", "sasl.mech"))}
    template = login_security(SecuritySettings(from_file))
    app = make_app(Options(address, login=template), real_environment(), hint=hint_for, round_s=0.1)

    def listed(token: str) -> Result:
        """Run the command with a file of settings, and one that holds the token."""
        held = tmp_path / f"token-{len(list(tmp_path.iterdir()))}"  # a connection that is open needs no new token
        held.write_text(token)
        properties = from_file | {"sasl.oauthbearer.token.endpoint.url": held.as_uri()}
        (tmp_path / "client.properties").write_text("\n".join(f"{n}={v}" for n, v in properties.items()))
        return run_here("topic", "list", "-b", address, "--command-config", tmp_path / "client.properties")

    with TestClient(app, base_url=BASE, follow_redirects=False) as client:

        def log_in_with(token: str) -> Any:
            fields = fields_of(get(client, "/login")) | {"secret": token}
            return client.post("/login", data=fields, headers=ORIGIN)

        wrong = {
            "has expired (exp)": issuer.token(exp=time.time() - 300),
            "has no expiry (exp)": issuer.token(exp=None),
            "is not valid yet (nbf)": issuer.token(nbf=time.time() + 300),
            "audience (aud) is none of": issuer.token(aud="another"),
            "a claim of the token has a wrong form": issuer.token(sub=None),
            "signature is wrong": issuer.token(rsa.generate_private_key(65537, 2048)),
            "is not a signed JSON web token": "x",
        }
        for reason, token in wrong.items():
            refused = listed(token)
            assert refused.returncode == 1, reason
            assert "SASL_AUTHENTICATION_FAILED" in refused.stderr, reason
            assert reason in refused.stderr
            page = log_in_with(token)
            assert page.status_code == 401, reason
            assert "does not accept this token" in page.text, reason
            assert reason in page.text
        for token, problem in (("", "A token is needed."), ("a b", "This is not a token.")):
            page = log_in_with(token)
            assert (page.status_code, problem in page.text) == (400, True)
        assert topic in listed(issuer.token(aud=["another", "sparklog"])).stdout
        assert log_in_with(f" {issuer.token()} ").status_code == 303
        page = get(client, "/topics")
        assert topic in page
        assert "Log out alice" in page  # the principal that the broker has found in the token


def test_whom_the_client_does_not_trust_gets_no_secret(world: tuple[Issuer, SecureBroker, Path]) -> None:
    issuer, broker, ca = world
    asked = dict(issuer.asked)
    for wrong in ("", str(broker.ca)):
        given = settings(issuer, broker, ca) | {"https.ca.location": wrong}
        with pytest.raises(BrokerNotAvailableError, match="CERTIFICATE_VERIFY_FAILED"):
            log_in(broker, given)
    assert issuer.asked == asked
    endpoint = TokenEndpoint(f"{issuer.url}/elsewhere", "me", Secret("pst"), ca_location=str(ca))
    with pytest.raises(SaslAuthenticationFailedError, match="HTTP 401"):
        TokenSource(endpoint).token(20)
