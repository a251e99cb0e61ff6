"""Appending to a follower's log: the leader's batches as they are, and the beginnings of leader epochs.

The leader has checked what the batches hold and stamped them. Here only their checksums are looked at, and that they
follow on the log. A batch in a compacted segment has offsets left out, which a segment that is appended to cannot have:
it is refused.
"""

from __future__ import annotations

from sparklog.errors import CorruptBatchError, OffsetOutOfRangeError, UnknownSchemaError
from sparklog.format.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_OFFSET_COLUMN,
    BatchHeader,
    iterate_batches,
    verify_checksum,
)
from sparklog.log.log_state import LogState
from sparklog.log.model import AppendInfo
from sparklog.log.segments.segment import PlacedBatch
from sparklog.testing.faults import reach


class ReplicaAppender:
    """One thread at a time, under the log's write lock."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    def begin_epoch(self, leader_epoch: int) -> None:
        """This broker leads in `leader_epoch`, which begins at the log end, with or without records. It is on the disk
        before its first record. Raises FencedLeaderEpochError."""
        with self._state.write_lock:
            self._state.health.check()
            self._state.epochs.expect(leader_epoch, self._state.offsets.written)

    def append(self, payload: bytes | bytearray | memoryview) -> AppendInfo:
        """Appends whole batches of the leader's log, with its stamps; the first begins at the log end.

        Nothing is appended if anything is wrong. Raises CorruptBatchError, OffsetOutOfRangeError (they do not follow
        on the log), UnknownSchemaError (the topic's metadata are not here yet), FencedLeaderEpochError,
        StorageFullError, StorageError.
        """
        view = memoryview(payload).cast("B")
        self._state.health.check()
        found = self._checked(view)
        with self._state.write_lock:
            self._state.health.check()
            if found[0].header.base_offset != self._state.offsets.written:
                raise OffsetOutOfRangeError(
                    f"{self._state.owner.topic_partition} ends at {self._state.offsets.written}, the leader's batches begin "
                    f"at {found[0].header.base_offset}"
                )
            return self._append(view, found)

    def _checked(self, view: memoryview) -> list[PlacedBatch]:
        found: list[PlacedBatch] = []
        for position, header in iterate_batches(view, verify=False):
            verify_checksum(view, position, header)
            self._check_header(header, found[-1].header if found else None)
            found.append(PlacedBatch(position, header))
        if not found:
            raise CorruptBatchError("the leader has sent no batch")
        return found

    def _check_header(self, header: BatchHeader, before: BatchHeader | None) -> None:
        where = f"the leader's batch at offset {header.base_offset}"
        if header.attributes & ATTRIBUTE_OFFSET_COLUMN:
            raise CorruptBatchError(f"{where} has been compacted, it can only be copied with its segment")
        is_marker = header.attributes & ATTRIBUTE_CONTROL and not header.record_count
        due = 0 if is_marker else header.record_count - 1
        if min(header.leader_epoch, due) < 0 or header.last_offset_delta != due:
            raise CorruptBatchError(
                f"{where} has {header.record_count} records, last offset delta {header.last_offset_delta}, epoch "
                f"{header.leader_epoch}"
            )
        if before is not None and before.next_offset != header.base_offset:
            raise CorruptBatchError(f"{where} does not follow on the one before, which ends at {before.next_offset}")
        if before is not None and before.leader_epoch > header.leader_epoch:
            raise CorruptBatchError(f"{where} has leader epoch {header.leader_epoch}, behind {before.leader_epoch}")
        try:
            self._state.schema_of(header.schema_id)
        except KeyError as e:
            raise UnknownSchemaError(f"{where} has schema {header.schema_id}, which is not known here yet") from e

    def _append(self, view: memoryview, batches: list[PlacedBatch]) -> AppendInfo:
        reach("log.before-append")
        state = self._state
        for _, header in batches:
            state.epochs.begin(header.leader_epoch, header.base_offset)
        first, last = batches[0].header, batches[-1].header
        state.offsets.reserve(last.next_offset)
        state.enter(view, batches, last.append_time_ms)
        records = sum(b.header.record_count for b in batches)
        return AppendInfo(
            first.base_offset, last.last_offset, last.append_time_ms, len(batches), records, size_bytes=len(view)
        )
