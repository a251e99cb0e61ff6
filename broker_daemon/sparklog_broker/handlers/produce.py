"""PRODUCE: append each partition's batches, answer when as many replicas have them as `acks` asks for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Mapping
from functools import partial

from sparklog.errors import (
    InvalidRequestError,
    RequestTimedOutError,
    SparklogError,
    StorageError,
    StorageFullError,
    UnknownServerError,
)
from sparklog.log.model import AppendInfo
from sparklog.log.partition_log import PartitionLog
from sparklog.metadata.store import Topic
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse, ProduceResult
from sparklog_broker.broker import Broker
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.partition import Partition
from sparklog_broker.purgatory import Outcome
from sparklog_broker.reply import Response

log = logging.getLogger(__name__)

ACKS_NONE = 0
ACKS_ALL = -1

_Outcome = AppendInfo | Exception
_Append = tuple[int, Partition, PartitionLog, memoryview]
"""Position in the request, and what is appended where."""


async def produce(request: ProduceRequest, payload: memoryview, context: RequestContext) -> Response:
    """Every partition has its own outcome. With acks 0 nothing is answered, but an error closes the connection."""
    pieces = _cut(request.partitions, payload)
    outcomes: list[_Outcome | None] = [None] * len(pieces)
    partitions: list[Partition | None] = [None] * len(pieces)
    by_thread: dict[int, list[_Append]] = {}
    for i, (wanted, piece) in enumerate(zip(request.partitions, pieces, strict=True)):
        try:
            partition = context.broker.partition(wanted.topic, wanted.partition)
            by_thread.setdefault(partition.thread, []).append((i, partition, partition.log, piece))
            partitions[i] = partition
        except SparklogError as e:
            outcomes[i] = e
    if by_thread:
        await _append_all(context.broker, by_thread, outcomes)
    if request.acks == ACKS_ALL:
        await _wait_for_replicas(context.broker, request.timeout_ms, partitions, outcomes)
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


async def _append_all(broker: Broker, by_thread: dict[int, list[_Append]], outcomes: list[_Outcome | None]) -> None:
    """Appends on the partitions' threads and fills in `outcomes`.

    What follows from an append (high watermark, wake-ups) happens when the thread reports it, whether or not somebody
    still waits here: the peer may be gone by then.
    """
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    left = len(by_thread)

    def deliver(appends: list[_Append], results: list[_Outcome]) -> None:
        nonlocal left
        left -= 1
        for (i, partition, _, _), outcome in zip(appends, results, strict=True):
            partition.appends_pending -= 1
            outcomes[i] = outcome
            _after_append(partition, outcome)
        if not left and not done.done():
            done.set_result(None)

    for thread, appends in by_thread.items():
        inline = broker.may_append_inline((a[1] for a in appends), sum(len(a[3]) for a in appends))
        for _, partition, _, _ in appends:
            partition.appends_pending += 1
        if inline:
            started_at = loop.time()
            deliver(appends, _append_each(appends))
            broker.note_inline_append(started_at)
        else:
            broker.io.submit(
                thread, partial(_append_each, appends), partial(_delivered, deliver, appends), partial(_sync, appends)
            )
    if left:
        await done


def _delivered(
    deliver: Callable[[list[_Append], list[_Outcome]], None],
    appends: list[_Append],
    results: list[_Outcome],
    _: Exception | None,
) -> None:
    deliver(appends, results)


def _append_each(appends: list[_Append]) -> list[_Outcome]:
    """Runs on an I/O thread. One partition's failure is no other's."""
    results: list[_Outcome] = []
    for _, partition, partition_log, piece in appends:
        try:
            results.append(partition_log.append(piece, leader_epoch=partition.replicas.leader_epoch))
        except Exception as e:  # noqa: BLE001 - becomes the partition's outcome
            results.append(e)
    return results


def _sync(appends: list[_Append], results: list[_Outcome]) -> list[_Outcome]:
    """Runs on an I/O thread when all that had arrived has been appended: the first partition that has to be on the disk
    is fsynced for all appends to it. What could not be fsynced has failed, whether it is on the disk or not."""
    for i, (_, _, partition_log, _) in enumerate(appends):
        outcome = results[i]
        if isinstance(outcome, AppendInfo) and partition_log.config.flush.at_append:
            try:
                partition_log.make_durable(outcome.last_offset + 1)
            except Exception as e:  # noqa: BLE001 - becomes the partition's outcome
                results[i] = e
    return results


def _after_append(partition: Partition, outcome: _Outcome) -> None:
    if isinstance(outcome, AppendInfo):
        partition.storage_failing = False
        partition.on_appended(outcome)
    elif isinstance(outcome, StorageFullError | StorageError):
        # A full disk fails every append: said once, until it has recovered.
        if not partition.storage_failing:
            log.error("partition %s: %s", partition.key, outcome)
        partition.storage_failing = True
    elif not isinstance(outcome, SparklogError):
        log.error("partition %s: an append failed", partition.key, exc_info=outcome)


async def _wait_for_replicas(
    broker: Broker, timeout_ms: int, partitions: list[Partition | None], outcomes: list[_Outcome | None]
) -> None:
    """Returns when every append is below its partition's high watermark; those that are not in time, have failed."""
    waiting = {
        i: (partition, outcome.last_offset + 1)
        for i, (partition, outcome) in enumerate(zip(partitions, outcomes, strict=True))
        if partition is not None and isinstance(outcome, AppendInfo)
    }

    def replicated(_: Hashable | None) -> bool:
        for i, (partition, end) in list(waiting.items()):
            if partition.deleted or partition.error is not None or partition.replicas.high_watermark >= end:
                del waiting[i]
        return not waiting

    if replicated(None):
        return
    keys = [partition.key for partition, _ in waiting.values()]
    if await broker.produces.wait(keys, replicated, timeout_ms / 1000) is not Outcome.SATISFIED:
        for i, (partition, _) in waiting.items():
            outcomes[i] = RequestTimedOutError(
                f"partition {partition.key}: written, but not on all in-sync replicas within {timeout_ms} ms"
            )


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
