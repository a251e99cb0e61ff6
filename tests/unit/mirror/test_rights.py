"""The rights that a mirror's user lacks at the source, by the answers of the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from sparklog.client.admin.mirror_rights import missing_rights, require_rights
from sparklog.errors import GroupAuthorizationFailedError, SparklogError, TopicAuthorizationFailedError
from sparklog.mirror.definition import MirrorDefinition
from sparklog.mirror.rules import SourceBounds
from sparklog.mirror.source import FetchedPartition, SourceOffset
from sparklog.types import TopicPartition
from tests.simulation.mirror_world import TOPIC, SimulatedSource

REFUSAL = TopicAuthorizationFailedError("Read on topic 't' is not allowed")


class GuardedSource(SimulatedSource):
    """A source that refuses one kind of request."""

    def __init__(self, refused: str) -> None:
        super().__init__(Random(1))
        self._refused = refused
        self.put([b"x"])

    def settings(self, names: Sequence[str]) -> dict[str, Mapping[str, object] | SparklogError]:
        return dict.fromkeys(names, REFUSAL if self._refused == "settings" else {})

    def bounds(self, topics: object, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, object]:  # type: ignore[override]
        if self._refused == "bounds":
            return dict.fromkeys(partitions, REFUSAL)
        return super().bounds(topics, partitions)  # type: ignore[return-value]

    def fetch(self, *args: object, **more: object) -> dict[TopicPartition, FetchedPartition]:
        fetched = super().fetch(*args, **more)  # type: ignore[arg-type]
        error = REFUSAL if self._refused == "fetch" else None
        return {tp: part._replace(error=error) for tp, part in fetched.items()}

    def hidden_topics(self, names: Sequence[str]) -> set[str]:
        return set(names) if self._refused == "topics" else set()

    def group_offsets(self, group_id: str) -> dict[TopicPartition, SourceOffset]:
        if self._refused == "groups":
            raise GroupAuthorizationFailedError(f"Describe on group {group_id!r} is not allowed")
        return {}


@pytest.mark.parametrize("refused", ["settings", "bounds", "fetch"])
def test_each_refusal_of_a_topic_is_named(refused: str) -> None:
    source: Any = GuardedSource(refused)
    topics = source.topics()
    assert missing_rights(source, topics, topics) == {TOPIC: str(REFUSAL)}
    assert isinstance(source.bounds(topics, [TopicPartition(TOPIC, 0)])[TopicPartition(TOPIC, 0)], SourceBounds) is (
        refused != "bounds"
    )


def test_names_without_an_expression_are_looked_up() -> None:
    source: Any
    definition = MirrorDefinition("m", "sparklog://a:1", "", f"{TOPIC},closed,x.*", "g,h.*")
    for refused, words in (("topics", "Describe on topic 'closed'"), ("groups", "Describe on group 'g'")):
        source = GuardedSource(refused)
        with pytest.raises(TopicAuthorizationFailedError, match=f"lacks rights at sparklog://a:1: {words}"):
            require_rights(source, definition, source.topics(), [TOPIC])
    source = GuardedSource("")
    require_rights(source, definition, source.topics(), [TOPIC])
