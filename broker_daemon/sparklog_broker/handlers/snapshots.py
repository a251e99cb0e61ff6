"""SNAPSHOT_OFFSETS: first and end offsets of partitions. All requests of a principal with the same name get the same
offsets. LIST_COMMITS: the commits that a broker needs to take such a snapshot.

In a cluster the broker asks the leaders of the partitions that it does not lead. Clients send all requests with one
name to the same broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from sparklog.errors import InvalidRequestError, NotLeaderError, SparklogError
from sparklog.log.producers.whole_transactions import Commit, atomic_ends
from sparklog.protocol.cluster_messages import COMMITS_MAX, CommittedPart, ListCommitsRequest, ListCommitsResponse
from sparklog.protocol.messages import SnapshotOffsetsRequest, SnapshotOffsetsResponse
from sparklog.types import READ_COMMITTED, TopicPartition
from sparklog_broker.broker import Broker
from sparklog_broker.network.reply import Response
from sparklog_broker.partitions.offset_snapshots import Extent, Snapshot
from sparklog_broker.request_context import RequestContext

log = logging.getLogger(__name__)

CLOCKS_APART_MS = 10_000
"""Largest difference of two brokers' clocks, in ms, with which a snapshot finds all parts of a transaction."""
_NEVER_MS = 2**62


