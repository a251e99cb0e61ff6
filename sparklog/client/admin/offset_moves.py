"""Plans for moving a group's offsets. A plan only computes the new offsets; `Admin.alter_group_offsets` sets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparklog.client.admin.admin import Admin
from sparklog.client.reading.positions import AtTime, BeforeEnd, Position, offsets_of
from sparklog.types import OffsetAndTimestamp, TopicPartition

__all__ = ["AtTime", "BeforeEnd", "Move", "OffsetTarget", "ShiftBy", "planned_moves"]


class ShiftBy(NamedTuple):
    """A shift of the committed offset by a number of offsets; a negative number moves it back. Partitions without a
    committed offset are left out."""

    offsets: int


OffsetTarget = Position | ShiftBy


class Move(NamedTuple):
    """The move of one partition's offset from `committed` to `offset`; `committed` is None if nothing was committed."""

    committed: int | None
    offset: int


def planned_moves(
    admin: Admin, group_id: str, partitions: Sequence[TopicPartition], target: OffsetTarget
) -> dict[TopicPartition, Move]:
    """Return the old and the new offset of each partition. A new offset below the partition's first offset becomes the
    first offset; one above its end becomes the end.

    Raises UnknownTopicOrPartitionError.
    """
    committed = {tp: o.offset for tp, o in admin.list_group_offsets(group_id).items()}
    if isinstance(target, ShiftBy):
        wanted = {tp: committed[tp] + target.offsets for tp in partitions if tp in committed}
        partitions = list(wanted)

    def ask(asked: Mapping[TopicPartition, str | int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        return admin.list_offsets(asked, isolation_level="read_committed")

    start = {tp: found.offset for tp, found in ask(dict.fromkeys(partitions, "earliest")).items()}
    end = {tp: found.offset for tp, found in ask(dict.fromkeys(partitions, "latest")).items()}
    if not isinstance(target, ShiftBy):
        wanted = offsets_of(target, partitions, start, end, ask)
    return {tp: Move(committed.get(tp), min(max(offset, start[tp]), end[tp])) for tp, offset in wanted.items()}
