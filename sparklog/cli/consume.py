"""`sparklog consume`: records of a topic to the terminal, a pipe or a file."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from sparklog.cli.client_command import client_security
from sparklog.cli.file_format import file_format
from sparklog.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    TopicName,
    config_option,
    open_admin,
    parse_settings,
    timeout_ms,
)
from sparklog.settings import Scope

if TYPE_CHECKING:
    from sparklog.cli.output import Writer
    from sparklog.client.admin.admin import Admin, TopicDescription
    from sparklog.client.consumer.consumer import Consumer
    from sparklog.types import TopicPartition

EPILOG = """\
**Examples**

`sparklog consume events`

`sparklog consume flights --max-records 5 --format table`

`sparklog consume flights --from -100 --columns carrier,dep_delay | jq .carrier`

`sparklog consume flights --output flights.parquet`

`sparklog consume flights --config isolation.level=read_committed`: only records outside of open and aborted transactions

On a terminal the command reads new records until Ctrl-C, like kafka-console-consumer. Into a pipe or a file it stops at
the end that the topic had at its start. --follow and --no-follow choose between the two; --max-records stops in both
cases. JSON is one object per line; bytes that are not text are written as {"base64": "…"}.
"""

TABLE_RECORDS = 50
POLL_MS = 200


class OutputFormat(StrEnum):
    """The formats of records."""

    json = "json"
    table = "table"
    arrow = "arrow"
    parquet = "parquet"


def consume(
    topic: TopicName,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="earliest|latest|OFFSET", help="Also -N: N before the end; or a time, 2024-03-01T12:30Z."
        ),
    ] = "earliest",
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
    """Print or save a topic's records."""
    parameters = parse_settings(Scope.CONSUMER, config)
    format = _format(format, output)
    if output is not None and str(output) == "-" and format is OutputFormat.json:
        output = None
    if format is OutputFormat.table and max_records is None:
        max_records = TABLE_RECORDS
    if follow is None:
        follow = format is OutputFormat.json and output is None and sys.stdout.isatty()
    from sparklog.client.consumer.consumer import Consumer

    with open_admin(bootstrap_servers) as admin:
        tps = _partitions(admin.describe_topic(topic), partition or [])
        level = str(parameters.get("isolation_level") or "read_uncommitted")
        begin = _start_offsets(admin, tps, start, level)
        latest = admin.list_offsets(dict.fromkeys(tps, "latest"), isolation_level=level)
        described = admin.describe_topic(topic)  # after the ends: no record below them has a newer schema
        wanted = _columns(described, columns)
    end = None if follow else {tp: latest[tp].offset for tp in tps}
    consumer = Consumer(bootstrap_servers, columns=wanted, security=client_security(), **parameters)
    with (
        consumer,
        _opened(output, is_watched=bool(follow) and format is OutputFormat.json) as out,
        closing(_writer(format, output, out, described, wanted, metadata)) as writer,
    ):
        consumer.assign(tps)
        for tp, offset in begin.items():
            consumer.seek(tp, offset)
        try:
            count = _copy(consumer, writer, begin, end, max_records)
        except KeyboardInterrupt:
            if output is not None and not follow:
                raise  # a file with a part of the records would look whole
            return
    _remark(format, output, topic, count, end, begin)


def _format(given: OutputFormat | None, output: Path | None) -> OutputFormat:
    """Raises typer.BadParameter."""
    format = file_format(output, given, OutputFormat) or OutputFormat.json
    if format in (OutputFormat.arrow, OutputFormat.parquet) and output is None:
        raise typer.BadParameter(f"--format {format.value} needs --output FILE")
    if format is OutputFormat.table and output is not None:
        raise typer.BadParameter(f"--format table is for the terminal, --output {output} for json, arrow and parquet")
    return format


def _columns(topic: TopicDescription, columns: str | None) -> list[str] | None:
    from sparklog.format.column_names import column_names

    wanted = column_names(columns or "", "--columns") or None
    unknown = [c for c in wanted or () if c not in topic.schema.names]
    if unknown:
        names = ", ".join(topic.schema.names)
        raise typer.BadParameter(f"--columns: topic {topic.name} has no column {', '.join(unknown)} (columns: {names})")
    return wanted


def _partitions(topic: TopicDescription, wanted: list[int]) -> list[TopicPartition]:
    from sparklog.types import TopicPartition

    for p in wanted:
        if p >= topic.partitions:
            raise typer.BadParameter(f"--partition {p}: topic {topic.name} has partitions 0 to {topic.partitions - 1}")
    return [TopicPartition(topic.name, p) for p in (sorted(set(wanted)) or range(topic.partitions))]


