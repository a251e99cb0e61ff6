"""LIST_OFFSETS: the offsets for timestamps and special values. OFFSETS_FOR_LEADER_EPOCH: the ends of leader epochs."""

from __future__ import annotations

import asyncio
import logging

from sparklog.environment.time_slices import ITEMS_PER_LOOK
from sparklog.errors import (
    InvalidRequestError,
    LeaderNotAvailableError,
    NotLeaderError,
    SparklogError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from sparklog.log.partition_log import PartitionLog
from sparklog.log.state.leader_epochs import UNDEFINED
from sparklog.protocol.messages import (
    EpochEndOffset,
    EpochPartition,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
)
from sparklog.types import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    OffsetAndTimestamp,
    TopicPartition,
)
from sparklog_broker.broker import Broker
from sparklog_broker.handlers.named_once import check_each_once
from sparklog_broker.handlers.snapshots import all_at_once, extent_of
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext

log = logging.getLogger(__name__)

LOOKUPS_AT_ONCE_MAX = 256
"""Largest number of concurrent lookups of one request, because their threads also append."""
_NO_TIMESTAMP = -1
_NO_RECORD = OffsetAndTimestamp(-1, -1)
_LookUpOutcome = OffsetAndTimestamp | ListOffsetsResult | BaseException | None
"""The outcome for one partition. Failures are kept as results: 100,000 exceptions with tracebacks would occupy the
garbage collector, and with it the event loop, for a second.
"""


async def list_offsets(request: ListOffsetsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with the offsets for timestamps. The earliest and latest offsets are in memory; other timestamps are
    looked up in files, on I/O threads.
    """
    broker = context.broker
    outcomes: list[_LookUpOutcome] = [None] * len(request.partitions)
    if request.isolation == READ_COMMITTED:
        await broker.transactions.settled()
    await check_each_once(broker.time_slices, request.partitions, lambda p: (p.topic, p.partition, p.timestamp_ms))
    if request.all_at_once:
        return Response(ListOffsetsResponse(await _all_at_once(broker, request)))
    lookups: dict[int, asyncio.Future[OffsetAndTimestamp]] = {}
    for i, requested in enumerate(request.partitions):
        try:
            partition = broker.partitions.get(requested.topic, requested.partition)
            partition.check_leader_epoch(requested.leader_epoch)
            if requested.timestamp_ms in (LATEST_TIMESTAMP, MAX_TIMESTAMP):
                partition.replicas.require_end()
            end = partition.stable_offset if request.isolation == READ_COMMITTED else None
            bound = _bounding_offset(partition.log, requested.timestamp_ms, end)
            if bound is not None:
                outcomes[i] = OffsetAndTimestamp(bound, _NO_TIMESTAMP)
            else:
                lookups[i] = _look_up(broker, partition.log, requested.timestamp_ms, end)
        except SparklogError as e:
            outcomes[i] = _failure(requested, e)
        if len(lookups) >= LOOKUPS_AT_ONCE_MAX:
            await _collect(lookups, outcomes)
        if (i + 1) % ITEMS_PER_LOOK == 0 and broker.time_slices.due():
            await broker.time_slices.pause()
    await _collect(lookups, outcomes)
    results = (_result(broker, *r) for r in zip(request.partitions, outcomes, strict=True))
    return Response(ListOffsetsResponse(await broker.time_slices.list_of(results)))


async def offsets_for_leader_epoch(
    request: OffsetsForLeaderEpochRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer with the ends of leader epochs (KIP-320). The newest epoch ends at the log end offset. The epochs are in
    memory."""
    broker = context.broker
    await check_each_once(broker.time_slices, request.partitions, lambda p: (p.topic, p.partition))
    results = (_epoch_end(broker, requested) for requested in request.partitions)
    return Response(OffsetsForLeaderEpochResponse(await broker.time_slices.list_of(results)))


def _epoch_end(broker: Broker, requested: EpochPartition) -> EpochEndOffset:
    try:
        partition = broker.partitions.get(requested.topic, requested.partition)
        partition.check_leader_epoch(requested.leader_epoch)
        log = partition.log
        epoch, end_offset = log.epochs.end_offset_for(requested.epoch, log.log_end_offset)
    except SparklogError as e:
        return EpochEndOffset(requested.topic, requested.partition, e.code, message=str(e))
    return EpochEndOffset(requested.topic, requested.partition, 0, epoch, end_offset)


def _epoch_of(broker: Broker, requested: ListOffsetsPartition, offset: int) -> int:
    """Return the epoch of the record with the timestamp; for a bound of the log, of the record before it."""
    partition = broker.partitions.find(TopicPartition(requested.topic, requested.partition))
    log = None if partition is None else partition.open_log
    if log is None:
        return UNDEFINED
    if requested.timestamp_ms >= 0 or requested.timestamp_ms == MAX_TIMESTAMP:
        return log.epochs.epoch_of(offset)
    return UNDEFINED if offset <= log.log_start_offset else log.epochs.epoch_of(offset - 1)


def _has_commits_behind(broker: Broker, requested: ListOffsetsPartition, offset: int) -> bool:
    partition = broker.partitions.find(TopicPartition(requested.topic, requested.partition))
    log = None if partition is None else partition.open_log
    return log is not None and log.reader.has_commits_behind(offset)


async def _all_at_once(broker: Broker, request: ListOffsetsRequest) -> list[ListOffsetsResult]:
    """Look up offsets of one point in time, also of partitions that other brokers lead. Raises the errors of
    `all_at_once`, and InvalidRequestError.
    """
    if any(p.timestamp_ms not in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP) for p in request.partitions):
        raise InvalidRequestError("only the earliest and latest offsets can be requested for all partitions at once")
    requested = list(dict.fromkeys(TopicPartition(p.topic, p.partition) for p in request.partitions))
    extents = await all_at_once(broker, requested, request.isolation)
    results = []
    for p in request.partitions:
        extent = extents.get(TopicPartition(p.topic, p.partition))
        if extent is not None:
            offset = extent.start if p.timestamp_ms == EARLIEST_TIMESTAMP else extent.end
            results.append(ListOffsetsResult(p.topic, p.partition, 0, offset))
        elif broker.partitions.find(TopicPartition(p.topic, p.partition)) is None:
            text = f"partition {p.topic}-{p.partition} does not exist"
            results.append(ListOffsetsResult(p.topic, p.partition, UnknownTopicOrPartitionError.code, message=text))
        else:
            results.append(_failure(p, _refusal(broker, p, request.isolation)))
    return results


