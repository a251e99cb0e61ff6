"""One round of tiering over one log. Its order leaves a sound state after a crash at any point.

Only the leader makes copies. Another replica searches for them in the store (`adopt.py`) when it could release local
files, or when it begins to lead.

1. Incomplete copies of an earlier attempt (started but not finished, or half deleted) are deleted, with two exceptions.
   A copy that has its manifest counts as finished, even if its maker got an error for the manifest or died at that
   moment: other replicas can have found the copy and released local files for it. A copy above a cut of this log (which
   had lost records or began empty) stays: it counts again when the log has its records again.
2. Segments that are due are copied: "started" is on the disk before the first object is created, "finished" after the
   last.
3. Local segments that are no longer needed are replaced by their copies; the files are deleted after
   `file.delete.delay.ms`.
4. Copies wholly below the log start are deleted, the manifest first. Before, retention or delete-records has raised the
   log start and recorded it.

A failure ends the round for this log; the next round begins with step 1.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from sparklog.environment.clock import Clock
from sparklog.environment.files import File, FileSystem
from sparklog.errors import CorruptBatchError, LogCorruptError, SparklogError
from sparklog.format.checksum import crc32c
from sparklog.format.segment import SealedBlocks, decode_seal
from sparklog.log.housekeeping.adopt import adopt_copies, find_copy, has_its_records, is_needed
from sparklog.log.model.tiering_policy import to_copy, to_release
from sparklog.log.partition_log import PartitionLog
from sparklog.log.segments.segment import LogSegment
from sparklog.log.tiering.columns import encode_columns
from sparklog.log.tiering.journal import JOURNAL_FILE, Journal
from sparklog.log.tiering.layout import (
    CHECKSUMS_SUFFIX,
    COLUMNS_SUFFIX,
    LOCAL_SIDECARS,
    MANIFEST,
    PIECE_BYTES,
    copy_prefix,
    encode_checksums,
    encode_manifest,
    object_name,
    object_names,
)
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.log.tiering.state import (
    CopyFinished,
    CopyStarted,
    DeleteFinished,
    DeleteStarted,
    ObjectInfo,
    Phase,
    RemoteCopy,
    RemoteSegmentMetadata,
)

logger = logging.getLogger(__name__)

Stop = Callable[[], None]
"""Called between pieces of work; raises to end the round."""


def never_stop() -> None:
    """Do nothing: the default, which never stops a round."""


class TierResult(NamedTuple):
    """Numbers of segments copied, released locally and deleted in the store; `cleaned`: incomplete copies deleted."""

    copied: int = 0
    released: int = 0
    deleted: int = 0
    cleaned: int = 0


class Role(Enum):
    """Task of this replica for the log's copies."""

    NEW_LEADER = "new leader"
    """The replica leads, and has not searched for the copies of other replicas yet."""
    LEADER = "leader"
    FOLLOWER = "follower"
    """The replica copies nothing, and deletes only its own copies."""


def tier_log(log: PartitionLog, store: ObjectStore, clock: Clock, role: Role, stop: Stop = never_stop) -> TierResult:
    """Run one round, with the steps of the module. If the topic is not tiered, only steps 1 and 4 are done. Raises
    RemoteStorageError, StorageError, StorageFullError, LogCorruptError."""
    cleaned = 0
    for copy in log.tier.state.orphans:
        stop()
        if _keep_if_whole(log, store, copy) or _keep_if_cut(log, store, copy, role):
            continue
        if copy.started.adopted and role is Role.FOLLOWER:
            _forget_copy(log, copy)
        else:
            _delete_copy(log.tier.record, store, copy)
        cleaned += 1
    if not log.config.tiering.enabled:
        return TierResult(0, 0, _delete_gone(log, store, stop, role), cleaned)
    if role is Role.NEW_LEADER or (role is Role.FOLLOWER and _would_release(log, clock)):
        stop()
        adopt_copies(log, store, with_deleted=role is Role.NEW_LEADER)
    copied = 0 if role is Role.FOLLOWER else _copy_due(log, store, clock, stop)
    return TierResult(copied, _release(log, clock), _delete_gone(log, store, stop, role), cleaned)


# --- copying ---


def _copy_due(log: PartitionLog, store: ObjectStore, clock: Clock, stop: Stop) -> int:
    count = 0
    while True:
        stop()
        due = to_copy(
            log.local_segments,
            copied_to=log.tier.state.copied_to,
            log_start_offset=log.log_start_offset,
            tierable_end=log.tierable_end,
        )
        if not due:
            return count
        _copy_segment(log, due[0], store, clock, stop)
        count += 1


