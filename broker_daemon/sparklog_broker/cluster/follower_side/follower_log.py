"""What a follower's rules decide, carried out on its log. Blocks; runs on the partition's I/O thread."""

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
    """In their order, each one completely; what is left to be asked and refreshed is not done here. With
    `flush.mode=group` all that is in the log is on the disk when this returns: the next fetch acknowledges it. That
    may be what an earlier attempt has appended, or this broker when it led.

    Returns where the log ends if it was cut, which may be below where it was to be: a batch goes as a whole, and so
    does what compaction has left out. The next fetch begins there.

    Raises CorruptBatchError, OffsetOutOfRangeError, UnknownSchemaError, FencedLeaderEpochError, StorageFullError,
    StorageError; nothing behind the effect that failed is done then.
    """
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
                log.flusher.flush_to(min(offset, log.high_watermark))  # as for what is deleted on request
                log.retention.follow_log_start(offset)
            case _:
                pass
    if is_not_durable(log):
        log.flusher.make_durable(log.log_end_offset)
    return cut_to


def _cut(log: PartitionLog, offset: int) -> int:
    """Returns the log end. What was committed goes after an unclean election, or where a repair has left a gap. Of a
    compacted log all goes then: what an unclean election has undone had taken the place of older values, which are gone
    from below the cut, and the leader has them still. What is lost in a gap has not been undone."""
    is_undone = all(offset != first for first, _ in log.gaps)
    if is_undone and offset < max(log.high_watermark, cleaned_to(log)) and any(s.compacted for s in log.segments):
        log.truncation.restart_at(log.log_start_offset)
        return log.log_end_offset
    return log.truncation.truncate_to(offset)


def is_not_durable(log: PartitionLog) -> bool:
    """Whether something has to reach the disk before a fetch from the log end may be sent."""
    return log.durable_end_offset < log.log_end_offset


def _append(log: PartitionLog, batches: Batches) -> None:
    assert isinstance(batches.data, memoryview)
    if not set(batches.gaps) <= set(log.gaps):
        log.flusher.flush_to(log.log_end_offset)  # before a gap is written down that follows on it
    if not batches.data:
        log.replica.skip(batches.gaps, batches.epochs)
        return
    first = log.replica.first_header(batches.data)
    if log.replica.may_lack_deletions(batches.data):
        logger.warning(
            "partition %s was not copied for longer than delete.retention.ms before this start: what was deleted "
            "meanwhile may be gone from its leader, it is copied anew from offset %d",
            log.owner.topic_partition, batches.log_start_offset,
        )  # fmt: skip
        log.truncation.restart_at(batches.log_start_offset)
        raise OffsetOutOfRangeError(f"{log.owner.topic_partition} begins anew at {batches.log_start_offset}")
    end = log.log_end_offset
    begins_inside = first.base_offset < end < first.next_offset and end in (
        log.log_start_offset,
        batches.log_start_offset,
    )
    if begins_inside:  # the leader's log begins in the middle of a batch, and nothing before it is wanted
        log.truncation.restart_at(first.base_offset)
    info = log.replica.append(batches.data, batches.epochs, batches.segments, batches.gaps)
    if info.last_offset >= batches.next_offset:
        raise CorruptBatchError(
            f"the leader's batches end at {info.last_offset + 1}, it has said {batches.next_offset}"
        )  # they may end before: compaction has left a gap
    if begins_inside:
        log.raise_high_watermark(end)  # deleted is only what was committed
        log.retention.follow_log_start(end)
