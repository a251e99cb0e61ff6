"""Repair of a damaged partition directory: bad bytes are moved to files beside the segments, intact batches stay.

A batch is kept, at its own offset, if its checksum is valid and its records can be read. The offsets of removed batches
are missing from then on. repaired-gaps.json lists them, so no later start takes them for damage, and a replica copies
them again. For a lost compacted batch, all offsets between the batches before and after it are listed. A batch with a
valid checksum whose offset contradicts its neighbours (the checksum does not cover the stamp) gets the offset that fits
between them. Each damaged segment is written again, sealed, and replaces the old file by a rename. The removed bytes
are then in ``<base offset>.arrow.<position>.corrupt``. The log end never falls below the offsets of the last
checkpoint, so no offset is used twice. The producers' state after the first loss is derived again from the remaining
headers, so a producer can send a lost batch again.

In a cluster, other replicas have the lost records. As a follower, the broker cuts the log to the first gap that its
leader does not have, and copies the rest (`state/repaired_gaps.py`). Before anything is written, broker-epoch.json is
removed from the log directory, so the broker leaves ISR and ELR (KIP-966) until it has copied the missing records.

`repair` plans first (`dry_run` stops there). Then it writes, in this order: quarantine files, emptied snapshots of
producers, gaps, segments. Each step can be done again, so an interrupted repair is simply repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from sparklog.environment.files import TEMPORARY_SUFFIX, File, FileSystem, read_rebuildable, read_whole, write_whole
from sparklog.errors import LogCorruptError
from sparklog.format.batch import (
    stamp_batch,
)
from sparklog.format.checkpoint import (
    RECOVERY_POINTS_FILE,
    PartitionMeta,
    PartitionPoints,
    RecoveryPoints,
    decode,
)
from sparklog.format.gaps import GAPS_FILE, decode_gaps, encode_gaps
from sparklog.format.offset_column import has_offset_column
from sparklog.format.segment import (
    encode_head,
    encode_seal,
    segment_name,
)
from sparklog.log.directories.broker_epoch import BROKER_EPOCH_FILE
from sparklog.log.producers.files import empty_snapshots_above, newest_snapshot_offset
from sparklog.log.segments.indexes import remove_indexes
from sparklog.log.state.truncation_mark import TruncationMark
from sparklog.log.tiering.journal import JOURNAL_FILE, decode_journal
from sparklog.log.tools.repair_scan import DirectoryScan, KeptBatch, ScannedSegment

QUARANTINE_SUFFIX = ".corrupt"
_COPY_BYTES = 4 << 20


class RepairFinding(Struct, frozen=True):
    """A fault in `file`: `length_bytes` bytes from `position` on. `quarantine`: the file that these bytes are moved to;
    None if no bytes are removed."""

    file: str
    position: int
    length_bytes: int
    reason: str
    quarantine: str | None = None


class RepairReport(Struct):
    """Findings and results of a repair; of a dry run, the results that the repair would have."""

    directory: Path
    dry_run: bool
    findings: list[RepairFinding] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """New gaps: pairs (first missing offset, first offset after the gap)."""
    batches: int = 0
    """Number of kept batches."""
    records: int = 0
    log_end_offset: int = 0

    @property
    def changed(self) -> bool:
        """True if the repair has found a fault."""
        return bool(self.findings or self.gaps)


def repair(
    directory: Path,
    files: FileSystem,
    *,
    dry_run: bool,
    schema_of: Callable[[int], pa.Schema] | None = None,
) -> RepairReport:
    """Repair the partition in `directory`, which no broker must have open. `schema_of` returns the topic's schema for
    an id. It is needed only if a segment has lost its head and no other segment has the same schema.

    Raises LogCorruptError if a fault cannot be repaired, StorageError, StorageFullError.
    """
    if has_lost_everything(directory, files):
        return _begin_empty(directory, files, dry_run=dry_run)
    plan = _Plan(directory, files, schema_of)
    report = plan.make(dry_run=dry_run)
    if not dry_run and report.changed:
        _leave_in_sync_replicas(directory, files)
        plan.apply()
    return report


def _leave_in_sync_replicas(directory: Path, files: FileSystem) -> None:
    """Remove broker-epoch.json from the log directory, so that the broker leaves ISR and ELR at its next start."""
    files.remove(directory.parent / BROKER_EPOCH_FILE)
    files.sync_directory(directory.parent)


def has_lost_everything(directory: Path, files: FileSystem) -> bool:
    """Return True if a partition's directory is missing or empty. Raises StorageError."""
    return not files.exists(directory) or not files.list_directory(directory)


