"""Repairing a damaged partition directory: bad bytes go to files beside the segments, what is intact stays.

A batch is kept when its checksum is right and its records can be read, at its own offset: where bytes had to go,
offsets are missing from then on, and repaired-gaps.json says which, so that no later start takes them for damage. A
batch whose bytes are right but whose offset contradicts its neighbours (the stamp has no checksum) gets the offset that
fits between them. Each damaged segment is written anew, sealed, and takes the old one's place by a rename; what was
taken out is then in ``<base offset>.arrow.<position>.corrupt``, byte by byte. The log end never goes back below what
the last checkpoint says was on the disk: no offset is given twice. What producers have written behind the first loss
is told again from the headers that are left, so that a lost batch can be sent again.

`repair` plans first (`dry_run` stops there) and writes in this order: quarantine files, empty snapshots of producers,
gaps, segments. Each step may be done again, so that a repair cut short is repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from sparklog.environment.files import TEMPORARY_SUFFIX, File, FileSystem, read_whole, write_whole
from sparklog.errors import CorruptBatchError, LogCorruptError, SparklogError
from sparklog.format.batch import (
    ATTRIBUTE_OFFSET_COLUMN,
    HEADER_READ_BYTES,
    BatchHeader,
    TruncatedBatchError,
    stamp_batch,
    verify_batch,
)
from sparklog.format.checkpoint import (
    PARTITION_FILE,
    RECOVERY_POINTS_FILE,
    PartitionMeta,
    PartitionPoints,
    RecoveryPoints,
    decode,
)
from sparklog.format.gaps import GAPS_FILE, decode_gaps, encode_gaps
from sparklog.format.offset_column import has_offset_column, topic_schema, with_offset_column
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.format.segment import (
    END_OF_STREAM,
    HEAD_MAGIC,
    SegmentHead,
    SegmentInfo,
    decode_head,
    decode_seal,
    encode_head,
    encode_seal,
    next_intact_batch,
    parse_segment_name,
    read_header,
    segment_name,
)
from sparklog.log.producers.files import empty_snapshots_above, newest_snapshot_offset
from sparklog.log.recovery.truncation_mark import TruncationMark
from sparklog.log.segments.indexes import remove_indexes
from sparklog.log.segments.stored_rows import RowsCheck

QUARANTINE_SUFFIX = ".corrupt"
_COPY_BYTES = 4 << 20


class RepairFinding(Struct, frozen=True):
    """Something wrong in `file`: `length_bytes` bytes from `position` on. `quarantine`: the file they go to, if any."""

    file: str
    position: int
    length_bytes: int
    reason: str
    quarantine: str | None = None


class RepairReport(Struct):
    """What a repair found and has done, or, after a dry run, would do."""

    directory: Path
    dry_run: bool
    findings: list[RepairFinding] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Offsets that are missing: the first one, and the first that is there again."""
    batches: int = 0
    """What is kept."""
    records: int = 0
    log_end_offset: int = 0

    @property
    def changed(self) -> bool:
        """Whether there is anything to repair."""
        return bool(self.findings or self.gaps)


class _Kept(Struct):
    """An intact batch, and the offset it belongs at."""

    position: int
    header: BatchHeader
    base_offset: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.header.last_offset_delta + 1


class _Segment(Struct):
    base: int
    path: Path
    size: int
    head: SegmentHead | None
    kept: list[_Kept] = field(default_factory=list)
    bad: list[tuple[int, int, str]] = field(default_factory=list)
    """(start, end, reason)"""
    needs_rewrite: bool = False


def repair(
    directory: Path,
    files: FileSystem,
    *,
    dry_run: bool,
    schema_of: Callable[[int], pa.Schema] | None = None,
) -> RepairReport:
    """Repairs the partition in `directory`, which no broker may have open. `schema_of` is needed only where a segment
    has lost its head and no other one has the same schema.

    Raises LogCorruptError when something cannot be repaired, StorageError, StorageFullError.
    """
    if has_lost_everything(directory, files):
        return _begin_anew(directory, files, dry_run=dry_run)
    plan = _Plan(directory, files, schema_of)
    report = plan.make(dry_run=dry_run)
    if not dry_run and report.changed:
        plan.apply()
    return report


