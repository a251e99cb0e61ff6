"""A debug bundle has its parts, keeps its limits, and holds no secret, wherever one is."""

from __future__ import annotations

import base64
import io
import json
import tarfile
import urllib.parse
from pathlib import Path

import pytest
from sparklog_broker.config import load_config

from sparklog.cli.doctor.bundle import DIRECTORY, MANIFEST, Bundle
from sparklog.cli.doctor.bundle_parts import tail
from sparklog.cli.doctor.collect import Sources, secrets_of_sources, write_bundle
from sparklog.cli.doctor.facts import BrokerFacts, ClusterFacts, Facts, ProcessFacts
from sparklog.cli.doctor.scrub import Scrubber
from sparklog.environment.clock import SystemClock
from sparklog.security.client_security import SecuritySettings
from sparklog.security.scram import credential_text, make_credential
from sparklog.security.secrets import Secret, is_sensitive
from sparklog.settings import SETTINGS, Scope

PLANT = "pl4nt"
"""Part of every planted secret; the bundle must not have it in any notation."""
SECRET_SETTINGS = {s.name for s in SETTINGS if is_sensitive(s.name)}
CREDENTIAL = make_credential("SCRAM-SHA-512", Secret("pl4nt-initial"))
JAAS = 'ScramLoginModule required username="a" password="{}";'


