"""`sparklog lake`: manages the Delta tables of topics, and runs the workers that write them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli import completion
from sparklog.cli.client_command import client_security
from sparklog.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    TableFormat,
    TopicName,
    open_admin,
    parse_list,
    timeout_ms,
)

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin
    from sparklog.client.admin.lake_admin import LakeDescription

app = typer.Typer(help="Keep topics as Delta tables, too.", no_args_is_help=True)


class Mode(StrEnum):
    """The content of a table: all records, or the newest row of each key."""

    append = "append"
    upsert = "upsert"


_ENABLE_EPILOG = """\
**Examples**

`sparklog lake enable trips --location /data/lake/trips`

`sparklog lake enable trips --location s3://bucket/lake/trips --interval 30s`

`sparklog lake enable accounts --location /data/lake/accounts --mode upsert`

The broker starts a worker by itself. `sparklog lake status trips` shows how far the table is.
"""


@app.command("enable", epilog=_ENABLE_EPILOG)
def enable(
    topic: TopicName,
    location: Annotated[str, typer.Option(metavar="URL", help="A directory, s3://…, gs://… or az://….")],
    interval: Annotated[str | None, typer.Option(metavar="TIME", help="Time between commits (default: 10s).")] = None,
    file_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Size of a full Parquet file (default: 128MB).")
    ] = None,
    mode: Annotated[Mode, typer.Option(help="All records, or the newest row of each key.")] = Mode.append,
    partition_by: Annotated[
        str | None, typer.Option(metavar="COLS", help="Columns that partition the table, separated by commas.")
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create the Delta table of a topic and fill it from the first record."""
    from sparklog.cli.durations import parse_number_or_ms
    from sparklog.cli.sizes import parse_size_bytes

    with open_admin(bootstrap_servers) as admin:
        lake = admin.enable_lake(
            topic,
            location=location,
            interval_ms=None if interval is None else parse_number_or_ms(interval, "--interval", 1, 1),
            mode=mode.value,
            file_size_bytes=None if file_size is None else parse_size_bytes(file_size, "--file-size"),
            partition_by=parse_list(partition_by),
        )
    print(f"topic {topic} has a Delta table at {lake.location}, with a commit every {lake.interval_ms / 1000:g} s")


