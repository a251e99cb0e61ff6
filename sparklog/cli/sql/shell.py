"""The prompt of `sparklog sql`, with a history, completion, and commands that begin with a dot."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparklog.cli import console
from sparklog.cli.errors import next_step, report
from sparklog.cli.sql.complete import complete
from sparklog.cli.sql.format import OutputFormat
from sparklog.cli.sql.output import print_table
from sparklog.cli.sql.run import cancellable, run_query
from sparklog.errors import InvalidConfigError, QueryCancelledError, SparklogError
from sparklog.query.connection import EXTRA
from sparklog.query.dialect import is_listing
from sparklog.query.names import written
from sparklog.query.session import SqlSession

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output

HELP = """\
SQL ends with a semicolon and may have several lines. Topics are tables, with the columns _partition, _offset and _timestamp.

  .tables [TEXT]     the topics (with TEXT in their names)        also \\dt
  .schema TOPIC      a topic's columns and their types            also \\d TOPIC
  .format FORMAT     table, csv or json
  .help              this                                         also \\?
  .quit              leave; so does Ctrl-D                        also \\q

Ctrl-C cancels a query, Tab completes, the arrow keys recall earlier input."""

ALIASES = {"\\dt": ".tables", "\\d": ".schema", "\\?": ".help", "\\q": ".quit", ".exit": ".quit", "\\h": ".help"}
WORDS = {"exit": ".quit", "quit": ".quit", "help": ".help"}
"""Words that the prompt accepts as commands; none of them is an SQL statement."""
TOPICS_AGE_S = 10.0
HISTORY_BYTES_MAX = 4 * 1024 * 1024


def run_shell(
    session: SqlSession,
    format: OutputFormat,
    output: Path | None,
    max_rows: int,
    *,
    terminal: tuple[Input, Output] | None = None,
) -> None:
    """Read and run statements until the end of the input. `terminal` None: stdin and stdout. Raises InvalidConfigError
    if `output` is not None, or if a library of the extra `sparklog[sql]` is missing."""
    if output is not None:
        raise InvalidConfigError("--output is for a single statement: give it on the command line")
    shell = SqlShell(session, format, max_rows)
    prompt = _prompt_session(shell, terminal)
    print("SQL over topics; .help lists the commands", file=sys.stderr)
    while True:
        try:
            text = prompt.prompt("sparklog> ", prompt_continuation="     ...> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if not shell.run(text.strip()):
            return


class SqlShell:
    """Runs commands and statements."""

    def __init__(self, session: SqlSession, format: OutputFormat, max_rows: int) -> None:
        self._session = session
        self.format = format
        """The output format of rows."""
        self._max_rows = max_rows
        self._topics: list[str] = []
        self._topics_until = float("-inf")
        self._columns: dict[str, list[str]] = {}
        self._words: list[str] = []

    def run(self, text: str) -> bool:
        """Run one input, and print its errors. Returns False if the input ends the prompt."""
        try:
            text = command_of(text)
            if text.startswith((".", "\\")):
                return self.command(text)
            if text.rstrip("; \n"):
                self._query(text)
        except QueryCancelledError:
            print("cancelled", file=sys.stderr)
        except SparklogError as e:
            report(e.name, str(e), next_step(e))
        return True

    def completions(self, before: str) -> tuple[int, list[str]]:
        """Return the result of `complete` for the text before the cursor; no completion if no broker answers."""
        try:
            self._words = self._words or keywords(self._session)
            return complete(before, self._topic_names(), self._columns_of, self._words)
        except SparklogError:
            return 0, []

    def _query(self, text: str) -> None:
        started = time.monotonic()
        remark = run_query(self._session, text, self.format, None, self._max_rows)
        took_s = time.monotonic() - started
        if remark:
            print(remark, file=sys.stderr)
        read = self._session.statistics
        print(f"{took_s:.2f} s, {read.rows_read:,} records ({console.size(read.bytes_read)}) read", file=sys.stderr)

    def command(self, text: str) -> bool:
        """Run a command that begins with a dot or a backslash. Returns False if the command is `.quit`. Raises the
        errors of SqlSession."""
        name, _, rest = text.rstrip("; ").partition(" ")
        rest = rest.strip()
        name = ".tables" if name == "\\d" and not rest else ALIASES.get(name, name)
        if name == ".quit":
            return False
        if name == ".help":
            print(HELP)
        elif name == ".tables":
            for topic in self._session.topics():
                if rest in topic:
                    print(written(topic))
        elif name == ".schema":
            self._schema(rest.strip('"'))
        elif name == ".format":
            self._set_format(rest)
        else:
            print(f"unknown command {name}; .help lists the commands", file=sys.stderr)
        return True

    def _schema(self, topic: str) -> None:
        if not topic:
            print("write .schema TOPIC; .tables lists the topics", file=sys.stderr)
            return
        self._session.columns(topic)  # raises the error of an unknown topic, which DESCRIBE words differently
        query = f"SELECT column_name AS column, column_type AS type FROM (DESCRIBE {written(topic)})"

        def describe() -> Any:
            with self._session.execute(query) as result:
                return result.read_all()

        print_table(cancellable(self._session, describe))

    def _set_format(self, name: str) -> None:
        formats = [f.value for f in OutputFormat if f not in (OutputFormat.parquet, OutputFormat.arrow)]
        if name not in formats:
            print(f"write .format {', '.join(formats[:-1])} or {formats[-1]}", file=sys.stderr)
            return
        self.format = OutputFormat(name)

    def _topic_names(self) -> list[str]:
        if time.monotonic() >= self._topics_until:
            self._topics = self._session.topics()
            self._columns.clear()
            self._topics_until = time.monotonic() + TOPICS_AGE_S
        return self._topics

    def _columns_of(self, topic: str) -> Sequence[str]:
        if topic not in self._columns:
            self._columns[topic] = self._session.columns(topic).names
        return self._columns[topic]


def keywords(session: SqlSession) -> list[str]:
    """Return DuckDB's keywords in capitals, and its functions."""
    query = (
        "SELECT upper(keyword_name) FROM duckdb_keywords() UNION "
        "SELECT function_name FROM duckdb_functions() WHERE function_type IN ('scalar', 'aggregate', 'macro') ORDER BY 1"
    )
    with session.execute(query) as result:
        names: Iterable[str] = result.read_all().column(0).to_pylist()
    return [name for name in names if re.fullmatch(r"\w+", name) and not name.startswith("__")]