def files_of(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        assert all(member.mode == 0o600 for member in archive)
        return {m.name.removeprefix(f"{DIRECTORY}/"): archive.extractfile(m).read().decode() for m in archive}  # type: ignore[union-attr]


def assert_clean(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        assert PLANT not in text, f"{name}: …{text[max(0, text.find(PLANT) - 80) : text.find(PLANT) + 40]}…"
        assert PLANT not in urllib.parse.unquote(text), name
        assert base64.b64encode(b"basic-pl4nt-pw").decode() not in text, name
        assert base64.b64encode(CREDENTIAL.stored_key).decode() not in text, name


def test_settings_with_secrets_are_recognized_by_their_names() -> None:
    assert {
        "zookeeper.password", "ssl.key.password", "ssl.keystore.key", "ssl.key.pem", "sasl.jaas.config", "sasl.scram.initial.credentials",
        "sasl.password", "sasl.oauthbearer.client.secret", "remote.log.storage.options",
    } <= SECRET_SETTINGS  # fmt: skip
    public = {"ssl.truststore.certificates", "sasl.username", "super.users", "broker.id", "ssl.keystore.location"}
    assert not public & SECRET_SETTINGS


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A configuration file with a secret in every setting that may hold one, a client's file, and logs with them."""
    lines = [f'data.dir = "{tmp_path / "data"}"', 'audit.log.file = "audit.log"', 'metrics.listen = "127.0.0.1:1"']
    lines += [
        "zookeeper.username = 'z'",
        "listeners = 'INTERNAL://127.0.0.1:0'",
        "'listener.security.protocol.map' = 'INTERNAL:PLAINTEXT'",
    ]
    options = json.dumps({"key": "pl4nt-access", "client_kwargs": {"opaque": "pl4nt-inner"}})
    for setting in SETTINGS:
        if setting.scope is Scope.BROKER and is_sensitive(setting.name):
            value = options if setting.name == "remote.log.storage.options" else f"pl4nt-{setting.name}"
            value = JAAS.format("pl4nt-jaas") if setting.name == "sasl.jaas.config" else value
            value = f"pl4nt-admin=SCRAM-SHA-512:{credential_text(CREDENTIAL)}" if "initial" in setting.name else value
            lines.append(f"'{setting.name}' = '''{value}'''")
    lines.append("'listener.name.internal.ssl.key.password' = '${env:PLANTED}'")
    lines.append("'remote.log.storage.url' = 's3://pl4nt-user:pl4nt-url@store/bucket'")
    monkeypatch.setenv("PLANTED", "pl4nt-from-environment")
    config = tmp_path / "broker.toml"
    config.write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "data").mkdir()
    logged = [
        "connected as user with password=pl4nt-assigned and 'secret': 'pl4nt-quoted'",
        "GET http://user:pl4nt-http@host/path?token=pl4nt-query&x=1", "Authorization: Bearer pl4nt-bearer", "authorization: Basic pl4nt-basic",
        "the value pl4nt-zookeeper.password alone", "AWS_SECRET_ACCESS_KEY=pl4nt-aws", '{"api_key": "pl4nt-json"}', "pl4nt-from-environment",
        "-----BEGIN RSA PRIVATE KEY-----\npl4nt\n-----END RSA PRIVATE KEY-----", base64.b64encode(b"basic-pl4nt-pw").decode(),
        urllib.parse.quote("pl4nt/inner & more", safe=""), "an innocent line",
        f"a user's {credential_text(CREDENTIAL)}", "ran: tool --verbose --sasl-password pl4nt-word --url x",
    ]  # fmt: skip
    (tmp_path / "data" / "audit.log").write_text("\n".join(logged) + "\n", encoding="utf-8")
    return {"config": config, "data": tmp_path / "data"}


ENVIRONMENT = {
    "PATH": "/usr/bin", "MY_PASSWORD": "basic-pl4nt-pw", "GITHUB_TOKEN": "pl4nt-token-env", "DATABASE": "postgres://u:pl4nt%2Finner%20%26%20more@db/x",
    "SPARKLOG_BOOTSTRAP_SERVERS": "127.0.0.1:1", "AWS_ACCESS_KEY_ID": "pl4nt-access-id",
}  # fmt: skip


def test_no_secret_gets_into_a_bundle(
    planted: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "pl4nt-sasl", "ssl.key.pem": "pl4nt-key-pem",
        "ssl.key.password": "pl4nt-key-password",
    }  # fmt: skip
    settings = SecuritySettings(given)
    broker = BrokerFacts("h:1", "h", problem="refused pl4nt-sasl at http://u:pl4nt-fact@h: password: pl4nt-said")
    process = ProcessFacts(1, "sparklog_broker --x --password=pl4nt-command GITHUB pl4nt-token-env")
    facts = Facts(cluster=ClusterFacts("h:1", brokers=(broker,), problem="unreachable"))
    sources = Sources(
        facts,
        [],
        ["a"],
        "127.0.0.1:1",
        planted["config"],
        "http://u:pl4nt-url2@127.0.0.1:1/m",
        100_000,
        1_000,
        settings,
        settings.resolve(),
    )
    path = tmp_path / "b.tar.gz"
    write_bundle(path, sources, SystemClock(), ENVIRONMENT)
    found = files_of(path)
    assert_clean(found)
    assert_clean({"stderr": capsys.readouterr().err})
    assert path.stat().st_mode & 0o777 == 0o600
    assert {
        "findings.txt",
        "findings.json",
        "facts.json",
        "environment.json",
        "settings/file.json",
        "settings/client.json",
        MANIFEST,
    } <= found.keys()
    assert "an innocent line" in found["logs/data-audit.log"]
    shown = json.loads(found["settings/file.json"])
    assert shown["audit.log.file"] == "audit.log"
    assert shown["zookeeper.password"] == shown["listener.name.internal.ssl.key.password"] == "[hidden]"
    environment = json.loads(found["environment.json"])
    assert "GITHUB_TOKEN" in environment["other_variables"]
    assert environment["variables"]["SPARKLOG_BOOTSTRAP_SERVERS"] == "127.0.0.1:1"
    assert "metrics/127.0.0.1-1.txt" in json.loads(found[MANIFEST])["missing"], "a page that does not answer is named"
    assert_clean(
        {"process": json.dumps(Scrubber(secrets_of_sources(None, None, settings, ENVIRONMENT)).value(process))}
    )


def test_every_secret_of_a_configuration_is_recognized(planted: dict[str, Path]) -> None:
    known = {s.reveal() for s in secrets_of_sources(load_config(planted["config"]), None, None, {})}
    assert {"pl4nt-zookeeper.password", "pl4nt-access", "pl4nt-inner", "pl4nt-from-environment"} <= known


def test_plain_words_stay() -> None:
    scrubber = Scrubber([Secret("abc"), Secret("s3cret")])
    text = "abcdef tokens 5, the password of nobody, key=orders, passengers: 7, author: x, /secrets/readme"
    assert scrubber.text(text) == text
    assert scrubber.value({"tokens": 5, "password": "x", "keys": ["a"], "sasl.password": None}) == {
        "tokens": 5,
        "password": "[hidden]",
        "keys": ["a"],
        "sasl.password": None,
    }
    assert scrubber.value({"password": ""}) == {"password": ""}, "a bundle tells that none is set"


def test_files_and_bundle_keep_their_limits() -> None:
    out = io.BytesIO()
    said: list[str] = []
    bundle = Bundle(out, Scrubber(), SystemClock(), said.append, file_bytes_max=200, bytes_max=300)
    bundle.add_text("a.txt", "x" * 500)
    bundle.add_text("b.txt", "y" * 150)
    bundle.add_text("c.txt", "z" * 90)
    bundle.close({})
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        sizes = {m.name.rpartition("/")[2]: m.size for m in archive}
    assert {name: size for name, size in sizes.items() if name != MANIFEST} == {"a.txt": 200, "c.txt": 90}
    assert said[:2] == ["a.txt (200 bytes)", "c.txt (90 bytes)"]


def test_the_end_of_a_log_begins_with_a_line(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("first line\nsecond line\nthird\n", encoding="utf-8")
    assert tail(log, 1_000) == "first line\nsecond line\nthird\n"
    assert tail(log, 15) == "third\n"
