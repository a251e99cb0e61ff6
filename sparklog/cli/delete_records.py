"""`sparklog delete-records`: deletes the oldest records of partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, TopicName, Unasked, open_admin
from sparklog.cli.positions import position_option

EPILOG = """\
**Examples**

`sparklog delete-records flights --before latest`

`sparklog delete-records flights --partition 2 --before 150000`

`sparklog delete-records flights --before -30d`

The deletion is final. Readers begin at the new log start at once; the space is freed in the background. The topic and
its settings stay. The offset of the next record does not change.
"""


def delete_records(
    topic: TopicName,
    before: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="The first record that stays: an offset, -100 (100 before the end), or a time such as -30d; latest "
            "deletes all records.",
        ),
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable (default: all)."),
    ] = None,
    yes: Unasked = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete the records of a topic before a position: an offset or a time."""
    import sys

    position = position_option(before, "--before")
    from sparklog.cli import console
    from sparklog.client.reading.positions import offsets_of
    from sparklog.types import TopicPartition

    with open_admin(bootstrap_servers) as admin:
        numbers = sorted(set(partition)) if partition else range(admin.describe_topic(topic).partitions)
        tps = [TopicPartition(topic, number) for number in numbers]
        if not yes and sys.stdin.isatty():
            which = "all partitions" if not partition else f"partition {', '.join(map(str, numbers))}"
            typer.confirm(f"Delete the records of {topic}, {which}, before {before} for good?", abort=True)
        earliest = {tp: at.offset for tp, at in admin.list_offsets(dict.fromkeys(tps, "earliest")).items()}
        if position == "latest":  # -1 also deletes the records that arrive before the deletion
            kept = dict.fromkeys(tps, -1)
        else:
            latest = {tp: at.offset for tp, at in admin.list_offsets(dict.fromkeys(tps, "latest")).items()}
            kept = offsets_of(position, tps, earliest, latest, admin.list_offsets)
        starts = admin.delete_records(kept)
    for tp in tps:
        deleted = max(0, starts[tp] - earliest[tp])
        begins = f"begins at offset {starts[tp]}"
        print(f"{topic} partition {tp.partition}: {console.number(deleted)} records deleted, {begins}")
