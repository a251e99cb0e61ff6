"""One run of retention over many logs, in an order that survives a crash at any point.

First the log starts are raised, then they are written to the checkpoint, then the segments leave the logs. Only after
`file.delete.delay.ms`, a later run unlinks their files. A log always keeps a last segment file, if necessary an empty
one: the file's name says where the log ends, even when the checkpoint is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sparklog.errors import SparklogError, StorageFullError, UnknownTopicOrPartitionError
from sparklog.log.partition_log import PartitionLog
from sparklog.types import TopicPartition

logger = logging.getLogger(__name__)


class RetentionResult(NamedTuple):
    """The result of one run. `raised`: the partitions whose log start was raised. `removed_count`: number of segments
    whose files were unlinked; earlier runs had deleted these segments."""

    raised: list[TopicPartition]
    removed_count: int


def run_retention(logs: Mapping[TopicPartition, PartitionLog], checkpoint: Callable[[], None]) -> RetentionResult:
    """Delete the expired segments of `logs`. A log that fails is logged, and the others continue.

    `checkpoint` makes the log starts durable. The run must not overlap with a flush of the same logs. Raises
    StorageError if the checkpoint cannot be written; a full disk does not stop the run, because the run makes room.
    """
    removed = remove_dropped(logs)
    raised = []
    for tp, log in logs.items():
        before = log.log_start_offset
        try:
            retained = log.retention.retain()
        except UnknownTopicOrPartitionError:
            continue  # deleted meanwhile
        except SparklogError as e:
            if not log.is_closed:
                logger.error("partition %s: retention failed and will be retried: %s", tp, e)  # noqa: TRY400
            continue
        if retained.count:
            end = log.log_start_offset
            logger.info(
                "partition %s: %d segments are deleted (%s); the log begins at %d", tp, retained.count, retained, end
            )
        if log.log_start_offset > before or retained.count:
            raised.append(tp)
    if raised:
        try:
            checkpoint()
        except StorageFullError as e:
            # the first segment that stays says as much as the checkpoint would have
            logger.warning("log start offsets could not be stored; segments are deleted nevertheless: %s", e)
    for tp in raised:
        logs[tp].retention.drop_below_log_start()
    return RetentionResult(raised, removed)


class HeldBack(NamedTuple):
    """Numbers of the partitions, segments and bytes that are expired by the wall clock, but not by the expiry clock."""

    partitions: int
    segments: int
    size_bytes: int


def held_back(logs: Mapping[TopicPartition, PartitionLog]) -> HeldBack:
    """Count the segments of `logs` that are kept only because the expiry clock is behind the wall clock."""
    partitions = segments = size_bytes = 0
    for log in logs.values():
        try:
            count, held_bytes = log.retention.held_back()
        except SparklogError:
            continue  # `retain` has said so
        partitions += count > 0
        segments += count
        size_bytes += held_bytes
    return HeldBack(partitions, segments, size_bytes)


def remove_dropped(logs: Mapping[TopicPartition, PartitionLog]) -> int:
    """Unlink the files of deleted segments whose `file.delete.delay.ms` has passed; return the number of segments.
    Failures are logged."""
    removed = 0
    for tp, log in logs.items():
        try:
            removed += log.retention.remove_dropped()
        except SparklogError as e:
            if log.is_closed:
                continue  # deleted meanwhile
            logger.error("partition %s: files of deleted segments could not be removed and will be retried: %s", tp, e)  # noqa: TRY400
    return removed
