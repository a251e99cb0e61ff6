"""PRODUCE: appends each partition's batches, and answers when as many replicas have them as `acks` requires."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import overload

from sparklog.environment.time_slices import ITEMS_PER_LOOK
from sparklog.errors import (
    InvalidProducerEpochError,
    InvalidRequestError,
    SparklogError,
    UnknownSchemaError,
    UnknownServerError,
)
from sparklog.format.key_format import key_rules
from sparklog.log.model.log_config import AppendInfo
from sparklog.log.partition_log import PartitionLog
from sparklog.log.producers.states import Guard, Issued
from sparklog.log.state.check import work_bytes
from sparklog.metadata.mirror_settings import check_writable
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse, ProduceResult
from sparklog.security.acls import Operation, Resource, ResourceType
from sparklog.types import TopicPartition
from sparklog_broker.broker import Broker
from sparklog_broker.coordinators.internal_topics import check_not_internal
from sparklog_broker.coordinators.verification import Verified
from sparklog_broker.handlers.leader_hints import endpoints, leader_hint
from sparklog_broker.network.reply import Response
from sparklog_broker.partitions.appender import INLINE_APPEND_BYTES, Write
from sparklog_broker.request_context import RequestContext
from sparklog_broker.security.producer_owners import ProducerOwners

log = logging.getLogger(__name__)

ACKS_NONE = 0
ACKS_ALL = -1

_Outcome = AppendInfo | Exception | ProduceResult
"""The outcome for one partition. Refusals before the append are kept as results: 100,000 exceptions with tracebacks
would occupy the garbage collector, and with it the event loop, for a second.
"""


async def produce(request: ProduceRequest, payload: memoryview, context: RequestContext) -> Response:
    """Append batches; every partition has its own outcome. With acks=0 there is no answer, but an error closes the
    connection."""
    pieces = _cut(request.partitions, payload)
    _check_offsets(request)
    verified = await _verify(request, pieces, context)
    if context.broker.producer_owners is not None:
        await _check_owners(context.broker.producer_owners, request, pieces, verified, context)
    outcomes: list[_Outcome | None] = [None] * len(pieces)
    writes: dict[int, Write] = {}
    issued = partial(context.broker.is_issued, principal=context.principal)
    time_slices = context.broker.time_slices
    for i, (requested, piece) in enumerate(zip(request.partitions, pieces, strict=True)):
        try:
            check_not_internal(requested.topic, "written to")
            topic = context.broker.partitions.topics.get(requested.topic)
            if topic is not None:
                check_writable(topic.name, topic.configs, by_mirror=bool(request.expected_offsets))
            verdict = verified.get(i)
            if isinstance(verdict, SparklogError):
                raise verdict
            partition = context.broker.partitions.get(requested.topic, requested.partition)
            partition.check_topic_id(requested.topic_id)
            partition.traffic.produces += 1
            if requested.key_rules >= 0:
                _check_key_rules(context.broker, requested)
            if request.acks == ACKS_ALL:
                partition.replicas.check_in_sync()
            epoch = partition.replicas.leader_epoch
            append = (
                partial(_append_at, piece, epoch, request.expected_offsets[i])
                if request.expected_offsets
                else partial(_append, piece, epoch, verdict, issued, context.is_gateway)
            )
            size = work_bytes(piece) if len(piece) <= INLINE_APPEND_BYTES else len(piece)
            writes[i] = Write(partition, partition.log, append, size, epoch)
        except SparklogError as e:
            outcomes[i] = _failure(context.broker, requested, e)
        if (i + 1) % ITEMS_PER_LOOK == 0 and time_slices.due():
            await time_slices.pause()
    within_ms = request.timeout_ms if request.acks == ACKS_ALL else None
    done = await context.broker.appender.append_each(
        list(writes.values()), replicated_within_ms=within_ms, times=context.times
    )
    for (i, write), outcome in zip(writes.items(), done, strict=True):
        outcomes[i] = outcome
        write.partition.traffic.failed_produces += isinstance(outcome, Exception)
        if isinstance(outcome, InvalidProducerEpochError) and request.transactional_id is not None:
            outcomes[i] = await context.broker.verification.refusal(request.transactional_id, pieces[i])
    if request.acks == ACKS_NONE:
        failed = next((o for o in outcomes if isinstance(o, Exception | ProduceResult)), None)
        if failed is not None:
            why = failed.message if isinstance(failed, ProduceResult) else failed
            log.info("produce with acks=0 failed: %s; disconnecting, because no response can report the error", why)
        return Response(None, close=failed is not None)
    results = await time_slices.list_of(
        _result(context.broker, p, writes.get(i), o)
        for i, (p, o) in enumerate(zip(request.partitions, outcomes, strict=True))
    )
    leaders = [r.leader_id for r in results if r.leader_id >= 0]
    return Response(ProduceResponse(results, endpoints(context.broker, leaders, context.listener) if leaders else []))


class _Pieces(Sequence[memoryview]):
    """The payload's pieces, one for each partition of the request, created on access."""

    def __init__(self, payload: memoryview, lengths: Iterable[int]) -> None:
        self._payload = payload
        self._ends = [0, *accumulate(lengths)]

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, i: int) -> memoryview: ...
    @overload
    def __getitem__(self, i: slice) -> list[memoryview]: ...
    def __getitem__(self, i: int | slice) -> memoryview | list[memoryview]:
        if isinstance(i, slice):
            return [self[place] for place in range(*i.indices(len(self)))]
        place = range(len(self))[i]
        return self._payload[self._ends[place] : self._ends[place + 1]]

    def __iter__(self) -> Iterator[memoryview]:
        return (self._payload[start:end] for start, end in pairwise(self._ends))


