"""`sparklog elect-leaders`: requests elections of partition leaders."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from sparklog.cli import completion
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Unasked, open_admin, parse_list
from sparklog.types import TopicPartition

EPILOG = """\
**Examples**

`sparklog elect-leaders preferred`

`sparklog elect-leaders preferred events:0 events:3`

`sparklog elect-leaders unclean events --yes`

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
    partitions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC[:PARTITION]]...",
            help="Partitions, or all of a topic. [default: all of all topics]",
            autocompletion=completion.topics,
            show_default=False,
        ),
    ] = None,
    topics: Annotated[str | None, typer.Option(metavar="A,B:0", help="The same, in one text.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All partitions of all topics, the default.")] = False,
    yes: Unasked = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Elect leaders of partitions."""
    named = [*(partitions or []), *(parse_list(topics) if topics is not None else [])]
    if every and named:
        raise typer.BadParameter(f"--all and {named[0]}: give one of them")
    is_for_all = not named and topics is None
    with open_admin(bootstrap_servers) as admin:
        if is_for_all:
            described = admin.describe_topics(admin.list_topics(include_internal=True))
            chosen = [tp for name in described for tp in _partitions(name, described[name].partitions)]
        else:
            described = {n: admin.describe_topic(n) for n in dict.fromkeys(t.partition(":")[0] for t in named)}
            chosen = [
                tp for text in named for tp in _parse_partitions(text, {n: t.partitions for n, t in described.items()})
            ]
        states = {TopicPartition(n, p.partition): p for n, t in described.items() for p in t.partition_details}
        if kind is Kind.unclean:
            chosen = [tp for tp in chosen if states[tp].leader < 0]
            if not chosen:
                # raises if the user has no right to elect, and perhaps sees no topic
                admin.elect_leaders(kind.value, [])
                print("every partition has a leader")
                return
            print(
                f"{len(chosen)} partitions have no leader; acknowledged records that only missing brokers have will be lost",
                file=sys.stderr,
            )
            if not yes and sys.stdin.isatty():
                typer.confirm("Elect leaders all the same?", abort=True)
        elif is_for_all:  # leave out partitions whose election would fail
            chosen = [tp for tp in chosen if states[tp].replicas[:1] != (states[tp].leader,)]
            out_of_sync = [tp for tp in chosen if states[tp].replicas[0] not in states[tp].isr]
            if out_of_sync:
                print(f"{len(out_of_sync)} partitions stay: their preferred leader is not in sync", file=sys.stderr)
            chosen = [tp for tp in chosen if tp not in set(out_of_sync)]
        changed = admin.elect_leaders(kind.value, chosen)  # an empty list, too: the broker checks the user's right
    print(f"{changed} partition{'' if changed == 1 else 's'} got another leader")


def _partitions(name: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(name, number) for number in range(count)]


def _parse_partitions(text: str, topics: dict[str, int]) -> list[TopicPartition]:
    """Return the partitions of `events` (all) or `events:3`. `topics`: their numbers of partitions. Raises
    typer.BadParameter."""
    name, colon, number = text.partition(":")
    if not colon:
        return _partitions(name, topics[name])
    if not number.isascii() or not number.isdigit() or int(number) >= topics[name]:
        raise typer.BadParameter(f"{text!r}: {name} has partitions 0 to {topics[name] - 1}")
    return [TopicPartition(name, int(number))]
