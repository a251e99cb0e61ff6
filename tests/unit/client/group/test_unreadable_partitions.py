"""Assigned partitions that the consumer cannot read: tried again after a retriable error, raised otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import pytest

from sparklog.client.group.group_consumer import GroupConsumer
from sparklog.client.group.group_heartbeats import GroupHeartbeats
from sparklog.client.net.cluster import Cluster
from sparklog.errors import (
    NotLeaderError,
    SparklogError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from sparklog.types import OffsetAndMetadata, TopicPartition
from tests.support.cases import for_each

TP = TopicPartition("t", 0)
CONFIG = {
    "group.id": "g",
    "enable.auto.commit": False,
    "auto.commit.interval.ms": 5_000,
    "default.api.timeout.ms": 1_000,
    "request.timeout.ms": 1_000,
}


class KnowsTopics:
    def cached_topic(self, topic: str) -> object:
        return topic


class Unreadable:
    """A reader that refuses partitions with `error`."""

    def __init__(self, error: SparklogError) -> None:
        self.error = error

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        raise self.error

    def start_at(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None: ...
    def drop_partitions(self, partitions: Iterable[TopicPartition]) -> None: ...
    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {}

    def unstarted(self) -> list[TopicPartition]:
        return []

    def wake(self) -> None: ...


class Assigned:
    """Heartbeats that have brought one partition."""

    pending = True

    def __init__(self) -> None:
        self.given_back: list[TopicPartition] = []

    def changes(self) -> tuple[Any, Any, Any]:
        return [], [], [TP]

    def not_taken(self, partitions: Iterable[TopicPartition]) -> None:
        self.given_back += partitions


def assigned(error: SparklogError) -> tuple[GroupConsumer, Assigned]:
    consumer = GroupConsumer(cast(Cluster, KnowsTopics()), Unreadable(error), CONFIG)
    heartbeats = Assigned()
    consumer._heartbeats = cast(GroupHeartbeats, heartbeats)
    return consumer, heartbeats


@for_each("error", [NotLeaderError("moved"), UnknownTopicOrPartitionError("deleted")], ids=repr)
def test_they_are_taken_again_later(error: SparklogError) -> None:
    consumer, heartbeats = assigned(error)
    consumer.before_poll()
    assert heartbeats.given_back == [TP]
    assert not consumer.pending, "the next attempt waits"


def test_a_permanent_error_is_raised() -> None:
    consumer, heartbeats = assigned(TopicAuthorizationFailedError("no Read on t"))
    with pytest.raises(TopicAuthorizationFailedError, match="no Read"):
        consumer.before_poll()
    assert heartbeats.given_back == [TP]
