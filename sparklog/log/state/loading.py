"""Loading of a partition's directory: its segments, their ends, and the remains of a crash.

Footers are trusted after a clean stop, and for segments below the recovery point. The part after the recovery point is
read batch by batch, with checksums. There are three results:

- END: all data are intact. A footer that is missing or incomplete is written again, except in the active segment.
- TORN: the bytes after the last good batch can be the remains of a crashed append. They are cut off, and their size is
  logged. Later segments are removed if they have no batch.
- CORRUPT: good batches lie after the bad bytes, or data that were fsynced are missing. A LogCorruptError names file,
  position and the command that repairs (`sparklog.log.tools.repair`). The damaged file is not changed, and the
  partition is offline.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from sparklog.environment.files import TEMPORARY_SUFFIX, File, FileSystem, read_ahead, read_whole
from sparklog.errors import CorruptBatchError, LogCorruptError, SparklogError
from sparklog.format import offset_index, time_index
from sparklog.format.batch import BatchHeader, TruncatedBatchError
from sparklog.format.gaps import GAPS_FILE, decode_gaps
from sparklog.format.offset_column import has_offset_column, with_offset_column
from sparklog.format.segment import (
    HEAD_MAGIC,
    ScanEnd,
    ScanResult,
    SegmentHead,
    decode_head,
    decode_seal,
    encode_seal,
    last_block_position,
    parse_segment_name,
    scan,
    seal_position,
    segment_name,
)
from sparklog.log.compaction.swap import finish_swaps
from sparklog.log.model.log_config import LogOwner
from sparklog.log.segments.dropped import discard, remove_below
from sparklog.log.segments.header_walk import header_at
from sparklog.log.segments.indexes import SegmentIndexes, remove_indexes
from sparklog.log.segments.segment import LogSegment
from sparklog.log.segments.slices import HandleCache
from sparklog.log.segments.stored_schema import SchemaOf
from sparklog.log.segments.view import SegmentEnd, Tail

logger = logging.getLogger(__name__)


class LoadContext(Struct, frozen=True):
    """Common inputs of the loading of all segments of a log."""

    directory: Path
    owner: LogOwner
    schema_of: SchemaOf
    files: FileSystem
    index_interval_bytes: int
    recovery_point: int = 0
    """End of the fsynced part of the log. A crash cannot damage this part, so it is never cut."""
    handles: HandleCache = field(default_factory=HandleCache)
    log_start_offset: int = 0
    gaps: frozenset[tuple[int, int]] = frozenset()
    """The ranges (first offset, end) whose records a repair could not save."""
    clean: bool = True
    written_to: int = 0
    """End of the written part that cannot be missing: after a clean stop, or if the machine has not restarted since."""

    def hint(self) -> str:
        """Return the text for errors that says how to remedy damage."""
        return f"restore the file from a copy, or keep the intact batches: sparklog log repair {self.directory}"


class LoadedLog(Struct, frozen=True):
    """`segments`: the segments in offset order. `dirty`: those of them whose data are possibly not fsynced yet."""

    segments: list[LogSegment]
    dirty: list[LogSegment]


class _Torn(Exception):  # noqa: N818  (not an error yet: the segments after decide)
    """A segment ends before the next segment begins, and a crash can be the reason."""

    def __init__(self, error: LogCorruptError) -> None:
        super().__init__(str(error))
        self.error = error


def load_log(context: LoadContext, *, clean: bool) -> LoadedLog:
    """Load all segments of `context.directory`. After an unclean stop, the part after the recovery point is scanned.
    `clean` and the gaps in the directory replace those of `context`.

    Raises LogCorruptError, StorageError, StorageFullError.
    """
    gaps = decode_gaps(read_whole(context.files, context.directory / GAPS_FILE))
    context = replace(context, gaps=frozenset(gaps), clean=clean)
    finish_swaps(context.files, context.directory, context.owner)
    bases = _segment_bases(context)
    bases = remove_below(context.files, context.directory, bases, context.log_start_offset)
    segments: list[LogSegment] = []
    dirty: list[LogSegment] = []
    while bases:
        base, *behind = bases
        following = behind[0] if behind else None
        try:
            segment = _load_segment(context, base, following, clean=clean)
            if segment is not None and following is not None:
                _check_meets(context, segment.path, segment.next_offset, following)
        except _Torn as e:
            if clean:
                raise e.error from None
            _drop_without_batches(context, behind, e.error)
            bases = [base]
            continue
        bases = behind
        if segment is None:
            continue
        segments.append(segment)
        if not segment.is_sealed or (not clean and segment.next_offset > context.recovery_point):
            dirty.append(segment)
    for segment in segments:
        segment.has_gaps = any(segment.base_offset <= a and b < segment.next_offset for a, b in context.gaps)
    if not clean and segments and segments[-1].next_offset < context.log_start_offset:
        discard(segments, context.log_start_offset)
        return LoadedLog([], [])
    return LoadedLog(segments, dirty)


def _check_meets(context: LoadContext, path: Path, end: int, following: int) -> None:
    """Check that a segment's `end` is the start of the next segment, or of a gap up to it. Raises _Torn if a crash can
    be the reason why not, else LogCorruptError."""
    if end == following or (end, following) in context.gaps:
        return
    relation = "overlaps with" if end > following else "leaves a gap before"
    error = LogCorruptError(f"{path} ends at offset {end}: it {relation} {segment_name(following)}; {context.hint()}")
    if following <= context.recovery_point or end > following:
        raise error
    raise _Torn(error)


def _drop_without_batches(context: LoadContext, bases: list[int], error: LogCorruptError) -> None:
    """Remove the segments of `bases`, which lie after a segment that lost its end in a crash. If one of them holds a
    good batch, or if the first of them is below the recovery point, raise `error` and remove none."""
    paths = [context.directory / segment_name(base) for base in bases]
    if bases[0] < context.recovery_point or any(_holds_batch(context.files, path) for path in paths):
        raise error
    for path in reversed(paths):
        logger.warning("%s: removed: it has no batch, and a crash truncated the segment before it", path)
        context.files.remove(path)
        remove_indexes(context.files, path)


def _holds_batch(files: FileSystem, path: Path) -> bool:
    """Return True if a segment file contains an intact batch at any place."""
    positions: list[int] = []
    file = files.open(path)
    try:
        size = file.size()
        try:
            start = decode_head(file.read).data_position
        except (TruncatedBatchError, LogCorruptError):
            start = min(len(HEAD_MAGIC), size)
        result = scan(file.read, start, size, lambda position, _: positions.append(position), next_offset=0)
    finally:
        file.close()
    return bool(positions) or result.end is ScanEnd.CORRUPT


def _segment_bases(context: LoadContext) -> list[int]:
    """Return the base offsets of the segment files, ascending. Removes index files without a segment, and temporary
    files."""
    bases: list[int] = []
    others: list[str] = []
    for name in context.files.list_directory(context.directory):
        base = parse_segment_name(name)
        if base is None:
            others.append(name)
        else:
            bases.append(base)
    names = {segment_name(base) for base in bases}
    for name in others:
        stem, dot, suffix = name.rpartition(".")
        orphan = dot + suffix in (offset_index.SUFFIX, time_index.SUFFIX) and f"{stem}.arrow" not in names
        if orphan or name.endswith(TEMPORARY_SUFFIX):
            context.files.remove(context.directory / name)
    return sorted(bases)


def _load_segment(context: LoadContext, base: int, following: int | None, *, clean: bool) -> LogSegment | None:
    """Load the segment at `base`. If a crash left the last segment's head unfinished, the file is removed, and the
    result is None. `following`: base offset of the next segment. Raises LogCorruptError, or _Torn if the segment ends
    too early and a crash can be the reason.
    """
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
        segment.compacted = has_offset_column(head.schema)
        is_on_disk = clean or (following is not None and following <= context.recovery_point)
        data_end = seal_position(file.read, size)
        may_trust = data_end is not None and (is_on_disk or following is None)
        trusted = may_trust and _trust_footer(context, segment, file, data_end or 0, is_on_disk=is_on_disk)
        if trusted and (is_on_disk or segment.next_offset <= context.recovery_point):
            return segment
        _SegmentScan(context, segment, file, size, following).run()
    finally:
        file.close()
    return segment


def _read_head(context: LoadContext, path: Path, file: File, size: int, *, is_last: bool) -> SegmentHead | None:
    """Return the head of a segment file, after a check of its owner and base offset. Returns None if a crash left the
    head of the last segment unfinished and no batch follows. Raises _Torn if later segments exist then, else
    LogCorruptError."""
    try:
        head = decode_head(file.read)
    except (TruncatedBatchError, LogCorruptError) as e:
        is_new = not context.clean and (_base_of(path) or 0) >= context.recovery_point
        unfinished = is_new or isinstance(e, TruncatedBatchError) or not any(file.read(0, min(size, 1 << 20)))
        holds_batches = scan(file.read, min(len(HEAD_MAGIC), size), size, lambda *_: None, next_offset=0)
        if unfinished and not is_last and holds_batches.end is not ScanEnd.CORRUPT:
            error = LogCorruptError(f"{path}, position 0: {e}, and other segments follow; {context.hint()}")
            raise _Torn(error) from e
        if is_last and unfinished and holds_batches.end is not ScanEnd.CORRUPT:
            logger.warning("%s: removed: it has no batch after a crash (%s)", path, e)
            return None
        raise LogCorruptError(f"{path}, position 0: {e}; {context.hint()}") from e
    expected = (context.owner.topic, context.owner.topic_id, context.owner.partition, _base_of(path))
    if tuple(head.info[:4]) != expected:
        raise LogCorruptError(f"{path} belongs to {tuple(head.info[:4])}, not to {expected}; move it away")
    try:
        context.schema_of(head.info.schema_id)
    except (KeyError, SparklogError) as e:
        raise LogCorruptError(f"{path} has schema {head.info.schema_id}, which the topic lacks") from e
    return head


def _base_of(path: Path) -> int | None:
    return parse_segment_name(path.name)


def _trust_footer(context: LoadContext, segment: LogSegment, file: File, data_end: int, *, is_on_disk: bool) -> bool:
    """Set the segment's end from the footer and the header of the last batch, without reading the remaining batches.
    Returns False if footer and header contradict each other. Raises LogCorruptError if the header is damaged although
    the data were fsynced (`is_on_disk`)."""
    next_offset, append_time_ms = segment.base_offset, 0
    if data_end != segment.data_position:
        position = last_block_position(file.read, segment.data_position, data_end)
        if position is None:
            blocks = decode_seal(file.read, file.size())
            if blocks is None or not len(blocks.positions):
                return False
            position = int(blocks.positions[-1])
        try:
            last = header_at(file.read, position, data_end)
        except CorruptBatchError as e:
            if not is_on_disk:
                return False
            raise LogCorruptError(f"{segment.path}, position {position}: {e}; {context.hint()}") from e
        is_far_off = not 0 <= last.last_offset - segment.base_offset <= offset_index.RELATIVE_OFFSET_MAX
        if position + last.size_bytes != data_end or is_far_off:
            return False
        next_offset, append_time_ms = last.next_offset, last.append_time_ms
    segment.is_sealed = True
    segment.end = SegmentEnd(next_offset, data_end)
    segment.append_time_ms = append_time_ms
    return True


_SMALL_BYTES = 1 << 20
"""Segments up to this size are read ahead with one request. With many small segments, one request per header would
dominate the time of a cold start."""


_REWRITE_BYTES = 1 << 20


class _SegmentScan:
    """Scan of one segment. It reads every batch, and verifies the checksums of batches after the recovery point. It
    cuts off the remains of a crash after the last intact batch, and seals the segment if another one follows."""

    def __init__(
        self,
        context: LoadContext,
        segment: LogSegment,
        file: File,
        size: int,
        following: int | None,
    ) -> None:
        self._context = context
        self._segment = segment
        self._file = file
        self._size = size
        self._following = following
        self._tail, self._indexes = Tail(), SegmentIndexes(segment.base_offset)
        self._next_offset = segment.base_offset
        self._unsynced_from = 0 if context.recovery_point <= segment.base_offset else size
        """Position from which on the data are possibly not fsynced."""

    def run(self) -> None:
        context, segment, file = self._context, self._segment, self._file
        segment.is_sealed, segment.append_time_ms = False, 0
        if self._size <= _SMALL_BYTES:
            read_ahead(file, self._size)
        data_end = seal_position(file.read, self._size)
        result = scan(
            file.read,
            segment.data_position,
            self._size if data_end is None else data_end,
            self._visit,
            next_offset=segment.base_offset,
            trusted_below=context.recovery_point,
        )
        self._check_end(result)
        segment.end = SegmentEnd(self._next_offset, result.position)
        is_whole = data_end == result.position and self._footer_is_whole(result.position)
        self._write_again(self._size if is_whole else result.position)
        if is_whole:
            self._indexes.save(context.files, segment.path)  # a crash can leave incomplete files that look complete
            segment.begin(None, self._indexes)
            return
        if result.position < self._size:
            logger.warning(
                "%s: cut %d bytes behind offset %d (%s)",
                segment.path, self._size - result.position, self._next_offset, result.reason or "an unfinished footer",
            )  # fmt: skip
            file.truncate(result.position)
        remove_indexes(context.files, segment.path)
        segment.begin(self._tail, self._indexes)
        if self._following is not None:
            segment.seal(context.schema_of(segment.info.schema_id))

    def _write_again(self, end: int) -> None:
        """After an unclean stop, write all data again that were not surely fsynced before it. If an fsync had failed,
        the kernel counts the lost pages as written: they can be read until a power cut, and no later fsync writes
        them."""
        if self._context.clean:
            return
        for position in range(self._unsynced_from, end, _REWRITE_BYTES):
            self._file.write(position, self._file.read(position, min(_REWRITE_BYTES, end - position)))

    def _visit(self, position: int, header: BatchHeader) -> None:
        if header.base_offset != self._next_offset and not self._may_jump_to(header.base_offset):
            raise LogCorruptError(  # the stamp has no checksum; appended offsets are dense
                f"{self._segment.path}, position {position}: a batch with base offset {header.base_offset} where "
                f"{self._next_offset} is expected; {self._context.hint()}"
            )
        if header.next_offset > self._context.recovery_point:
            self._unsynced_from = min(self._unsynced_from, position)
        self._segment.note(self._tail, self._indexes, position, header, self._context.index_interval_bytes)
        self._next_offset = header.next_offset

    def _may_jump_to(self, offset: int) -> bool:
        removed = self._segment.compacted and offset > self._next_offset
        return removed or (self._next_offset, offset) in self._context.gaps

    def _check_end(self, result: ScanResult) -> None:
        """Raise LogCorruptError for an end that a crash cannot leave. Raise _Torn for an end that a crash can leave in
        the last segment, if other segments follow."""
        context, end, following = self._context, self._next_offset, self._following
        where = f"{self._segment.path}, position {result.position}"
        if result.end is ScanEnd.CORRUPT:
            raise LogCorruptError(
                f"{where} (offset {end}): {result.reason}, and intact batches follow; {context.hint()}"
            )
        if following is not None and result.end is ScanEnd.END:
            _check_meets(context, self._segment.path, end, following)
        elif following not in (None, end) and (end, following) not in context.gaps:
            error = LogCorruptError(
                f"{where}: batches end at offset {end}, the next segment begins at {following} "
                f"({result.reason or 'a gap'}); {context.hint()}"
            )
            raise _Torn(error) if end >= context.recovery_point and end < (following or 0) else error
        safe_end = max(context.recovery_point, context.written_to)
        if following is None and end < safe_end and context.log_start_offset < safe_end:
            raise LogCorruptError(
                f"{where}: intact batches end at offset {end}, but the log had all offsets below {safe_end} when the "
                f"broker stopped ({result.reason or 'the file is shorter than before, or the next file is missing'}); "
                f"{context.hint()}"
            )

    def _footer_is_whole(self, data_end: int) -> bool:
        """Return True if the footer has exactly the bytes that sealing the scanned batches would write."""
        segment = self._segment
        schema = self._context.schema_of(segment.info.schema_id)
        expected = encode_seal(
            with_offset_column(schema) if segment.compacted else schema,
            segment.info,
            np.array(self._tail.positions, np.int64),
            np.array(self._tail.metadata_lengths, np.int32),
            data_end,
        )
        return self._file.read(data_end, self._size - data_end) == expected
