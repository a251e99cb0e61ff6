"""Offset look-ups: earliest, latest, largest timestamp, first at or after a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.answers import check_named
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.errors import InvalidRequestError, error_from_code
from sparklog.protocol.messages import Api, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse
from sparklog.types import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    OffsetAndTimestamp,
    TopicPartition,
)

NAMED = {
    "earliest": EARLIEST_TIMESTAMP,
    "latest": LATEST_TIMESTAMP,
    "max_timestamp": MAX_TIMESTAMP,
    "earliest_local": EARLIEST_LOCAL_TIMESTAMP,
    "latest_tiered": LATEST_TIERED_TIMESTAMP,
}


def timestamp_of(spec: str | int) -> int:
    """What `list_offsets` is asked for: one of NAMED, or ms since 1970. Raises InvalidRequestError."""
    if isinstance(spec, str) and spec in NAMED:
        return NAMED[spec]
    if isinstance(spec, int) and not isinstance(spec, bool) and -5 <= spec <= 2**62:
        return spec
    raise InvalidRequestError(f"offset of {spec!r}: use {', '.join(NAMED)} or a timestamp in ms")


class FoundOffset(NamedTuple):
    """As OffsetAndTimestamp; `leader_epoch`: of the record before the offset, -1: not known."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


def list_offsets(
    cluster: Cluster,
    asked: Mapping[TopicPartition, str | int],
    *,
    isolation: int = READ_UNCOMMITTED,
    all_at_once: bool = False,
    timeout_ms: int = 30_000,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Looks up offsets, asking each partition's leader; with READ_COMMITTED the latest is the last stable offset.
    `all_at_once`: earliest and latest only; of each transaction all is below the latest offsets, or nothing.

    All of it takes `timeout_ms` at most. Raises UnknownTopicOrPartitionError and others."""
    found = find_offsets(cluster, asked, isolation=isolation, all_at_once=all_at_once, timeout_ms=timeout_ms)
    return {tp: OffsetAndTimestamp(o.offset, o.timestamp_ms) for tp, o in found.items()}


def find_offsets(
    cluster: Cluster,
    asked: Mapping[TopicPartition, str | int],
    *,
    isolation: int = READ_UNCOMMITTED,
    all_at_once: bool = False,
    timeout_ms: int = 30_000,
) -> dict[TopicPartition, FoundOffset]:
    """`list_offsets`, with leader epochs."""
    deadline = Deadline(timeout_ms)
    by_leader: dict[Endpoint, list[ListOffsetsPartition]] = {}
    for tp, spec in asked.items():
        leader = cluster.leader(TopicPartition(*tp), timeout_ms=deadline.left_ms())
        known = cluster.last_leader(TopicPartition(*tp))
        epoch = known.epoch if known is not None and known.endpoint == leader else -1
        by_leader.setdefault(leader, []).append(ListOffsetsPartition(*tp, timestamp_of(spec), epoch))
    together = all_at_once and isolation == READ_COMMITTED and len(by_leader) > 1
    if together:  # one broker asks the others
        by_leader = {next(iter(by_leader)): [p for partitions in by_leader.values() for p in partitions]}
    found: dict[TopicPartition, FoundOffset] = {}
    for leader, partitions in by_leader.items():
        request = ListOffsetsRequest(partitions, isolation, all_at_once=together)
        response = cluster.request(
            Api.LIST_OFFSETS, request, ListOffsetsResponse, endpoint=leader, timeout_ms=deadline.left_ms()
        )
        check_named(leader, partitions, response.results)
        for result in response.results:
            if result.error_code:
                cluster.invalidate(result.topic)
                raise error_from_code(result.error_code, result.message)
            found[TopicPartition(result.topic, result.partition)] = FoundOffset(
                result.offset, result.timestamp_ms, result.leader_epoch
            )
    return found
