"""Which cluster a client talks to, and how, when that is said in several places."""

from __future__ import annotations

from pathlib import Path

import pytest

import sparklog
from sparklog.client.net.client_defaults import COMMAND_CONFIG_VARIABLE, resolve_client
from sparklog.client.net.cluster import cluster, forget
from sparklog.errors import InvalidConfigError
from sparklog.security.client_security import PLAINTEXT
from sparklog.security.listeners import SecurityProtocol

SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "alice",
    "sasl.password": "wonderland",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=named.in.file:1\n" + "".join(f"{n}={v}\n" for n, v in SASL.items()))
    return path


def test_a_file_says_both(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARKLOG_BOOTSTRAP_SERVERS", raising=False)
    address, security = resolve_client(None, str(file))
    assert (address, security.username) == ("named.in.file:1", "alice")
    assert resolve_client("given:2", file) == ("given:2", security)
    monkeypatch.setenv(COMMAND_CONFIG_VARIABLE, str(file))
    assert resolve_client() == ("named.in.file:1", security)
    monkeypatch.setenv("SPARKLOG_BOOTSTRAP_SERVERS", "named.in.environment:3")
    assert resolve_client() == ("named.in.environment:3", security)


def test_a_password_of_the_environment_is_not_for_other_addresses(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMAND_CONFIG_VARIABLE, str(file))
    assert resolve_client("elsewhere:1") == ("elsewhere:1", PLAINTEXT)
    assert resolve_client(None, {})[1] == PLAINTEXT


def test_clients_of_one_user_share_their_metadata() -> None:
    alice, other = cluster("127.0.0.1:1", SASL), cluster("127.0.0.1:1", {**SASL, "sasl.password": "x"})
    assert cluster("127.0.0.1:1", dict(SASL)) is alice
    assert len({alice, other, cluster("127.0.0.1:1")}) == 3
    forget("127.0.0.1:1")
    assert cluster("127.0.0.1:1", SASL) is not alice
    forget("127.0.0.1:1")


def test_every_client_takes_security(file: Path) -> None:
    """In each of the ways; a wrong one is refused before anything is connected."""
    for client in (sparklog.Producer, sparklog.Consumer, sparklog.Admin):
        for given in ({"security": SASL}, {"security": str(file)}, {n.replace(".", "_"): v for n, v in SASL.items()}):
            with client("127.0.0.1:1", **given) as made:
                shared = made._cluster
                assert shared.security.protocol is SecurityProtocol.SASL_PLAINTEXT
                assert "wonderland" not in repr(made)
        with pytest.raises(InvalidConfigError, match=r"needs sasl\.mechanism"):
            client("127.0.0.1:1", security={"security.protocol": "SASL_SSL"})
    with pytest.raises(InvalidConfigError, match=r"needs sasl\.mechanism"):
        sparklog.read_table("127.0.0.1:1", "t", security={"security.protocol": "SASL_SSL"})
    with pytest.raises(InvalidConfigError, match=r"needs sasl\.mechanism"):
        sparklog.sql("127.0.0.1:1", "SELECT 1", security={"security.protocol": "SASL_SSL"})
    with pytest.raises(InvalidConfigError, match="unknown client parameter 'secruity_protocol'"):
        sparklog.Admin("127.0.0.1:1", secruity_protocol="SSL")
    forget("127.0.0.1:1")
