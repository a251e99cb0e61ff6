"""Opening a partition's directory: which segments there are, where each ends, what a crash left behind.

Only a torn tail of the last segment is ever cut, and only when no intact batch lies behind it; a torn or missing footer
is written again. Everything else that does not fit (a segment that is not where the one before it ends, damage with
good batches behind it, a file of another topic) raises LogCorruptError with file and position, and no file is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from sparklog.errors import CorruptBatchError, LogCorruptError, SparklogError
from sparklog.format import offset_index, time_index
from sparklog.format.batch import BatchHeader, TruncatedBatchError
from sparklog.format.segment import (
    HEAD_MAGIC,
    ScanEnd,
    SealedBlocks,
    SegmentHead,
    decode_head,
    decode_seal,
    parse_segment_name,
    scan,
    segment_name,
)
from sparklog.log.dropped_segments import discard, remove_below
from sparklog.log.files import TEMPORARY_SUFFIX, File, FileSystem
from sparklog.log.header_walk import header_at
from sparklog.log.model import LogOwner
from sparklog.log.segment import LogSegment, SegmentEnd, Tail
from sparklog.log.segment_indexes import SegmentIndexes, remove_indexes
from sparklog.log.slices import HandleCache

logger = logging.getLogger(__name__)

SchemaOf = Callable[[int], pa.Schema]


@dataclass(frozen=True)
class LoadContext:
    """What all segments of a log are loaded with."""

    directory: Path
    owner: LogOwner
    schema_of: SchemaOf
    files: FileSystem
    index_interval_bytes: int
    recovery_point: int = 0
    """Everything below was fsynced: it cannot be the victim of a crash, so it is never cut."""
    handles: HandleCache = field(default_factory=HandleCache)
    log_start_offset: int = 0


@dataclass(frozen=True)
class LoadedLog:
    """Segments in offset order, and those among them that may not be on the disk yet."""

    segments: list[LogSegment]
    unflushed: list[LogSegment]


def load_log(context: LoadContext, *, clean: bool) -> LoadedLog:
    """Loads all segments of `context.directory`; after an unclean stop the last one is scanned with checksums.

    Raises LogCorruptError, StorageError.
    """
    bases = _segment_bases(context)
    bases = remove_below(context.files, context.directory, bases, context.log_start_offset)
    segments: list[LogSegment] = []
    unflushed: list[LogSegment] = []
    for i, base in enumerate(bases):
        following = bases[i + 1] if i + 1 < len(bases) else None
        segment = _load_segment(context, base, following, clean=clean)
        if segment is None:
            continue
        if following is not None and segment.next_offset != following:
            what = "overlaps with" if segment.next_offset > following else "leaves a gap before"
            raise LogCorruptError(
                f"{segment.path} ends at offset {segment.next_offset}: it {what} {segment_name(following)}; "
                f"restore the missing file or delete the topic"
            )
        segments.append(segment)
        if not segment.is_sealed or not clean:
            unflushed.append(segment)
    if not clean and segments and segments[-1].next_offset < context.log_start_offset:
        discard(segments, context.log_start_offset)
        return LoadedLog([], [])
    return LoadedLog(segments, unflushed)


def _segment_bases(context: LoadContext) -> list[int]:
    """Base offsets of the segment files, ascending; removes leftovers that have no segment."""
    bases: list[int] = []
    others: list[str] = []
    for name in context.files.list_directory(context.directory):
        base = parse_segment_name(name)
        if base is None:
            others.append(name)
        else:
            bases.append(base)
    for name in others:
        stem, dot, suffix = name.rpartition(".")
        orphan = dot + suffix in (offset_index.SUFFIX, time_index.SUFFIX) and f"{stem}.arrow" not in map(
            segment_name, bases
        )
        if orphan or name.endswith(TEMPORARY_SUFFIX):
            context.files.remove(context.directory / name)
    return sorted(bases)


def _load_segment(context: LoadContext, base: int, following: int | None, *, clean: bool) -> LogSegment | None:
    """One segment, or None if it was the head of a file that a crash left unfinished (it is removed)."""
    path = context.directory / segment_name(base)
    file = context.files.open(path)
    try:
        size = file.size()
        head = _read_head(context, path, file, size, is_last=following is None)
        if head is None:
            context.files.remove(path)
            remove_indexes(context.files, path)
            return None
        end = SegmentEnd(base, head.data_position)
        segment = LogSegment(context.files, path, head.info, head.data_position, end, context.handles)
        blocks = decode_seal(file.read, size)
        if blocks is not None and (clean or following is not None):
            _trust_footer(segment, file, blocks)
        else:
            _scan_segment(context, segment, file, size, blocks, following)
    finally:
        file.close()
    return segment


def _read_head(context: LoadContext, path: Path, file: File, size: int, *, is_last: bool) -> SegmentHead | None:
    """The head, checked against name and owner; None when it was never finished and no batch follows."""
    try:
        head = decode_head(file.read)
    except (TruncatedBatchError, LogCorruptError) as e:
        unfinished = isinstance(e, TruncatedBatchError) or not any(file.read(0, min(size, 1 << 20)))
        holds_batches = scan(file.read, min(len(HEAD_MAGIC), size), size, lambda *_: None, next_offset=0)
        if is_last and unfinished and holds_batches.end is not ScanEnd.CORRUPT:
            logger.warning("%s: removed, a crash left it without a batch (%s)", path, e)
            return None
        raise LogCorruptError(f"{path}, position 0: {e}; restore the file from a copy or delete the topic") from e
    expected = (context.owner.topic, context.owner.topic_id, context.owner.partition, _base_of(path))
    if tuple(head.info[:4]) != expected:
        raise LogCorruptError(f"{path} belongs to {tuple(head.info[:4])}, it should to {expected}; move it away")
    try:
        context.schema_of(head.info.schema_id)
    except (KeyError, SparklogError) as e:
        raise LogCorruptError(f"{path} has schema {head.info.schema_id}, the topic has no such schema") from e
    return head


def _base_of(path: Path) -> int | None:
    return parse_segment_name(path.name)


def _trust_footer(segment: LogSegment, file: File, blocks: SealedBlocks) -> None:
    """Takes the end from the footer and the last batch's header; indexes are loaded when needed."""
    segment.is_sealed = True
    segment.end = SegmentEnd(segment.base_offset, blocks.data_end)
    if not len(blocks.positions):
        return
    position = int(blocks.positions[-1])
    try:
        last = header_at(file.read, position, blocks.data_end)
    except CorruptBatchError as e:
        raise LogCorruptError(f"{segment.path}, position {position}: {e}; restore the file from a copy") from e
    segment.end = SegmentEnd(last.next_offset, blocks.data_end)
    segment.append_time_ms = last.append_time_ms


