"""`sparklog sql`: the options, and the choice between statements and the prompt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sparklog.cli.client_command import client_security
from sparklog.cli.durations import parse_number_or_ms
from sparklog.cli.file_format import file_format
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, timeout_ms
from sparklog.cli.sizes import parse_size_bytes
from sparklog.cli.sql.format import TABLE_ROWS, OutputFormat
from sparklog.settings import MIB

EPILOG = """\
**Examples**

`sparklog sql`: a prompt

`sparklog sql "SELECT zone, count(*) FROM trips WHERE _timestamp > now() - interval '1 hour' GROUP BY zone"`

`sparklog sql "FROM trips WHERE _timestamp >= moment('yesterday') AND _timestamp < moment('today')"`

`sparklog sql "FROM trips ORDER BY _offset DESC LIMIT 10"`

`sparklog sql "SELECT decode(value)->>'$.user' AS who, count(*) FROM events GROUP BY ALL" --format csv`

`sparklog sql "FROM trips" --output trips.parquet`

`sparklog sql --allow-files . "FROM trips JOIN 'zones.csv' USING (zone)"`

`sparklog sql .tables`

`sparklog sql < report.sql`

The SQL is DuckDB's. Topics are tables with the columns _partition, _offset and _timestamp, followed by their own. A name
that is no identifier, or is a keyword, stands in double quotes ("my-topic", "end"). SQL reaches topics, and with --allow-files
the files below a directory; no network. moment('-1h') is a time in the words of `consume --from`.
"""


def sql(
    query: Annotated[
        str | None, typer.Argument(help="SQL statements; without them a prompt, or the statements on stdin.")
    ] = None,
    format: Annotated[
        OutputFormat | None,
        typer.Option(help="Output format. [default: by the file's ending, else table]", show_default=False),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    max_rows: Annotated[
        int, typer.Option(min=1, help="Rows that a table shows; other formats have all rows.")
    ] = TABLE_ROWS,
    isolation_level: Annotated[
        str,
        typer.Option(
            metavar="read_committed|read_uncommitted", help="read_committed skips open and aborted transactions."
        ),
    ] = "read_committed",
    memory_limit: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory that DuckDB may use, as in 4GiB; a number alone is MiB.")
    ] = "1GiB",
    lateness: Annotated[
        str | None,
        typer.Option(
            "--lateness",
            "--lateness-ms",
            metavar="TIME",
            help="The longest delay of a record behind one with a later timestamp, as in 10m; a number alone is ms. Records that follow a time range are then not read.",
        ),
    ] = None,
    local: Annotated[
        str, typer.Option(metavar="auto|off", help="Map the broker's files if they are on this host.")
    ] = "auto",
    allow_files: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIRECTORY", help="Let statements read the files below this directory; repeatable. [default: none]"
        ),
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Query topics with SQL."""
    chosen = file_format(output, format, OutputFormat) or OutputFormat.table
    if chosen in (OutputFormat.parquet, OutputFormat.arrow) and output is None:
        raise typer.BadParameter(f"--format {chosen.value} needs --output FILE")
    if chosen is OutputFormat.table and output is not None:
        raise typer.BadParameter(
            f"--output {output}: add --format csv, json, parquet or arrow, or give the file such an ending"
        )
    for path in allow_files or []:
        if not path.is_dir():
            raise typer.BadParameter(
                f"--allow-files {str(path)!r:.60}: an existing directory is needed before the statement, as in "
                "--allow-files . \"FROM 'zones.csv'\""
            )
    from sparklog.cli.sql.script import run_script
    from sparklog.errors import QueryCancelledError
    from sparklog.query.session import SqlSession

    with SqlSession(
        bootstrap_servers,
        isolation_level=isolation_level,
        local=local,
        memory_limit_bytes=_memory_bytes(memory_limit),
        lateness_ms=None if lateness is None else parse_number_or_ms(lateness, "--lateness", 1, 0),
        allow_files=[str(path) for path in allow_files or []],
        request_timeout_ms=timeout_ms(),
        security=client_security(),
    ) as session:
        if query is None and sys.stdin.isatty():
            from sparklog.cli.sql.shell import run_shell

            run_shell(session, chosen, output, max_rows)
            return
        try:
            remark = run_script(session, sys.stdin.read() if query is None else query, chosen, output, max_rows)
        except QueryCancelledError:
            raise KeyboardInterrupt from None
    if remark:
        print(remark, file=sys.stderr)


def _memory_bytes(text: str) -> int:
    return int(text) * MIB if text.isascii() and text.isdigit() else parse_size_bytes(text, "--memory-limit")
