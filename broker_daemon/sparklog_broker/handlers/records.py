"""DELETE_RECORDS: raises log starts; the space is freed in the background."""

from __future__ import annotations

from sparklog.errors import SparklogError
from sparklog.protocol.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
)
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.partition import Partition
from sparklog_broker.reply import Response


async def delete_records(request: DeleteRecordsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answered when the new log starts are on the disk. With one replica its log start is the low watermark."""
    outcomes: list[int | SparklogError | None] = [None] * len(request.partitions)
    deletions: dict[int, tuple[Partition, int]] = {}
    for i, wanted in enumerate(request.partitions):
        try:
            partition = context.broker.partition(wanted.topic, wanted.partition)
            _ = partition.log  # offline or deleted: raises
            deletions[i] = partition, wanted.before_offset
        except SparklogError as e:
            outcomes[i] = e
    if deletions:
        done = await context.broker.delete_records(list(deletions.values()))
        for i, outcome in zip(deletions, done, strict=True):
            outcomes[i] = outcome
    return Response(DeleteRecordsResponse([_result(*r) for r in zip(request.partitions, outcomes, strict=True)]))


def _result(wanted: DeleteRecordsPartition, outcome: int | SparklogError | None) -> DeleteRecordsResult:
    if isinstance(outcome, SparklogError):
        return DeleteRecordsResult(wanted.topic, wanted.partition, outcome.code, message=str(outcome))
    assert outcome is not None
    return DeleteRecordsResult(wanted.topic, wanted.partition, 0, outcome)