def _copy_segment(log: PartitionLog, segment: LogSegment, store: ObjectStore, clock: Clock, stop: Stop) -> None:
    """Copy one sealed segment. If this fails, the copy's objects are deleted, now or in the next round, unless its
    manifest exists: other replicas can have found the copy then."""
    copy_id = uuid.uuid4().hex
    prefix = copy_prefix(log.owner, segment.base_offset, copy_id)
    log.tier.record(CopyStarted(copy_id, prefix, segment.base_offset, segment.next_offset))
    try:
        metadata = _upload(log, segment, store, (copy_id, prefix), clock, stop)
        log.tier.record(CopyFinished(metadata))
    except SparklogError:
        _try_delete(log, store, copy_id)
        raise
    logger.info(
        "partition %s: offsets %d to %d are in the object store (%d bytes)",
        log.owner.topic_partition, segment.base_offset, segment.next_offset - 1, metadata.size_bytes,
    )  # fmt: skip


def _keep_if_whole(log: PartitionLog, store: ObjectStore, copy: RemoteCopy) -> bool:
    """Return True if an unfinished copy has its manifest and is not below the log start. If the copy is wanted here, it
    is recorded as finished."""
    if copy.phase is not Phase.COPYING or copy.started.next_offset <= log.log_start_offset:
        return False
    manifest = find_copy(store, copy.started)
    if manifest is not None and is_needed(log, manifest, with_deleted=False):
        log.tier.record(CopyFinished(manifest))
    return manifest is not None  # other replicas can want an unwanted copy: it stays until the log start has passed it


def _keep_if_cut(log: PartitionLog, store: ObjectStore, copy: RemoteCopy, role: Role) -> bool:
    """Return True if a copy whose offsets were cut from this log must stay in the store: other replicas can have
    released local files for it. The copy counts again when the log has its records again. If the log has other records
    now, after an unclean election, a replica with the copy's records can lead after the next election. So the copy
    stays until the log start has passed it."""
    if copy.phase is not Phase.DELETING or copy.segment is None or copy.started.next_offset <= _deleted_to(log, role):
        return False
    has_its_offsets = log.log_start_offset < copy.started.next_offset <= log.tierable_end
    if not has_its_offsets or not has_its_records(log, copy.segment):
        return True
    manifest = find_copy(store, copy.started)
    if manifest is None:
        return False
    _forget_copy(log, copy)
    if is_needed(log, manifest, with_deleted=False):
        log.tier.record(copy.started)
        log.tier.record(CopyFinished(manifest))
    return True


def _try_delete(log: PartitionLog, store: ObjectStore, copy_id: str) -> None:
    copy = log.tier.state.copies.get(copy_id)
    try:
        if copy is None or copy.phase is not Phase.COPYING:
            return
        if not _keep_if_whole(log, store, copy):
            _delete_copy(log.tier.record, store, copy)
    except SparklogError as e:
        logger.warning("%s: the remains of a failed copy are deleted later: %s", copy_id, e)


def _upload(
    log: PartitionLog, segment: LogSegment, store: ObjectStore, attempt: tuple[str, str], clock: Clock, stop: Stop
) -> RemoteSegmentMetadata:
    copy_id, prefix = attempt
    base = segment.base_offset
    largest = segment.largest_timestamp
    if largest is None:
        raise LogCorruptError(f"{segment.path} holds no batch")
    store.make_folder(prefix)
    objects: dict[str, ObjectInfo] = {}

    def put(name: str, parts: Iterator[bytes]) -> None:
        stop()
        objects[name] = store.write(f"{prefix}/{name}", parts)

    shared = segment.acquire()
    try:
        seal = decode_seal(shared.file.read, shared.file.size())
        if seal is None:
            raise LogCorruptError(f"{segment.path} has no footer")
        checksums: list[int] = []
        put(object_name(base, ".arrow"), _pieces(shared.file.read, shared.file.size(), checksums, stop))
        columns = _columns(segment, shared.file, seal)
    finally:
        shared.release()
    for suffix, data in zip(LOCAL_SIDECARS, segment.indexes.encode(), strict=True):
        put(object_name(base, suffix), iter([data]))
    put(object_name(base, CHECKSUMS_SUFFIX), iter([encode_checksums(checksums)]))
    if columns is not None:
        put(object_name(base, COLUMNS_SUFFIX), iter([columns]))
    metadata = RemoteSegmentMetadata(
        id=copy_id,
        prefix=prefix,
        base_offset=base,
        next_offset=segment.next_offset,
        schema_id=segment.info.schema_id,
        size_bytes=objects[object_name(base, ".arrow")].size_bytes,
        data_position=segment.data_position,
        data_end=seal.data_end,
        largest_timestamp_ms=largest[0],
        largest_timestamp_offset=largest[1],
        append_time_ms=segment.append_time_ms,
        copied_ms=clock.now_ms(),
        checksum_bytes=PIECE_BYTES,
        objects=objects,
        leader_epochs=log.epochs.between(base, segment.next_offset),
        has_gaps=segment.has_gaps,
        aborted=[(e[0], e[1], e[2], e[3]) for e in log.reader.aborted_in(base, segment.next_offset)],
    )
    store.write(f"{prefix}/{MANIFEST}", [encode_manifest(log.owner, metadata)])
    return metadata


def _columns(segment: LogSegment, file: File, seal: SealedBlocks) -> bytes | None:
    try:
        return encode_columns(file.read, seal.positions, seal.metadata_lengths, seal.data_end)
    except CorruptBatchError as e:
        raise LogCorruptError(f"{segment.path}: {e}") from e


