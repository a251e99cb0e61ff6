"""Profiles: which file and which addresses count."""

from __future__ import annotations

from pathlib import Path

import pytest

import sparklog
from sparklog.cli import client_command
from sparklog.cli.app import run_app
from sparklog.client.admin.admin import Admin
from sparklog.client.net.client_defaults import resolve_client
from sparklog.errors import InvalidConfigError
from sparklog.security.listeners import SecurityProtocol


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SPARKLOG_BOOTSTRAP_SERVERS", "SPARKLOG_COMMAND_CONFIG", "SPARKLOG_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARKLOG_CONFIG_DIR", str(tmp_path))
    (tmp_path / "prod.properties").write_text("bootstrap.servers=prod:1\nsecurity.protocol=SSL\n")
    (tmp_path / "other.conf").write_text("bootstrap.servers=other:1\n")
    return tmp_path


def test_an_unknown_profile_is_named_with_those_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prd", "../prod", "", "other"):
        with pytest.raises(InvalidConfigError, match=r"no profile.*prod"):
            sparklog.profile(name)
    monkeypatch.setenv("SPARKLOG_CONFIG_DIR", str(tmp_path / "none"))
    with pytest.raises(InvalidConfigError, match="the directory has no profiles"):
        sparklog.profile("prod")
    monkeypatch.delenv("SPARKLOG_CONFIG_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(InvalidConfigError, match=str(tmp_path / "sparklog")):
        sparklog.profile("prod")


def test_a_misspelt_name_in_a_file_is_named(profiles: Path) -> None:
    """It would lead to 127.0.0.1 without a word. Names of other clients' settings are passed over."""
    for wrong, right in (
        ("bootstrap.server", "bootstrap.servers"),
        ("bootstrap_servers", "bootstrap.servers"),
        ("securty.protocol", "security.protocol"),
        ("http.ca.location", "https.ca.location"),
    ):
        (profiles / "prod.properties").write_text(f"{wrong}=x:1\n")
        with pytest.raises(InvalidConfigError, match=rf"prod\.properties.*'{wrong}': did you mean '{right}'"):
            resolve_client(None, sparklog.profile("prod"))
    others = ("bootstrap.controllers", "batch.size", "metadata.broker.list", "acks", "schema.registry.url", "group.id")
    (profiles / "prod.properties").write_text("".join(f"{name}=x\n" for name in others) + "bootstrap.servers=a:1\n")
    assert resolve_client(None, sparklog.profile("prod"))[0] == "a:1"


def test_a_profile_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_client(None, sparklog.profile("prod"))[0] == "prod:1"
    monkeypatch.setenv("SPARKLOG_BOOTSTRAP_SERVERS", "local:1")
    assert resolve_client()[0] == "local:1"
    servers, security = resolve_client(None, sparklog.profile("prod"))
    assert (servers, security.protocol) == ("prod:1", SecurityProtocol.SSL)
    assert resolve_client("mine:1", sparklog.profile("prod"))[0] == "mine:1"
    monkeypatch.setenv("SPARKLOG_PROFILE", "prod")
    assert resolve_client()[0] == "prod:1"
    servers, security = resolve_client("mine:1")  # no security of a profile for other addresses
    assert (servers, security.protocol) == ("mine:1", SecurityProtocol.PLAINTEXT)


def test_a_profile_on_the_command_line(
    profiles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, SecurityProtocol]] = []

    def list_topics(admin: Admin, *, include_internal: bool = False) -> list[str]:
        asked.append((admin._shared.bootstrap_servers, admin._shared.security.protocol))
        return []

    monkeypatch.setattr(Admin, "list_topics", list_topics)
    monkeypatch.setattr(client_command, "_profile", None)
    monkeypatch.setenv("SPARKLOG_BOOTSTRAP_SERVERS", "local:1")
    (profiles / "file").write_text("bootstrap.servers=file:1\n")
    list_ = ["topic", "list"]
    for arguments in (
        ["--profile", "prod", *list_],
        ["--profile", "prod", *list_, "-b", "mine:1"],
        [*list_, "-b", "mine:1"],
        ["--profile", "prod", *list_, "--command-config", str(profiles / "file")],
    ):
        assert run_app(arguments) == 0
    monkeypatch.setenv("SPARKLOG_PROFILE", "prod")
    assert run_app(list_) == 0
    assert asked == [
        ("prod:1", SecurityProtocol.SSL),
        ("mine:1", SecurityProtocol.SSL),
        ("mine:1", SecurityProtocol.PLAINTEXT),
        ("local:1", SecurityProtocol.PLAINTEXT),
        ("prod:1", SecurityProtocol.SSL),
    ]
    assert run_app(["--profile", "prd", *list_]) == 1
    assert "did you mean 'prod'" in capsys.readouterr().err
