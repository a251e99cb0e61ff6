"""`sparklog consume`: prints the records of topics, or writes them to a pipe or a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple

import typer

from sparklog.cli import completion
from sparklog.cli.client_command import client_security
from sparklog.cli.file_format import COMPRESSED, ENDINGS, delimiter_of, file_format, is_arrow_stream
from sparklog.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    config_option,
    open_admin,
    parse_settings,
    timeout_ms,
)
from sparklog.cli.positions import position_option
from sparklog.settings import MIB, Scope

if TYPE_CHECKING:
    from sparklog.cli.output import Writer
    from sparklog.cli.record_text import Part
    from sparklog.client.admin.admin import Admin, TopicDescription
    from sparklog.client.consumer.consumer import ConsumedBatch, Consumer
    from sparklog.client.reading.positions import Position
    from sparklog.types import TopicPartition

EPILOG = """\
**Examples**

`sparklog consume events`

`sparklog consume flights --max-records 5 --format table`

`sparklog consume flights --from -100 --columns carrier,dep_delay | jq .carrier`

`sparklog consume flights --from yesterday --until today --output flights.parquet`

`sparklog consume 'orders-*' --from -1h --key customer-7`

`sparklog consume events --output-format '%t %p %o %T %k %s\\n'`

`sparklog consume flights --config isolation.level=read_committed`: only records outside of open and aborted transactions

On a terminal the command reads new records until Ctrl-C, like kafka-console-consumer. Into a pipe or a file it stops at
the end that the topic had at its start. --follow and --no-follow choose between the two; --max-records stops in both
cases. JSON is one object per line; bytes that are not text are written as {"base64": "…"}.

**Groups**: the command belongs to no group. It commits no offset, takes no partition from a group's members, and two
commands both read every record. --from and --until choose the records instead: to continue where a group stands, take
its offsets from `sparklog group describe GROUP`. `sparklog group reset-offsets` moves a group. To read as a member, use
sparklog.Consumer(group_id=…) or Spark.

**Positions** (--from, --until): earliest, latest, an offset, -N for N offsets before the end, or a time: -1h, 30m ago,
now, today, yesterday 10:30, 2026-11-27, 2026-11-27T10:00, with a zone as in '2026-11-27 10:00 Europe/Berlin' (without one:
UTC). A time is the first record that is not older; records are in the order of offsets, so later ones can be older.

