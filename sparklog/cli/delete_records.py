"""`sparklog delete-records`: takes the beginning of partitions away."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, TopicName, Unasked, open_admin

EPILOG = """\
**Examples**

`sparklog delete-records flights --before latest`

`sparklog delete-records flights --partition 2 --before 150000`

The deletion is final. Readers begin at the new log start at once; the space is freed in the background. The topic and
its settings stay. The offset of the next record does not change.
"""
_LATEST = "latest"


def delete_records(
    topic: TopicName,
    before: Annotated[
        str, typer.Option(metavar="OFFSET|latest", help="The first offset that stays; latest deletes all records.")
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable (default: all)."),
    ] = None,
    yes: Unasked = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete the records of a topic below an offset."""
    import sys

    before_offset = _parse_before(before)
    from sparklog.cli import console
    from sparklog.types import TopicPartition

    with open_admin(bootstrap_servers) as admin:
        numbers = sorted(set(partition)) if partition else range(admin.describe_topic(topic).partitions)
        tps = [TopicPartition(topic, number) for number in numbers]
        if not yes and sys.stdin.isatty():
            which = "all partitions" if not partition else f"partition {', '.join(map(str, numbers))}"
            typer.confirm(f"Delete the records of {topic}, {which}, before {before} for good?", abort=True)
        earliest = admin.list_offsets(dict.fromkeys(tps, "earliest"))
        starts = admin.delete_records(dict.fromkeys(tps, before_offset))
    for tp in tps:
        deleted = max(0, starts[tp] - earliest[tp].offset)
        begins = f"begins at offset {starts[tp]}"
        print(f"{topic} partition {tp.partition}: {console.number(deleted)} records deleted, {begins}")


def _parse_before(text: str) -> int:
    if text == _LATEST:
        return -1
    if not text.isascii() or not text.isdecimal():
        raise typer.BadParameter(f"{text!r}: --before takes an offset (0 or more) or latest")
    return int(text)
