"""Copies of the groups' offsets: groups that fail, groups with members here, the last copy of a promotion."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparklog.client.admin.mirror_admin import COPIES_MAX, _copy_groups
from sparklog.client.admin.mirror_groups import GroupCopier
from sparklog.errors import GroupIdNotFoundError, LeaderNotAvailableError, RequestTimedOutError, SparklogError
from sparklog.mirror.definition import MirrorDefinition
from sparklog.mirror.source import SourceOffset
from sparklog.mirror.worker.sync import TopicProgress
from sparklog.mirror.worker.worker import _with_group_error
from sparklog.types import TopicPartition

TP = TopicPartition("t", 0)
DEFINITION = MirrorDefinition("m", "kafka://old:9092", topics="t", groups=".*")
AWAY = LeaderNotAvailableError("the coordinator is away")


class Clusters:
    """The groups at the source and here."""

    def __init__(self, **offsets: int) -> None:
        self.offsets = offsets
        self.failures: dict[str, list[SparklogError]] = {}
        """Errors of the next requests for a group's offsets, by group."""
        self.members: set[str] = set()
        self.here: dict[str, int] = {}

    def groups(self) -> list[str]:
        return sorted(self.offsets)

    def group_offsets(self, group_id: str) -> dict[TopicPartition, SourceOffset]:
        if self.failures.get(group_id):
            raise self.failures[group_id].pop()
        return {TP: SourceOffset(self.offsets[group_id], "")}

    def describe_group(self, group_id: str) -> Any:
        if group_id in self.members:
            return SimpleNamespace(members=["a member"])
        raise GroupIdNotFoundError(group_id)

    def alter_group_offsets(self, group_id: str, offsets: Any) -> None:
        self.here[group_id] = offsets[TP].offset


def copier(clusters: Any) -> GroupCopier:
    return GroupCopier(clusters, clusters)


def test_a_promotion_repeats_the_copy_of_groups_until_none_fails() -> None:
    clusters = Clusters(a=3, b=4)
    clusters.failures = {"a": [AWAY, AWAY]}
    pauses: list[float] = []
    _copy_groups(copier(clusters), DEFINITION, {TP: 9}, COPIES_MAX, pauses.append)
    assert (clusters.here, len(pauses)) == ({"a": 3, "b": 4}, 2)


def test_a_promotion_names_a_group_that_it_cannot_copy() -> None:
    clusters = Clusters(a=3, b=4, c=5)
    clusters.failures = {"a": [AWAY] * 99, "b": [AWAY] * 99}
    with pytest.raises(RequestTimedOutError, match="group 'a' are not copied: the coordinator is away; and those of 1"):
        _copy_groups(copier(clusters), DEFINITION, {TP: 9}, COPIES_MAX, lambda seconds: None)
    assert clusters.here == {"c": 5}


def test_a_group_with_members_here_does_not_stop_a_promotion() -> None:
    clusters = Clusters(a=3, b=4)
    clusters.members = {"a"}
    copies = copier(clusters)
    _copy_groups(copies, DEFINITION, {TP: 9}, 1, lambda seconds: None)
    assert clusters.here == {"b": 4} and "members here" in copies.errors["a"]


def test_the_first_topic_without_an_error_reports_that_of_the_groups() -> None:
    progress = {
        name: TopicProgress({}, is_current=not error, error=error) for name, error in (("b", ""), ("a", "x"), ("c", ""))
    }
    shown = {name: one.error for name, one in _with_group_error(progress, "groups").items()}
    assert shown == {"a": "x", "b": "groups", "c": ""}
    assert _with_group_error(progress, "") == progress