def is_complete(text: str) -> bool:
    """True if Enter runs the text; False if Enter begins a new line of it."""
    text = command_of(text.strip())
    return not text or text.startswith((".", "\\")) or text.endswith(";") or is_listing(text)


def command_of(text: str) -> str:
    """Return the command with a dot for a single word such as `exit` or `quit;`; else `text` itself."""
    return WORDS.get(text.rstrip("; \n").lower(), text)


def _prompt_session(shell: SqlShell, terminal: tuple[Input, Output] | None) -> PromptSession[str]:
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.application import get_app
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.lexers import PygmentsLexer
        from pygments.lexers.sql import PostgresLexer
    except ImportError as e:
        raise InvalidConfigError(f"the prompt needs the libraries prompt_toolkit and pygments: {EXTRA}") from e
    more = Condition(lambda: not is_complete(get_app().current_buffer.text))
    source, shown = terminal or (None, None)
    return PromptSession(
        multiline=more,
        history=_history() if terminal is None else None,
        lexer=PygmentsLexer(PostgresLexer),
        completer=_completer(shell.completions),
        complete_in_thread=True,
        complete_while_typing=False,
        input=source,
        output=shown,
    )


def _completer(completions: Callable[[str], tuple[int, list[str]]]) -> Any:
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.document import Document

    class SqlCompleter(Completer):
        def get_completions(self, document: Document, complete_event: object) -> Iterable[Completion]:
            length, offers = completions(document.text_before_cursor)
            return [Completion(offer, start_position=-length) for offer in offers]

    return SqlCompleter()


def _history() -> History:
    """Return the history in the file `sparklog/sql_history` of the user's state directory; a history in memory if the
    file cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    path = Path(state) / "sparklog" / "sql_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        if path.stat().st_size > HISTORY_BYTES_MAX:
            path.replace(path.with_suffix(".old"))
            path.touch(mode=0o600)
    except OSError as e:
        print(f"the history cannot be stored: {e.strerror}: {path}", file=sys.stderr)
        return InMemoryHistory()
    return FileHistory(str(path))
