"""`sparklog elect-leaders`: elections of partition leaders."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Unasked, open_admin, parse_list
from sparklog.types import TopicPartition

EPILOG = """\
**Examples**

`sparklog elect-leaders preferred`

`sparklog elect-leaders unclean --topics events --yes`

*preferred*: the first replica of each assignment leads again if it is in sync; no record is lost. *unclean*: a partition
without a leader gets a leader that may lack acknowledged records, which are then lost. If you can, bring the missing
brokers back instead.
"""


class Kind(StrEnum):
    """Kind of an election."""

    preferred = "preferred"
    unclean = "unclean"


def elect_leaders(
    kind: Annotated[Kind, typer.Argument(help="preferred or unclean.")],
    topics: Annotated[
        str | None, typer.Option(metavar="A,B:0", help="Topics, or partitions of them (default: all).")
    ] = None,
    yes: Unasked = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Elect leaders of partitions."""
    with open_admin(bootstrap_servers) as admin:
        names = admin.list_topics(include_internal=True)
        described = admin.describe_topics(names)
        chosen = [tp for name in described for tp in _partitions(name, described[name].partitions)]
        if topics is not None:
            chosen = [
                tp
                for text in parse_list(topics)
                for tp in _parse_partitions(text, {n: t.partitions for n, t in described.items()})
            ]
        states = {TopicPartition(n, p.partition): p for n, t in described.items() for p in t.partition_details}
        if kind is Kind.unclean:
            chosen = [tp for tp in chosen if states[tp].leader < 0]
            if not chosen:
                print("every partition has a leader")
                return
            print(
                f"{len(chosen)} partitions have no leader; acknowledged records that only missing brokers have will be lost",
                file=sys.stderr,
            )
            if not yes and sys.stdin.isatty():
                typer.confirm("Elect leaders all the same?", abort=True)
        elif topics is None:  # impossible elections are not requested
            chosen = [tp for tp in chosen if states[tp].replicas[:1] != (states[tp].leader,)]
            out_of_sync = [tp for tp in chosen if states[tp].replicas[0] not in states[tp].isr]
            if out_of_sync:
                print(f"{len(out_of_sync)} partitions stay: their preferred leader is not in sync", file=sys.stderr)
            chosen = [tp for tp in chosen if tp not in set(out_of_sync)]
        changed = admin.elect_leaders(kind.value, chosen) if chosen else 0
    print(f"{changed} partition{'' if changed == 1 else 's'} got another leader")


def _partitions(name: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(name, number) for number in range(count)]


def _parse_partitions(text: str, topics: dict[str, int]) -> list[TopicPartition]:
    """Parse `events` or `events:3`. Raises typer.BadParameter."""
    name, colon, number = text.partition(":")
    if name not in topics:
        raise typer.BadParameter(
            f"--topics {text!r}: topic {name!r} does not exist; `sparklog topic list` shows the topics"
        )
    if not colon:
        return _partitions(name, topics[name])
    if not number.isdigit() or int(number) >= topics[name]:
        raise typer.BadParameter(f"--topics {text!r}: {name} has partitions 0 to {topics[name] - 1}")
    return [TopicPartition(name, int(number))]
