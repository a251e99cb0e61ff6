"""Offsets on which all requests under one name agree; see `SnapshotOffsetsRequest`."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.retry import RetryPolicy, request_until
from sparklog.protocol.messages import Api, SnapshotOffsetsRequest, SnapshotOffsetsResponse
from sparklog.types import TopicPartition


def snapshot_offsets(
    cluster: Cluster, name: str, topics: Sequence[str], tp: TopicPartition, isolation: int, policy: RetryPolicy
) -> tuple[int, int]:
    """Return (first offset, end) of a partition. Raises UnsupportedApiError if the broker is older,
    UnknownTopicOrPartitionError."""
    request = SnapshotOffsetsRequest(name, list(topics), *tp, isolation)
    first = TopicPartition(min(topics), 0)  # its leader is the same one for all clients
    answer = request_until(cluster, Api.SNAPSHOT_OFFSETS, request, SnapshotOffsetsResponse, policy, leader_of=first)
    return answer.start, answer.end
