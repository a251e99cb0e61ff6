"""`sparklog sql`: one statement, a pipe, the prompt, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

import sparklog
from sparklog.cli.sql.format import OutputFormat
from sparklog.cli.sql.run import cancellable
from sparklog.cli.sql.shell import SqlShell, is_complete, run_shell
from sparklog.errors import InvalidConfigError, QueryCancelledError
from tests.support.cli import Run, rows
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


def test_a_table(run: Run, trips: str) -> None:
    shown = run("sql", f"SELECT zone, minutes AS m FROM {trips} ORDER BY zone LIMIT 2")
    assert [line.split() for line in shown.stdout.splitlines() if "│" in line] == [
        ["Airport", "│", "41.0"],
        ["Harbour", "│", "12.5"],
    ]
    assert shown.stderr == ""
    cut = run("sql", f"SELECT zone FROM {trips}", "--max-rows", 2)
    assert "the first 2 rows; --max-rows shows more" in cut.stderr
    assert len(cut.stdout.splitlines()) == 4


def test_json_csv_and_stdin(run: Run, trips: str) -> None:
    query = f"SELECT zone, zone, [minutes] AS list, NULL AS n, '\\xFF'::BLOB AS b FROM {trips} WHERE _offset = 0"
    assert rows(run("sql", query, "--format", "json")) == [
        {"zone": "Harbour", "zone_1": "Harbour", "list": [12.5], "n": None, "b": {"base64": "/w=="}}
    ]
    assert run("sql", query, "--format", "csv").stdout.splitlines() == [
        '"zone","zone_1","list","n","b"',
        '"Harbour","Harbour","[12.5]",,"{""base64"":""/w==""}"',
    ]
    script = f"CREATE VIEW v AS FROM {trips};\nSELECT count(*) AS n FROM v;\n"
    assert rows(run("sql", "--format", "json", stdin=script)) == [{"n": 3}]
    assert run("sql", "CREATE TABLE t (a INT)").stdout == ""


def test_files(run: Run, trips: str, tmp_path: Path) -> None:
    for ending in ("parquet", "csv", "json"):
        wrote = run("sql", f"FROM {trips}", "--format", ending, "--output", tmp_path / f"t.{ending}")
        assert f"wrote 3 rows to {tmp_path / 't'}.{ending}" in wrote.stderr.replace("\n", "")
    assert pq.read_table(tmp_path / "t.parquet").column("zone").to_pylist() == ["Harbour", "Museum", "Airport"]
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 4
    assert json.loads((tmp_path / "t.json").read_text().splitlines()[2])["minutes"] == 41.0
    run("sql", f"SELECT zone::INT FROM {trips}", "--format", "csv", "--output", tmp_path / "t.csv", code=1)
    run("sql", f"SELECT zone::INT FROM {trips}", "--format", "csv", "--output", tmp_path / "new.csv", code=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv", "t.json", "t.parquet"]  # nothing half done
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 4


def test_mistakes(run: Run, trips: str, tmp_path: Path) -> None:
    wrong = run("sql", f"SELECT fare FROM {trips}", code=1)
    assert "INVALID_QUERY: Binder Error" in wrong.stderr
    assert "_partition, _offset, _timestamp, zone, minutes" in wrong.stderr
    assert "UNKNOWN_TOPIC_OR_PARTITION" in run("sql", "FROM nowhere", code=1).stderr
    no_column = run("sql", f"SELECT offset FROM {trips} LIMIT 1 OFFSET 2", code=1).stderr
    assert f"is the column _offset. Write:\nSELECT _offset FROM {trips} LIMIT 1 OFFSET 2\n" in no_column
    (tmp_path / "zones.csv").write_text("zone\na\n")
    refused = run("sql", f"FROM '{tmp_path}/zones.csv'", code=1).stderr
    assert "sparklog sql --allow-files ." in refused
    (tmp_path / "new").mkdir()
    outside = run("sql", "--allow-files", tmp_path / "new", f"FROM '{tmp_path}/zones.csv'", code=1).stderr
    assert "sparklog sql --allow-files ." in outside
    assert "directory is needed before the statement" in " ".join(
        run("sql", "--allow-files", "FROM 'zones.csv'", code=2).stderr.replace("│", " ").split()
    )
    run("sql", "SELECT 1", "--format", "parquet", code=2)
    assert "contradicts" in run("sql", "SELECT 1", "--format", "json", "-o", tmp_path / "x.parquet", code=2).stderr
    run("sql", "SELECT 1 AS a, 2 AS b", "-o", tmp_path / "x.tsv")
    assert (tmp_path / "x.tsv").read_text().splitlines()[1] == "1\t2"
    run("sql", "SELECT 1 AS a", "-o", tmp_path / "x.arrows")
    assert pa.ipc.open_stream((tmp_path / "x.arrows").read_bytes()).read_all().to_pylist() == [{"a": 1}]
    run("sql", "SELECT 1", "--output", "x", code=2)
    assert "isolation level 'x'" in run("sql", "SELECT 1", "--isolation-level", "x", code=1).stderr


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
