"""Offset look-ups: earliest, latest, largest timestamp, first at or after a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.answers import check_named
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.leader_questions import LedGroup, refuse, until_led
from sparklog.client.net.retry import Attempts, Retries, RetryPolicy
from sparklog.errors import InvalidRequestError, SparklogError, error_from_code
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse
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
    whole_number,
)

NAMED = {
    "earliest": EARLIEST_TIMESTAMP,
    "latest": LATEST_TIMESTAMP,
    "max_timestamp": MAX_TIMESTAMP,
    "earliest_local": EARLIEST_LOCAL_TIMESTAMP,
    "latest_tiered": LATEST_TIERED_TIMESTAMP,
}


def timestamp_of(spec: str | int) -> int:
    """Return the timestamp in the request for a look-up: the number of a name in NAMED, or the given number (ms since
    1970, or the negative number of a name). Raises InvalidRequestError."""
    if isinstance(spec, str) and spec in NAMED:
        return NAMED[spec]
    number = whole_number(spec)
    if number is not None and -5 <= number <= 2**62:
        return number
    raise InvalidRequestError(f"offset of {spec!r}: use {', '.join(NAMED)} or a timestamp in ms")


class LocatedOffset(NamedTuple):
    """An OffsetAndTimestamp, and the `leader_epoch` of the record before the offset; -1: not known."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


def list_offsets(
    cluster: Cluster,
    specs: Mapping[TopicPartition, str | int],
    *,
    isolation: int = READ_UNCOMMITTED,
    all_at_once: bool = False,
    timeout_ms: int = 30_000,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Look up an offset of each partition at its leader, and again while leaders change.

    With READ_COMMITTED "latest" is the last stable offset. `all_at_once` (with READ_COMMITTED, for "earliest" and
    "latest") gets all offsets from one request: of each transaction all records are below the latest offsets or none.
    These offsets can be lower than the last stable offsets.

    The whole call takes `timeout_ms` at most. Raises UnknownTopicOrPartitionError, BrokerNotAvailableError and others.
    """
    attempts = Retries(RetryPolicy.within(timeout_ms))
    located = find_offsets(cluster, specs, attempts, isolation=isolation, all_at_once=all_at_once)
    return {tp: OffsetAndTimestamp(o.offset, o.timestamp_ms) for tp, o in located.items()}


def find_offsets(
    cluster: Cluster,
    specs: Mapping[TopicPartition, str | int],
    attempts: Attempts,
    *,
    isolation: int = READ_UNCOMMITTED,
    all_at_once: bool = False,
) -> dict[TopicPartition, LocatedOffset]:
    """Look up offsets and leader epochs. As `list_offsets`, but limited by `attempts` instead of a time."""
    questions = {TopicPartition(*tp): [timestamp_of(spec)] for tp, spec in specs.items()}
    located = look_up_offsets(cluster, questions, attempts, isolation=isolation, all_at_once=all_at_once)
    return {tp: offset for tp, offsets in located.items() for offset in offsets}


def look_up_offsets(
    cluster: Cluster,
    questions: Mapping[TopicPartition, Sequence[int]],
    attempts: Attempts,
    *,
    isolation: int = READ_UNCOMMITTED,
    all_at_once: bool = False,
    refused: Callable[[TopicPartition, SparklogError], list[LocatedOffset]] = refuse,
) -> dict[TopicPartition, list[LocatedOffset]]:
    """Return the offsets of each partition in the order of its `questions`, which are times in ms or numbers of NAMED.
    `refused` turns the error of a partition into its result; see `until_led`."""
    together = all_at_once and isolation == READ_COMMITTED

    def ask(group: LedGroup) -> dict[TopicPartition, list[LocatedOffset] | SparklogError]:
        requested = [
            ListOffsetsPartition(*tp, timestamp_ms, -1 if group.for_others else _epoch(cluster, tp, group.leader))
            for tp in group.partitions
            for timestamp_ms in questions[tp]
        ]
        request = ListOffsetsRequest(requested, isolation, all_at_once=together)
        response = cluster.request(
            Api.LIST_OFFSETS, request, ListOffsetsResponse, endpoint=group.leader, timeout_ms=group.timeout_ms
        )
        check_named(group.leader, requested, response.results)
        located: dict[TopicPartition, list[LocatedOffset] | SparklogError] = {tp: [] for tp in group.partitions}
        for r in response.results:
            so_far = located[tp := TopicPartition(r.topic, r.partition)]
            if r.error_code:
                located[tp] = error_from_code(r.error_code, r.message or str(tp))
            elif not isinstance(so_far, SparklogError):
                _check_offset(tp, r.offset, questions[tp][len(so_far)])
                so_far.append(LocatedOffset(r.offset, r.timestamp_ms, r.leader_epoch))
        return located

    return until_led(cluster, questions, ask, attempts, refused=refused, together=together)


def _check_offset(tp: TopicPartition, offset: int, timestamp_ms: int) -> None:
    """Raise InvalidRequestError unless the offset can be the answer; -1 stands for a record that does not exist."""
    lowest = 0 if timestamp_ms in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP) else -1
    if not lowest <= offset < 2**63:
        raise InvalidRequestError(f"the broker's response has offset {offset} for {tp}: an offset is {lowest} or more")


def _epoch(cluster: Cluster, tp: TopicPartition, leader: Endpoint) -> int:
    """Return the epoch in which the broker leads the partition; -1 if it is not known."""
    last = cluster.last_leader(tp)
    return last.epoch if last is not None and last.endpoint == leader else -1