def _pieces(read: Callable[[int, int], bytes], size: int, checksums: list[int], stop: Stop) -> Iterator[bytes]:
    """Yield the pieces of a file, and append the CRC of each to `checksums`."""
    for position in range(0, size, PIECE_BYTES):
        stop()
        piece = read(position, min(PIECE_BYTES, size - position))
        checksums.append(crc32c(piece))
        yield piece


# --- local files ---


def _due_locally(log: PartitionLog, clock: Clock, copied_to: int) -> int:
    """Return the number of oldest local segments that are to be released, given that all below `copied_to` is
    copied."""
    return to_release(
        log.local_segments,
        log.config.tiering.local,
        copied_to=copied_to,
        now_ms=clock.now_ms(),
        largest_timestamp_of=lambda s: None if s.largest_timestamp is None else s.largest_timestamp[0],
    )


def _would_release(log: PartitionLog, clock: Clock) -> bool:
    """Return True if a copy of another replica, unknown to this one, would allow local segments to be released."""
    local, copied_to = log.local_segments, log.tier.state.copied_to
    due = _due_locally(log, clock, log.tierable_end)
    return any(copied_to < s.next_offset <= log.tierable_end for s in local[:due])


def _release(log: PartitionLog, clock: Clock) -> int:
    """Replace local segments by their copies, as far as `local.retention.*` demands, and return their number. A copy
    made by another replica can contain several local segments.
    """
    local, state = log.local_segments, log.tier.state
    count = _due_locally(log, clock, state.copied_to)
    by_base = {s.base_offset: s for s in state.finished}
    old: list[LogSegment] = []
    copies: list[RemoteSegmentMetadata] = []
    behind: list[LogSegment] = []
    for segment in local[:count]:
        behind.append(segment)
        copy = by_base.get(behind[0].base_offset)
        if copy is None or copy.next_offset < segment.next_offset:
            break
        if copy.next_offset == segment.next_offset:
            old += behind
            copies.append(copy)
            behind = []
    if old and log.replacement.release_local(old, [log.tier.segment(copy) for copy in copies]):
        logger.info(
            "partition %s: %d segments are no longer local, the local log begins at %d",
            log.owner.topic_partition, len(old), log.local_log_start_offset,
        )  # fmt: skip
        return len(old)
    return 0


# --- deleting ---


def _delete_gone(log: PartitionLog, store: ObjectStore, stop: Stop, role: Role) -> int:
    """Delete the copies wholly below the log start, and return their number. A follower only forgets the copies that it
    has adopted, because the leader deletes these."""
    held = {s.base_offset for s in log.segments}
    below, deleted_to = log.log_start_offset, _deleted_to(log, role)
    gone = [
        copy
        for copy in log.tier.state.copies.values()
        if copy.segment is not None
        and copy.segment.next_offset <= (below if copy.started.adopted else deleted_to)
        and copy.segment.base_offset not in held
    ]
    for copy in sorted(gone, key=lambda c: c.started.base_offset):
        stop()
        if copy.started.adopted and role is Role.FOLLOWER:
            _forget_copy(log, copy)
            continue
        _delete_copy(log.tier.record, store, copy)
        logger.info(
            "partition %s: offsets %d to %d are deleted from the object store",
            log.owner.topic_partition, copy.started.base_offset, copy.started.next_offset - 1,
        )  # fmt: skip
    return len(gone)


def _deleted_to(log: PartitionLog, role: Role) -> int:
    """Return the offset below which whole copies can be deleted. A follower whose own retention is ahead must not
    delete copies that its leader still serves."""
    return min(log.log_start_offset, log.retention.leader_log_start) if role is Role.FOLLOWER else log.log_start_offset


def _forget_copy(log: PartitionLog, copy: RemoteCopy) -> None:
    if copy.phase is not Phase.DELETING:
        log.tier.record(DeleteStarted(copy.started.id))
    log.tier.record(DeleteFinished(copy.started.id))


def _delete_copy(
    record: Callable[[DeleteStarted | DeleteFinished], None], store: ObjectStore, copy: RemoteCopy
) -> None:
    if copy.phase is not Phase.DELETING:
        record(DeleteStarted(copy.started.id))
    store.remove(copy.started.prefix, [MANIFEST, *(n for n in object_names(copy.started.base_offset) if n != MANIFEST)])
    record(DeleteFinished(copy.started.id))


def delete_all(files: FileSystem, directory: Path, store: ObjectStore, stop: Stop = never_stop) -> int:
    """Delete all copies in the journal of `directory`, a deleted partition, and then the journal; return the number of
    copies. Raises RemoteStorageError, StorageError, StorageFullError, LogCorruptError."""
    journal = Journal(files, directory)
    copies = list(journal.state.copies.values())
    try:
        for copy in copies:
            stop()
            _delete_copy(journal.append, store, copy)
    finally:
        journal.close()
    files.remove(directory / JOURNAL_FILE)
    return len(copies)
