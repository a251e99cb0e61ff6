"""Metadata of topics are forgotten when another process or a broker names a newer topic or schema."""

from __future__ import annotations

import pyarrow as pa

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.topic_info import TopicInfo
from tests.support.cases import for_each


@for_each(
    "schema_id, topic_id, is_kept",
    [
        (5, None, True),
        (6, None, False),  # a column was added
        (4, None, True),  # an answer that was on its way
        (5, "id", True),
        (5, "other", False),  # deleted and created again
        (1, "other", False),  # created again in a new cluster at the same address, which counts schemas from 1
    ],
)
def test_metadata_of_another_topic_or_schema_are_forgotten(schema_id: int, topic_id: str | None, is_kept: bool) -> None:
    cluster = Cluster("127.0.0.1:1")
    cluster.remember(TopicInfo("t", "id", "typed", 1, 5, {5: pa.schema([])}, (), None, {}, 0, ()))
    cluster.note_schema("t", schema_id, topic_id)
    assert (cluster.cached_topic("t") is not None) == is_kept
