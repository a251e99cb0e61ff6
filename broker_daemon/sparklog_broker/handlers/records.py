"""DELETE_RECORDS: raises log starts. The space is freed in the background."""

from __future__ import annotations

import asyncio

from sparklog.environment.time_slices import ITEMS_PER_LOOK
from sparklog.errors import SparklogError
from sparklog.protocol.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
)
from sparklog_broker.cluster.replica import ClusterReplica
from sparklog_broker.handlers.named_once import check_each_once
from sparklog_broker.network.reply import Response
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.request_context import RequestContext

_Outcome = int | SparklogError | DeleteRecordsResult | None


async def delete_records(request: DeleteRecordsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when the new log starts are stored here and on all live replicas (KIP-107), or after `timeout_ms`."""
    time_slices = context.broker.time_slices
    await check_each_once(time_slices, request.partitions)
    outcomes: list[_Outcome] = [None] * len(request.partitions)
    deletions: dict[int, tuple[Partition, int]] = {}
    for i, requested in enumerate(request.partitions):
        try:
            partition = context.broker.partitions.get(requested.topic, requested.partition)
            _ = partition.log  # offline or deleted: raises
            deletions[i] = partition, requested.before_offset
        except SparklogError as e:
            outcomes[i] = _failure(requested, e)  # not the exception: its traceback would occupy the garbage collector
        if i % ITEMS_PER_LOOK == 0 and time_slices.due():
            await time_slices.pause()
    if deletions:
        done = await context.broker.topics.delete_records(list(deletions.values()))
        for i, outcome in zip(deletions, done, strict=True):
            outcomes[i] = outcome
        replicated = [i for i in deletions if _is_replicated(deletions[i][0], outcomes[i])]
        timeout_s = request.timeout_ms / 1_000
        waits = [_low_watermark(deletions[i][0], outcomes[i], timeout_s) for i in replicated]
        for i, outcome in zip(replicated, await asyncio.gather(*waits), strict=True):
            outcomes[i] = outcome
    results = (_result(*r) for r in zip(request.partitions, outcomes, strict=True))
    return Response(DeleteRecordsResponse(await time_slices.list_of(results)))


def _is_replicated(partition: Partition, outcome: _Outcome) -> bool:
    return isinstance(outcome, int) and isinstance(partition.replicas, ClusterReplica)


async def _low_watermark(partition: Partition, outcome: _Outcome, timeout_s: float) -> int | SparklogError:
    assert isinstance(outcome, int)
    assert isinstance(partition.replicas, ClusterReplica)
    try:
        return await partition.replicas.until_deleted(outcome, timeout_s)
    except SparklogError as e:
        return e


def _failure(requested: DeleteRecordsPartition, error: SparklogError) -> DeleteRecordsResult:
    return DeleteRecordsResult(requested.topic, requested.partition, error.code, message=str(error))


def _result(requested: DeleteRecordsPartition, outcome: _Outcome) -> DeleteRecordsResult:
    if isinstance(outcome, DeleteRecordsResult):
        return outcome
    if isinstance(outcome, SparklogError):
        return _failure(requested, outcome)
    assert outcome is not None
    return DeleteRecordsResult(requested.topic, requested.partition, 0, outcome)
