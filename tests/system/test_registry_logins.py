"""Logins at a schema registry with TLS: passwords and tokens, by the command line and by the readers of schemas."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

import sparklog
from sparklog.client.net.registry_address import registry_url
from sparklog.client.net.registry_client import RegistryClient
from sparklog.client.net.registry_reader import registry_schemas
from sparklog.errors import BrokerNotAvailableError, InvalidConfigError, SaslAuthenticationFailedError
from sparklog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.client_security import ClientSecurity, client_security
from sparklog.security.principals import user
from tests.support.cli import Result, run_here
from tests.support.waiting import until
from tests.system.secure_broker import PASSWORD, SecureBroker

NAMES = ("alice", "token-user")


class World(NamedTuple):
    """A broker with a registry, its address, and the settings of its users."""

    broker: SecureBroker
    url: str
    key: Any
    """Key that signs tokens."""

    def settings(self, **more: str) -> dict[str, str]:
        """Settings of alice at the broker's listener with TLS and SASL."""
        values = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(self.broker.ca)}
        return values | self.broker.client("alice") | {name.replace("_", "."): v for name, v in more.items()}

    def token_settings(self, path: Path, *, key: Any = None, **claims: object) -> dict[str, str]:
        """Settings of token-user, whose token the file has."""
        content = {"sub": "token-user", "aud": "sparklog", "exp": time.time() + 300} | claims
        path.write_text(jwt.encode(content, key or self.key, "RS256", headers={"kid": "one"}) + "\n")
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
            "ssl.ca.location": str(self.broker.ca),
        }


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("logins")
    key = rsa.generate_private_key(65537, 2048)
    entry = json.loads(RSAAlgorithm.to_jwk(key.public_key())) | {"kid": "one", "alg": "RS256"}
    keys = directory / "keys.json"
    keys.write_text(json.dumps({"keys": [entry]}))
    broker = SecureBroker(
        directory,
        more=f"""
authorizer = "acl"
super.users = "User:ANONYMOUS"
connection.failed.authentication.delay.ms = 1
sasl.enabled.mechanisms = "SCRAM-SHA-512,OAUTHBEARER"
sasl.oauthbearer.clock.skew.seconds = 1
sasl.oauthbearer.expected.audience = "sparklog"
sasl.oauthbearer.jwks.endpoint.url = "{keys.as_uri()}"
schema.registry.listeners = "https://127.0.0.1:0"
""",
    )
    stdout = broker.process.process.stdout
    assert stdout is not None
    url = stdout.readline().strip().removeprefix("listening on kafka.")
    with sparklog.Admin(broker.addresses["LOCAL"]) as admin:
        admin.set_user_password("alice", PASSWORD)
        admin.create_acls(
            Acl(ResourceType.TOPIC, PatternType.LITERAL, "t", user(name), "127.0.0.1", operation, Permission.ALLOW)
            for name in NAMES
            for operation in (Operation.WRITE, Operation.READ)
        )
    yield World(broker, url, key)
    assert broker.stop() == 0, broker.process.stderr
    assert "Traceback" not in broker.process.stderr, broker.process.stderr


def run(world: World, settings: Mapping[str, str], *arguments: object, stdin: str = "") -> Result:
    """Run a command of `sparklog schema` with a file of client settings."""
    file = world.broker.directory / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return run_here("schema", *arguments, "--command-config", file, stdin=stdin)


def test_the_command_line_logs_in_with_a_password_and_with_a_token(secure: World, tmp_path: Path) -> None:
    brokers = ("--bootstrap-servers", secure.broker.addresses["BOTH"])
    for subject, settings in (("t-value", secure.settings()), ("t-key", secure.token_settings(tmp_path / "token"))):
        registered = run(secure, settings, "register", subject, "-", "--url", secure.url, stdin='"int"')
        assert registered.stdout == f"{subject}: version 1, id 1\n", registered.stderr
        assert run(secure, settings, "show", subject, *brokers).stdout == '"int"\n', "the brokers name their registry"
        denied = run(secure, settings, "register", "other-value", "-", *brokers, stdin='"int"')
        assert denied.returncode == 1 and denied.stderr.startswith("TOPIC_AUTHORIZATION_FAILED: "), denied.stderr
        assert "t-value" in run(secure, settings, "list", *brokers).stdout