**--output-format**: %t topic, %p partition, %o offset, %T timestamp in ms, %k key, %s value (of a typed topic the row as
JSON), %K and %S their sizes in bytes (-1: null), %h headers; \\n, \\r, \\t, \\0.
"""

PARTITIONS_SHOWN_MAX = 10
"""Largest number of partitions that an error lists."""
TABLE_RECORDS = 50
FEW_RECORDS_MAX = 1_000
FEW_RECORDS_SETTINGS = {"fetch_max_bytes": MIB, "prefetch_bytes": MIB}
"""Settings for up to FEW_RECORDS_MAX records, so that a few records do not cost the default 64 MiB of reading ahead."""
POLL_MS = 200


class OutputFormat(StrEnum):
    """The formats of the output."""

    json = "json"
    csv = "csv"
    table = "table"
    arrow = "arrow"
    parquet = "parquet"


LIVE_FORMATS = (OutputFormat.json, OutputFormat.csv)
"""Formats that are written as the records arrive, to a terminal or a growing file."""

TopicNames = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC...", help="Names of topics, or patterns with * and ?.", autocompletion=completion.topics
    ),
]


def consume(
    topic: TopicNames,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="First record: earliest, latest, 100, -100 (100 before the end), or a time: -1h, yesterday.",
        ),
    ] = "earliest",
    until: Annotated[
        str | None,
        typer.Option(metavar="POSITION", help="Stop before this position, in the same forms. [default: the end]"),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only records with this key; several key columns: a JSON list.")
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max-records", "-n", min=0, help="Stop after this many records.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Read only this partition; repeatable.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Read only these columns; names with a comma in backquotes.")
    ] = None,
    format: Annotated[
        OutputFormat | None,
        typer.Option(help="Output format. [default: by the file's ending, else json]", show_default=False),
    ] = None,
    output_format: Annotated[
        str | None, typer.Option("--output-format", metavar="TEXT", help="Each record in this form, as in '%k %s\\n'.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    metadata: Annotated[
        bool, typer.Option("--metadata", "-m", help="Add _topic, _partition, _offset, _timestamp.")
    ] = False,
    follow: Annotated[
        bool | None,
        typer.Option(
            "--follow/--no-follow",
            "-f",
            help="Wait for new records at the end. [default: on a terminal]",
            show_default=False,
        ),
    ] = None,
    config: Annotated[list[str] | None, config_option(Scope.CONSUMER, "A consumer setting; repeatable.")] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print or save the records of topics."""
    parameters = parse_settings(Scope.CONSUMER, config)
    form = _form(output_format, format, output)
    format = OutputFormat.json if form is not None else _format(format, output)
    if output is not None and str(output) == "-" and format in LIVE_FORMATS:
        output = None
    if format is OutputFormat.table and max_records is None:
        max_records = TABLE_RECORDS
    follow = _follows(follow, until, format, output)
    begin_at, end_at = position_option(start, "--from"), position_option(until or "latest", "--until")
    from sparklog.client.consumer.consumer import Consumer

    with open_admin(bootstrap_servers) as admin:
        names = _names(admin, topic)
        tps = [tp for name in names for tp in _partitions(admin.describe_topic(name), partition or [])]
        level = str(parameters.get("isolation_level") or "read_uncommitted")
        begin, end = _range(admin, tps, begin_at, end_at, level)
        # requested after the ends, so that no record below the ends has a newer schema
        described = {name: admin.describe_topic(name) for name in names}
    views = {name: _view(about, columns, key, form) for name, about in described.items()}
    if form is None and format is not OutputFormat.json:
        _check_same_columns(views, format)
    if max_records is not None and max_records <= FEW_RECORDS_MAX and key is None:
        parameters = FEW_RECORDS_SETTINGS | parameters
    consumer = Consumer(bootstrap_servers, columns=_read_columns(views), security=client_security(), **parameters)
    metadata = metadata or len(names) > 1
    live = follow and format in LIVE_FORMATS
    with (
        consumer,
        _open_output(output, is_live=live) as out,
        ExitStack() as opened,
    ):
        is_one = form is None and format is not OutputFormat.json  # one table or file for all topics
        writers: dict[str, Writer] = {}
        for name, view in views.items():
            if writers and is_one:
                writers[name] = next(iter(writers.values()))
            else:
                writers[name] = _writer(format, output, out, view, metadata, form, columns, is_live=follow)
                opened.enter_context(closing(writers[name]))
        consumer.assign(tps)
        for tp, offset in begin.items():
            consumer.seek(tp, offset)
        try:
            count = _copy(consumer, views, writers, begin, None if follow else end, max_records)
        except KeyboardInterrupt:
            if not follow:
                raise  # else the partial file would be kept as if it were complete
            return
    is_remarked = sys.stderr.isatty() or start != "earliest"
    is_limited = max_records is not None and count >= max_records
    _remark(
        format,
        output,
        ", ".join(names),
        count,
        None if follow else end,
        begin,
        is_limited=is_limited,
        is_remarked=is_remarked,
    )


def _follows(follow: bool | None, until: str | None, format: OutputFormat, output: Path | None) -> bool:
    """True if the command waits for new records at the end. Raises typer.BadParameter."""
    if follow and until is not None:
        raise typer.BadParameter("--until ends the command: leave --follow out")
    if follow is None:
        return format in LIVE_FORMATS and output is None and until is None and sys.stdout.isatty()
    return follow


def _form(text: str | None, format: OutputFormat | None, output: Path | None) -> list[Part] | None:
    """Parse `--output-format`; None without the option. Raises typer.BadParameter."""
    if text is None:
        return None
    if format is not None:
        raise typer.BadParameter(f"--output-format and --format {format.value}: give one of them")
    ending = "" if output is None else output.suffix.lower()
    if ending in COMPRESSED or "lines" not in ENDINGS.get(ending, ("lines",)):
        raise typer.BadParameter(
            f"--output-format writes text, which contradicts the ending of {output}; rename the file"
        )
    from sparklog.cli.record_text import parse_form

    try:
        return parse_form(text)
    except ValueError as e:
        raise typer.BadParameter(f"--output-format: {e}") from e


def _names(admin: Admin, texts: Sequence[str]) -> list[str]:
    """Return the topics with the given names or patterns. Raises typer.BadParameter if no topic matches a pattern."""
    from fnmatch import fnmatchcase

    names: dict[str, None] = {}
    for text in texts:
        if not any(c in text for c in "*?["):
            names[text] = None
            continue
        fitting = sorted(t for t in admin.list_topics(include_internal=text.startswith("_")) if fnmatchcase(t, text))
        if not fitting:
            raise typer.BadParameter(f"no topic matches {text!r}; `sparklog topic list` shows the topics")
        names |= dict.fromkeys(fitting)
    return list(names)


