"""Opening of a log: its working state is built from the files of its directory and from its journal."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from sparklog.environment.clock import Clock
from sparklog.environment.files import TEMPORARY_SUFFIX, FileSystem, read_whole
from sparklog.errors import LogCorruptError
from sparklog.format.checkpoint import PARTITION_FILE, PartitionMeta, decode, encode
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.producers.files import ProducerFiles, newest_snapshot_offset
from sparklog.log.producers.partition_producers import PartitionProducers
from sparklog.log.producers.states import Safeguards
from sparklog.log.segments.segment_list import SegmentList
from sparklog.log.segments.slices import HandleCache
from sparklog.log.segments.stored_schema import SchemaOf
from sparklog.log.segments.view import SegmentView
from sparklog.log.state.leader_epochs import load_epochs
from sparklog.log.state.loading import LoadContext, load_log
from sparklog.log.state.log_state import LogState
from sparklog.log.state.offsets import LogOffsets
from sparklog.log.state.repaired_gaps import RepairedGaps
from sparklog.log.state.segment_writer import SegmentWriter
from sparklog.log.state.truncation_mark import TruncationMark
from sparklog.log.tiering.partition_tier import PartitionTier
from sparklog.log.tiering.remote_segment import RemoteAccess

logger = logging.getLogger(__name__)


def open_state(
    directory: Path,
    owner: LogOwner,
    config: LogConfig,
    schema_of: SchemaOf,
    *,
    files: FileSystem,
    clock: Clock,
    expiry_clock: Clock,
    clean: bool,
    points: tuple[int, int, int],
    handles: HandleCache,
    inflated: InflatedMemory,
    remote: RemoteAccess,
    newest_schema_id: int,
    was_created: bool,
    same_boot: bool,
    checkpointed: bool,
    safeguards: Safeguards,
) -> LogState:
    """Build the state of a log, with the arguments of `PartitionLog.open`. `points`: log start, high watermark and
    recovery point of the last checkpoint.

    Raises LogCorruptError, StorageError, StorageFullError.
    """
    tier = PartitionTier(files, directory, owner, remote)
    truncation = TruncationMark(files, directory)
    _identify(directory, owner, files, was_created=was_created)
    points = truncation.clamp(points)
    log_start_offset, high_watermark, recovery_point = points
    written_to = max(high_watermark, newest_snapshot_offset(files, directory)) if clean or same_boot else 0
    context = LoadContext(
        directory,
        owner,
        schema_of,
        files,
        config.index_interval_bytes,
        recovery_point,
        handles,
        max(log_start_offset, tier.state.local_start_offset),
        written_to=written_to,
    )
    loaded = load_log(context, clean=clean)
    gaps = RepairedGaps(files, directory)
    remote_segments = tier.before(
        loaded.segments, log_start_offset, gaps.all, directory, expected=config.tiering.enabled
    )
    segments = [*remote_segments, *loaded.segments]
    writer = SegmentWriter(files, directory, owner, schema_of, handles)
    writer.segments = SegmentList.of(segments)
    for segment in loaded.dirty:
        writer.dirty.add(segment, is_new=True)
    _check_beginning(directory, segments, log_start_offset, gaps.all, is_registered=clean and checkpointed)
    offsets = _offsets(directory, segments, points, gaps.all, clean=clean, written_to=written_to)
    gaps.cut(offsets.written)
    epochs = load_epochs(files, directory, loaded.segments, (offsets.log_start, offsets.written))
    state = LogState(
        directory, owner, config.for_partition(owner), schema_of, newest_schema_id, files, clock, expiry_clock, handles,
        tier, truncation, gaps, writer, offsets, epochs, PartitionProducers(safeguards), ProducerFiles(files, directory),
        max((s.append_time_ms for s in segments), default=0), offsets.log_start, inflated,
    )  # fmt: skip
    state.load_producers()
    return state


def _check_beginning(
    directory: Path,
    segments: Sequence[SegmentView],
    log_start_offset: int,
    gaps: Sequence[tuple[int, int]],
    *,
    is_registered: bool,
) -> None:
    """Check that the first segment begins at or below the log start. `is_known`: the log start is from a clean stop, so
    retention has not deleted the missing segments; raises LogCorruptError then. After a crash nothing is checked: the
    disk can have been too full to record a deletion."""
    start = log_start_offset
    for first, behind in gaps:  # losses that a repair has accepted
        if first <= start < behind:
            start = behind
    if is_registered and segments and segments[0].base_offset > start:
        raise LogCorruptError(
            f"{directory} begins at offset {segments[0].base_offset}, but it began at {start} when it was closed: "
            "earlier segment files are missing; restore them from a copy, or continue without them"
            f": sparklog log repair {directory}"
        )


def _offsets(
    directory: Path,
    segments: Sequence[SegmentView],
    points: tuple[int, int, int],
    gaps: Sequence[tuple[int, int]],
    *,
    clean: bool,
    written_to: int,
) -> LogOffsets:
    """Return the log's offsets, from its segments and from the checkpoint's `points`. Raises LogCorruptError if
    segments are missing at the end."""
    log_start_offset, high_watermark, recovery_point = points
    if not segments:
        log_start_offset = max(log_start_offset, *(behind for _, behind in gaps), 0)  # a repair gave all of it up
    end = segments[-1].next_offset if segments else log_start_offset
    start = max(log_start_offset, segments[0].base_offset if segments else 0)
    if start > log_start_offset:
        logger.warning(
            "%s begins at offset %d, the last checkpoint says %d: files are missing, or the checkpoint is wrong",
            directory, start, log_start_offset,
        )  # fmt: skip
    expected = max(high_watermark, start, recovery_point, written_to)
    if expected > end:
        lost = f"{directory} ends at offset {end}, but the stored end is {expected}"
        if clean or max(start, recovery_point, written_to) > end:
            raise LogCorruptError(
                f"{lost}: {segment_files_missing(end, len(segments))}; restore them from a copy, or continue without "
                f"them: sparklog log repair {directory}"
            )
        logger.warning("%s: the crash lost the offsets between", lost)
    return LogOffsets(
        log_start=start,
        recovery_point=end if clean else max(start, min(recovery_point, end)),
        log_end=end,
        high_watermark=min(max(high_watermark, start), end),
    )


def segment_files_missing(end: int, segment_count: int) -> str:
    """Return the error text for a log that ends too early."""
    return (
        f"the segment file that begins at offset {end} is missing, or more"
        if segment_count
        else "all files are missing"
    )


def _identify(directory: Path, owner: LogOwner, files: FileSystem, *, was_created: bool) -> None:
    """Create the directory if it does not exist, and check the owner in its file PARTITION_FILE; write this file if it
    is missing. Raises LogCorruptError for another partition's directory. Raises it too if the directory is empty, but
    was created with files before (`was_created`). After `sparklog log repair` the directory is not empty.
    """
    expected = PartitionMeta(owner.topic, owner.topic_id, owner.partition)
    files.make_directory(directory)
    data = read_whole(files, directory / PARTITION_FILE)
    if data is None and was_created and not set(files.list_directory(directory)) - {PARTITION_FILE + TEMPORARY_SUFFIX}:
        raise LogCorruptError(
            f"{directory} is empty, but was created with files; restore them from a copy and restart the broker, or, "
            f"if its records are lost for good, create it empty: sparklog log repair {directory}"
        )
    meta = decode(data, PartitionMeta) if data is not None else None
    if meta is None:
        if data is not None:
            logger.warning("%s cannot be read and is rewritten", directory / PARTITION_FILE)
        files.write_atomic(directory / PARTITION_FILE, encode(expected))
    elif meta != expected:
        raise LogCorruptError(f"{directory} belongs to {meta}, not to {expected}; move it away")
