"""SNAPSHOT_OFFSETS: where a partition begins and ends for all who ask under one name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparklog.errors import SparklogError
from sparklog.protocol.messages import SnapshotOffsetsRequest, SnapshotOffsetsResponse
from sparklog.types import READ_COMMITTED, TopicPartition
from sparklog_broker.broker import Broker
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.network.reply import Response
from sparklog_broker.partitions.offset_snapshots import Extent


async def snapshot_offsets(request: SnapshotOffsetsRequest, payload: memoryview, context: RequestContext) -> Response:
    """A partition that the snapshot does not have (its topic was made later, or is offline) is answered as it is
    now."""
    broker = context.broker
    if request.isolation == READ_COMMITTED:
        await broker.transactions.settled()
    taken = broker.offset_snapshots.of(request.name, lambda: _extents(broker, request.topics, request.isolation))
    tp = TopicPartition(request.topic, request.partition)
    found = taken.get(tp)
    return Response(SnapshotOffsetsResponse(*(_extent(broker, tp, request.isolation) if found is None else found)))


def _extents(broker: Broker, topics: Sequence[str], isolation: int) -> Iterator[tuple[TopicPartition, Extent]]:
    for name in topics:
        topic = broker.partitions.topics.get(name)
        for tp in [TopicPartition(name, n) for n in range(0 if topic is None else topic.partitions)]:
            try:
                yield tp, _extent(broker, tp, isolation)
            except SparklogError:  # who reads it is told
                continue


def _extent(broker: Broker, tp: TopicPartition, isolation: int) -> Extent:
    """Raises UnknownTopicOrPartitionError, LogCorruptError and others."""
    partition = broker.partitions.get(*tp)
    partition.replicas.check_end_known()
    end = partition.stable_offset if isolation == READ_COMMITTED else partition.log.high_watermark
    return Extent(partition.log.log_start_offset, end)