def test_a_wrong_login_is_an_error_that_shows_no_secret(secure: World, tmp_path: Path) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    cases = {
        "password": secure.settings(sasl_password="not-the-password"),
        "expired": secure.token_settings(tmp_path / "expired", exp=time.time() - 60),
        "forged": secure.token_settings(tmp_path / "forged", key=stranger),
        "audience": secure.token_settings(tmp_path / "audience", aud="another"),
    }
    for name, settings in cases.items():
        refused = run(secure, settings, "list", "--url", secure.url)
        assert refused.returncode == 1, name
        assert refused.stderr.startswith("SASL_AUTHENTICATION_FAILED: Unauthorized"), (name, refused.stderr)
        assert "not-the-password" not in refused.stderr
    (tmp_path / "odd").write_text("two words")
    odd = secure.token_settings(tmp_path / "good") | {
        "sasl.oauthbearer.token.endpoint.url": (tmp_path / "odd").as_uri()
    }
    refused = run(secure, odd, "list", "--url", secure.url)
    assert refused.stderr.startswith("INVALID_CONFIG: the token") and "two words" not in refused.stderr
    anonymous = run_here("schema", "list", "--url", secure.url, environment={"SSL_CERT_FILE": str(secure.broker.ca)})
    assert anonymous.stderr.startswith("SASL_AUTHENTICATION_FAILED: Unauthorized"), anonymous.stderr


def test_the_certificate_of_the_registry_is_verified(secure: World) -> None:
    settings = secure.settings()
    without = {name: value for name, value in settings.items() if name != "ssl.ca.location"}
    refused = run(secure, without, "list", "--url", secure.url)
    assert "is not valid here" in refused.stderr and "set ssl.ca.location" in refused.stderr, refused.stderr
    plain = run(secure, settings, "list", "--url", secure.url.replace("https", "http"))
    assert plain.stderr.startswith("BROKER_NOT_AVAILABLE: the schema registry at"), plain.stderr
    assert "is it https://?" in plain.stderr


def login(settings: Mapping[str, str]) -> ClientSecurity:
    return client_security(dict(settings))


def test_readers_of_schemas_log_in(secure: World, tmp_path: Path) -> None:
    settings = secure.settings()
    client = RegistryClient(secure.url, login(settings))
    client.ask("POST", ["subjects", "t-value", "versions"], body={"schema": '"int"'})
    for one in (settings, secure.token_settings(tmp_path / "token")):
        newest = registry_schemas(secure.url, login(one)).newest("t-value")
        assert newest is not None and newest[1].text == '"int"'
    wrong = login(secure.settings(sasl_password="wrong"))
    with pytest.raises(BrokerNotAvailableError, match="Unauthorized"):
        registry_schemas(secure.url, wrong).newest("t-value")
    with pytest.raises(SaslAuthenticationFailedError):
        RegistryClient(secure.url, wrong).ask("GET", ["subjects"])


def test_brokers_name_the_registry_to_clients_that_may_trust_them(secure: World) -> None:
    addresses = secure.broker.addresses
    assert registry_url(addresses["BOTH"], login(secure.settings())) == secure.url
    assert registry_url(addresses["LOCAL"]) == secure.url
    open_settings = secure.broker.client("alice") | {"security.protocol": "SASL_PLAINTEXT"}
    assert registry_url(addresses["SASL"], login(open_settings)) == secure.url, "localhost is trusted"


def test_confluents_client_logs_in(secure: World, tmp_path: Path) -> None:
    secure.token_settings(tmp_path / "token")
    common = {"url": secure.url, "ssl.ca.location": str(secure.broker.ca)}
    logins = (
        {"basic.auth.user.info": f"alice:{PASSWORD}"},
        {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": (tmp_path / "token").read_text().strip(),
            "bearer.auth.logical.cluster": "lsrc-1",
            "bearer.auth.identity.pool.id": "pool-1",
        },
    )
    for login in logins:
        with SchemaRegistryClient(common | login) as client:
            assert client.register_schema("t-value", Schema('"int"', "AVRO")) == 1


def test_a_token_that_expires_ends_the_use_of_a_connection(secure: World, tmp_path: Path) -> None:
    token_user = login(secure.token_settings(tmp_path / "token"))
    with closing(RegistryClient(secure.url, token_user, idle_max=1)) as client:

        def is_refused() -> bool:
            try:
                client.ask("GET", ["subjects"])
            except SaslAuthenticationFailedError:
                return True
            return False

        lifetime_s = 2
        while True:  # until a token lives long enough for a request
            secure.token_settings(tmp_path / "token", exp=time.time() + lifetime_s)
            if not is_refused():
                break
            lifetime_s *= 2
        until(is_refused, "the token has expired", passing=(BrokerNotAvailableError,))  # a request at its very end
        secure.token_settings(tmp_path / "token")
        assert client.ask("GET", ["subjects"]) is not None, "the next token of the file is used"


def test_an_address_without_a_registry_is_refused(secure: World) -> None:
    for url in ("", "ftp://host", "http://", "http://host:0", "http://a b", "http://u:p@host", "http://host?x=1"):
        with pytest.raises(InvalidConfigError) as e:
            RegistryClient(url)
        assert "p@" not in str(e.value)
