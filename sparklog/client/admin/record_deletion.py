"""Deleting records: the start of each partition's log is raised."""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.client.net.answers import check_named
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.leader_questions import LedGroup, until_led
from sparklog.client.net.retry import Retries, RetryPolicy
from sparklog.client.reading.offset_lookup import find_offsets
from sparklog.errors import InvalidRequestError, SparklogError, error_from_code
from sparklog.protocol.messages import Api, DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsResponse
from sparklog.types import TopicPartition

ALL = -1
NOT_DONE = -1


def delete_records(
    cluster: Cluster, before_offsets: Mapping[TopicPartition, int], *, timeout_ms: int = 30_000
) -> dict[TopicPartition, int]:
    """Deletes the records below an offset in each partition; returns their new low watermarks. That may be asked
    twice: where a leader changes, its successor is asked, too.

    Raises the first partition's error when some have failed; the others are done.
    """
    wanted = {TopicPartition(*tp): _checked(tp, offset) for tp, offset in before_offsets.items()}
    attempts = Retries(RetryPolicy.within(timeout_ms))
    failed: list[SparklogError] = []
    unbounded = {tp: "latest" for tp, offset in wanted.items() if offset == ALL}
    if unbounded:  # to ask twice must not delete what is appended in between
        wanted |= {tp: found.offset for tp, found in find_offsets(cluster, unbounded, attempts).items()}

    def ask(group: LedGroup) -> dict[TopicPartition, int | SparklogError]:
        partitions = [DeleteRecordsPartition(*tp, wanted[tp]) for tp in group.partitions]
        request = DeleteRecordsRequest(group.timeout_ms, partitions)
        response = cluster.request(
            Api.DELETE_RECORDS, request, DeleteRecordsResponse, endpoint=group.leader, timeout_ms=group.timeout_ms
        )
        check_named(group.leader, partitions, response.results)
        return {
            TopicPartition(r.topic, r.partition): error_from_code(r.error_code, r.message)
            if r.error_code
            else r.low_watermark
            for r in response.results
        }

    def refused(tp: TopicPartition, error: SparklogError) -> int:
        failed.append(error)
        return NOT_DONE

    try:
        done = until_led(cluster, wanted, ask, attempts, refused=refused)
    except SparklogError as e:
        failed.append(e)
    if failed:
        raise failed[0]
    return done


def _checked(tp: object, offset: object) -> int:
    """Raises InvalidRequestError."""
    if isinstance(offset, bool) or not isinstance(offset, int) or not ALL <= offset < 2**63:
        raise InvalidRequestError(f"{tp}: delete records before {offset!r}: an offset is needed, or -1 for all")
    return offset
