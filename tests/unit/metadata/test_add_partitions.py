"""Giving a topic more partitions: the rules, and what a restart finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.errors import InvalidPartitionsError, UnknownTopicOrPartitionError
from sparklog.metadata.store import PARTITIONS_MAX, TopicSpec
from tests.support.metadata import ControlledStore


@pytest.fixture
def open_store(tmp_path: Path) -> Callable[[], ControlledStore]:
    return lambda: ControlledStore(tmp_path)


def test_the_topic_is_the_same_but_for_its_number(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    made = store.create_topic(TopicSpec("t", 2, configs={"segment.ms": 5}))
    grown = store.add_partitions("t", 5)
    assert (grown.topic_id, grown.partitions, dict(grown.configs)) == (
        made.topic_id,
        5,
        {"segment.ms": 5, "partitions.added": True},
    )
    store.close()
    store = open_store()
    assert store.topics() == {"t": grown}
    store.close()


@pytest.mark.parametrize("total", [2, 1, 0, -1, PARTITIONS_MAX + 1])
def test_fewer_and_too_many_partitions_are_refused(open_store: Callable[[], ControlledStore], total: int) -> None:
    store = open_store()
    made = store.create_topic(TopicSpec("t", 2))
    with pytest.raises(InvalidPartitionsError, match=r"can only be added|use 1 to"):
        store.add_partitions("t", total)
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'gone' does not exist"):
        store.add_partitions("gone", 3)
    assert store.topics() == {"t": made}
    store.close()
