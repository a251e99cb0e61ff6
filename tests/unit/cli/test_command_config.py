"""`--command-config FILE`: every command that talks to brokers connects as the file says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from sparklog.cli import client_command, completion, options
from sparklog.cli.app import app, run_app
from sparklog.client.admin.admin import Admin
from sparklog.client.net.cluster import Cluster
from sparklog.security.client_security import PLAINTEXT
from sparklog.security.listeners import SecurityProtocol


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SPARKLOG_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("SPARKLOG_COMMAND_CONFIG", raising=False)
    path = tmp_path / "client.properties"
    path.write_text(
        "bootstrap.servers=from.the.file:1\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.username=alice\nsasl.password=${env:WONDERLAND}\n"
    )
    monkeypatch.setenv("WONDERLAND", "wonder-land-42")
    monkeypatch.setattr(client_command, "_file", None)  # the file of a command stays until the next one in the process
    return path


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    """The clusters of the Admins that commands have made; none of them connects."""
    made: list[Cluster] = []

    class Listed(Admin):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self._shared)

        def list_topics(self, *, include_internal: bool = False) -> list[str]:
            return ["events"]

    monkeypatch.setattr("sparklog.client.admin.admin.Admin", Listed)
    return made


def run(*arguments: object) -> int:
    return run_app([*map(str, arguments)])


def test_every_command_with_addresses_takes_it() -> None:
    found = dict(commands(typer.main.get_command(app)))
    asking = {path for path, c in found.items() if any(p.name == "bootstrap_servers" for p in c.params)}
    taking = {path for path, c in found.items() if any("--command-config" in p.opts for p in c.params)}
    assert asking == taking
    assert {"topic list", "produce", "consume", "sql", "console", "top", "doctor", "group describe"} <= asking
    assert "config" not in asking


def test_the_file_says_where_and_how(file: Path, clusters: list[Cluster]) -> None:
    assert run("topic", "list", "--command-config", file) == 0
    (cluster,) = clusters
    security = cluster.security
    assert (cluster.bootstrap_servers, security.protocol) == ("from.the.file:1", SecurityProtocol.SASL_PLAINTEXT)
    assert (security.username, security.password.reveal()) == ("alice", "wonder-land-42")


def test_an_address_on_the_command_line_comes_first(file: Path, clusters: list[Cluster]) -> None:
    for arguments in (("-b", "given:2", "--command-config", file), ("--command-config", file, "-b", "given:2")):
        assert run("topic", "list", *arguments) == 0
        assert clusters[-1].bootstrap_servers == "given:2"
        assert clusters[-1].security.username == "alice"


def test_the_environment_names_the_file(file: Path, clusters: list[Cluster], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLOG_COMMAND_CONFIG", str(file))
    assert run("topic", "list") == 0
    assert clusters[-1].security.username == "alice"
    monkeypatch.delenv("SPARKLOG_COMMAND_CONFIG")
    assert run("topic", "list") == 0
    assert clusters[-1].security == PLAINTEXT  # nothing is left of the run before
    assert clusters[-1].bootstrap_servers == options.DEFAULT_BOOTSTRAP


def test_a_file_that_is_wrong(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("topic", "list", "--command-config", file.with_name("none")) == 1
    assert "cannot be read" in capsys.readouterr().err
    file.write_text("security.protocol=SASL_SSL\nsasl.password=wonder-land-42\n")
    assert run("topic", "list", "--command-config", file) == 1
    error = capsys.readouterr().err
    assert "needs sasl.mechanism" in error
    assert "wonder-land-42" not in error


def test_the_tab_key_connects_the_same_way(file: Path, clusters: list[Cluster]) -> None:
    command = dict(commands(typer.main.get_command(app)))["topic describe"]
    with command.make_context("describe", ["--command-config", str(file)], resilient_parsing=True) as ctx:
        assert completion.topics(ctx, "e") == [("events", "")]
    assert clusters[-1].bootstrap_servers == "from.the.file:1"
    assert clusters[-1].security.username == "alice"


def test_the_settings_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "client") == 0
    assert '# security.protocol = "PLAINTEXT"' in capsys.readouterr().out
