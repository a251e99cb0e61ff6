"""`sparklog refused`: the records that did not fit the columns of a typed topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.client_command import client_security
from sparklog.cli.mirror import ValueFormat
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, TableFormat, TopicName, open_admin, timeout_ms

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin
    from sparklog.client.refused import RefusedRecords

app = typer.Typer(help="Show and retry records that did not fit a typed topic.", no_args_is_help=True)

TEXT_CHARS_MAX = 60
REASON_CHARS_MAX = 1_000


def _records(admin: Admin, bootstrap_servers: str, topic: str) -> RefusedRecords:
    from sparklog.client.net.cluster import cluster
    from sparklog.client.refused import RefusedRecords

    return RefusedRecords(cluster(bootstrap_servers, client_security()), admin, topic, timeout_ms=timeout_ms())


_LIST_EPILOG = """\
**Examples**

`sparklog refused list` (topics with refused records)

`sparklog refused list orders --limit 100`

The rows of `orders.refused` can also be read with Spark and SQL, as those of each typed topic: their columns are
`partition` and `offset`, the place of the record, and its `key`, `value`, `headers`, `timestamp` and `reason`.
"""


@app.command("list", epilog=_LIST_EPILOG)
def list_(
    topic: Annotated[str | None, typer.Argument(help="Typed topic; all topics if none.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Largest number of records to show.")] = 20,
    format: Annotated[TableFormat, typer.Option(help="Output format.")] = TableFormat.table,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List refused records that are not retried yet, or the topics that have some."""
    from sparklog.client.refused import record_rows

    with open_admin(bootstrap_servers) as admin:
        if topic is None:
            _list_topics(admin, bootstrap_servers, format)
            return
        records = _records(admin, bootstrap_servers, topic)
        shown: list[dict[str, Any]] = []
        for rows in records.waiting():
            shown += record_rows(rows.slice(0, limit - len(shown)))
            if len(shown) >= limit:
                break
        total = records.count()
    if format is TableFormat.json:
        for record in shown:
            print(_json(record))
        return
    from sparklog.cli import console

    table = console.table("partition", "offset", "time", "key", "value", "reason", right=("partition", "offset"))
    for record in shown:
        table.add_row(
            str(record["partition"]),
            str(record["offset"]),
            _time(record),
            _text(record["key"]),
            _text(record["value"]),
            _printable(record["reason"] or ""),
        )
    if shown:
        console.stdout().print(table)
    print(f"{topic}: {_count(total, 'is|are')} refused")


def _list_topics(admin: Admin, bootstrap_servers: str, format: TableFormat) -> None:
    from sparklog.cli import console
    from sparklog.client.net.cluster import cluster
    from sparklog.client.refused import refused_topics

    topics = refused_topics(cluster(bootstrap_servers, client_security()).topic_infos(timeout_ms=timeout_ms()))
    counts = {topic: _records(admin, bootstrap_servers, topic).count() for topic in topics}
    if format is TableFormat.json:
        import json

        print(json.dumps(counts))
        return
    table = console.table("topic", "refused", right=("refused",))
    for topic, count in counts.items():
        table.add_row(topic, console.number(count))
    console.stdout().print(table)


@app.command("show")
def show(
    topic: TopicName,
    partition: Annotated[int, typer.Argument(help="Partition of the record.")],
    offset: Annotated[int, typer.Argument(help="Offset of the record.")],
    format: Annotated[TableFormat, typer.Option(help="Output format.")] = TableFormat.table,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a refused record whole, with the reason."""
    with open_admin(bootstrap_servers) as admin:
        record = _records(admin, bootstrap_servers, topic).find(partition, offset)
    if format is TableFormat.json:
        print(_json(record))
        return
    print(f"place    {topic}, partition {partition}, offset {offset}")
    print(f"time     {_time(record)}")
    print(f"reason   {_printable(record['reason'] or '')}")
    if record["client_id"]:
        print(f"client   {_printable(record['client_id'])}")
    for header in record["headers"] or ():
        print(f"header   {_printable(header['key'])}: {_whole_text(header['value'])}")
    print(f"key      {_whole_text(record['key'])}")
    print(f"value    {_whole_text(record['value'])}")


_RETRY_EPILOG = """\
**Examples**

`sparklog topic alter orders --add-column 'note STRING'`, then `sparklog refused retry orders --dry-run`

`sparklog refused retry orders`

Records that fit the present columns become rows at the end of their partition, each once, also if the command is
killed. The others remain refused, with their new reasons. A retried record is the newest one of its key. A record of a
Kafka producer goes to the partition of its key. A topic of a mirror can be retried after its promotion.
"""


@app.command("retry", epilog=_RETRY_EPILOG)
def retry(
    topic: TopicName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the records that fit, and change nothing.")] = False,
    drop_headers: Annotated[
        bool, typer.Option("--drop-headers", help="Leave out headers; otherwise records with headers do not fit.")
    ] = False,
    value_format: Annotated[
        ValueFormat | None,
        typer.Option(help="Format of the values; by default that of the topic (kafka.value.format)."),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(metavar="URL", envvar="SPARKLOG_SCHEMA_REGISTRY_URL", help="Registry with the values' schemas."),
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Store refused records that fit the topic now."""
    from sparklog.client.refused import Values

    values = Values("" if value_format is None else value_format.value, registry, drop_headers, client_security())
    with open_admin(bootstrap_servers) as admin:
        records = _records(admin, bootstrap_servers, topic)
        if dry_run:
            result = records.check(values)
            print(f"{_count(result.stored, 'fits|fit')} now, {result.refused:,} not; nothing was changed")
            return
        result = records.retry(bootstrap_servers, client_security(), values)
    print(f"{_count(result.stored, 'is|are')} stored now, {_count(result.refused, 'remains|remain')} refused")


def _json(record: dict[str, Any]) -> str:
    import base64
    import json

    def encode(value: object) -> str:
        return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)

    return json.dumps({**record, "timestamp": _timestamp(record["timestamp"])}, default=encode)


def _timestamp(microseconds: int | None) -> str | None:
    """Return a timestamp as text; in milliseconds outside of Python's calendar."""
    from datetime import UTC, datetime, timedelta

    if microseconds is None:
        return None
    try:
        return str(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds))
    except OverflowError:
        return str(microseconds // 1000)


def _time(record: dict[str, Any]) -> str:
    from sparklog.cli import console

    return "-" if record["timestamp"] is None else console.iso_time(record["timestamp"] // 1000)


def _count(records: int, verb: str) -> str:
    """Return a number of records with `verb`, which has two forms: "is|are"."""
    one, several = verb.split("|")
    return f"1 record {one}" if records == 1 else f"{records:,} records {several}"


def _text(content: bytes | None) -> str:
    text = _whole_text(content)
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 1] + "…"


def _whole_text(content: bytes | None) -> str:
    from sparklog.cli.printing import printable

    if content is None:
        return "null"
    text = content.decode(errors="backslashreplace")
    return printable(text, len(text))


def _printable(text: str) -> str:
    from sparklog.cli.printing import printable

    return printable(text, REASON_CHARS_MAX)
