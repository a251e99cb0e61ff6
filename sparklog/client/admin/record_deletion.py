"""Deleting records: the start of each partition's log is raised."""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.answers import check_named
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.errors import InvalidRequestError, SparklogError, error_from_code
from sparklog.protocol.messages import Api, DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsResponse
from sparklog.types import TopicPartition

ALL = -1


def delete_records(
    cluster: Cluster, before_offsets: Mapping[TopicPartition, int], *, timeout_ms: int = 30_000
) -> dict[TopicPartition, int]:
    """Deletes the records below an offset in each partition; returns their new low watermarks.

    Raises the first partition's error when some have failed; the others are done.
    """
    deadline = Deadline(timeout_ms)
    by_leader: dict[Endpoint, list[DeleteRecordsPartition]] = {}
    for tp, offset in before_offsets.items():
        if isinstance(offset, bool) or not isinstance(offset, int) or not ALL <= offset < 2**63:
            raise InvalidRequestError(f"{tp}: delete records before {offset!r}: an offset is needed, or -1 for all")
        leader = cluster.leader(TopicPartition(*tp), timeout_ms=deadline.left_ms())
        by_leader.setdefault(leader, []).append(DeleteRecordsPartition(*tp, offset))
    done: dict[TopicPartition, int] = {}
    failed: SparklogError | None = None
    for leader, partitions in by_leader.items():
        request = DeleteRecordsRequest(deadline.left_ms(), partitions)
        response = cluster.request(
            Api.DELETE_RECORDS, request, DeleteRecordsResponse, endpoint=leader, timeout_ms=deadline.left_ms()
        )
        check_named(leader, partitions, response.results)
        for result in response.results:
            if result.error_code:
                cluster.invalidate(result.topic)
                failed = failed or error_from_code(result.error_code, result.message)
            else:
                done[TopicPartition(result.topic, result.partition)] = result.low_watermark
    if failed is not None:
        raise failed
    return done
