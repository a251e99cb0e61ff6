"""The content of the group pages: the list, a group with members and lag, and the offsets of a planned reset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sparklog.client.admin.group_admin import GroupDescription, MemberDescription
from sparklog.client.admin.offset_moves import Move
from sparklog.console.views.chart import Chart, line_chart
from sparklog.console.views.watched import WatchedGroup
from sparklog.types import TopicPartition

SORTS = ("lag", "name", "state", "members")
ONLY_OFFSETS = "offsets"
"""Kind of a group that never had members, such as the group to which a Spark query commits its progress."""


class GroupRow(NamedTuple):
    """A line of the list."""

    group_id: str
    kind: str
    state: str
    members: int
    topics: int
    lag: int | None
    """None without committed offsets."""
    rate: float | None
    """Committed offsets per second; None: unknown."""
    problem: str
    """Error of the last measurement; empty if it succeeded."""


def group_rows(groups: Mapping[str, WatchedGroup], search: str, sort: str, *, kind: str = "") -> list[GroupRow]:
    """Return the groups whose name contains `search`, regardless of case, in the order `sort`.

    In the order by lag the largest comes first, and groups without committed offsets come last. `kind`: only groups of
    this kind; "": all.
    """
    needle = search.lower()
    rows = [
        GroupRow(name, g.listing.kind, g.listing.state, g.listing.members, len(g.topics), g.lag, g.rate, g.problem)
        for name, g in groups.items()
        if needle in name.lower() and kind in ("", g.listing.kind)
    ]
    orders: dict[str, Callable[[GroupRow], Any]] = {
        "lag": lambda r: (-1 if r.lag is None else r.lag) * -1,
        "name": lambda r: r.group_id,
        "state": lambda r: r.state,
        "members": lambda r: -r.members,
    }
    return sorted(sorted(rows, key=lambda r: r.group_id), key=orders[sort])


class LagRow(NamedTuple):
    """A partition with its lag."""

    topic: str
    partition: int
    committed: int | None
    note: str
    """Metadata of the committed offset."""
    end: int | None
    """None if the topic is deleted."""
    lag: int | None
    share: float
    """Lag divided by the largest lag of the group's partitions."""
    member: str
    """Member that has the partition; empty: none."""


class GroupView(NamedTuple):
    """The page of a group."""

    group_id: str
    state: str
    epoch: int
    assignor: str
    lag: int | None
    """None without committed offsets."""
    members: list[MemberRow]
    partitions: list[LagRow]
    topics: list[str]
    chart: Chart | None


class MemberRow(NamedTuple):
    """A member of a group."""

    name: str
    client_id: str
    host: str
    epoch: int
    topics: str
    owned: str
    """Partitions that the member has."""
    awaited: str
    """Partitions that the member will get (+) or has to release (−)."""


def group_view(group: GroupDescription, watched: WatchedGroup | None, *, by_lag: bool) -> GroupView:
    lags = [p.lag for p in group.partitions if p.lag is not None]
    most = max(lags, default=0)
    rows = [
        LagRow(
            p.partition.topic,
            p.partition.partition,
            None if p.committed is None else p.committed.offset,
            "" if p.committed is None else p.committed.metadata,
            None if p.end < 0 else p.end,
            p.lag,
            (p.lag or 0) / most if most else 0,
            "" if p.member is None else p.member.instance_id or p.member.member_id,
        )
        for p in group.partitions
    ]
    if by_lag:
        rows.sort(key=lambda r: -1 * (r.lag or 0))
    samples = [] if watched is None else [(s.time_ms, s.lag) for s in watched.samples]
    return GroupView(
        group.group_id,
        group.state,
        group.epoch,
        group.assignor,
        sum(lags) if lags else None,
        [_member_row(m) for m in group.members],
        rows,
        sorted({p.partition.topic for p in group.partitions}),
        line_chart(samples, "Lag in records"),
    )


def _member_row(member: MemberDescription) -> MemberRow:
    coming = set(member.target) - set(member.owned)
    going = set(member.owned) - set(member.target)
    awaited = [f"+ {_partitions_text(coming)}"] if coming else []
    awaited += [f"− {_partitions_text(going)}"] if going else []
    return MemberRow(
        member.instance_id or member.member_id,
        member.client_id,
        member.host,
        member.epoch,
        ", ".join(member.topics),
        _partitions_text(member.owned),
        "; ".join(awaited),
    )


def _partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Return the partitions by topic, as in "t: 0, 1; u: 3"."""
    topics: dict[str, list[str]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(str(tp.partition))
    return "; ".join(f"{topic}: {', '.join(numbers)}" for topic, numbers in topics.items())


def moves_as_text(moves: Mapping[TopicPartition, Move]) -> str:
    """Return the new offsets as a form field, so that the console sets the offsets that the user has confirmed."""
    return " ".join(f"{tp.topic}:{tp.partition}:{move.offset}" for tp, move in sorted(moves.items()))


def moves_from_text(text: str) -> dict[TopicPartition, int]:
    """Parse a text of `moves_as_text` to offsets by partition. Raises ValueError."""
    moves = {}
    for part in text.split():
        topic, partition, offset = part.split(":")
        moves[TopicPartition(topic, int(partition))] = int(offset)
    return moves
