"""Requests for an offset snapshot: all requests with one name get the same offsets. See `SnapshotOffsetsRequest`."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.retry import Retries, RetryPolicy, request_until
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import SnapshotOffsetsRequest, SnapshotOffsetsResponse
from sparklog.types import TopicPartition


def snapshot_offsets(
    cluster: Cluster, name: str, topics: Sequence[str], tp: TopicPartition, isolation: int, policy: RetryPolicy
) -> tuple[int, int]:
    """Return (first offset, end) of a partition in the snapshot `name` of `topics`.

    Raises UnknownTopicOrPartitionError.
    """
    request = SnapshotOffsetsRequest(name, list(topics), *tp, isolation)
    first = TopicPartition(min(topics), 0)  # its leader keeps the snapshot, so all clients ask the same broker
    answer = request_until(
        cluster, Api.SNAPSHOT_OFFSETS, request, SnapshotOffsetsResponse, Retries(policy), leader_of=first
    )
    return answer.start, answer.end
