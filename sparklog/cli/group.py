"""`sparklog group`: lists, describes, resets and deletes consumer groups."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli import completion
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, TableFormat, Unasked, open_admin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparklog.client.admin.admin import Admin
    from sparklog.client.admin.group_admin import GroupDescription
    from sparklog.client.admin.offset_moves import OffsetTarget
    from sparklog.types import TopicPartition

app = typer.Typer(help="List, describe, reset and delete consumer groups.", no_args_is_help=True)

GroupId = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's name (`group.id`).", autocompletion=completion.groups)
]


class GroupState(StrEnum):
    """States of a consumer group."""

    empty = "empty"
    reconciling = "reconciling"
    stable = "stable"


_LIST_EPILOG = """\
**Examples**

`sparklog group list`

`sparklog group list --state empty`

*Empty*: no member reads; the offsets are kept (`offsets.retention.minutes`). *Reconciling*: partitions move between members.
*Stable*: every member has its partitions. A group of kind *offsets* never had members, for example that of a Spark query
with `group.id`.
"""


@app.command("list", epilog=_LIST_EPILOG)
def list_groups(
    state: Annotated[list[GroupState] | None, typer.Option(help="Only groups in this state; repeatable.")] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List the groups."""
    import sys

    from sparklog.cli import console

    with open_admin(bootstrap_servers) as admin:
        groups = admin.list_groups([s.value for s in state or []])
    if not groups:
        print("no groups" if state else "no groups yet: a consumer with group_id creates one", file=sys.stderr)
        return
    table = console.table("group", "state", "kind", "members", right=("members",))
    for group in groups:
        table.add_row(group.group_id, group.state, group.kind, console.number(group.members))
    console.stdout().print(table)


_DESCRIBE_EPILOG = """\
**Examples**

`sparklog group describe billing`

`sparklog group describe billing --members`

`sparklog group describe billing --format json`

*lag* is the number of offsets between the committed offset and the *end* for read_committed readers. It is 0 when no
record is left to read, even if markers of transactions follow.
"""


