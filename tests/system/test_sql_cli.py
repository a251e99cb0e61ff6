"""`sparklog sql`: one statement, a pipe, the prompt, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

import sparklog
from sparklog.cli.sql.format import OutputFormat
from sparklog.cli.sql.run import cancellable
from sparklog.cli.sql.shell import SqlShell, is_complete, run_shell
from sparklog.errors import InvalidConfigError, QueryCancelledError
from tests.support.cli import Run
from tests.support.waiting import until

if TYPE_CHECKING:
    from sparklog.client.local import LocalBroker

SCHEMA = "zone STRING, minutes DOUBLE"
ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"


@pytest.fixture
def trips(run: Run, topic: str) -> str:
    """A topic's name in quotes."""
    run("topic", "create", topic, "--schema", SCHEMA)
    run("produce", topic, "--format", "csv", stdin="zone,minutes\nHarbour,12.5\nMuseum,8.0\nAirport,41.0\n")
    return f'"{topic}"'


START_S = 3.0
"""Processor time that a command has used for certain when it has begun its statement, in seconds."""


def _processor_seconds(pid: int) -> float:
    """Processor time of a process: utime and stime, fields 14 and 15 of proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_ctrl_c_cancels_a_statement(broker: LocalBroker) -> None:
    command = [sys.executable, "-m", "sparklog.cli", "sql", "-b", broker.bootstrap_servers, "--format", "csv"]
    script = f"SELECT 1; {ENDLESS}"
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(
        [*command, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        # the start takes less than half of that: the statement is being executed
        until(lambda: _processor_seconds(process.pid) > START_S, "the statement runs")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_work_that_is_interrupted(broker: LocalBroker) -> None:
    """As Ctrl-C does it: a signal while the main thread waits."""
    with sparklog.SqlSession(broker.bootstrap_servers) as session:
        main = threading.main_thread().ident
        assert main is not None

        def work() -> int:
            threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
            with session.execute(ENDLESS) as result:
                return int(result.read_all().num_rows)

        with pytest.raises(QueryCancelledError):
            cancellable(session, work)
        assert cancellable(session, lambda: 3) == 3


@pytest.fixture
def session(broker: LocalBroker) -> Iterator[sparklog.SqlSession]:
    with sparklog.SqlSession(broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def shell(session: sparklog.SqlSession) -> SqlShell:
    return SqlShell(session, OutputFormat.table, 10)


Capture = pytest.CaptureFixture[str]


def test_commands_of_the_prompt(shell: SqlShell, trips: str, capsys: Capture) -> None:
    def said(text: str) -> str:
        capsys.readouterr()
        assert shell.run(text)
        return "".join(capsys.readouterr())

    name = trips.strip('"')
    assert trips in said(".tables").splitlines()
    assert said(f".tables {name}").splitlines() == [trips]
    assert said(f"\\dt {name}").splitlines() == [trips]
    for command in (f".schema {name}", f".schema {trips};", f"\\d {name}"):
        described = said(command)
        assert [line.split() for line in described.splitlines() if "│" in line][2:] == [
            ["_timestamp", "│", "TIMESTAMP", "WITH", "TIME", "ZONE"],
            ["zone", "│", "VARCHAR"],
            ["minutes", "│", "DOUBLE"],
        ]
    assert "UNKNOWN_TOPIC_OR_PARTITION" in said(".schema nowhere")
    assert "write .schema TOPIC" in said(".schema")
    assert ".tables" in said(".help")
    assert "unknown command .what" in said(".what")
    assert "table, csv or json" in said(".format parquet")
    said(".format json")
    assert '{"n":3}' in said(f"SELECT count(*) AS n FROM {trips};")
    assert "3 records" in said(f"SELECT count(*) AS n FROM {trips};")
    assert "INVALID_QUERY" in said("SELEC 1;")
    assert said(" ;") == said("") == ""
    assert not shell.run(".quit")
    assert not shell.run("\\q")


def test_completion_at_the_prompt(shell: SqlShell, trips: str) -> None:
    assert shell.completions("SELECT 1 - ") == (0, [])
    assert trips in shell.completions('SELECT * FROM "test')[1]
    assert shell.completions(f"SELECT count(*) FROM {trips} WHERE minu") == (4, ["minutes", "minute"])
    assert "ORDER" in shell.completions(f"FROM {trips} ORD")[1]
    assert shell.completions(".sch") == (4, [".schema"])


@pytest.mark.parametrize(
    ("text", "complete"),
    [("", True), (".help", True), ("SELECT 1", False), ("SELECT 1;", True), ("SELECT\n1 ; ", True), ("\\q", True)],
)
def test_where_a_statement_ends(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


@pytest.fixture
def typed() -> Iterator[PipeInput]:
    with create_pipe_input() as made:
        yield made


def test_the_prompt(session: sparklog.SqlSession, trips: str, typed: PipeInput, capsys: Capture) -> None:
    typed.send_text(f"SELECT count(*) AS n\rFROM {trips};\r")  # Enter begins a line until the semicolon
    typed.send_text("SELECT 'gone' AS gone\x03")  # Ctrl-C drops what is typed
    typed.send_text("\x04")  # Ctrl-D
    run_shell(session, OutputFormat.json, None, 10, terminal=(typed, DummyOutput()))
    out, err = capsys.readouterr()
    assert out.splitlines() == ['{"n":3}']
    assert ".help" in err


def test_the_prompt_has_no_output_file(session: sparklog.SqlSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="--output"):
        run_shell(session, OutputFormat.csv, tmp_path / "x", 10)


def test_the_history_is_kept_for_its_user_only(
    session: sparklog.SqlSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from sparklog.cli.sql.shell import _history

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history = _history()
    history.append_string("SELECT 1;")
    path = tmp_path / "sparklog" / "sql_history"
    assert "SELECT 1;" in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(path))  # a file
    _history()
    assert "the history cannot be stored" in capsys.readouterr().err


def test_without_a_prompt_library_the_extra_is_named(
    session: sparklog.SqlSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    with pytest.raises(InvalidConfigError, match=r"pip install 'sparklog\[sql\]'"):
        run_shell(session, OutputFormat.csv, None, 10)


def test_progress_is_for_terminals(
    session: sparklog.SqlSession, trips: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from sparklog.cli import console

    class Terminal:
        """The part of stderr that rich uses."""

        def __init__(self) -> None:
            self.text = ""

        def write(self, text: str) -> int:
            self.text += text
            return len(text)

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return True

    def work() -> int:
        with session.execute(f"FROM {trips}") as result:
            rows = result.read_all().num_rows
            shown.wait(30)
            return int(rows)

    terminal = Terminal()
    shown = threading.Event()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    real: Callable[..., str] = console.size

    def size(size_bytes: float) -> str:
        shown.set()
        return real(size_bytes)

    monkeypatch.setattr(console, "size", size)
    assert cancellable(session, work) == 3
    assert "read" in terminal.text