@app.command("disable")
def disable(topic: TopicName, bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Stop filling the Delta table of a topic. The table stays; `enable` with its location continues it."""
    with open_admin(bootstrap_servers) as admin:
        admin.disable_lake(topic)
    print(f"the Delta table of topic {topic} is no longer filled; the table stays")


@app.command("pause")
def pause(
    topic: TopicName,
    reason: Annotated[str, typer.Option(help="Text that `status` shows.")] = "",
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Stop the commits to the Delta table of a topic until `resume`."""
    with open_admin(bootstrap_servers) as admin:
        admin.pause_lake(topic, reason)
    print(f"the Delta table of topic {topic} is paused")


@app.command("resume")
def resume(
    topic: TopicName,
    from_table: Annotated[
        bool,
        typer.Option("--from-table", help="Continue behind the last row of each partition: for a restored table."),
    ] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Resume the commits to a paused Delta table."""
    with open_admin(bootstrap_servers) as admin:
        admin.resume_lake(topic, from_table=from_table)
    print(f"the Delta table of topic {topic} is resumed")


@app.command("rebuild")
def rebuild(
    topic: TopicName,
    keep_rows: Annotated[
        bool, typer.Option("--keep-rows", help="Keep all rows, and only make columns wider that are so in the topic.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Empty the Delta table and fill it again from the log, with the topic's present columns."""
    if not yes and not keep_rows:
        typer.confirm(
            f"The table of topic {topic} is emptied; rows that the log has deleted are lost. Rebuild?", abort=True
        )
    with open_admin(bootstrap_servers) as admin:
        admin.rebuild_lake(topic, keep_rows=keep_rows)
    if keep_rows:
        print(f"the Delta table of topic {topic} has the topic's wider columns, and all its rows")
        return
    print(f"the Delta table of topic {topic} is filled again")


_STATUS_EPILOG = """\
**Examples**

`sparklog lake status`

`sparklog lake status trips`

`sparklog lake status trips --format json`

*lag* is the number of offsets that the table lacks, and *behind* the age of the newest time up to which all records are
in the table.
"""


@app.command("status", epilog=_STATUS_EPILOG)
def status(
    topic: Annotated[
        str | None, typer.Argument(help="The topic's name; all with a table if none.", autocompletion=completion.topics)
    ] = None,
    format: Annotated[TableFormat, typer.Option(help="Output format.")] = TableFormat.table,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the progress of the Delta tables: offsets, lag, files, the last commit, errors."""
    import sys

    with open_admin(bootstrap_servers) as admin:
        lakes = [admin.describe_lake(name) for name in _names(admin, topic)]
    if format is TableFormat.json:
        import json

        shown = [_as_json(one) for one in lakes]
        print(json.dumps(shown[0] if topic is not None else shown))
    elif not lakes:
        print("no topic has a Delta table; `sparklog lake enable TOPIC --location URL` creates one", file=sys.stderr)
    elif topic is None:
        _print_all(lakes)
    else:
        _print_one(lakes[0])


def _names(admin: Admin, topic: str | None) -> list[str]:
    if topic is not None:
        return [topic]
    described = admin.describe_topics(admin.list_topics())
    return sorted(name for name, one in described.items() if one.setting("lake.location"))


def _as_json(lake: LakeDescription) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(lake)


def _print_all(lakes: list[LakeDescription]) -> None:
    from sparklog.cli import console

    table = console.table("topic", "state", "lag", "behind", "files", "last commit", right=("lag", "files"))
    for one in lakes:
        table.add_row(
            one.topic, _state(one), _number(one.lag), _behind(one), _number(one.files), _time(one.last_commit_ms)
        )
    console.stdout().print(table)


def _print_one(lake: LakeDescription) -> None:
    from sparklog.cli import console

    print(f"topic        {lake.topic}")
    print(f"location     {lake.location}")
    print(f"mode         {lake.mode}")
    print(f"interval     {lake.interval_ms / 1000:g} s")
    print(f"state        {_state(lake)}")
    if lake.paused:
        print(f"reason       {lake.paused}")
    if lake.error:
        print(f"error        {lake.error}")
    print(f"version      {lake.version}")
    print(f"last commit  {_time(lake.last_commit_ms)}")
    print(f"lag          {_number(lake.lag)}  ({_behind(lake)})")
    print()
    table = console.table(
        "partition", "in the table", "end", "lag", "files", right=("partition", "in the table", "end", "lag", "files")
    )
    for p in lake.partitions:
        table.add_row(
            str(p.partition),
            console.number(p.next_offset),
            console.number(p.end_offset),
            _number(p.lag),
            console.number(p.files),
        )
    console.stdout().print(table)


def _state(lake: LakeDescription) -> str:
    return "paused" if lake.paused else "failing" if lake.error else "running"


def _number(value: int) -> str:
    from sparklog.cli import console

    return "-" if value < 0 else console.number(value)


def _behind(lake: LakeDescription) -> str:
    from sparklog.cli.printing import duration

    return "-" if lake.lag_seconds < 0 else duration(lake.lag_seconds)


def _time(timestamp_ms: int) -> str:
    from sparklog.cli import console

    return console.time(timestamp_ms or -1)


@app.command("verify")
def verify(
    topic: TopicName,
    full: Annotated[bool, typer.Option("--full", help="Read every file whole and compare its checksums.")] = False,
    format: Annotated[TableFormat, typer.Option(help="Output format.")] = TableFormat.table,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Check that the table has every offset once, all its files and true statistics. Exit status 1 if not."""
    from sparklog.lake.worker.verify import verify_lake

    with open_admin(bootstrap_servers) as admin:
        report = verify_lake(admin, topic, full=full)
    if format is TableFormat.json:
        import json
        from dataclasses import asdict

        print(json.dumps(asdict(report)))
    else:
        print(f"version {report.version}: {_count(report.files, 'file')}, {_count(report.rows, 'row')}")
        for remark in report.remarks:
            print(f"remark: {remark}")
        for problem in report.problems:
            print(f"problem: {problem}")
        print("sound" if not report.problems else _count(len(report.problems), "problem"))
    if report.problems:
        raise typer.Exit(1)


_RUN_EPILOG = """\
**Examples**

`sparklog lake run` (until Ctrl-C; any number of workers share the topics)

`sparklog lake run --once` (up to the present end of the topics, for a scheduler)

Credentials of an object store are read from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and
AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.
"""


@app.command("run", epilog=_RUN_EPILOG)
def run(
    topic: Annotated[list[str] | None, typer.Argument(help="Topics for --once; all with a table if none.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Fill the tables up to the topics' end, then stop.")] = False,
    end_with_parent: Annotated[bool, typer.Option("--end-with-parent", hidden=True)] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Run a lake worker in the foreground."""
    import sys

    import pyarrow as pa

    from sparklog.cli.worker_process import run_worker
    from sparklog.lake.delta_errors import require_deltalake
    from sparklog.lake.worker.worker import LakeWorker

    if topic and not once:
        raise typer.BadParameter("topics need --once: a continuous worker shares all topics with the other workers")
    require_deltalake()
    if "jemalloc" in pa.supported_memory_backends():  # returns freed memory sooner than the default allocator
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    security, limit_ms = client_security(), timeout_ms()
    errors = run_worker(
        lambda: LakeWorker(bootstrap_servers, security=security, request_timeout_ms=limit_ms),
        topic or None,
        once=once,
        end_with_parent=end_with_parent,
    )
    for error in errors.values():
        print(f"error: {error}", file=sys.stderr)
    if errors:
        raise typer.Exit(1)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
