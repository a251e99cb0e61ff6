"""Commands with several changes check all of them first, or their error lists the completed ones."""

from __future__ import annotations

import pytest

from sparklog import Admin, TopicPartition
from sparklog.errors import UnknownTopicOrPartitionError


def test_offsets_that_are_committed_beside_one_that_is_not(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 2)
    there, gone = TopicPartition(topic, 1), TopicPartition(topic, 2)
    with pytest.raises(UnknownTopicOrPartitionError, match=f"1 of 2 partitions failed: {gone}; committed: {there}"):
        admin.alter_group_offsets(topic, {gone: 0, there: 0})
    assert set(admin.list_group_offsets(topic)) == {there}
    admin.delete_group(topic)