def has_lost_everything(directory: Path, files: FileSystem) -> bool:
    """Whether a partition's directory is gone, or empty. Raises StorageError."""
    return not files.exists(directory) or not files.list_directory(directory)


def _begin_anew(directory: Path, files: FileSystem, *, dry_run: bool) -> RepairReport:
    """Makes the directory, with a list of gaps: it says that the loss has been agreed to, and where the log goes on."""
    points = read_points(directory, files)
    end = max(points.log_start_offset, points.high_watermark, points.recovery_point)
    gaps = [(0, end)] if end else []
    finding = RepairFinding(".", 0, 0, f"everything is gone: the partition begins anew, empty, at offset {end}")
    if not dry_run:
        files.make_directory(directory)
        files.write_atomic(directory / GAPS_FILE, encode_gaps(gaps))
    return RepairReport(directory, dry_run, [finding], gaps, log_end_offset=end)


def read_points(directory: Path, files: FileSystem) -> PartitionPoints:
    """What the last checkpoint says of the partition in `directory`; zeros if nothing. Raises StorageError."""
    data = read_whole(files, directory.parent / RECOVERY_POINTS_FILE)
    points = decode(data, RecoveryPoints) if data is not None else None
    found = points.partitions.get(directory.name) if points is not None else None
    return found if found is not None else PartitionPoints("", 0, 0, 0)


