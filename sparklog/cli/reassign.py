"""`sparklog reassign`: plans, executes and cancels moves of partitions between brokers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.destination import destination
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, open_admin, parse_list
from sparklog.cli.sizes import parse_size_bytes
from sparklog.client.net import arguments as arg
from sparklog.errors import InvalidRequestError
from sparklog.types import TopicPartition

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin

app = typer.Typer(help="Move partitions between brokers.", no_args_is_help=True)

FORMAT = 1
PLAN_BYTES_MAX = 64 * 1024 * 1024
_WHOLE = arg.whole(0, arg.INT32_MAX)
NO_REASSIGNMENT = "no partition is being reassigned"
_PLAN_EPILOG = """\
**Examples**

`sparklog reassign plan > moves.json`

`sparklog reassign plan --brokers 1,2,3 --topics events,trips --output moves.json`

`sparklog reassign plan --replication-factor 3 --topics events --output moves.json`

The plan spreads replicas and leaders evenly over the brokers (racks alternate) and moves as few as possible. It
is a JSON file in the form of Kafka's tool: check it, change it, then run `sparklog reassign execute moves.json`.
"""
_EXECUTE_EPILOG = """\
**Examples**

`sparklog reassign execute moves.json --throttle 50MB`

`sparklog reassign execute moves.json --no-wait`

New replicas are copied while partitions are read and written. When all new replicas of a partition are in sync, the old
ones are deleted. --throttle limits the bytes per second that each broker sends and receives for new replicas; it ends
with the last reassignment. Ctrl-C ends only the display.
"""

Throttle = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Limit of bytes per second for each broker: 50MB, 10MiB; 0: no limit."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("plan", epilog=_PLAN_EPILOG)
def plan(
    topics: Annotated[
        str | None, typer.Option(metavar="A,B", help="Move partitions of these topics (default: all).")
    ] = None,
    brokers: Annotated[
        str | None, typer.Option(metavar="1,2,3", help="Move to these brokers (default: all that accept replicas).")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, max=100, help="Number of replicas (default: the current number).")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File of the plan (default: stdout).")] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Plan the moves of partitions that spread the load evenly."""
    from sparklog.replication.controller.moves import plan_moves

    with open_admin(bootstrap_servers) as admin:
        current = assignment(admin, parse_list(topics) or None)
        moves = plan_moves(current, _target_brokers(admin, brokers), replication_factor=replication_factor)
    text = json.dumps(_as_json(moves), indent=1) + "\n"
    if output is None:
        print(text, end="")
    else:
        with destination(output) as out:
            out.write(text.encode())
    new = sum(len(set(replicas) - set(current[tp])) for tp, replicas in moves.items())
    print(
        f"{len(moves)} of {len(current)} partitions change, {new} replicas are to be copied"
        + (f": sparklog reassign execute {output}" if output is not None and moves else ""),
        file=sys.stderr,
    )


def _target_brokers(admin: Admin, brokers: str | None) -> dict[int, str | None]:
    """Return the racks of the brokers in `--brokers` (None: all that accept replicas), by broker id. Raises
    typer.BadParameter."""
    accepting = {
        b.broker_id: b.rack for b in admin.describe_cluster().brokers if not b.is_stopping and not b.is_cordoned
    }
    if brokers is None:
        return accepting
    try:
        chosen = [int(b) for b in parse_list(brokers)]
    except ValueError as e:
        raise typer.BadParameter(f"--brokers {brokers!r}: numbers with commas are needed") from e
    unknown = [b for b in chosen if b not in accepting]
    if unknown or not chosen:
        raise typer.BadParameter(f"--brokers {brokers}: the brokers that accept replicas are {sorted(accepting)}")
    return {b: accepting[b] for b in chosen}


def assignment(admin: Admin, topics: list[str] | None = None) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the replicas of the partitions of `topics`, as they will be after the current reassignments.

    None for `topics` means all topics, internal ones included. Raises UnknownTopicOrPartitionError, or
    TopicAuthorizationFailedError if the user is not allowed to see a topic.
    """
    described = admin.describe_topics(admin.list_topics(include_internal=True) if topics is None else topics)
    described |= {
        name: admin.describe_topic(name) for name in topics or () if name not in described
    }  # raises the reason
    return {
        TopicPartition(name, p.partition): tuple(r for r in p.replicas if r not in p.removing)
        for name, topic in described.items()
        for p in topic.partition_details
    }


def _as_json(moves: Mapping[TopicPartition, tuple[int, ...]]) -> dict[str, Any]:
    partitions = [
        {"topic": tp.topic, "partition": tp.partition, "replicas": list(replicas)} for tp, replicas in moves.items()
    ]
    return {"version": FORMAT, "partitions": partitions}


def _read(path: Path) -> dict[TopicPartition, list[int]]:
    """Read a plan's new replicas of each partition. Raises typer.BadParameter if the file is not a plan."""
    with path.open("rb") as file:  # perhaps a pipe, such as <(…)
        content = file.read(PLAN_BYTES_MAX + 1)
    try:
        if len(content) > PLAN_BYTES_MAX:
            raise InvalidRequestError(f"it is larger than {PLAN_BYTES_MAX} bytes")
        return _moves(json.loads(content.decode()))
    except (ValueError, RecursionError, InvalidRequestError) as e:
        reason = "its lists are nested too deeply" if isinstance(e, RecursionError) else e
        raise typer.BadParameter(
            f"{path} is no plan: {reason}; a plan looks like "
            '{"version": 1, "partitions": [{"topic": "events", "partition": 0, "replicas": [1, 2, 3]}]}'
        ) from e


