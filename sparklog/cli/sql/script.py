"""Runs a script, which is the argument of `sparklog sql` or its stdin: SQL statements and commands with a dot."""

from __future__ import annotations

from pathlib import Path

from sparklog.cli.sql.format import OutputFormat
from sparklog.cli.sql.run import run_query
from sparklog.cli.sql.shell import SqlShell, command_of
from sparklog.query.dialect import is_listing
from sparklog.query.session import SqlSession


def parts_of(text: str) -> list[str]:
    """Split a script into its commands and the SQL between them.

    A line is a command if it begins with a dot or a backslash, or is `exit`, `quit` or `help`, and if a statement could
    begin there: at the start, or after a semicolon. In such a place a line such as SHOW TABLES needs no semicolon."""
    parts: list[str] = []
    sql: list[str] = []
    for line in text.splitlines():
        word = command_of(line.strip())
        before = "\n".join(sql).strip()
        is_whole = word.startswith((".", "\\")) or is_listing(word)
        if is_whole and (not before or before.endswith(";")):
            parts += [before] if before else []
            parts.append(word)
            sql = []
        else:
            sql.append(line)
    rest = "\n".join(sql)
    return [*parts, rest] if rest.strip() or not parts else parts


def run_script(session: SqlSession, text: str, format: OutputFormat, output: Path | None, max_rows: int) -> str:
    """Run the statements and commands of a script in order. `format`: output format of the rows, until a `.format`
    command changes it. Returns the note of the last statement, as from `run_query`. Raises SparklogError: A statement
    or a command has failed. The rest of the script is not run."""
    shell = SqlShell(session, format, max_rows)
    remark = ""
    for part in parts_of(text):
        if not part.startswith((".", "\\")):
            remark = run_query(session, part, shell.format, output, max_rows)
        elif not shell.command(part):
            break
    return remark