async def snapshot_offsets(request: SnapshotOffsetsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer from the named snapshot. If the snapshot lacks the partition, because its topic is newer or the partition
    was offline, answer with its present offsets. Names belong to a principal, so other principals cannot read the
    snapshot.
    """
    broker = context.broker
    if request.isolation == READ_COMMITTED:
        await broker.transactions.settled()
    taken = await broker.offset_snapshots.of(
        context.principal, request.name, lambda: _extents(broker, request.topics, request.isolation)
    )
    tp = TopicPartition(request.topic, request.partition)
    extent = taken.get(tp)
    if extent is None:
        extent = (await all_at_once(broker, [tp], request.isolation)).get(tp)
    return Response(SnapshotOffsetsResponse(*(extent_of(broker, tp, request.isolation) if extent is None else extent)))


async def _extents(broker: Broker, topics: Sequence[str], isolation: int) -> Snapshot:
    present = [topic for name in topics if (topic := broker.partitions.topics.get(name)) is not None]
    return await all_at_once(
        broker, [TopicPartition(t.name, n) for t in present for n in range(t.partitions)], isolation
    )


async def all_at_once(broker: Broker, partitions: Sequence[TopicPartition], isolation: int) -> Snapshot:
    """Return the first and end offsets of partitions. For readers of committed records, each transaction is completely
    below the ends or completely above, even if it spans brokers. Raises CoordinatorNotAvailableError, NotLeaderError,
    StorageError, and the errors of `OtherBrokers.extents` and `OtherBrokers.commits`."""
    leaders = {p.replicas.leader for tp in partitions if (p := broker.partitions.find(tp)) is not None}
    collect = partial(_collect, broker, partitions, isolation)
    if isolation != READ_COMMITTED or len(leaders) <= 1:  # a single leader makes a whole transaction visible at once
        collected = await collect()
    else:
        collected = await broker.transaction_access.with_decisions_on_hold(collect)
    if isolation != READ_COMMITTED or not collected.behind:
        return collected.extents
    try:
        return await _whole(broker, collected)
    except InvalidRequestError as e:
        log.warning("a snapshot of %d partitions may contain a part of a transaction: %s", len(collected.extents), e)
    return collected.extents


async def _whole(broker: Broker, collected: _Extents) -> Snapshot:
    """Return the extents with ends that are inside no transaction.

    First the commits above the ends are collected. The earliest start of their transactions bounds the headers to read
    in all partitions. A lowered end can be inside a transaction that began earlier; the bound is then lowered, too.
    """
    ends = {tp: extent.end for tp, extent in collected.extents.items()}
    commits = await _commits(broker, {tp: ends[tp] for tp in collected.behind if tp in ends}, _NEVER_MS)
    covered_from_ms, slack_ms = _NEVER_MS, CLOCKS_APART_MS
    while True:
        lowered = await broker.io.run(broker.io.idlest(), partial(atomic_ends, ends, commits))
        if lowered.started_ms is None or lowered.started_ms >= covered_from_ms:
            return {tp: Extent(e.start, max(e.start, lowered.ends[tp])) for tp, e in collected.extents.items()}
        covered_from_ms = lowered.started_ms - slack_ms
        slack_ms *= 2  # few rounds, even if each transaction overlaps with an earlier one
        commits = await _commits(broker, ends, covered_from_ms - CLOCKS_APART_MS)


async def _commits(
    broker: Broker, offsets: Mapping[TopicPartition, int], since_ms: int
) -> dict[TopicPartition, list[Commit]]:
    """Return the transactions committed above the offsets, or since `since_ms`; see `LogReader.commits`. Raises
    NotLeaderError, StorageError, InvalidRequestError (more than COMMITS_MAX transactions), and the errors of
    `OtherBrokers.commits`."""
    here: dict[TopicPartition, int] = {}
    away: dict[int, dict[TopicPartition, int]] = {}
    for tp, offset in offsets.items():
        partition = broker.partitions.find(tp)
        if partition is not None and partition.replicas.leader != broker.other_brokers.broker_id:
            away.setdefault(partition.replicas.leader, {})[tp] = offset
        elif partition is not None:
            here[tp] = offset
    requests = [broker.other_brokers.commits(leader, its, since_ms) for leader, its in away.items()]
    commits: dict[TopicPartition, list[Commit]] = {}
    for answer in await asyncio.gather(_commits_here(broker, here, since_ms), *requests):
        commits |= answer
    _check_count(commits)
    return commits


async def _commits_here(
    broker: Broker, offsets: Mapping[TopicPartition, int], since_ms: int
) -> dict[TopicPartition, list[Commit]]:
    commits: dict[TopicPartition, list[Commit]] = {}
    for tp, offset in offsets.items():  # one after the other, because the threads also append
        partition = broker.partitions.find(tp)
        if partition is None or partition.deleted:
            continue
        if partition.replicas.leader != broker.other_brokers.broker_id:
            raise NotLeaderError(f"partition {tp} is led by another broker now; take the snapshot again")
        read = partial(partition.log.reader.commits, offset, since_ms)
        commits[tp] = await broker.io.run(broker.io.idlest(), read)
        _check_count(commits)
    return commits


def _check_count(commits: Mapping[TopicPartition, list[Commit]]) -> None:
    count = sum(map(len, commits.values()))
    if count > COMMITS_MAX:
        raise InvalidRequestError(
            f"{count} transactions were committed behind an open transaction; at most {COMMITS_MAX} can be compared. "
            "End the open transaction: 'sparklog transaction list' shows it"
        )


async def list_commits(request: ListCommitsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with commits, for a broker that takes a snapshot. Raises NotLeaderError, StorageError, and
    InvalidRequestError (more than COMMITS_MAX transactions)."""
    offsets = {TopicPartition(p.topic, p.partition): p.offset for p in request.partitions}
    commits = await _commits_here(context.broker, offsets, request.since_ms)
    parts = (
        CommittedPart(number, *commit.transaction, commit.first_offset, commit.last_offset, commit.started_ms)
        for number, tp in enumerate(offsets)
        for commit in commits.get(tp, ())
    )
    return Response(ListCommitsResponse(await context.broker.time_slices.list_of(parts)))


class _Extents(NamedTuple):
    extents: Snapshot
    behind: set[TopicPartition]
    """Partitions with commits above their ends."""


async def _collect(broker: Broker, partitions: Sequence[TopicPartition], isolation: int) -> _Extents:
    """Return the offsets of the partitions. Partitions with an error are left out; their readers get the error later.
    Raises the errors of `OtherBrokers.extents`."""
    snapshot: Snapshot = {}
    behind: set[TopicPartition] = set()
    away: dict[int, list[TopicPartition]] = {}
    for tp in partitions:
        try:
            snapshot[tp] = extent = extent_of(broker, tp, isolation)
            if broker.partitions.get(*tp).log.reader.has_commits_behind(extent.end):
                behind.add(tp)
        except NotLeaderError:
            partition = broker.partitions.find(tp)
            if partition is not None:
                away.setdefault(partition.replicas.leader, []).append(tp)
        except SparklogError:
            continue
    requests = [broker.other_brokers.extents(leader, tps, isolation) for leader, tps in away.items()]
    for extents, its_behind in await asyncio.gather(*requests):
        snapshot |= extents
        behind |= its_behind
    return _Extents(snapshot, behind)


def extent_of(broker: Broker, tp: TopicPartition, isolation: int) -> Extent:
    """Return the first and end offset of a partition that this broker leads. Raises the errors of its role and log,
    such as NotLeaderError."""
    partition = broker.partitions.get(*tp)
    partition.replicas.require_end()
    end = partition.stable_offset if isolation == READ_COMMITTED else partition.log.high_watermark
    return Extent(partition.log.log_start_offset, end)