class _Plan:
    def __init__(self, directory: Path, files: FileSystem, schema_of: Callable[[int], pa.Schema] | None) -> None:
        self._directory = directory
        self._files = files
        self._schema_of = schema_of
        self._segments: list[_Segment] = []
        self._gaps: set[tuple[int, int]] = set()
        self._known_gaps = set(decode_gaps(read_whole(files, directory / GAPS_FILE)))
        self._end = 0
        self._points = self._read_points()

    def make(self, *, dry_run: bool) -> RepairReport:
        report = RepairReport(self._directory, dry_run)
        names = self._files.list_directory(self._directory)
        bases = sorted(base for name in names if (base := parse_segment_name(name)) is not None)
        self._segments = [self._examine(base, is_last=base == bases[-1]) for base in bases]
        self._complete_heads()
        for segment in self._segments:
            self._take_out_unreadable(segment)
        self._place()
        for segment in self._segments:
            for start, end, reason in segment.bad:
                quarantine = f"{segment.path.name}.{start}{QUARANTINE_SUFFIX}"
                report.findings.append(
                    RepairFinding(segment.path.name, start, end - start, reason, quarantine if end > start else None)
                )
            report.batches += len(segment.kept)
            report.records += sum(k.header.record_count for k in segment.kept)
        stay = {s.base for s in self._segments if s.kept or not s.needs_rewrite or s is self._segments[-1]}
        self._gaps = _joined(self._gaps | self._known_gaps, stay)
        report.gaps = sorted(self._gaps - self._known_gaps)
        report.log_end_offset = self._end
        return report

    # --- looking ---

    def _read_points(self) -> PartitionPoints:
        """What the last checkpoint says of the partition."""
        found = read_points(self._directory, self._files)
        meta = self._read_meta()
        if meta is not None and meta.topic_id != found.topic_id:
            return PartitionPoints("", 0, 0, 0)
        return found

    def _read_meta(self) -> PartitionMeta | None:
        data = read_whole(self._files, self._directory / PARTITION_FILE)
        return decode(data, PartitionMeta) if data is not None else None

    def _examine(self, base: int, *, is_last: bool) -> _Segment:
        path = self._directory / segment_name(base)
        file = self._files.open(path)
        try:
            size = file.size()
            segment = _Segment(base, path, size, None)
            position = len(HEAD_MAGIC)
            try:
                segment.head = decode_head(file.read)
                position = segment.head.data_position
            except (TruncatedBatchError, LogCorruptError) as e:
                first = next_intact_batch(file.read, 0, size) if size > 16 else None
                position = size if first is None else first
                segment.bad.append((0, position, f"the head: {e}"))
                segment.needs_rewrite = True
            blocks = decode_seal(file.read, size)
            end = blocks.data_end if blocks is not None else size
            for start, stop, found in _pieces(file, position, end, may_be_torn=is_last and blocks is None):
                if isinstance(found, BatchHeader):
                    segment.kept.append(_Kept(start, found, found.base_offset))
                else:
                    segment.bad.append((start, stop, found))
                    segment.needs_rewrite = True
            self._check_head(segment)
            return segment
        finally:
            file.close()

    def _check_head(self, segment: _Segment) -> None:
        """Gives up a head that can be read but is not right. Raises LogCorruptError for another partition's segment."""
        head, meta = segment.head, self._read_meta()
        if head is None:
            return
        expected = head.info._replace(base_offset=segment.base)
        if meta is not None:
            expected = expected._replace(topic=meta.topic, topic_id=meta.topic_id, partition=meta.partition)
        if segment.kept:
            expected = expected._replace(schema_id=segment.kept[0].header.schema_id)
        if _characters_apart(repr(tuple(head.info)), repr(tuple(expected))) > 1:
            raise LogCorruptError(
                f"{segment.path} says that it belongs to {tuple(head.info)}, it should to {tuple(expected)}; move it away, "
                f"or give it its name back"
            )
        schema = head.schema
        if self._schema_of is not None:
            with contextlib.suppress(KeyError, SparklogError):
                schema = self._schema_of(expected.schema_id)
                schema = with_offset_column(schema) if has_offset_column(head.schema) else schema
        if expected != head.info or schema != head.schema:
            segment.head = None
            segment.needs_rewrite = True
            segment.bad.insert(0, (0, head.data_position, "the head: it does not fit the partition"))

    def _complete_heads(self) -> None:
        """Gives segments without a readable head a new one; without batches they are of no use."""
        known = {s.head.info.schema_id: s.head for s in self._segments if s.head is not None}
        meta = self._read_meta()
        for segment in self._segments:
            if segment.head is not None or not segment.kept:
                continue
            schema_id = segment.kept[0].header.schema_id
            other = known.get(schema_id)
            try:
                schema = other.schema if other is not None else self._schema_of and self._schema_of(schema_id)
            except (KeyError, SparklogError):
                schema = None
            if schema is None or (meta is None and other is None):
                raise LogCorruptError(
                    f"{segment.path}: its head is damaged, and nothing here tells schema {schema_id}; restore the file "
                    f"from a copy"
                )
            owner = PartitionMeta(*other.info[:3]) if other is not None else meta
            assert owner is not None
            if segment.kept[0].header.attributes & ATTRIBUTE_OFFSET_COLUMN and not has_offset_column(schema):
                schema = with_offset_column(schema)
            info = SegmentInfo(owner.topic, owner.topic_id, owner.partition, segment.base, schema_id)
            segment.head = SegmentHead(schema, info, len(encode_head(schema, info)))

    def _take_out_unreadable(self, segment: _Segment) -> None:
        """Gives up batches whose checksum is right, but which no reader can decode. Raises LogCorruptError where it
        may as well be the head that is wrong."""
        if segment.head is None:
            return
        rows = RowsCheck(segment.head.schema)
        unreadable: dict[int, str] = {}
        file = self._files.open(segment.path)
        try:
            for kept in segment.kept:
                misfit = rows.misfit(file.read(kept.position, kept.header.size_bytes), kept.header)
                if misfit is not None and not misfit.is_unknown:
                    unreadable[kept.position] = misfit.message
        finally:
            file.close()
        if not unreadable:
            return
        if len(unreadable) == len(segment.kept) and not self._is_certain(segment, segment.head):
            raise LogCorruptError(
                f"{segment.path}: no batch fits the schema in its head, and nothing here tells which of both is wrong; start "
                f"the broker and stop it, then the file's end has the schema, too ({next(iter(unreadable.values()))})"
            )
        for kept in segment.kept:
            if kept.position in unreadable:
                end = kept.position + kept.header.size_bytes
                segment.bad.append((kept.position, end, unreadable[kept.position]))
        segment.bad.sort()
        segment.kept = [kept for kept in segment.kept if kept.position not in unreadable]
        segment.needs_rewrite = True

    def _is_certain(self, segment: _Segment, head: SegmentHead) -> bool:
        """Whether the schema in the head is known from elsewhere, too: heads have no checksum."""
        others = [s.head for s in self._segments if s is not segment and s.head is not None]
        if (
            self._schema_of is not None
            or topic_schema(head.schema).equals(ENVELOPE_SCHEMA)
            or any(o.info.schema_id == head.info.schema_id and o.schema == head.schema for o in others)
        ):
            return True
        file = self._files.open(segment.path)
        try:
            seal = decode_seal(file.read, segment.size)
            if seal is None:
                return False
            footer = encode_seal(head.schema, head.info, seal.positions, seal.metadata_lengths, seal.data_end)
            return file.read(seal.data_end, segment.size - seal.data_end) == footer
        finally:
            file.close()

    # --- offsets ---

    def _place(self) -> None:
        """Finds out where each batch belongs, and which offsets are missing."""
        due: int | None = None
        for n, segment in enumerate(self._segments):
            behind = next((s.base for s in self._segments[n + 1 :]), None)
            if due is None:
                due = segment.base
            elif segment.base > due:
                self._gaps.add((due, segment.base))
            elif segment.base < due and segment.kept:
                raise LogCorruptError(f"{segment.path} overlaps with the segment before it; move one of them away")
            due = self._place_batches(segment, max(segment.base, due), behind)
        self._end = due or 0
        mark = TruncationMark(self._files, self._directory)
        points = self._points
        promised = max(
            *mark.clamp((points.log_start_offset, points.high_watermark, points.recovery_point)),
            newest_snapshot_offset(self._files, self._directory),
        )
        if self._end < promised:
            self._gaps.add((self._end, promised))
            self._end = promised

    def _place_batches(self, segment: _Segment, due: int, behind: int | None) -> int:
        """Decides about each batch of a segment whose first offset is `due`; returns where the segment ends."""
        compacted = segment.head is not None and has_offset_column(segment.head.schema)
        kept: list[_Kept] = []
        for i, batch in enumerate(segment.kept):
            following = segment.kept[i + 1].header.base_offset if i + 1 < len(segment.kept) else behind
            base = batch.base_offset
            touches = not any(batch.position == end for _, end, _ in segment.bad)
            if base != due and not (compacted and base > due):
                size = batch.header.last_offset_delta + 1
                fits = following == due + size or (following is None and touches)
                if (due, base) not in self._known_gaps and fits:
                    reason = f"the batch says offset {base}, between its neighbours {due} is right"
                    segment.bad.append((batch.position, batch.position, reason))
                    segment.needs_rewrite = True
                    batch.base_offset = base = due
                elif base < due or (following is not None and base >= following):
                    end = batch.position + batch.header.size_bytes
                    segment.bad.append((batch.position, end, f"a batch with offset {base} where {due} is due"))
                    segment.needs_rewrite = True
                    continue
                else:
                    self._gaps.add((due, base))
                    segment.needs_rewrite |= not compacted  # so that it is sealed
            kept.append(batch)
            due = batch.next_offset
        segment.kept = kept
        return due

    # --- writing ---

    def apply(self) -> None:
        for segment in self._segments:
            for start, end, _ in segment.bad:
                if end > start:
                    self._quarantine(segment, start, end)
        self._files.sync_directory(self._directory)
        lost_from = self._lost_from()
        if lost_from is not None:
            empty_snapshots_above(self._files, self._directory, lost_from)
        if self._gaps:
            self._files.write_atomic(self._directory / GAPS_FILE, encode_gaps(self._gaps))
        for segment in self._segments:
            if segment.needs_rewrite:
                self._rewrite(segment)
        self._keep_the_end()
        self._files.sync_directory(self._directory)

    def _lost_from(self) -> int | None:
        """No batch below has gone; None: none at all has."""
        damaged = (s.base for s in self._segments if any(end > start for start, end, _ in s.bad))
        return min([*damaged, *(start for start, _ in self._gaps - self._known_gaps)], default=None)

    def _quarantine(self, segment: _Segment, start: int, end: int) -> None:
        target_path = segment.path.with_name(f"{segment.path.name}.{start}{QUARANTINE_SUFFIX}")
        source, target = self._files.open(segment.path), self._files.open(target_path, create=True)
        try:
            target.truncate(0)
            for position in range(start, end, _COPY_BYTES):
                target.write(position - start, source.read(position, min(_COPY_BYTES, end - position)))
            target.sync()
        finally:
            source.close()
            target.close()

    def _rewrite(self, segment: _Segment) -> None:
        """The segment with its intact batches only, sealed; one without any goes, unless its name is the log's end."""
        remove_indexes(self._files, segment.path)
        head = segment.head
        if head is None or (not segment.kept and segment is not self._segments[-1]):
            self._files.remove(segment.path)
            return
        temporary = segment.path.with_name(segment.path.name + TEMPORARY_SUFFIX)
        first = encode_head(head.schema, head.info)
        position = len(first)
        positions, lengths = [], []
        source, target = self._files.open(segment.path), self._files.open(temporary, create=True)
        try:
            target.truncate(0)
            target.write(0, first)
            for kept in segment.kept:
                target.write(position, self._stamped(source, kept))
                positions.append(position)
                lengths.append(kept.header.metadata_length_bytes)
                position += kept.header.size_bytes
            seal = encode_seal(
                head.schema, head.info, np.array(positions, np.int64), np.array(lengths, np.int32), position
            )
            target.write(position, seal)
            target.sync()
        finally:
            source.close()
            target.close()
        self._files.rename(temporary, segment.path)

    def _stamped(self, source: File, kept: _Kept) -> bytearray:
        data = bytearray(source.read(kept.position, kept.header.size_bytes))
        header = kept.header
        if kept.base_offset != header.base_offset:
            stamp_batch(
                data, 0, header,
                base_offset=kept.base_offset, leader_epoch=header.leader_epoch, append_time_ms=header.append_time_ms,
            )  # fmt: skip
        return data

    def _keep_the_end(self) -> None:
        """Makes an empty segment whose name says where the log ends, if no batch does."""
        filled = [s for s in self._segments if s.kept]
        if filled and filled[-1].kept[-1].next_offset == self._end:
            return
        path = self._directory / segment_name(self._end)
        heads = [s.head for s in self._segments if s.head is not None]
        if self._files.exists(path) or not heads:
            return
        info = heads[-1].info._replace(base_offset=self._end)
        schema = heads[-1].schema
        write_whole(self._files, path, encode_head(schema, info))
        file = self._files.open(path)
        try:
            file.sync()
        finally:
            file.close()