def _scan_segment(
    context: LoadContext, segment: LogSegment, file: File, size: int, blocks: SealedBlocks | None, following: int | None
) -> None:
    """Reads every batch with its checksum, cuts what a crash left behind the last good one, and seals the segment if
    others follow it."""
    tail, indexes = Tail(), SegmentIndexes(segment.base_offset)
    next_offset = segment.base_offset

    def visit(position: int, header: BatchHeader) -> None:
        nonlocal next_offset
        if header.base_offset != next_offset:  # the stamp has no checksum; what was appended is dense
            raise LogCorruptError(
                f"{segment.path}, position {position}: a batch with base offset {header.base_offset} where {next_offset} "
                f"is due; restore the file from a copy or delete the topic"
            )
        segment.note(tail, indexes, position, header, context.index_interval_bytes)
        next_offset = header.next_offset

    data_end = blocks.data_end if blocks else size
    result = scan(file.read, segment.data_position, data_end, visit, next_offset=segment.base_offset)
    if result.end is ScanEnd.CORRUPT:
        raise LogCorruptError(
            f"{segment.path}, position {result.position} (offset {next_offset}): {result.reason}, and good batches "
            f"follow; restore the file from a copy or delete the topic"
        )
    if following is None and next_offset < context.recovery_point and context.log_start_offset < context.recovery_point:
        raise LogCorruptError(
            f"{segment.path}, position {result.position}: good batches end at offset {next_offset}, but everything below "
            f"{context.recovery_point} was on the disk ({result.reason or 'the file is shorter than it was'}); "
            f"restore the file from a copy or delete the topic"
        )
    if following is not None and next_offset != following:
        raise LogCorruptError(
            f"{segment.path}, position {result.position}: batches end at offset {next_offset}, the next segment begins "
            f"at {following} ({result.reason or 'a gap'}); restore the file from a copy or delete the topic"
        )
    segment.end = SegmentEnd(next_offset, result.position)
    if blocks is not None and result.position == data_end:
        segment.begin(None, indexes)
        return
    if result.position < size:
        logger.warning(
            "%s: cut %d bytes behind offset %d (%s)",
            segment.path, size - result.position, next_offset, result.reason or "an unfinished footer",
        )  # fmt: skip
        file.truncate(result.position)
    remove_indexes(context.files, segment.path)
    segment.begin(tail, indexes)
    if following is not None:
        segment.seal(context.schema_of(segment.info.schema_id))
