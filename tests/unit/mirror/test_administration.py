"""The administration of mirrors, without a cluster: deletion beside a worker, files of settings, absent partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparklog.client.admin.mirror_admin import check_refused_max, delete_mirror, mirror_definition, pause_mirror
from sparklog.errors import InvalidConfigError, UnknownTopicOrPartitionError
from sparklog.mirror.definition import PAUSED
from sparklog.mirror.rules import SourceBounds
from sparklog.mirror.source import SourcePartition, SourceTopic, absent_bounds
from sparklog.types import TopicPartition

OLD = mirror_definition("old", source="kafka://h:1", topics=".*")


class Info(NamedTuple):
    """A topic here, as the administration reads it."""

    configs: Mapping[str, object]


class Cluster:
    """Calls of `Admin` on topics in memory."""

    def __init__(self, *topics: str) -> None:
        self.topics = {name: Info(OLD.settings("")) for name in topics}
        self.later: Iterator[str] = iter(())
        """Topics that a worker creates, one with each deletion."""

    def infos(self) -> Any:
        return dict(self.topics)

    def delete_topic(self, name: str) -> None:
        if name not in self.topics:
            raise UnknownTopicOrPartitionError(name)
        del self.topics[name]
        self.topics |= {created: Info(OLD.settings("")) for created in [next(self.later, "")] if created}

    def alter_topic(self, name: str, configs: Mapping[str, object | None]) -> None:
        self.topics[name] = Info({**self.topics[name].configs, **configs})


def test_a_topic_that_a_worker_creates_during_the_deletion_is_deleted_too() -> None:
    here = Cluster("a", "b")
    here.topics["own"] = Info({})
    here.later = iter(["", "a", "c"])
    assert delete_mirror(here.delete_topic, here.infos, "old") == ["a", "b", "c"]
    assert here.topics.keys() == {"own"}
    with pytest.raises(InvalidConfigError, match="there is no mirror 'old'"):
        delete_mirror(here.delete_topic, here.infos, "old")


def test_a_topic_that_is_promoted_during_the_deletion_stays() -> None:
    here = Cluster("a", "b")

    def delete(name: str) -> None:
        here.topics["b"] = Info({})
        if name == "b":
            raise UnknownTopicOrPartitionError(name)
        here.delete_topic(name)

    stale = [here.infos(), here.infos()]
    assert delete_mirror(delete, lambda: stale.pop() if stale else here.infos(), "old") == ["a"]
    assert here.topics == {"b": Info({})}


def test_a_pause_without_a_reason_keeps_that_of_the_mirror() -> None:
    here = Cluster("a", "b")
    here.alter_topic("a", {PAUSED: "the source has lost records"})
    admin: Any = here
    assert pause_mirror(admin, here.infos(), "old", "") == ["a", "b"]
    assert [info.configs[PAUSED] for info in here.topics.values()] == [
        "the source has lost records",
        "paused by a user",
    ]
    pause_mirror(admin, here.infos(), "old", "a window")
    assert [info.configs[PAUSED] for info in here.topics.values()] == ["a window", "a window"]


def test_the_file_of_the_source_is_stored_with_its_whole_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    definition = mirror_definition("m", source="kafka://h:1", topics="a", source_config="old.properties")
    assert definition.source_config == str(tmp_path / "old.properties")


def test_a_limit_of_refused_records_needs_columns() -> None:
    check_refused_max(OLD, None)
    check_refused_max(
        mirror_definition("m", source="kafka://h:1", topics="a", value_format="json", columns={".*": "a INT"}), 5
    )
    with pytest.raises(InvalidConfigError, match="--value-format"):
        check_refused_max(OLD, 5)


def test_partitions_that_the_source_does_not_have_are_empty_and_absent_topics_are_named() -> None:
    topics = {"a": SourceTopic("a", "", (SourcePartition(1, 0),), is_internal=False)}
    first, added, gone = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
    absent, present = absent_bounds(topics, [first, added, gone])
    assert present == [first] and absent[added] == SourceBounds(0, 0, 0)
    assert isinstance(absent[gone], UnknownTopicOrPartitionError) and "no topic 'b'" in str(absent[gone])