def _begin_empty(directory: Path, files: FileSystem, *, dry_run: bool) -> RepairReport:
    """Create the directory, with repaired-gaps.json. The file records that the loss was accepted, and the offset at
    which the log continues."""
    points = read_points(directory, files)
    end = max(points.log_start_offset, points.high_watermark, points.recovery_point)
    gaps = [(0, end)] if end else []
    finding = RepairFinding(".", 0, 0, f"all records are lost: the partition begins empty at offset {end}")
    if not dry_run:
        _leave_in_sync_replicas(directory, files)
        files.make_directory(directory)
        files.write_atomic(directory / GAPS_FILE, encode_gaps(gaps))
    return RepairReport(directory, dry_run, [finding], gaps, log_end_offset=end)


def read_points(directory: Path, files: FileSystem) -> PartitionPoints:
    """Return the points of the partition in `directory` from the last checkpoint; zeros if the checkpoint does not have
    the partition. Raises StorageError."""
    data = read_rebuildable(files, directory.parent / RECOVERY_POINTS_FILE)
    points = decode(data, RecoveryPoints) if data is not None else None
    stored = points.partitions.get(directory.name) if points is not None else None
    return stored if stored is not None else PartitionPoints("", 0, 0, 0)


class _Plan:
    def __init__(self, directory: Path, files: FileSystem, schema_of: Callable[[int], pa.Schema] | None) -> None:
        self._directory = directory
        self._files = files
        scan = DirectoryScan(directory, files, schema_of)
        self._segments = scan.segments
        self._gaps: set[tuple[int, int]] = set()
        self._recorded_gaps = set(decode_gaps(read_whole(files, directory / GAPS_FILE)))
        self._end = 0
        self._points = self._read_points(scan.meta)
        self._has_remote = files.exists(directory / JOURNAL_FILE)

    def make(self, *, dry_run: bool) -> RepairReport:
        report = RepairReport(self._directory, dry_run)
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
        self._gaps = _join_gaps(self._gaps | self._recorded_gaps, stay)
        report.gaps = sorted(self._gaps - self._recorded_gaps)
        report.log_end_offset = self._end
        return report

    def _read_points(self, meta: PartitionMeta | None) -> PartitionPoints:
        """Return the last checkpoint's points of the partition; zeros if they are of another topic of the same name."""
        points = read_points(self._directory, self._files)
        if meta is not None and meta.topic_id != points.topic_id:
            return PartitionPoints("", 0, 0, 0)
        return points

    # --- offsets ---

    def _place(self) -> None:
        """Decide the offset of each batch, and find the missing offsets."""
        mark = TruncationMark(self._files, self._directory)
        points = self._points
        clamped = mark.clamp((points.log_start_offset, points.high_watermark, points.recovery_point))
        due: int | None = None
        for n, segment in enumerate(self._segments):
            behind = next((s.base for s in self._segments[n + 1 :]), None)
            if due is None:
                due = segment.base
                if self._has_remote:
                    self._gaps |= self._missing_behind_copies(clamped[0], due)
                elif points.topic_id and clamped[0] < due:
                    self._gaps.add((clamped[0], due))
            elif segment.base > due:
                self._gaps.add((due, segment.base))
            elif segment.base < due and segment.kept:
                raise LogCorruptError(f"{segment.path} overlaps with the segment before it; move one of them away")
            due = self._place_batches(segment, max(segment.base, due), behind)
        self._end = due or 0
        promised = max(*clamped, newest_snapshot_offset(self._files, self._directory))
        if self._end < promised:
            self._gaps.add((self._end, promised))
            self._end = promised

    def _missing_behind_copies(self, log_start_offset: int, local_start_offset: int) -> set[tuple[int, int]]:
        """Return the ranges of offsets after the first copy that are neither in a copy in the journal nor in local
        files."""
        try:
            state, _ = decode_journal(read_whole(self._files, self._directory / JOURNAL_FILE) or b"")
        except LogCorruptError:
            return set()  # opening the log reports the damaged journal, and how to write it again
        copies = [s for s in state.finished if log_start_offset < s.next_offset <= local_start_offset]
        following = [*(s.base_offset for s in copies[1:]), local_start_offset]
        return {(s.next_offset, base) for s, base in zip(copies, following, strict=False) if s.next_offset < base}

    def _place_batches(self, segment: ScannedSegment, due: int, behind: int | None) -> int:
        """Keep each batch of a segment at its offset, correct its offset, or remove it. `due`: the expected first
        offset; `behind`: base offset of the next segment, or None. Returns the offset at which the segment ends."""
        compacted = segment.head is not None and has_offset_column(segment.head.schema)
        kept: list[KeptBatch] = []
        for i, batch in enumerate(segment.kept):
            following = segment.kept[i + 1].header.base_offset if i + 1 < len(segment.kept) else behind
            base = batch.base_offset
            touches = not any(batch.position == end for _, end, _ in segment.bad)
            if base != due and not (compacted and base > due):
                size = batch.header.last_offset_delta + 1
                fits = following == due + size or (following is None and touches)
                if (due, base) not in self._recorded_gaps and fits:
                    reason = f"the batch has offset {base}, but between its neighbours {due} is correct"
                    segment.bad.append((batch.position, batch.position, reason))
                    segment.needs_rewrite = True
                    batch.base_offset = base = due
                elif base < due or (following is not None and base >= following):
                    end = batch.position + batch.header.size_bytes
                    segment.bad.append((batch.position, end, f"a batch with offset {base} where {due} is expected"))
                    segment.needs_rewrite = True
                    continue
                else:
                    self._gaps.add((due, base))
                    segment.needs_rewrite |= not compacted  # so that it is sealed
            elif base > due and _is_bad_between(segment, kept[-1] if kept else None, batch):
                self._gaps.add((due, base))  # compaction can have removed some of them before; which is unknown
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
        """Return an offset below which no batch is lost; None if no batch is lost at all."""
        damaged = (s.base for s in self._segments if any(end > start for start, end, _ in s.bad))
        return min([*damaged, *(start for start, _ in self._gaps - self._recorded_gaps)], default=None)

    def _quarantine(self, segment: ScannedSegment, start: int, end: int) -> None:
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

    def _rewrite(self, segment: ScannedSegment) -> None:
        """Rewrite the segment with its intact batches only, and seal it. A segment without an intact batch is removed.
        The last segment stays, as an empty one, if its head is known: the offset in its file name can show the log end.
        """
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
                target.write(position, self._stamp(source, kept))
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

    def _stamp(self, source: File, kept: KeptBatch) -> bytearray:
        data = bytearray(source.read(kept.position, kept.header.size_bytes))
        header = kept.header
        if kept.base_offset != header.base_offset:
            stamp_batch(
                data, 0, header,
                base_offset=kept.base_offset, leader_epoch=header.leader_epoch, append_time_ms=header.append_time_ms,
            )  # fmt: skip
        return data

    def _keep_the_end(self) -> None:
        """Create an empty segment whose name shows the log end, if the last batch does not end there."""
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


def _is_bad_between(segment: ScannedSegment, before: KeptBatch | None, batch: KeptBatch) -> bool:
    """Return True if bytes between `before` (None: the start of the file) and `batch` are to be removed."""
    start = before.position + before.header.size_bytes if before is not None else 0
    return any(start <= bad < end <= batch.position for bad, end, _ in segment.bad)


def _join_gaps(gaps: set[tuple[int, int]], bases: set[int]) -> set[tuple[int, int]]:
    """Join gaps that overlap. Also join gaps that meet at an offset, unless a segment begins there (`bases`)."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(gaps):
        behind = joined[-1][1] if joined else -1
        if start < behind or (start == behind and start not in bases):
            joined[-1] = (joined[-1][0], max(behind, end))
        else:
            joined.append((start, end))
    return set(joined)
