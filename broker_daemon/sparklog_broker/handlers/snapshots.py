"""SNAPSHOT_OFFSETS: a partition's first and end offset, fixed for all requests of a principal under one name.

In a cluster the broker asks the leaders of the other partitions. Requests under one name go to the same broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from sparklog.errors import NotLeaderError, SparklogError
from sparklog.protocol.messages import SnapshotOffsetsRequest, SnapshotOffsetsResponse
from sparklog.types import READ_COMMITTED, TopicPartition
from sparklog_broker.broker import Broker
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.network.reply import Response
from sparklog_broker.partitions.offset_snapshots import Extent, Snapshot


async def snapshot_offsets(request: SnapshotOffsetsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer from the snapshot of that name. A partition that it lacks (its topic is newer, or it was offline) is
    answered with its present offsets. Names belong to a principal: others learn nothing from them.
    """
    broker = context.broker
    if request.isolation == READ_COMMITTED:
        await broker.transactions.settled()
    taken = await broker.offset_snapshots.of(
        context.principal, request.name, lambda: _extents(broker, request.topics, request.isolation)
    )
    tp = TopicPartition(request.topic, request.partition)
    found = taken.get(tp)
    if found is None:
        found = (await _collect(broker, [tp], request.isolation)).get(tp)
    return Response(SnapshotOffsetsResponse(*(_extent(broker, tp, request.isolation) if found is None else found)))


async def _extents(broker: Broker, topics: Sequence[str], isolation: int) -> Snapshot:
    known = [topic for name in topics if (topic := broker.partitions.topics.get(name)) is not None]
    return await all_at_once(broker, [TopicPartition(t.name, n) for t in known for n in range(t.partitions)], isolation)


async def all_at_once(broker: Broker, partitions: Sequence[TopicPartition], isolation: int) -> Snapshot:
    """Collect offsets for readers of committed records: a transaction over several brokers is contained as a whole or
    not at all. Raises as `_collect`, and CoordinatorNotAvailableError.
    """
    leaders = {p.replicas.leader for tp in partitions if (p := broker.partitions.find(tp)) is not None}
    collect = partial(_collect, broker, partitions, isolation)
    if isolation != READ_COMMITTED or len(leaders) <= 1:  # one leader shows all of a transaction at the same moment
        return await collect()
    return await broker.transaction_access.while_nothing_is_decided(collect)


async def _collect(broker: Broker, partitions: Sequence[TopicPartition], isolation: int) -> Snapshot:
    """Return the offsets of the partitions, without those that have an error: a reader of one gets its error later.
    Raises the errors of other brokers, and BrokerNotAvailableError.
    """
    found: Snapshot = {}
    away: dict[int, list[TopicPartition]] = {}
    for tp in partitions:
        try:
            found[tp] = _extent(broker, tp, isolation)
        except NotLeaderError:
            partition = broker.partitions.find(tp)
            if partition is not None:
                away.setdefault(partition.replicas.leader, []).append(tp)
        except SparklogError:
            continue
    asked = [broker.elsewhere.extents(leader, tps, isolation) for leader, tps in away.items()]
    for answer in await asyncio.gather(*asked):
        found |= answer
    return found


def _extent(broker: Broker, tp: TopicPartition, isolation: int) -> Extent:
    """Return a partition's present offsets. Raises UnknownTopicOrPartitionError, NotLeaderError, LogCorruptError and
    others."""
    partition = broker.partitions.get(*tp)
    partition.replicas.check_end_known()
    end = partition.stable_offset if isolation == READ_COMMITTED else partition.log.high_watermark
    return Extent(partition.log.log_start_offset, end)
