"""Copies of the groups' offsets, from the source to the groups of the same names here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from sparklog.client.admin.group_admin import GroupDescription
from sparklog.errors import GroupIdNotFoundError, SparklogError
from sparklog.mirror.definition import SOURCE_NAME_CHARS_MAX, MirrorDefinition, matcher
from sparklog.mirror.rules import group_offset
from sparklog.mirror.source import MirrorSource
from sparklog.types import OffsetAndMetadata, TopicPartition


class Groups(Protocol):
    """The calls of `Admin` about groups."""

    def describe_group(self, group_id: str) -> GroupDescription: ...

    def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]: ...

    def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None: ...


logger = logging.getLogger(__name__)


def chosen_groups(definition: MirrorDefinition, source: MirrorSource) -> list[str]:
    """Return the source's groups whose offsets the mirror copies. Raises errors of the source's list of groups."""
    if not definition.groups:
        return []
    pattern = matcher(definition.groups)
    return [name for name in source.groups() if len(name) <= SOURCE_NAME_CHARS_MAX and pattern.fullmatch(name)]


class GroupCopier:
    """Copies offsets of one mirror's groups, for one thread. A group that has members here is left alone."""

    def __init__(self, admin: Groups, source: MirrorSource) -> None:
        self._admin = admin
        self._source = source
        self._copied: dict[str, dict[TopicPartition, int]] = {}
        self.errors: dict[str, str] = {}
        """Error of the last copy, by group."""
        self._occupied: set[str] = set()
        """Groups of the last copy that have members here."""

    @property
    def failure(self) -> str:
        """Text about the groups whose offsets the last copy has not read or stored; "": there are none. A group that
        has members here is none of them."""
        failed = sorted(self.errors.keys() - self._occupied)
        if not failed:
            return ""
        more = f"; and those of {len(failed) - 1} more" if len(failed) > 1 else ""
        return f"the offsets of group {failed[0]!r} are not copied: {self.errors[failed[0]]}{more}"

    def copy(self, definition: MirrorDefinition, ends: Mapping[TopicPartition, int]) -> int:
        """Copy the offsets of the partitions in `ends`, which has the log ends here. Returns the number of offsets that
        were committed. Raises errors of the source's list of groups."""
        if not ends:
            return 0
        count = 0
        self.errors, self._occupied = {}, set()
        for group_id in chosen_groups(definition, self._source):
            try:
                count += self._copy_group(group_id, ends)
            except SparklogError as e:
                self.errors[group_id] = str(e)
                logger.warning("the offsets of group %r are not copied: %s", group_id, e)
        return count

    def _copy_group(self, group_id: str, ends: Mapping[TopicPartition, int]) -> int:
        before = self._copied.get(group_id, {})
        offered = {tp: o for tp, o in self._source.group_offsets(group_id).items() if tp in ends}
        if all(min(o.offset, ends[tp]) == before.get(tp) for tp, o in offered.items()):
            return 0
        here, has_members = self._state_here(group_id)
        if has_members:
            self._occupied.add(group_id)
            self.errors[group_id] = "the group has members here, so its offsets are left alone"
            return 0
        moves: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp, one in offered.items():
            offset = group_offset(one.offset, ends[tp], here.get(tp), before.get(tp))
            if offset is not None:
                moves[tp] = OffsetAndMetadata(offset, one.metadata, -1)
        if moves:
            self._admin.alter_group_offsets(group_id, moves)
        self._copied[group_id] = {tp: min(o.offset, ends[tp]) for tp, o in offered.items()}
        return len(moves)

    def _state_here(self, group_id: str) -> tuple[dict[TopicPartition, int], bool]:
        """Return the group's committed offsets here, and True if it has members."""
        try:
            if self._admin.describe_group(group_id).members:
                return {}, True
            return {tp: o.offset for tp, o in self._admin.list_group_offsets(group_id).items()}, False
        except GroupIdNotFoundError:
            return {}, False