def _start_offsets(admin: Admin, tps: list[TopicPartition], start: str, level: str) -> dict[TopicPartition, int]:
    """The first offset to read of every partition, for `--from`; the end is that of isolation `level`. An offset
    outside of the log is moved to its edge, because one number stands for all partitions."""
    earliest = admin.list_offsets(dict.fromkeys(tps, "earliest"))
    latest = admin.list_offsets(dict.fromkeys(tps, "latest"), isolation_level=level)
    if start == "earliest":
        return {tp: earliest[tp].offset for tp in tps}
    if start == "latest":
        return {tp: latest[tp].offset for tp in tps}
    try:
        offset = int(start)
    except ValueError:
        by_time = admin.list_offsets(dict.fromkeys(tps, _timestamp_ms(start)))
        return {tp: by_time[tp].offset if by_time[tp].offset >= 0 else latest[tp].offset for tp in tps}
    if offset < 0:
        return {tp: max(earliest[tp].offset, latest[tp].offset + offset) for tp in tps}
    if len(tps) == 1 and not earliest[tps[0]].offset <= offset <= latest[tps[0]].offset:
        low, high = earliest[tps[0]].offset, latest[tps[0]].offset
        raise typer.BadParameter(f"--from {offset}: partition {tps[0].partition} holds offsets {low} to {high}")
    return {tp: min(max(offset, earliest[tp].offset), latest[tp].offset) for tp in tps}


def _timestamp_ms(text: str) -> int:
    from datetime import UTC, datetime

    try:
        at = datetime.fromisoformat(text)
    except ValueError as e:
        raise typer.BadParameter(
            f"--from {text!r}: use earliest, latest, an offset, -N, or a time as 2024-03-01T12:30Z"
        ) from e
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _opened(output: Path | None, *, is_watched: bool) -> AbstractContextManager[BinaryIO]:
    """The output. A file appears when it is complete, unless `is_watched`: of lines that go on forever, each is there
    at once."""
    from sparklog.cli.destination import destination

    return output.open("wb") if output is not None and is_watched else destination(output)


def _writer(
    format: OutputFormat,
    output: Path | None,
    opened: BinaryIO,
    topic: TopicDescription,
    columns: list[str] | None,
    metadata: bool,
) -> Writer:
    from sparklog.cli import output as out

    envelope = topic.kind == "envelope"
    if format is OutputFormat.table:
        return out.TableWriter(envelope=envelope, metadata=metadata)
    if format is OutputFormat.json:
        return out.JsonWriter(opened, envelope=envelope, metadata=metadata)
    import pyarrow as pa

    schema = topic.schema if columns is None else pa.schema([topic.schema.field(c) for c in columns])
    is_stream = str(output) == "-" or str(output).lower().endswith(".arrows")
    return out.FileWriter(opened, format.value, schema, metadata=metadata, is_stream=is_stream)


def _copy(
    consumer: Consumer,
    writer: Writer,
    begin: dict[TopicPartition, int],
    end: dict[TopicPartition, int] | None,
    max_records: int | None,
) -> int:
    """Copy records until every partition's `end` (None: forever) or `max_records`; returns the number of records.
    Raises RequestTimedOutError if there is an end and the broker stays silent before it."""
    from sparklog.errors import RequestTimedOutError
    from sparklog.types import TopicPartition

    open_ends = {} if end is None else {tp: e for tp, e in end.items() if begin[tp] < e}
    left = sys.maxsize if max_records is None else max_records
    count = 0
    came_at = time.monotonic()
    while count < left and (end is None or open_ends):
        batches = consumer.poll_batches(timeout_ms=POLL_MS)
        if batches:
            came_at = time.monotonic()
        elif end is not None and time.monotonic() - came_at >= timeout_ms() / 1000:
            raise RequestTimedOutError(f"nothing came for {timeout_ms() / 1000:g} s (--timeout)")
        for batch in batches:
            tp = TopicPartition(batch.topic, batch.partition)
            rows = batch.data.num_rows
            keep = min(rows, left - count)
            if end is not None:
                keep = min(keep, batch.rows_below(end[tp]))
            if keep:
                writer.write(batch, keep)
                count += keep
        for tp in list(open_ends):
            if (
                consumer.position(tp) >= open_ends[tp]
            ):  # not the last row's offset: compaction may have removed later records
                del open_ends[tp]
    return count


def _remark(
    format: OutputFormat,
    output: Path | None,
    topic: str,
    count: int,
    end: dict[TopicPartition, int] | None,
    begin: dict[TopicPartition, int],
) -> None:
    """Writes facts that the output does not show to stderr."""
    if output is not None:
        print(f"wrote {count:,} records to {output}", file=sys.stderr)
        return
    there = sum(max(0, e - begin[tp]) for tp, e in (end or {}).items())
    if format is OutputFormat.table and there > count:
        print(f"{count:,} of {there:,} records; --max-records shows more", file=sys.stderr)
    elif not count and sys.stderr.isatty():
        print(f"no record to read in {topic} from that position", file=sys.stderr)