class View(NamedTuple):
    """The selected columns and records of a topic."""

    topic: TopicDescription
    columns: list[str] | None
    """Columns of the output; None: all of the newest schema."""
    key: dict[str, Any] | None
    """Key of the selected records, by key column; None: all records."""
    read: list[str] | None
    """Columns to read, including those of the key; None: all."""


def _view(topic: TopicDescription, columns: str | None, key: str | None, form: list[Part] | None) -> View:
    """Return the columns and records of a topic that the options select. Raises typer.BadParameter."""
    shown = _columns(topic, columns)
    if shown is not None and form is not None:
        shown = None if topic.kind == "envelope" else [*shown, *(k for k in topic.key_columns if k not in shown)]
    values = None
    if key is not None:
        from sparklog.cli.key_filter import key_values

        values = key_values(topic, key)
    read = None if shown is None else [*shown, *(n for n in values or () if n not in shown)]
    return View(topic, shown, values, read)


def _read_columns(views: Mapping[str, View]) -> list[str] | None:
    """Return the columns that the consumer decodes; None for all, also if the topics' views need different columns."""
    first = next(iter(views.values())).read
    return first if all(view.read == first for view in views.values()) else None


def _check_same_columns(views: Mapping[str, View], format: OutputFormat) -> None:
    """Raise typer.BadParameter if the topics have different columns."""
    first, *others = views.values()
    for view in others:
        if _schema(view) != _schema(first) or view.topic.kind != first.topic.kind:
            raise typer.BadParameter(
                f"--format {format.value}: the topics {first.topic.name} and {view.topic.name} have different columns; "
                f"choose some of the same type with --columns, or --format json"
            )


def _schema(view: View) -> Any:
    import pyarrow as pa

    schema = view.topic.schema
    return schema if view.columns is None else pa.schema([schema.field(c) for c in view.columns])


def _format(chosen: OutputFormat | None, output: Path | None) -> OutputFormat:
    """Return the format: of `--format`, else of the file's ending, else JSON. Raises typer.BadParameter."""
    format = file_format(output, chosen, OutputFormat) or OutputFormat.json
    if format in (OutputFormat.arrow, OutputFormat.parquet) and output is None:
        raise typer.BadParameter(f"--format {format.value} needs --output FILE")
    if format is OutputFormat.table and output is not None:
        raise typer.BadParameter(f"--format table is for the terminal, --output {output} for json, arrow and parquet")
    return format


def _columns(topic: TopicDescription, columns: str | None) -> list[str] | None:
    from sparklog.format.column_names import column_names

    chosen = column_names(columns or "", "--columns") or None
    stored = set(topic.schema.names)
    unknown = [c for c in chosen or () if c not in stored]
    if unknown:
        names = ", ".join(topic.schema.names)
        raise typer.BadParameter(f"--columns: topic {topic.name} has no column {', '.join(unknown)} (columns: {names})")
    return chosen


def _partitions(topic: TopicDescription, numbers: list[int]) -> list[TopicPartition]:
    from sparklog.types import TopicPartition

    for p in numbers:
        if p >= topic.partitions:
            raise typer.BadParameter(f"--partition {p}: topic {topic.name} has partitions 0 to {topic.partitions - 1}")
    return [TopicPartition(topic.name, p) for p in (sorted(set(numbers)) or range(topic.partitions))]


