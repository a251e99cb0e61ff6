"""A client's security settings: accepted and refused ones, and secrets that show nowhere."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidConfigError
from sparklog.security.client_security import (
    PLAINTEXT,
    WITHOUT_EFFECT,
    ClientSecurity,
    SecuritySettings,
    TokenEndpoint,
    client_security,
    read_client_file,
    with_parameters,
)
from sparklog.security.listeners import SecurityProtocol
from sparklog.security.secrets import HIDDEN, Secret

PASSWORD = "Tr0ub4dor-and-3"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = f'{SCRAM} required username="alice" password="{PASSWORD}";'
SASL_SSL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}


def resolved(given: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> ClientSecurity:
    return SecuritySettings(given).resolve(environment or {})


def test_no_connection_is_plaintext() -> None:
    assert client_security(None) == client_security({}) == resolved({}) == PLAINTEXT
    assert resolved({"security.protocol": "PLAINTEXT"}) == PLAINTEXT
    assert resolved({"security.protocol": "ssl"}).protocol is SecurityProtocol.SSL  # Kafka does not mind either
    assert not SecuritySettings({})


def test_jaas_and_username_are_the_same() -> None:
    by_jaas = resolved(SASL_SSL | {"sasl.jaas.config": JAAS})
    by_name = resolved(SASL_SSL | {"sasl.username": "alice", "sasl.password": PASSWORD})
    assert by_jaas == by_name
    assert hash(by_jaas) == hash(by_name)
    assert (by_jaas.protocol, by_jaas.mechanism) == (SecurityProtocol.SASL_SSL, "SCRAM-SHA-512")
    assert (by_jaas.username, by_jaas.password.reveal()) == ("alice", PASSWORD)
    assert by_jaas != resolved(SASL_SSL | {"sasl.username": "alice", "sasl.password": "another"})


def test_librdkafkas_name_of_the_mechanism() -> None:
    found = resolved(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "SCRAM-SHA-256", "sasl.jaas.config": JAAS}
    )
    assert found.mechanism == "SCRAM-SHA-256"
    with pytest.raises(InvalidConfigError, match="given twice"):
        SecuritySettings({"sasl.mechanism": "PLAIN", "sasl.mechanisms": "PLAIN"})


def test_tls_settings_are_kept_for_the_context() -> None:
    found = resolved({"security.protocol": "SSL", "ssl.ca.location": "/ca.pem", "ssl.key.password": PASSWORD})
    assert dict(found.tls) == {"ssl.ca.location": "/ca.pem", "ssl.key.password": Secret(PASSWORD)}
    assert resolved({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}).tls == (
        ("ssl.endpoint.identification.algorithm", ""),
    )
    for written, meant in (("HTTPS", "https"), ("None", "none")):  # in any case, as in Kafka
        given = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": written}
        assert dict(resolved(given).tls) == {"ssl.endpoint.identification.algorithm": meant}


def test_an_empty_setting_is_none() -> None:
    empty = {"sasl.jaas.config": "", "ssl.ca.location": "", "sasl.password": "", "ssl.keystore.password": ""}
    assert resolved(empty) == PLAINTEXT
    assert resolved({"enable.ssl.certificate.verification": "True"}) == PLAINTEXT, "so it is anyway"


def test_settings_of_kafka_without_a_meaning_here() -> None:
    assert resolved(dict.fromkeys(WITHOUT_EFFECT, "x")) == PLAINTEXT


def test_oauthbearer() -> None:
    jaas = (
        'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId="c" clientSecret="s3";'
    )
    url = "https://issuer/token"
    found = resolved(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": jaas,
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        }
    )
    assert found.token_endpoint == TokenEndpoint(url, "c", Secret("s3"))
    by_file = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "file:///token"}
    assert resolved(SASL_SSL | by_file).token_endpoint == TokenEndpoint("file:///token")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"security.protocol": "TLS"}, "use one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security.protocl": "SSL"}, "did you mean 'security.protocol'"),
        ({"sasl.jaas.config": JAAS}, "sasl.jaas.config is set, but security.protocol = PLAINTEXT has no SASL"),
        ({"security.protocol": "SSL", "sasl.username": "a"}, "set SASL_SSL, or leave sasl.username out"),
        ({"ssl.ca.location": "/ca.pem"}, "does not encrypt: set SSL or SASL_SSL"),
        (
            SASL_SSL | {"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": JAAS, "ssl.ca.location": "/x"},
            "does not encrypt: set SASL_SSL",
        ),
        ({"security.protocol": "SASL_SSL"}, "needs sasl.mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "Kerberos"),
        (SASL_SSL, "needs sasl.username and sasl.password, or sasl.jaas.config"),
        (SASL_SSL | {"sasl.username": "alice"}, "needs sasl.password"),
        (SASL_SSL | {"sasl.username": "alice", "sasl.jaas.config": JAAS}, "leave one of them out"),
        (SASL_SSL | {"sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS}, "ScramLoginModule is for SCRAM-SHA-256"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "a"},
            "shows the password to the network",
        ),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}, "shows the token"),
        (SASL_SSL | {"sasl.oauthbearer.scope": "x"}, "does not apply to sasl.mechanism = SCRAM-SHA-512"),
        (SASL_SSL | {"sasl.mechanism": "OAUTHBEARER"}, "token.endpoint.url: https://"),
        (
            SASL_SSL | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://i"},
            "client.id and",
        ),
        (
            SASL_SSL | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "http://i"},
            "https://… gives tokens",
        ),
        ({"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, "keytool -importkeystore"),
        ({"security.protocol": "SSL", "ssl.truststore.password": PASSWORD}, "only PEM stores"),
        ({"enable.ssl.certificate.verification": "false"}, "always verified"),
        ({"sasl.kerberos.service.name": "kafka"}, "Kerberos"),
        ({"sasl.login.callback.handler.class": "com.example.Mine"}, "Java classes are not supported"),
    ],
)
def test_refused_arguments(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message) as raised:
        resolved(given)
    assert PASSWORD not in str(raised.value)


def test_references_are_resolved_where_they_arrive(tmp_path: Path) -> None:
    secret = 'quoted" \\ and; password="x'
    (tmp_path / "password").write_text(secret + "\n")
    jaas = f'{SCRAM} required username="${{env:NAME}}" password="${{file:{tmp_path}/password}}";'
    settings = SecuritySettings(SASL_SSL | {"sasl.jaas.config": jaas})
    arrived = pickle.loads(pickle.dumps(settings))
    assert secret.encode() not in pickle.dumps(settings)
    found = arrived.resolve({"NAME": "alice"})
    assert (found.username, found.password.reveal()) == ("alice", secret)
    whole = SASL_SSL | {"sasl.jaas.config": "${env:JAAS}"}
    assert resolved(whole, {"JAAS": JAAS}).password.reveal() == PASSWORD
    with pytest.raises(InvalidConfigError, match=r"sasl\.jaas\.config: the environment variable 'JAAS' is not set"):
        resolved(whole)


@given(st.text("abcXYZ019!§$%&/()=?`´*+#'-_.:,;<>|äöü \"\\", min_size=8).filter(lambda t: len(set(t)) > 4))
def test_secrets_show_nowhere(password: str) -> None:
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    settings = SecuritySettings(SASL_SSL | {"sasl.jaas.config": f'{SCRAM} required username="a" password="{quoted}";'})
    found = settings.resolve({})
    assert found.password.reveal() == password
    for text in (repr(settings), str(settings), f"{settings}", repr(found), f"{found!s}"):
        assert password not in text
        assert HIDDEN in text
    assert found.secrets == (Secret(password),)
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(found)


def test_a_secret_as_a_value_of_the_settings() -> None:
    found = resolved(SASL_SSL | {"sasl.username": "alice", "sasl.password": Secret(PASSWORD)})
    assert found.password.reveal() == PASSWORD


def test_a_file_as_kafkas_tools_take_it(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        f"# ours\nbootstrap.servers=h:1\nclient.id=x\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={JAAS}\n"
    )
    found = read_client_file(str(path))
    assert found.bootstrap_servers == "h:1"
    assert found.security.resolve() == resolved(SASL_SSL | {"sasl.jaas.config": JAAS}) == client_security(path)
    path.write_text("SECURITY.PROTOCOL=SSL\n")
    with pytest.raises(InvalidConfigError, match=r"did you mean 'security.protocol'"):
        read_client_file(str(path))
    path.write_text("sasl.mechnism=PLAIN\n")
    with pytest.raises(InvalidConfigError, match=r"client\.properties: .*did you mean 'sasl.mechanism'"):
        read_client_file(str(path))
    with pytest.raises(InvalidConfigError, match=r"missing\.properties' cannot be read"):
        client_security(str(tmp_path / "missing.properties"))


def test_python_parameters() -> None:
    security, others = with_parameters(None, {"security_protocol": "SSL", "acks": "all", "ssl_ca_location": None})
    assert (security, others) == ({"security.protocol": "SSL"}, {"acks": "all"})
    assert with_parameters({"security.protocol": "SSL"}, {}) == ({"security.protocol": "SSL"}, {})
    with pytest.raises(InvalidConfigError, match="beside security"):
        with_parameters({}, {"security_protocol": "SSL"})
    with pytest.raises(InvalidConfigError, match="not int"):
        client_security(5)  # type: ignore[arg-type]
