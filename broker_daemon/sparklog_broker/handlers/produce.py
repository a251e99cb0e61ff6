"""PRODUCE: append each partition's batches, answer when as many replicas have them as `acks` asks for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from sparklog.errors import InvalidProducerEpochError, InvalidRequestError, SparklogError, UnknownServerError
from sparklog.log.model import AppendInfo
from sparklog.log.partition_log import PartitionLog
from sparklog.log.producers import Guard
from sparklog.metadata.store import Topic
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse, ProduceResult
from sparklog.types import TopicPartition
from sparklog_broker.appends import Write, append_each, wait_for_replicas
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.internal_topics import check_not_internal
from sparklog_broker.partition import Partition
from sparklog_broker.reply import Response
from sparklog_broker.verification import Verdict, refusal, verify

log = logging.getLogger(__name__)

ACKS_NONE = 0
ACKS_ALL = -1

_Outcome = AppendInfo | Exception


async def produce(request: ProduceRequest, payload: memoryview, context: RequestContext) -> Response:
    """Every partition has its own outcome. With acks 0 nothing is answered, but an error closes the connection."""
    pieces = _cut(request.partitions, payload)
    verdicts = await _verdicts(request, pieces, context)
    outcomes: list[_Outcome | None] = [None] * len(pieces)
    partitions: list[Partition | None] = [None] * len(pieces)
    writes: dict[int, Write] = {}
    for i, (wanted, piece) in enumerate(zip(request.partitions, pieces, strict=True)):
        try:
            check_not_internal(wanted.topic, "written to")
            verdict = verdicts.get(i)
            if isinstance(verdict, SparklogError):
                raise verdict
            partition = context.broker.partition(wanted.topic, wanted.partition)
            append = partial(_append, piece, partition.replicas.leader_epoch, verdict)
            writes[i] = Write(partition, partition.log, append, len(piece))
            partitions[i] = partition
        except SparklogError as e:
            outcomes[i] = e
    for i, outcome in zip(writes, await append_each(context.broker, list(writes.values())), strict=True):
        outcomes[i] = outcome
        if isinstance(outcome, InvalidProducerEpochError) and request.transactional_id is not None:
            outcomes[i] = refusal(context.broker, request.transactional_id, pieces[i])
    if request.acks == ACKS_ALL:
        await wait_for_replicas(context.broker, request.timeout_ms, partitions, outcomes)
    if request.acks == ACKS_NONE:
        failed = next((o for o in outcomes if isinstance(o, Exception)), None)
        if failed is not None:
            log.info("produce with acks=0 failed: %s; disconnecting, which is all that can be told", failed)
        return Response(None, close=failed is not None)
    topics = context.broker.topics
    return Response(
        ProduceResponse([_result(topics, *r) for r in zip(request.partitions, partitions, outcomes, strict=True)])
    )


def _cut(partitions: list[ProducePartition], payload: memoryview) -> list[memoryview]:
    """The payload's pieces, one per partition of the request. Raises InvalidRequestError."""
    announced = sum(p.length_bytes for p in partitions)
    if announced != len(payload):
        raise InvalidRequestError(f"the partitions announce {announced} bytes, the payload has {len(payload)}")
    pieces, position = [], 0
    for p in partitions:
        pieces.append(payload[position : position + p.length_bytes])
        position += p.length_bytes
    return pieces


async def _verdicts(request: ProduceRequest, pieces: list[memoryview], context: RequestContext) -> dict[int, Verdict]:
    """What is known of a transactional producer's batches, by position. Raises InvalidRequestError."""
    if request.transactional_id is None:
        return {}
    if request.acks != ACKS_ALL:
        raise InvalidRequestError(f"a transaction needs acks=all ({ACKS_ALL}), the request has {request.acks}")
    partitions = (TopicPartition(p.topic, p.partition) for p in request.partitions)
    return await verify(context.broker, request.transactional_id, list(zip(partitions, pieces, strict=True)))


def _append(piece: memoryview, leader_epoch: int, guard: Guard | None, partition_log: PartitionLog) -> AppendInfo:
    return partition_log.append(piece, leader_epoch=leader_epoch, guard=guard)


def _result(
    topics: Mapping[str, Topic], wanted: ProducePartition, partition: Partition | None, outcome: _Outcome | None
) -> ProduceResult:
    if isinstance(outcome, AppendInfo):
        assert partition is not None
        gone = partition.deleted or partition.error is not None
        start = -1 if gone else partition.log.log_start_offset
        topic = topics.get(wanted.topic)
        newest = topic.schema_id if topic is not None else -1
        return ProduceResult(
            wanted.topic,
            wanted.partition,
            0,
            outcome.base_offset,
            outcome.append_time_ms,
            start,
            newest_schema_id=newest,
            base_offsets=list(outcome.base_offsets),
        )
    error = (
        outcome if isinstance(outcome, SparklogError) else UnknownServerError("the append failed; see the broker's log")
    )
    return ProduceResult(wanted.topic, wanted.partition, error.code, message=str(error))