def _cut(partitions: list[ProducePartition], payload: memoryview) -> Sequence[memoryview]:
    """Return the payload's pieces. Raises InvalidRequestError if their announced lengths do not match the payload."""
    announced = sum(p.length_bytes for p in partitions)
    if announced != len(payload):
        raise InvalidRequestError(f"the partitions announce {announced} bytes, the payload has {len(payload)}")
    return _Pieces(payload, (p.length_bytes for p in partitions))


def _check_offsets(request: ProduceRequest) -> None:
    """Raise InvalidRequestError for a request at given offsets that does not have one for each partition, or asks for
    less than all in-sync replicas: the mirror would read a log end that can be lost."""
    offsets = request.expected_offsets
    if offsets and (len(offsets) != len(request.partitions) or request.acks != ACKS_ALL or request.transactional_id):
        raise InvalidRequestError(
            f"{len(offsets)} expected offsets for {len(request.partitions)} partitions with acks={request.acks}: one "
            f"for each partition, acks=all ({ACKS_ALL}) and no transaction are needed"
        )


async def _verify(
    request: ProduceRequest, pieces: Sequence[memoryview], context: RequestContext
) -> dict[int, Verified]:
    """Return guards and errors for a transactional producer's batches, by index. Raises InvalidRequestError."""
    if request.transactional_id is None:
        return {}
    if request.acks != ACKS_ALL:
        raise InvalidRequestError(f"a transaction needs acks=all ({ACKS_ALL}), the request has {request.acks}")
    partitions = (TopicPartition(p.topic, p.partition) for p in request.partitions)
    return await context.broker.verification.verify(
        request.transactional_id, list(zip(partitions, pieces, strict=True))
    )


async def _check_owners(
    owners: ProducerOwners,
    request: ProduceRequest,
    pieces: Sequence[memoryview],
    verified: dict[int, Verified],
    context: RequestContext,
) -> None:
    """Add to `verified` the errors for batches whose producer id belongs to another principal."""
    is_noted = False
    for i, (requested, piece) in enumerate(zip(request.partitions, pieces, strict=True)):
        if isinstance(verified.get(i), SparklogError):
            continue
        judgement = owners.judge(context.principal, request.transactional_id, piece)
        if isinstance(judgement, SparklogError):
            verified[i] = judgement
            if not judgement.retriable and not is_noted:  # one line in the audit log per request
                context.note_denial(
                    Api.PRODUCE, judgement, Operation.WRITE, Resource(ResourceType.TOPIC, requested.topic)
                )
                is_noted = True
        elif judgement is not None and request.transactional_id is not None:
            identity = request.transactional_id, judgement.producer_id, judgement.producer_epoch
            try:
                if i not in verified:  # otherwise `verify` has just confirmed it
                    tp = TopicPartition(requested.topic, requested.partition)
                    await context.broker.transaction_access.add_partitions(*identity, [tp])
                owners.confirmed(request.transactional_id, judgement.producer_id)
            except SparklogError as e:
                verified[i] = e


def _check_key_rules(broker: Broker, requested: ProducePartition) -> None:
    """Raise UnknownSchemaError if the topic has other rules for keys than those by which the gateway has checked the
    records: it has got partitions, or is compacted now."""
    topic = broker.partitions.topics[requested.topic]
    configs = {**broker.config.topic_defaults, **topic.configs}
    if key_rules(topic.partitions, topic.key_columns, configs) != requested.key_rules:
        raise UnknownSchemaError(
            f"topic {requested.topic!r} has changed since the gateway checked the keys of the records: the gateway reads "
            "the topic again"
        )


def _append(
    piece: memoryview,
    leader_epoch: int,
    guard: Guard | None,
    issued: Issued,
    converted: bool,
    partition_log: PartitionLog,
) -> AppendInfo:
    return partition_log.appender.append(
        piece, leader_epoch=leader_epoch, guard=guard, issued=issued, converted=converted
    )


def _append_at(piece: memoryview, leader_epoch: int, expected_offset: int, partition_log: PartitionLog) -> AppendInfo:
    return partition_log.appender.append_at(piece, expected_offset, leader_epoch=leader_epoch)


def _result(
    broker: Broker, requested: ProducePartition, write: Write | None, outcome: _Outcome | None
) -> ProduceResult:
    if isinstance(outcome, ProduceResult):
        return outcome
    if isinstance(outcome, AppendInfo):
        partition_log = write.partition.open_log if write is not None else None
        start = -1 if partition_log is None else partition_log.log_start_offset
        topic = broker.partitions.topics.get(requested.topic)
        newest = topic.schema_id if topic is not None else -1
        return ProduceResult(
            requested.topic,
            requested.partition,
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
    return _failure(broker, requested, error)


def _failure(broker: Broker, requested: ProducePartition, error: SparklogError) -> ProduceResult:
    leader_id, leader_epoch = leader_hint(broker, requested.topic, requested.partition, error)
    return ProduceResult(
        requested.topic,
        requested.partition,
        error.code,
        message=str(error),
        leader_id=leader_id,
        leader_epoch=leader_epoch,
    )
