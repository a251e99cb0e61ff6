"""What a follower's rules decide, carried out on its log. Blocks; runs on the partition's I/O thread."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.errors import CorruptBatchError
from sparklog.log.partition_log import PartitionLog
from sparklog.replication.replica.model import (
    AppendReplica,
    FollowerEffect,
    RestartAt,
    SetHighWatermark,
    SetLogStart,
    TruncateTo,
)


def carry_out(log: PartitionLog, effects: Sequence[FollowerEffect]) -> None:
    """In their order, each one completely; what is left to be asked and refreshed is not done here. With
    `flush.mode=group` what was appended is on the disk when this returns.

    Raises CorruptBatchError, OffsetOutOfRangeError, UnknownSchemaError, FencedLeaderEpochError, StorageFullError,
    StorageError; nothing behind the effect that failed is done then.
    """
    for effect in effects:
        match effect:
            case TruncateTo(offset):
                log.truncation.truncate_to(offset)
            case RestartAt(offset):
                log.truncation.restart_at(offset)
            case AppendReplica(batches):
                assert isinstance(batches.data, memoryview)
                info = log.replica.append(batches.data)
                if info.last_offset + 1 != batches.next_offset:
                    raise CorruptBatchError(
                        f"the leader's batches end at {info.last_offset + 1}, it has said {batches.next_offset}"
                    )
                if log.config.flush.at_append:
                    log.flusher.make_durable(info.last_offset + 1)
            case SetHighWatermark(offset):
                log.raise_high_watermark(offset)  # a truncation has lowered it already
            case SetLogStart(offset):
                log.retention.delete_records(offset)
            case _:
                pass