@app.command("describe", epilog=_DESCRIBE_EPILOG)
def describe(
    group: GroupId,
    members: Annotated[
        bool, typer.Option("--members", "-m", help="Show the members, with their current and future partitions.")
    ] = False,
    format: Annotated[TableFormat, typer.Option(help="Output format.")] = TableFormat.table,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a group's committed offsets, its lag and its members."""
    with open_admin(bootstrap_servers) as admin:
        described = admin.describe_group(group)
    if format is TableFormat.json:
        import json

        print(json.dumps(_as_json(described)))
        return
    print(f"group     {described.group_id}")
    print(f"state     {described.state}")
    if described.epoch >= 0:
        print(f"epoch     {described.epoch}  (assignor {described.assignor})")
    print(f"members   {len(described.members)}")
    lags = [p.lag for p in described.partitions if p.lag is not None]
    print(f"lag       {sum(lags):,}" if lags else "lag       -  (no committed offsets)")
    print()
    _print_members(described) if members else _print_partitions(described)


def _print_partitions(group: GroupDescription) -> None:
    from sparklog.cli import console

    numbers = ("partition", "committed", "end", "lag")
    table = console.table("topic", *numbers, "member", "client", "host", right=numbers)
    for row in group.partitions:
        member = row.member
        table.add_row(
            row.partition.topic,
            str(row.partition.partition),
            "-" if row.committed is None else console.number(row.committed.offset),
            "gone" if row.end < 0 else console.number(row.end),
            "-" if row.lag is None else console.number(row.lag),
            "-" if member is None else member.instance_id or member.member_id,
            "-" if member is None else member.client_id,
            "-" if member is None else member.host,
        )
    console.stdout().print(table)


def _print_members(group: GroupDescription) -> None:
    from sparklog.cli import console

    table = console.table(
        "member", "instance", "client", "host", "epoch", "topics", "has", "is to have", right=("epoch",)
    )
    for member in group.members:
        table.add_row(
            member.member_id,
            member.instance_id or "-",
            member.client_id or "-",
            member.host,
            "away" if member.epoch < 0 else str(member.epoch),
            ", ".join(member.topics),
            _partitions_text(member.owned),
            "the same" if set(member.target) == set(member.owned) else _partitions_text(member.target),
        )
    console.stdout().print(table)


def _partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Return the partitions by topic, as in "t: 0, 1; u: 3"; "-" without partitions."""
    topics: dict[str, list[str]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(str(tp.partition))
    return "; ".join(f"{topic}: {', '.join(numbers)}" for topic, numbers in topics.items()) or "-"


def _as_json(group: GroupDescription) -> dict[str, object]:
    return {
        "group": group.group_id,
        "state": group.state,
        "epoch": group.epoch,
        "assignor": group.assignor,
        "members": [
            {
                "member_id": m.member_id,
                "instance_id": m.instance_id,
                "client_id": m.client_id,
                "host": m.host,
                "epoch": m.epoch,
                "topics": list(m.topics),
                "owned": [[*tp] for tp in m.owned],
                "target": [[*tp] for tp in m.target],
            }
            for m in group.members
        ],
        "partitions": [
            {
                "topic": p.partition.topic,
                "partition": p.partition.partition,
                "committed": None if p.committed is None else p.committed.offset,
                "metadata": "" if p.committed is None else p.committed.metadata,
                "end": p.end,
                "lag": p.lag,
                "member_id": None if p.member is None else p.member.member_id,
            }
            for p in group.partitions
        ],
    }


_RESET_EPILOG = """\
**Examples**

`sparklog group reset-offsets billing --topic orders --to-earliest` (only shows the change)

`sparklog group reset-offsets billing --topic orders --to-earliest --execute`

`sparklog group reset-offsets billing --topic orders:0,2 --to-datetime 2024-03-01T12:30Z --execute`

`sparklog group reset-offsets billing --all-topics --to -1h --execute`

`sparklog group reset-offsets billing --all-topics --shift-by -100 --execute`

The group must have no members: stop its consumers first. A group that does not exist is created. Offsets outside of a
partition are moved to its edge.
"""


@app.command("reset-offsets", epilog=_RESET_EPILOG)
def reset_offsets(
    group: GroupId,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="T[:P,…]",
            help="A topic, or some of its partitions; repeatable.",
            autocompletion=completion.topics,
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All partitions with a committed offset of the group.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the last record.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            "--to-time",
            metavar="TIME",
            help="To the first record at or after this time: -1h, yesterday, 2024-03-01T12:30 (UTC without a zone).",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION", help="To a position as in `consume --from`: earliest, latest, 100, -100, -1h."
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="By N records from the committed offset; negative: back.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Set the offsets, instead of only showing them.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set a stopped group's offsets; without --execute only show them."""
    import sys

    from sparklog.cli import console
    from sparklog.cli.positions import position_option, time_option
    from sparklog.client.admin.offset_moves import AtTime, ShiftBy, planned_moves

    targets = (to_offset, to_datetime, to, shift_by)
    if sum([to_earliest, to_latest, *(value is not None for value in targets)]) != 1:
        raise typer.BadParameter(
            "give one of --to, --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by"
        )
    if bool(topic) == all_topics:
        raise typer.BadParameter("give --topic (repeatable) or --all-topics")
    if shift_by is not None:
        target: OffsetTarget = ShiftBy(shift_by)
    elif to_datetime is not None:
        target = AtTime(time_option(to_datetime, "--to-datetime"))
    elif to is not None:
        target = position_option(to, "--to")
    else:
        target = "latest" if to_latest else "earliest" if to_earliest else to_offset or 0
    with open_admin(bootstrap_servers) as admin:
        tps = sorted(admin.list_group_offsets(group)) if all_topics else _partitions(admin, topic or [])
        moves = planned_moves(admin, group, tps, target)
        if not moves:
            admin.describe_group(group)  # raises its own error if the group does not exist
            print(f"group {group} has no committed offsets there", file=sys.stderr)
            raise typer.Exit(1)
        if not execute and not any(move.committed for move in moves.values()):
            _note_new_group(admin, group)
        if execute:
            admin.alter_group_offsets(group, {tp: move.offset for tp, move in moves.items()})
    table = console.table("topic", "partition", "committed", "new", right=("partition", "committed", "new"))
    for tp, move in moves.items():
        before = "-" if move.committed is None else console.number(move.committed)
        table.add_row(tp.topic, str(tp.partition), before, console.number(move.offset))
    console.stdout().print(table)
    if execute:
        print(f"\nset {len(moves)} {'offset' if len(moves) == 1 else 'offsets'} of group {group}")
    else:
        print("\nnothing has changed: --execute sets the offsets", file=sys.stderr)


def _note_new_group(admin: Admin, group: str) -> None:
    """Print a note if the group does not exist, because the name can be misspelt."""
    import sys

    from sparklog.errors import GroupIdNotFoundError

    try:
        admin.describe_group(group)
    except GroupIdNotFoundError as e:
        print(f"{e}; --execute creates it", file=sys.stderr)


def _partitions(admin: Admin, topics: list[str]) -> list[TopicPartition]:
    """Return the partitions of `TOPIC` (all) and `TOPIC:0,2`, sorted. Raises typer.BadParameter."""
    from sparklog.types import TopicPartition

    partitions: set[TopicPartition] = set()
    for text in topics:
        name, colon, numbers = text.partition(":")
        count = admin.describe_topic(name).partitions
        try:
            chosen = [int(n) for n in numbers.split(",")] if colon else range(count)
        except ValueError as e:
            raise typer.BadParameter(f"--topic {text!r}: write TOPIC or TOPIC:0,2") from e
        for number in chosen:
            if not 0 <= number < count:
                raise typer.BadParameter(f"--topic {text}: topic {name} has partitions 0 to {count - 1}")
            partitions.add(TopicPartition(name, number))
    return sorted(partitions)


@app.command("delete", epilog="**Example**\n\n`sparklog group delete billing --yes`")
def delete(
    group: GroupId,
    yes: Unasked = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a group without members, with its offsets."""
    import sys

    with open_admin(bootstrap_servers) as admin:
        if not yes and sys.stdin.isatty():
            offsets = len(admin.list_group_offsets(group))
            typer.confirm(f"Delete group {group} with {offsets} committed offsets?", abort=True)
        count = admin.delete_group(group)
    print(f"deleted group {group} with {count} committed offset{'s' if count != 1 else ''}")
