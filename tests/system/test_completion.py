"""The Tab key: in a bash that runs in a terminal, and the scripts for zsh and fish."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklog.cli import completion
from sparklog.cli.app import run_app

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin
    from sparklog.client.local import LocalBroker

SPARKLOG = Path(sys.executable).parent / "sparklog"
PATIENCE_S = 60


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (50, 250))
        self.shell = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.terminal = master

    def type(self, keys: str, until: str) -> str:
        """Type `keys`; returns the terminal's output from then on, up to `until`."""
        os.write(self.terminal, keys.encode())
        shown, end = "", time.monotonic() + PATIENCE_S
        while until not in shown:
            ready, _, _ = select.select([self.terminal], [], [], max(0, end - time.monotonic()))
            assert ready, f"{until!r} is not in {shown!r}"
            shown += os.read(self.terminal, 65536).decode()
        return shown

    def close(self) -> None:
        self.shell.kill()
        self.shell.wait()
        os.close(self.terminal)


@pytest.fixture
def environment(broker: LocalBroker) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "HOME") if name in os.environ}
    path = f"{SPARKLOG.parent}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "TERM": "dumb", "SPARKLOG_BOOTSTRAP_SERVERS": broker.bootstrap_servers}


@pytest.fixture
def bash(environment: dict[str, str], tmp_path: Path) -> Iterator[Terminal]:
    path = shutil.which("bash")
    if path is None:
        pytest.skip("there is no bash here")
    # --show-completion looks for a shell among the ancestors of this process, which need not have one
    script = subprocess.run(
        [str(SPARKLOG)],
        env=environment | {"_SPARKLOG_COMPLETE": "source_bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    (tmp_path / "rc").write_text(
        f"{script.stdout}\nPS1='$ '\nbind 'set bell-style none'\nbind 'set enable-bracketed-paste off'\n"
    )
    terminal = Terminal([path, "--noprofile", "--rcfile", str(tmp_path / "rc"), "-i"], environment)
    terminal.type("", "$ ")
    yield terminal
    terminal.close()


def test_a_topic_and_a_settings_value_in_bash(bash: Terminal, admin: Admin, topic: str) -> None:
    name = f"{topic}-completed"
    admin.create_topic(name, partitions=1)
    bash.type(f"sparklog topic describe {topic}\t", "-completed")
    assert "segment.bytes" in bash.type("\n", "\n$ ")
    bash.type(f"sparklog topic alter {name} -c flush.mo\t", "flush.mode=")
    bash.type("gr\t", "group")
    bash.type("\n", "flush.mode = group")
    assert admin.describe_topic(name).setting("flush.mode") == "group"


@pytest.fixture
def asked(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Asks as a shell's script does, by the environment, in this process; the lines of the answer."""
    monkeypatch.setattr(completion, "_typed_before", "")
    monkeypatch.setenv("SPARKLOG_BOOTSTRAP_SERVERS", broker.bootstrap_servers)

    def ask(**shell: str) -> list[str]:
        for name, value in shell.items():
            monkeypatch.setenv(name, value)
        assert run_app([]) == 0
        answer = capsys.readouterr()
        assert answer.err == ""
        return [line for line in answer.out.splitlines() if line]

    return ask


@pytest.fixture
def in_bash(asked: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Return bash's offers for these pieces of a line."""

    def ask(*pieces: str) -> list[str]:
        words = "\n".join(("sparklog", *pieces))
        return asked(_SPARKLOG_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(pieces)))

    return ask


@pytest.mark.parametrize(
    "command",
    [
        ("produce",),
        ("consume",),
        ("offsets",),
        ("delete-records",),
        ("topic", "describe"),
        ("topic", "alter"),
        ("topic", "add-partitions"),
        ("topic", "delete"),
        ("group", "reset-offsets", "g", "--topic"),
        ("transaction", "find-hanging", "--topic"),
        ("transaction", "abort", "--topic"),
    ],
    ids=" ".join,
)
def test_every_command_that_takes_a_topic_offers_them(
    in_bash: Callable[..., list[str]], admin: Admin, topic: str, command: tuple[str, ...]
) -> None:
    admin.create_topic(topic, partitions=1)
    assert in_bash(*command, topic) == [topic]


def test_groups_and_transactional_ids(
    in_bash: Callable[..., list[str]], broker: LocalBroker, admin: Admin, topic: str
) -> None:
    import sparklog
    from sparklog.types import TopicPartition

    admin.create_topic(topic, partitions=1)
    servers = broker.bootstrap_servers
    with sparklog.Consumer(servers, group_id=f"{topic}-group") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit({TopicPartition(topic, 0): 0})
    with sparklog.Producer(servers, transactional_id=f"{topic}-id") as producer, producer.transaction():
        producer.send(topic, b"v")
    for command in ("describe", "reset-offsets", "delete"):
        assert in_bash("group", command, topic) == [f"{topic}-group"]
    for command in ("describe", "abort"):
        assert in_bash("transaction", command, topic) == [f"{topic}-id"]


def test_the_brokers_address_may_stand_before(
    in_bash: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, broker: LocalBroker, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=1)
    host, port = broker.bootstrap_servers.split(":")
    monkeypatch.setenv("SPARKLOG_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert in_bash("offsets", "-b", host, ":", port, topic) == [topic]


def test_internal_topics_by_option(
    in_bash: Callable[..., list[str]], broker: LocalBroker, admin: Admin, topic: str
) -> None:
    import sparklog
    from sparklog.types import TopicPartition

    admin.create_topic(topic, partitions=1)
    with sparklog.Consumer(broker.bootstrap_servers, group_id=f"{topic}-group") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit({TopicPartition(topic, 0): 0})
    assert not any(name.startswith("_") for name in in_bash("offsets", ""))
    assert in_bash("offsets", "__c") == ["__consumer_offsets"]


def test_zsh_and_fish_get_the_meaning_of_a_setting(asked: Callable[..., list[str]]) -> None:
    typed = "sparklog topic create t --config flush.mo"
    zsh = asked(_SPARKLOG_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=typed)
    assert re.search(r'"flush\.mode=group":"Time of the fsync of appends"', "\n".join(zsh))
    fish = asked(
        _SPARKLOG_COMPLETE="complete_fish",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
        _TYPER_COMPLETE_ARGS=typed,
    )
    assert [line.split("\t")[0] for line in fish] == ["flush.mode=none", "flush.mode=group"]


def test_without_a_broker_completion_is_silent_and_empty(
    in_bash: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKLOG_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert in_bash("topic", "describe", "") == []
    assert in_bash("topic", "de") == ["describe", "delete"]
