"""`sparklog offsets`: where each partition of a topic begins and ends."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap

if TYPE_CHECKING:
    from rich.table import Table

    from sparklog.client.admin import Admin, TopicDescription

EPILOG = """\
**Examples**

`sparklog offsets flights`

`sparklog offsets flights --format json`

*log end* is the offset that the next record gets; *newest* is the largest timestamp of a record.
"""


class OffsetsFormat(StrEnum):
    """How the offsets are printed."""

    table = "table"
    json = "json"


class PartitionOffsets(NamedTuple):
    """One partition: [log_start, log_end) can be read; `newest_ms` -1: there is no record; `size_bytes` of batches, -1:
    not known."""

    partition: int
    log_start: int
    log_end: int
    newest_ms: int
    size_bytes: int

    @property
    def records(self) -> int:
        return self.log_end - self.log_start


def offsets(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    format: Annotated[OffsetsFormat, typer.Option(help="How to print.")] = OffsetsFormat.table,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show each partition's first and next offset, and its newest timestamp."""
    from sparklog.client.admin import Admin

    with Admin(bootstrap_servers) as admin:
        rows = partition_offsets(admin, admin.describe_topic(topic))
    if format is OffsetsFormat.json:
        import json

        for row in rows:
            print(json.dumps({"topic": topic, **row._asdict(), "records": row.records}))
        return
    from sparklog.cli import console

    console.stdout().print(offsets_table(rows))


def partition_offsets(admin: Admin, topic: TopicDescription) -> list[PartitionOffsets]:
    """Asks for the offsets of all partitions of `topic`, in partition order."""
    from sparklog.types import TopicPartition

    tps = [TopicPartition(topic.name, p) for p in range(topic.partitions)]
    sizes = {p.partition: p.size_bytes for p in topic.partition_details}
    # the end is asked last, so that a partition that grows meanwhile never shows an end before its newest record
    newest = admin.list_offsets(dict.fromkeys(tps, "max_timestamp"))
    first = admin.list_offsets(dict.fromkeys(tps, "earliest"))
    last = admin.list_offsets(dict.fromkeys(tps, "latest"))
    return [
        PartitionOffsets(
            tp.partition, first[tp].offset, last[tp].offset, newest[tp].timestamp_ms, sizes.get(tp.partition, -1)
        )
        for tp in tps
    ]


def offsets_table(rows: list[PartitionOffsets]) -> Table:
    """The rows and their sum as a table."""
    from sparklog.cli import console

    numbers = ("partition", "log start", "log end", "records", "size")
    table = console.table(*numbers, "newest", right=numbers)
    for row in rows:
        table.add_row(
            str(row.partition),
            console.number(row.log_start),
            console.number(row.log_end),
            console.number(row.records),
            console.size(row.size_bytes) if row.size_bytes >= 0 else "-",
            console.time(row.newest_ms),
        )
    if len(rows) > 1:
        newest_ms = max(row.newest_ms for row in rows)
        table.add_section()
        records, size_bytes = sum(r.records for r in rows), sum(max(0, r.size_bytes) for r in rows)
        table.add_row("all", "", "", console.number(records), console.size(size_bytes), console.time(newest_ms))
    return table