def _moves(plan: object) -> dict[TopicPartition, list[int]]:
    """Return the new replicas in a plan. Raises InvalidRequestError, which names the wrong entry's place."""
    fields = _fields("the plan", plan, {"partitions"}, {"version"})
    if _WHOLE("version", fields.get("version", FORMAT)) != FORMAT:
        arg.refuse("version", fields["version"], f"use {FORMAT}")
    moves: dict[TopicPartition, list[int]] = {}
    for number, entry in enumerate(arg.listed(arg.anything)("partitions", fields["partitions"])):
        place = f"partitions[{number}]"
        entry_fields = _fields(place, entry, {"topic", "partition", "replicas"}, {"log_dirs"})
        tp = TopicPartition(
            arg.text(f"{place}.topic", entry_fields["topic"]), _WHOLE(f"{place}.partition", entry_fields["partition"])
        )
        if tp in moves:
            arg.refuse(place, entry, f"the plan names {tp} twice")
        moves[tp] = arg.listed(arg.broker_id)(f"{place}.replicas", entry_fields["replicas"])
        if any(directory != "any" for directory in arg.texts(f"{place}.log_dirs", entry_fields.get("log_dirs", []))):
            arg.refuse(f"{place}.log_dirs", entry_fields["log_dirs"], 'each broker chooses the directory: use "any"')
    return moves


def _fields(place: str, value: object, needed: set[str], others: set[str]) -> dict[str, Any]:
    """Return a JSON object with the fields `needed`, and perhaps `others`. Raises InvalidRequestError."""
    if not isinstance(value, dict) or not needed <= value.keys() <= needed | others:
        arg.refuse(place, value, f"an object with the fields {', '.join(sorted(needed))} is needed")
    return value


@app.command("execute", epilog=_EXECUTE_EPILOG)
def execute(
    plan: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The plan: a JSON file.")],
    throttle: Throttle = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show the progress until all reassignments are done.")
    ] = True,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Start the moves of a plan, and show their progress."""
    from sparklog.cli.reassignment_progress import follow

    moves = _read(plan)
    limit = None if throttle is None else parse_size_bytes(throttle, "--throttle")
    with open_admin(bootstrap_servers) as admin:
        admin.alter_partition_reassignments(moves, throttle_bytes=limit)
        if not wait:
            print(f"{len(moves)} partitions are on their way: sparklog reassign status")
            return
        try:
            follow(admin)
        except KeyboardInterrupt:
            print("\nthe reassignment continues: sparklog reassign status shows it, cancel ends it", file=sys.stderr)
            raise
    print(f"{len(moves)} partitions are where the plan says")


@app.command("status", epilog="**Example**\n\n`sparklog reassign status --watch`")
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until all reassignments are done.")] = False,
    as_json: Json = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the current reassignments."""
    from sparklog.cli import console
    from sparklog.cli.reassignment_progress import follow, summary

    with open_admin(bootstrap_servers) as admin:
        under_way = admin.list_partition_reassignments()
        throttle_bytes = admin.describe_cluster().throttle_bytes
        if as_json:
            rows = [
                {
                    "topic": r.topic_partition.topic,
                    "partition": r.topic_partition.partition,
                    "leader": r.leader,
                    "replicas": list(r.replicas),
                    "isr": list(r.isr),
                    "adding": list(r.adding),
                    "removing": list(r.removing),
                    "copied_bytes": r.copied_bytes,
                    "total_bytes": r.total_bytes,
                }
                for r in under_way
            ]
            print(json.dumps({"throttle_bytes": throttle_bytes, "reassignments": rows}))
            return
        if not under_way:
            print(NO_REASSIGNMENT)
            return
        table = console.table("partition", "leader", "adding", "removing", "in sync", "copied", right=("copied",))
        for r in under_way:
            copied = f"{console.size(r.copied_bytes)} of {console.size(r.total_bytes)}" if r.total_bytes >= 0 else "?"
            table.add_row(str(r.topic_partition), str(r.leader), *map(_ids, (r.adding, r.removing, r.isr)), copied)
        console.stdout().print(table)
        print(summary(under_way, throttle_bytes))
        if watch:
            follow(admin)
            print(NO_REASSIGNMENT)


@app.command("throttle", epilog="**Example**\n\n`sparklog reassign throttle 20MB`")
def throttle(
    rate: Annotated[
        str, typer.Argument(metavar="SIZE", help="Bytes per second for each broker: 50MB, 10MiB; 0: no limit.")
    ],
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change the speed limit of the current reassignments."""
    with open_admin(bootstrap_servers) as admin:
        limit = parse_size_bytes(rate, "SIZE")
        admin.alter_partition_reassignments({}, throttle_bytes=limit)
        now = admin.describe_cluster().throttle_bytes
    from sparklog.cli import console

    print(f"at most {console.size(now)}/s per broker" if now else "no limit" if not limit else NO_REASSIGNMENT)


@app.command("cancel", epilog="**Examples**\n\n`sparklog reassign cancel`\n\n`sparklog reassign cancel moves.json`")
def cancel(
    plan: Annotated[
        Path | None, typer.Argument(exists=True, dir_okay=False, help="Only the partitions of a plan (default: all).")
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Keep partitions on their old brokers, and delete the new copies."""
    named = None if plan is None else set(_read(plan))
    with open_admin(bootstrap_servers) as admin:
        under_way = {r.topic_partition for r in admin.list_partition_reassignments()}
        chosen = sorted(under_way if named is None else under_way & named)
        count = admin.cancel_partition_reassignments(chosen)
    print(f"{count} reassignment{'' if count == 1 else 's'} cancelled" if count else NO_REASSIGNMENT)


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers)) or "-"
