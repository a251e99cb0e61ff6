"""Plans for moving a group's offsets, made before the offsets move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from sparklog.client.admin.admin import Admin
from sparklog.types import TopicPartition


class AtTime(NamedTuple):
    """The first record at or after this time, in ms since 1970; behind the last one if none is that new."""

    time_ms: int


class ShiftBy(NamedTuple):
    """A number of offsets from the committed one; negative: back. Partitions without a committed offset are left
    out."""

    offsets: int


OffsetTarget = Literal["earliest", "latest"] | int | AtTime | ShiftBy


class Move(NamedTuple):
    """The move of one partition's offset; `committed` None: none was committed."""

    committed: int | None
    offset: int


def planned_moves(
    admin: Admin, group_id: str, partitions: Sequence[TopicPartition], target: OffsetTarget
) -> dict[TopicPartition, Move]:
    """The offsets for `Admin.alter_group_offsets`. Offsets outside of a partition are moved to its edge.

    Raises UnknownTopicOrPartitionError.
    """
    committed = {tp: o.offset for tp, o in admin.list_group_offsets(group_id).items()}
    if isinstance(target, ShiftBy):
        wanted = {tp: committed[tp] + target.offsets for tp in partitions if tp in committed}
    elif isinstance(target, int):
        wanted = dict.fromkeys(partitions, target)
    else:
        spec = target.time_ms if isinstance(target, AtTime) else target
        found = admin.list_offsets(dict.fromkeys(partitions, spec), isolation_level="read_committed")
        end = admin.list_offsets(dict.fromkeys(partitions, "latest"), isolation_level="read_committed")
        wanted = {tp: found[tp].offset if found[tp].offset >= 0 else end[tp].offset for tp in partitions}
    start = admin.list_offsets(dict.fromkeys(wanted, "earliest"))
    last = admin.list_offsets(dict.fromkeys(wanted, "latest"), isolation_level="read_committed")
    return {
        tp: Move(committed.get(tp), min(max(offset, start[tp].offset), last[tp].offset))
        for tp, offset in wanted.items()
    }