def _range(
    admin: Admin, tps: list[TopicPartition], begin_at: Position, end_at: Position, level: str
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the first offset and the end offset of every partition, as readers with isolation `level` see them.

    An offset outside of a partition is moved to the partition's first or end offset, because the option applies to all
    partitions. A --from outside of all partitions raises typer.BadParameter.
    """
    from sparklog.client.reading.positions import offsets_of

    def ask(times: Mapping[TopicPartition, str | int]) -> dict[TopicPartition, Any]:
        return admin.list_offsets(times, isolation_level=level)

    low = {tp: at.offset for tp, at in ask(dict.fromkeys(tps, "earliest")).items()}
    high = {tp: at.offset for tp, at in ask(dict.fromkeys(tps, "latest")).items()}
    bounds = [
        {tp: min(max(offset, low[tp]), high[tp]) for tp, offset in offsets_of(at, tps, low, high, ask).items()}
        for at in (begin_at, end_at)
    ]
    if isinstance(begin_at, int) and tps and all(bounds[0][tp] != begin_at for tp in tps):
        edges = "; ".join(
            f"partition {tp.partition} holds offsets {low[tp]} to {high[tp]}" for tp in tps[:PARTITIONS_SHOWN_MAX]
        )
        raise typer.BadParameter(f"--from {begin_at}: {edges}; a time has a unit or a date, as in -1h or 2030-01-01")
    return bounds[0], bounds[1]


def _open_output(output: Path | None, *, is_live: bool) -> AbstractContextManager[BinaryIO]:
    """Open the output; None is stdout. The file appears when it is complete, or at once if `is_live`."""
    from sparklog.cli.destination import destination, opened

    return opened(output) if output is not None and is_live else destination(output)


def _writer(
    format: OutputFormat,
    output: Path | None,
    opened: BinaryIO,
    view: View,
    metadata: bool,
    form: list[Part] | None,
    columns: str | None,
    *,
    is_live: bool,
) -> Writer:
    from sparklog.cli import output as out

    topic = view.topic
    envelope = topic.kind == "envelope"
    if form is not None:
        from sparklog.cli.record_text import TextWriter

        shown = _columns(topic, columns)
        return TextWriter(opened, form, envelope=envelope, key_columns=topic.key_columns, columns=shown)
    if format is OutputFormat.table:
        return out.TableWriter(envelope=envelope, metadata=metadata)
    if format is OutputFormat.json:
        return out.JsonWriter(opened, envelope=envelope, metadata=metadata)
    if format is OutputFormat.csv:
        delimiter = delimiter_of(output)
        return out.CsvRecordWriter(opened, _schema(view), envelope=envelope, metadata=metadata, delimiter=delimiter)
    is_stream = is_arrow_stream(output)
    return out.FileWriter(opened, format.value, _schema(view), metadata=metadata, is_stream=is_stream, is_live=is_live)


def _copy(
    consumer: Consumer,
    views: Mapping[str, View],
    writers: Mapping[str, Writer],
    begin: dict[TopicPartition, int],
    end: dict[TopicPartition, int] | None,
    max_records: int | None,
) -> int:
    """Copy records until every partition's `end` (None: forever) or until `max_records`.

    Returns the number of copied records. Raises RequestTimedOutError if an `end` is not reached and no record arrives
    within --timeout.
    """
    from sparklog.errors import RequestTimedOutError
    from sparklog.types import TopicPartition

    open_ends = {} if end is None else {tp: e for tp, e in end.items() if begin[tp] < e}
    remaining = sys.maxsize if max_records is None else max_records
    count = 0
    received_at = time.monotonic()
    while count < remaining and (end is None or open_ends):
        batches = consumer.poll_batches(timeout_ms=POLL_MS)
        if batches:
            received_at = time.monotonic()
        elif end is not None and time.monotonic() - received_at >= timeout_ms() / 1000:
            raise RequestTimedOutError(f"no record arrived within {timeout_ms() / 1000:g} s (--timeout)")
        for batch in batches:
            tp = TopicPartition(batch.topic, batch.partition)
            rows = batch.data.num_rows if end is None else batch.rows_below(end[tp])
            chosen, rows = _select(batch, views[tp.topic], rows)
            keep = min(rows, remaining - count)
            if keep:
                writers[tp.topic].write(chosen, keep)
                count += keep
        for tp in list(open_ends):
            # the last row's offset may stay below the end: compaction can have removed the records after it
            if consumer.position(tp) >= open_ends[tp]:
                del open_ends[tp]
    return count


def _select(batch: ConsumedBatch, view: View, rows: int) -> tuple[Any, int]:
    """Return the rows and columns of the view from the first `rows` rows of a batch, and the number of rows."""
    if view.key is None and (view.columns is None or batch.data.schema.names == view.columns):
        return batch, rows
    import numpy as np

    from sparklog.cli.key_filter import has_key
    from sparklog.cli.output import select_rows

    indexes = np.arange(rows)
    if view.key is not None:
        indexes = np.flatnonzero(np.asarray(has_key(batch.data.slice(0, rows), view.key)))
    return select_rows(batch, indexes, view.columns), len(indexes)


def _remark(
    format: OutputFormat,
    output: Path | None,
    topic: str,
    count: int,
    end: dict[TopicPartition, int] | None,
    begin: dict[TopicPartition, int],
    *,
    is_limited: bool,
    is_remarked: bool,
) -> None:
    """Print a note on stderr: the number of records in the file, the records that the table lacks if `is_limited`, or,
    if `is_remarked`, that there was no record to read."""
    if output is not None:
        print(f"wrote {count:,} records to {output}", file=sys.stderr)
        return
    present = sum(max(0, e - begin[tp]) for tp, e in (end or {}).items())
    if format is OutputFormat.table and is_limited and present > count:  # offsets can have no record
        print(f"{count:,} of {present:,} records; --max-records shows more", file=sys.stderr)
    elif not count and is_remarked:
        print(f"no record to read in {topic} from that position", file=sys.stderr)