def _joined(gaps: set[tuple[int, int]], bases: set[int]) -> set[tuple[int, int]]:
    """Gaps that meet where no segment (of those with `bases`) is left between them are one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(gaps):
        if joined and joined[-1][1] == start and start not in bases:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return set(joined)


def _characters_apart(a: str, b: str) -> int:
    """In how many places two texts differ; of different length: more than a flipped bit can do."""
    return sum(x != y for x, y in zip(a, b, strict=True)) if len(a) == len(b) else len(a) + len(b)


def _pieces(file: File, position: int, end: int, *, may_be_torn: bool) -> Iterator[tuple[int, int, BatchHeader | str]]:
    """(start, end, header) of each intact batch in [position, end), and (start, end, reason) of what lies between.

    What a crash has left of the last append (`may_be_torn`) or of a footer counts as nothing at all: the next start
    cuts it.
    """
    while position < end:
        head = file.read(position, min(HEADER_READ_BYTES, end - position))
        try:
            if head[: len(END_OF_STREAM)] == END_OF_STREAM:
                raise CorruptBatchError("an end-of-stream mark in the middle")
            header = read_header(file.read, position, end, head)
            verify_batch(file.read(position, header.size_bytes), 0, header)
        except CorruptBatchError as e:
            following = next_intact_batch(file.read, position, end)
            if following is None and (may_be_torn or head[: len(END_OF_STREAM)] == END_OF_STREAM):
                return
            yield position, following if following is not None else end, str(e)
            if following is None:
                return
            position = following
        else:
            yield position, position + header.size_bytes, header
            position += header.size_bytes
