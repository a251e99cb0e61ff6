"""`sparklog offsets`: shows the first offset and the end offset of each partition of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, TableFormat, TopicName, open_admin
from sparklog.cli.positions import position_option

if TYPE_CHECKING:
    from rich.table import Table

    from sparklog.client.admin.admin import Admin, TopicDescription
    from sparklog.client.reading.positions import Position

EPILOG = """\
**Examples**

`sparklog offsets flights`

`sparklog offsets flights --at yesterday`

`sparklog offsets flights --format json`

*log end* is the offset that the next record gets; *newest* is the largest timestamp of a record.
"""


ALONE = 0
"""The default broker id. A topic with replicas on this broker alone is shown without broker columns."""


class PartitionOffsets(NamedTuple):
    """The offsets, sizes and replicas of one partition."""

    partition: int
    log_start: int
    """First readable offset; -1 without a leader."""
    log_end: int
    """Offset of the next record; -1 without a leader."""
    newest_ms: int
    """Largest timestamp of a record; -1 without records."""
    size_bytes: int
    """Size of all batches, those in the object store included; -1: unknown."""
    local_start: int
    """Records below this offset are in the object store only."""
    remote_bytes: int
    """Size of the batches in the object store."""
    leader: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()

    @property
    def offsets(self) -> int:
        """Number of offsets from log start to log end: an upper limit of the number of readable records, because
        markers, compacted and aborted records have offsets, too."""
        return self.log_end - self.log_start


def offsets(
    topic: TopicName,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION",
            help="Show instead the offset of a position: a time such as -1h or yesterday, or -100: 100 before the end.",
        ),
    ] = None,
    format: Annotated[TableFormat, typer.Option(help="Output format.")] = TableFormat.table,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show each partition's first offset, the offset of its next record, and its newest timestamp.

    With --at, show the offset of a position instead: a time such as -1h or yesterday, or -100: 100 offsets before the
    end.
    """
    if at is not None:
        _show_position(topic, position_option(at, "--at"), format, bootstrap_servers)
        return
    with open_admin(bootstrap_servers) as admin:
        rows = partition_offsets(admin, admin.describe_topic(topic))
    if format is TableFormat.json:
        import json

        for row in rows:
            print(json.dumps({"topic": topic, **row._asdict(), "offsets": row.offsets}))
        return
    from sparklog.cli import console

    console.stdout().print(offsets_table(rows))


def _show_position(topic: str, position: Position, format: TableFormat, bootstrap_servers: str) -> None:
    from sparklog.cli import console
    from sparklog.client.reading.positions import offsets_of
    from sparklog.types import TopicPartition

    with open_admin(bootstrap_servers) as admin:
        tps = [TopicPartition(topic, p) for p in range(admin.describe_topic(topic).partitions)]
        low = {tp: listed.offset for tp, listed in admin.list_offsets(dict.fromkeys(tps, "earliest")).items()}
        high = {tp: listed.offset for tp, listed in admin.list_offsets(dict.fromkeys(tps, "latest")).items()}
        offsets = offsets_of(position, tps, low, high, admin.list_offsets)
    if format is TableFormat.json:
        import json

        for tp, offset in offsets.items():
            print(json.dumps({"topic": topic, "partition": tp.partition, "offset": offset, "log_end": high[tp]}))
        return
    table = console.table("partition", "offset", "log end", right=("partition", "offset", "log end"))
    for tp, offset in offsets.items():
        table.add_row(str(tp.partition), console.number(offset), console.number(high[tp]))
    console.stdout().print(table)


def partition_offsets(admin: Admin, topic: TopicDescription, *, leaderless: bool = False) -> list[PartitionOffsets]:
    """Return the offsets of all partitions of `topic`, in partition order.

    A partition without a leader is an error; with `leaderless` it has the offsets -1 instead.
    """
    from sparklog.types import TopicPartition

    every = [TopicPartition(topic.name, p) for p in range(topic.partitions)]
    offline = {p.partition for p in topic.partition_details if leaderless and p.leader < 0}
    tps = [tp for tp in every if tp.partition not in offline]
    details = {p.partition: p for p in topic.partition_details}
    # ends last: else a growing partition could show an end before its newest record
    newest = admin.list_offsets(dict.fromkeys(tps, "max_timestamp"))
    first = admin.list_offsets(dict.fromkeys(tps, "earliest"))
    last = admin.list_offsets(dict.fromkeys(tps, "latest"))
    return [
        PartitionOffsets(
            tp.partition,
            first[tp].offset if tp in first else -1,
            last[tp].offset if tp in last else -1,
            newest[tp].timestamp_ms if tp in newest else -1,
            details[tp.partition].size_bytes,
            details[tp.partition].local_log_start_offset,
            details[tp.partition].remote_size_bytes,
            details[tp.partition].leader,
            details[tp.partition].replicas,
            details[tp.partition].isr,
            details[tp.partition].elr,
        )
        for tp in every
    ]


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))


def _number(offset: int) -> str:
    from sparklog.cli import console

    return console.number(offset) if offset >= 0 else "-"


def offsets_table(rows: list[PartitionOffsets]) -> Table:
    """Return a table of the rows and their sum. Columns of the object store are shown only if it has records."""
    from sparklog.cli import console

    tiered = any(row.remote_bytes > 0 for row in rows)
    numbers = ("partition", "log start", *(("local start",) if tiered else ()), "log end", "offsets", "size")
    numbers += ("in the tier",) if tiered else ()
    replicated = any(row.replicas != (ALONE,) for row in rows)
    eligible = any(row.elr for row in rows)
    brokers = ("leader", "replicas", "in sync", *(("eligible",) if eligible else ())) if replicated else ()
    table = console.table(*numbers, "newest", *brokers, right=numbers)

    def add(*cells: str, local: str, remote_bytes: int, broker_cells: tuple[str, ...] = ("", "", "", "")) -> None:
        partition, log_start, log_end, offsets, size, newest = cells
        in_tier = console.size(remote_bytes) if remote_bytes >= 0 else "-"
        table.add_row(
            partition, log_start, *((local,) if tiered else ()), log_end, offsets, size,
            *((in_tier,) if tiered else ()), newest, *broker_cells[: len(brokers)],
        )  # fmt: skip

    for row in rows:
        add(
            str(row.partition),
            *map(_number, (row.log_start, row.log_end, row.offsets if row.log_end >= 0 else -1)),
            console.size(row.size_bytes) if row.size_bytes >= 0 else "-",
            console.time(row.newest_ms),
            local=console.number(row.local_start) if row.local_start >= 0 else "-",
            remote_bytes=row.remote_bytes,
            broker_cells=("-" if row.leader < 0 else str(row.leader), _ids(row.replicas), _ids(row.isr), _ids(row.elr)),
        )
    if len(rows) > 1:
        newest_ms = max(row.newest_ms for row in rows)
        table.add_section()
        offsets, size_bytes = sum(r.offsets for r in rows), sum(max(0, r.size_bytes) for r in rows)
        sizes = console.number(offsets), console.size(size_bytes)
        remote_bytes = sum(max(0, r.remote_bytes) for r in rows)
        add("all", "", "", *sizes, console.time(newest_ms), local="", remote_bytes=remote_bytes)
    return table
