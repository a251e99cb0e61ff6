"""Carries out the effects of a follower's rules on its log. Blocks; runs on the partition's I/O thread."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sparklog.errors import CorruptBatchError, OffsetOutOfRangeError
from sparklog.log.housekeeping.cleaner import cleaned_to
from sparklog.log.partition_log import PartitionLog
from sparklog.replication.replica.model import (
    AppendReplica,
    Batches,
    FollowerEffect,
    RestartAt,
    SetHighWatermark,
    SetLogStart,
    TruncateTo,
)

logger = logging.getLogger(__name__)


def carry_out(log: PartitionLog, effects: Sequence[FollowerEffect]) -> int | None:
    """Carry out `effects` in order. The caller handles Fetch and RefreshMetadata.

    With `flush.mode=group` the whole log is durable when this function returns, because the next fetch acknowledges it.
    This includes records of an earlier attempt, and of this broker's own leadership.

    Raises CorruptBatchError, OffsetOutOfRangeError, UnknownSchemaError, FencedLeaderEpochError, StorageFullError,
    StorageError. The effects after the failed one are not carried out.

    Returns the log end after a TruncateTo; None if `effects` has none. The log end can be below the requested offset,
    because batches and ranges that compaction has emptied are removed whole. The next fetch begins at the log end."""
    cut_to: int | None = None
    for effect in effects:
        match effect:
            case TruncateTo(offset):
                cut_to = _cut(log, offset)
            case RestartAt(offset):
                log.truncation.restart_at(offset)
            case AppendReplica(batches):
                _append(log, batches)
            case SetHighWatermark(offset):
                log.raise_high_watermark(offset)  # a truncation has lowered it already
            case SetLogStart(offset):
                log.flusher.flush_to(min(offset, log.high_watermark))  # as in TopicDirectories.delete_records
                log.retention.follow_log_start(offset)
            case _:
                pass
    if is_not_durable(log):
        log.flusher.make_durable(log.log_end_offset)
    return cut_to


def _cut(log: PartitionLog, offset: int) -> int:
    """Truncate the log at `offset`, and return its end.

    Committed records are truncated only after an unclean election, or at a gap that a repair has left. After an unclean
    election a compacted log is emptied. Its truncated records had replaced older values below `offset`, which the
    leader still has and this log lacks. At a gap the leader has the truncated records, too, and sends them again.
    """
    is_undone = all(offset != first for first, _ in log.gaps)
    if is_undone and offset < max(log.high_watermark, cleaned_to(log)) and any(s.compacted for s in log.segments):
        log.truncation.restart_at(log.log_start_offset)
        return log.log_end_offset
    return log.truncation.truncate_to(offset)


def is_not_durable(log: PartitionLog) -> bool:
    """True if the log must be flushed before a fetch from its end is sent."""
    return log.durable_end_offset < log.log_end_offset


def _append(log: PartitionLog, batches: Batches) -> None:
    assert isinstance(batches.data, memoryview)
    if not set(batches.gaps) <= set(log.gaps):
        log.flusher.flush_to(log.log_end_offset)  # the log before a gap must be durable before the gap is recorded
    if not batches.data:
        log.replica.skip(batches.gaps, batches.epochs)
        return
    first = log.replica.first_header(batches.data)
    if log.replica.may_lack_deletions(batches.data):
        logger.warning(
            "partition %s was not copied for longer than delete.retention.ms before this start, and its leader may "
            "have removed tombstones: the replica is copied again from offset %d",
            log.owner.topic_partition, batches.log_start_offset,
        )  # fmt: skip
        log.truncation.restart_at(batches.log_start_offset)
        raise OffsetOutOfRangeError(f"{log.owner.topic_partition} is emptied and begins at {batches.log_start_offset}")
    end = log.log_end_offset
    begins_inside = first.base_offset < end < first.next_offset and end in (
        log.log_start_offset,
        batches.log_start_offset,
    )
    if begins_inside:  # the leader has deleted the first records of this batch
        log.truncation.restart_at(first.base_offset)
    info = log.replica.append(batches.data, batches.epochs, batches.segments, batches.gaps)
    if info.last_offset >= batches.next_offset:
        raise CorruptBatchError(
            f"the leader's batches end at {info.last_offset + 1}, but its response announced {batches.next_offset}"
        )  # a lower end is allowed: compaction removes records
    if begins_inside:
        log.raise_high_watermark(end)  # only committed records were deleted
        log.retention.follow_log_start(end)