def _refusal(broker: Broker, requested: ListOffsetsPartition, isolation: int) -> SparklogError:
    """Return the reason why a snapshot lacks a partition. If this broker leads it, this is the error of its own log."""
    try:
        extent_of(broker, TopicPartition(requested.topic, requested.partition), isolation)
    except NotLeaderError:
        pass
    except SparklogError as e:
        return e
    return LeaderNotAvailableError(
        f"partition {requested.topic}-{requested.partition} has no leader that can return its end offset now"
    )


async def _collect(lookups: dict[int, asyncio.Future[OffsetAndTimestamp]], outcomes: list[_LookUpOutcome]) -> None:
    """Wait for `lookups`, store their results in `outcomes`, and empty `lookups`."""
    answers = await asyncio.gather(*lookups.values(), return_exceptions=True)
    for i, answer in zip(lookups, answers, strict=True):
        outcomes[i] = answer
    lookups.clear()


def _bounding_offset(partition_log: PartitionLog, timestamp_ms: int, end: int | None) -> int | None:
    """Return an offset that is in memory; None if files must be read. `end`: the last stable offset for readers of
    committed records; None for the high watermark."""
    match timestamp_ms:
        case _ if timestamp_ms == EARLIEST_TIMESTAMP:
            return partition_log.log_start_offset
        case _ if timestamp_ms == LATEST_TIMESTAMP:
            return partition_log.high_watermark if end is None else end
        case _ if timestamp_ms == EARLIEST_LOCAL_TIMESTAMP:
            return partition_log.local_log_start_offset
        case _ if timestamp_ms == LATEST_TIERED_TIMESTAMP:
            return max(-1, partition_log.tier.state.copied_to - 1)
    return None


def _look_up(
    broker: Broker, partition_log: PartitionLog, timestamp_ms: int, end: int | None
) -> asyncio.Future[OffsetAndTimestamp]:
    def job() -> OffsetAndTimestamp:
        if timestamp_ms == MAX_TIMESTAMP:
            position = partition_log.reader.offset_of_max_timestamp()
        else:
            position = partition_log.reader.offset_for_timestamp(timestamp_ms)
        return position if end is None or position.offset < end else _NO_RECORD

    if partition_log.has_remote_segments:  # appends must not wait for the object store
        return asyncio.get_running_loop().run_in_executor(broker.storage.remote_reads, job)
    return broker.io.run(broker.io.idlest(), job)


def _failure(requested: ListOffsetsPartition, error: SparklogError) -> ListOffsetsResult:
    return ListOffsetsResult(requested.topic, requested.partition, error.code, message=str(error))


def _result(broker: Broker, requested: ListOffsetsPartition, outcome: _LookUpOutcome) -> ListOffsetsResult:
    if isinstance(outcome, ListOffsetsResult):
        return outcome
    if isinstance(outcome, OffsetAndTimestamp):
        epoch = _epoch_of(broker, requested, outcome.offset)
        behind = requested.timestamp_ms == LATEST_TIMESTAMP and _has_commits_behind(broker, requested, outcome.offset)
        return ListOffsetsResult(
            requested.topic, requested.partition, 0, outcome.offset, outcome.timestamp_ms, leader_epoch=epoch,
            has_commits_behind=behind,
        )  # fmt: skip
    if isinstance(outcome, SparklogError):
        return _failure(requested, outcome)
    log.error("%s-%d: looking up an offset failed", requested.topic, requested.partition, exc_info=outcome)
    return ListOffsetsResult(
        requested.topic, requested.partition, UnknownServerError.code, message="the lookup failed; see the broker's log"
    )
