"""Topic names and the small value types."""

from __future__ import annotations

import pytest

from sparklog.errors import InvalidTopicError
from sparklog.types import TopicPartition, check_topic_name
from tests.support.cases import for_each


@for_each("name", ["a", "A.b_c-9", "...", "-", "_", "a" * 249, "__internal"])
def test_good_topic_names(name: str) -> None:
    assert check_topic_name(name) == name


@for_each("name", ["", ".", "..", "a/b", "../x", "a b", "a\n", "\n", "ä", "a\0b", "a" * 250, "a:b", "topic,other", "٣"])
def test_bad_topic_names(name: str) -> None:
    with pytest.raises(InvalidTopicError, match="topic"):
        check_topic_name(name)


def test_topic_partition_as_text() -> None:
    assert str(TopicPartition("flights", 3)) == "flights-3"
    assert TopicPartition("a", 1) < TopicPartition("a", 2) < TopicPartition("b", 0)
