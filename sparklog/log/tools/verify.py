"""`sparklog log verify`: checks of segments, partitions and whole log directories. It only reads, and takes no lock.

A broker can use the directory meanwhile. Its work (appending, sealing, deleting, compacting) can look like damage for a
moment, so a partition with damage is checked again: only damage that both checks find counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct, field

from sparklog.environment.files import SMALL_FILE_BYTES_MAX, TEMPORARY_SUFFIX, RealFiles, odd_file
from sparklog.errors import LogCorruptError, SparklogError, StorageError
from sparklog.format import offset_index, producer_snapshot, time_index, txn_index
from sparklog.format.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    LOG_DIRS_FILE,
    META_FILE,
    PARTITION_FILE,
    RECOVERY_POINTS_FILE,
    CleanShutdown,
    DataDirMeta,
    PartitionMeta,
    PartitionPoints,
    RecoveryPoints,
    decode,
)
from sparklog.format.epoch_checkpoint import LEADER_EPOCHS_FILE, decode_epochs
from sparklog.format.gaps import GAPS_FILE, decode_gaps
from sparklog.format.segment import SUFFIX, parse_segment_name, segment_name
from sparklog.format.topic_record import TOPIC_FILE
from sparklog.log.compaction.swap import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX, end_of
from sparklog.log.directories.log_directory import is_moved_aside
from sparklog.log.model.compaction_policy import CLEANER_POINT_FILE
from sparklog.log.state.truncation_mark import TRUNCATION_FILE
from sparklog.log.tiering.cache_directory import CACHE_DIRECTORY
from sparklog.log.tiering.journal import JOURNAL_FILE, decode_journal
from sparklog.log.tools.repair import QUARANTINE_SUFFIX
from sparklog.log.tools.verify_producers import check_producers
from sparklog.log.tools.verify_segment import (
    ODD,
    Finding,
    Findings,
    Progress,
    SegmentCheck,
    check_segment,
    read_if_exists,
)

__all__ = ["Finding", "VerifyReport", "bytes_to_check", "partition_directories", "verify"]

_LOOKS_MAX = 3


class VerifyReport(Struct):
    """Numbers of checked items, and the findings: `damage`, and `notes` about unusual but allowed states. Both lists
    are sorted by file and position."""

    directories: int = 0
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    damage: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    def _take(self, findings: Findings) -> None:
        self.damage += findings.damage
        self.notes += findings.notes

    def _count(self, check: SegmentCheck) -> None:
        self.segments += 1
        self.batches += len(check.batches)
        self.records += check.batches.records
        self.size_bytes += check.size_bytes


class _Surroundings(Struct, frozen=True):
    """Content of a log directory's files about its partitions. These files are read before the partitions, because a
    log in use can advance meanwhile."""

    path: Path | None = None
    points_data: bytes = b""
    points: RecoveryPoints | None = None
    clean: CleanShutdown | None = None

    def stopped_clean(self, name: str) -> bool:
        return self.clean is not None and name not in self.clean.unclean


def verify(paths: Sequence[Path], progress: Progress = lambda _: None) -> VerifyReport:
    """Check every path, which is a log directory, a partition's directory, or a segment file. If `paths` has several
    log directories, a partition in two of them is damage.

    Raises StorageError for any other path, for a path that cannot be read, or for a partition that keeps changing.
    """
    report = VerifyReport()
    owners: dict[tuple[str, str], Path] = {}
    for path in paths:
        kind = _kind(path)
        try:
            if kind == "segment":
                _verify_segment(path, report, progress)
            elif kind == "partition":
                _verify_partition(path, _surroundings(path.parent, Findings()), report, progress)
            else:
                _verify_directory(path, report, progress, owners)
        except OSError as e:
            raise StorageError(f"{e.filename or path} cannot be read: {e.strerror or e}") from e
    report.damage.sort()
    report.notes.sort()
    return report


def bytes_to_check(paths: Sequence[Path]) -> int:
    """Estimate the number of bytes that `verify` checks, for a progress display. Raises StorageError for a path that
    `verify` cannot check."""
    total = 0
    for path in paths:
        kind = _kind(path)
        partitions = list(_partition_directories(path)) if kind == "directory" else [path]
        files = [path] if kind == "segment" else [f for p in partitions for f in p.glob(f"*{SUFFIX}")]
        for file in files:
            try:
                total += file.stat().st_size
            except OSError:  # `verify` reports it
                continue
    return total


def partition_directories(path: Path) -> list[Path]:
    """Return the partition directories in `path`, if `path` is a log directory, or `path` itself, if it is a partition
    directory. Raises StorageError for any other path, or if there is no partition."""
    kind = _kind(path)
    if kind == "segment":
        raise StorageError(f"{path} is a file; name the partition's directory, {path.parent}")
    directories = [path] if kind == "partition" else list(_partition_directories(path))
    if not directories:
        raise StorageError(f"no partition found in {path}")
    return directories


def _kind(path: Path) -> str:
    if path.is_file():
        return "segment"
    if reason := odd_file(path) if not path.is_dir() else "":
        raise StorageError(reason)
    if not path.is_dir():
        raise StorageError(f"{path} does not exist; name a log directory, a partition's directory or a segment file")
    if (path / PARTITION_FILE).exists() or any(path.glob(f"*{SUFFIX}")):
        return "partition"
    if (path / META_FILE).exists() or next(_partition_directories(path), None) is not None:
        return "directory"
    raise StorageError(f"{path} is neither a log directory nor a partition's directory; its files are not sparklog's")


def _partition_directories(path: Path) -> Iterator[Path]:
    for entry in sorted(path.iterdir()):
        kept = not is_moved_aside(entry.name) and entry.name != CACHE_DIRECTORY
        if kept and entry.is_dir() and ((entry / PARTITION_FILE).exists() or any(entry.glob(f"*{SUFFIX}"))):
            yield entry


# --- log directories ---


def _verify_directory(
    path: Path, report: VerifyReport, progress: Progress, owners: dict[tuple[str, str], Path]
) -> None:
    findings = Findings()
    report.directories += 1
    around = _surroundings(path, findings)
    _note_odd([path / name for name in _DIRECTORY_FILES], findings)
    meta = read_if_exists(path / META_FILE)
    if meta is None:
        findings.add(path / META_FILE, 0, META_FILE, "missing: the owner of this directory is unknown")
    elif decode(meta, DataDirMeta) is None:
        findings.add(path / META_FILE, 0, META_FILE, "cannot be read; restore it from a copy")
    seen = set()
    for directory in _partition_directories(path):
        seen.add(directory.name)
        owner = _owner(directory)
        if owner is not None:
            other = owners.setdefault((directory.name, owner.topic_id), directory)
            if other != directory:
                findings.add(directory / PARTITION_FILE, 0, PARTITION_FILE, f"the same partition is also in {other}")
        _verify_partition(directory, around, report, progress)
    for name, points in (around.points.partitions if around.points else {}).items():
        if name in seen or is_moved_aside(name):
            continue
        if os.path.lexists(path / name) and not (path / name).is_dir():
            findings.add(path / name, 0, ODD, "no directory: move it away and restore the partition's directory")
        elif max(points.high_watermark, points.recovery_point):
            message = (
                f"partition {name} has no directory here; the checkpoint has offsets up to {points.high_watermark}"
            )
            add = findings.add if around.stopped_clean(name) else findings.note
            add(path / RECOVERY_POINTS_FILE, around.points_data.find(f'"{name}"'.encode()), "checkpoint", message)
    report._take(findings)


def _surroundings(path: Path, findings: Findings) -> _Surroundings:
    """Read the checkpoint and the clean-shutdown mark in `path`. Both are None if `path` is no log directory."""
    points_data, mark = read_if_exists(path / RECOVERY_POINTS_FILE), read_if_exists(path / CLEAN_SHUTDOWN_FILE)
    points = decode(points_data, RecoveryPoints) if points_data is not None else None
    if points_data is not None and points is None:
        findings.add(path / RECOVERY_POINTS_FILE, 0, "checkpoint", "cannot be read; the offsets come from the logs")
    clean = decode(mark, CleanShutdown) if mark is not None else None
    if mark is not None and clean is None:
        findings.add(path / CLEAN_SHUTDOWN_FILE, 0, "checkpoint", "cannot be read; the next start checks the logs")
    return _Surroundings(path, points_data or b"", points, clean)


def _owner(directory: Path) -> PartitionMeta | None:
    data = read_if_exists(directory / PARTITION_FILE)
    return decode(data, PartitionMeta) if data is not None else None


_DIRECTORY_FILES = (META_FILE, RECOVERY_POINTS_FILE, CLEAN_SHUTDOWN_FILE, LOG_DIRS_FILE)


def _note_odd(paths: Iterable[Path], findings: Findings) -> None:
    """Report irregular or implausibly large files among `paths` as damage, with the reason."""
    for path in paths:
        if reason := odd_file(path, SMALL_FILE_BYTES_MAX):
            findings.add(path, 0, ODD, reason)


# --- partitions ---


def _verify_segment(path: Path, report: VerifyReport, progress: Progress) -> None:
    siblings = _segments(path.parent)
    is_last = not siblings or path.name >= siblings[-1].name
    around = _surroundings(path.parent.parent, Findings())
    check = check_segment(
        path,
        is_last=is_last,
        stopped_clean=around.stopped_clean(path.parent.name),
        gaps=_gaps(path.parent),
        progress=progress,
    )
    report._count(check)
    report._take(check.findings)


def _verify_partition(directory: Path, around: _Surroundings, report: VerifyReport, progress: Progress) -> None:
    """Check a partition. If damage is found, check again, and report only damage that both checks have found: a broker
    can be at work. Raises StorageError if the partition keeps changing."""
    report.partitions += 1
    last: Findings | None = None
    for look in range(_LOOKS_MAX):
        try:
            checks, findings = _look_at_partition(directory, around, progress if look == 0 else lambda _: None)
        except FileNotFoundError:  # a file was deleted or compacted during the check
            if not directory.exists():
                return
            continue
        if last is not None:
            before = {(f.path, f.position, f.kind) for f in last.damage}
            findings.damage = [f for f in findings.damage if (f.path, f.position, f.kind) in before]
        if not findings.damage or last is not None:
            for check in checks:
                report._count(check)
            report._take(findings)
            return
        last = findings
        around = _surroundings(directory.parent, Findings())  # the broker can have started meanwhile
    raise StorageError(f"{directory} keeps changing; stop the broker, then try again")


def _segments(directory: Path) -> list[Path]:
    return sorted(p for p in directory.iterdir() if parse_segment_name(p.name) is not None)


def _gaps(directory: Path) -> frozenset[tuple[int, int]]:
    """Return the ranges (first missing offset, first offset after them) whose records a repair could not save."""
    return frozenset(decode_gaps(read_if_exists(directory / GAPS_FILE)))


def _look_at_partition(
    directory: Path, around: _Surroundings, progress: Progress
) -> tuple[list[SegmentCheck], Findings]:
    findings = Findings()
    segments = _segments(directory)
    gaps = _gaps(directory)
    checks = []
    for path in segments:
        check = check_segment(
            path,
            is_last=path == segments[-1],
            stopped_clean=around.stopped_clean(directory.name),
            gaps=gaps,
            progress=progress,
        )
        checks.append(check)
        findings.extend(check.findings)
    _check_owner(directory, checks, findings)
    _check_sequence(directory, checks, around, findings)
    _check_epochs(directory, checks, findings)
    _check_points(directory, checks, around, findings)
    _check_journal(directory, checks, findings)
    check_producers(directory, checks, findings, stopped_clean=around.stopped_clean(directory.name))
    _note_others(directory, segments, findings)
    _note_odd((p for p in sorted(directory.iterdir()) if p not in segments and _is_own(p)), findings)
    return checks, findings


def _check_owner(directory: Path, checks: list[SegmentCheck], findings: Findings) -> None:
    path = directory / PARTITION_FILE
    data = read_if_exists(path)
    owner = decode(data, PartitionMeta) if data is not None else None
    if owner is None:
        fault = "missing" if data is None else "cannot be read"
        findings.add(path, 0, PARTITION_FILE, f"{fault}; the next start of the broker writes it again")
    elif f"{owner.topic}-{owner.partition}" != directory.name:
        findings.add(
            path, 0, PARTITION_FILE, f"names {owner.topic}-{owner.partition}, the directory is {directory.name}"
        )
    schemas: dict[int, SegmentCheck] = {}
    for check in checks:
        if check.info is None or check.schema is None:
            continue
        theirs = (check.info.topic, check.info.topic_id, check.info.partition)
        if owner is not None and theirs != (owner.topic, owner.topic_id, owner.partition):
            findings.add(
                check.path,
                0,
                "head",
                f"belongs to {theirs}, {PARTITION_FILE} says {owner.topic, owner.topic_id, owner.partition}",
            )
        if not check.is_compacted:
            first = schemas.setdefault(check.info.schema_id, check)
            if first.schema is not None and not first.schema.equals(check.schema):
                findings.add(
                    check.path, 0, "head", f"schema {check.info.schema_id} has other columns than in {first.path.name}"
                )


def _check_sequence(directory: Path, checks: list[SegmentCheck], around: _Surroundings, findings: Findings) -> None:
    """Check that each segment begins at the end of the previous segment. Compacted segments, the part below the log
    start and the gaps of a repair are exceptions."""
    points = _points(directory, around)
    gaps = _gaps(directory)
    swapping = any(directory.glob(f"*{SWAP_SUFFIX}"))
    log_start = points.log_start_offset if points is not None else 0
    for before, after in pairwise(checks):
        base = parse_segment_name(after.path.name)
        if before.info is None or base is None or base == before.next_offset:
            continue
        if base < before.next_offset:
            findings.add(
                after.path,
                0,
                "offsets",
                f"begins at offset {base}, {before.path.name} goes to {before.next_offset - 1}",
            )
            continue
        missing = directory / segment_name(before.next_offset)
        message = f"offsets {before.next_offset} to {base - 1} are in no segment; {after.path.name} is next"
        if before.findings.damage:
            continue  # the end of a damaged segment cannot be told
        if before.is_compacted or base <= log_start:
            continue
        if (before.next_offset, base) in gaps:
            findings.note(missing, 0, "offsets", f"{message}: a repair removed them")
        elif swapping:
            findings.note(missing, 0, "offsets", f"{message}: compaction is replacing them, the next start continues")
        else:
            findings.add(missing, 0, "offsets", f"missing file: {message}")


def _check_epochs(directory: Path, checks: list[SegmentCheck], findings: Findings) -> None:
    path = directory / LEADER_EPOCHS_FILE
    data = read_if_exists(path)
    if data is None:
        return
    entries = decode_epochs(data)
    if entries is None:
        findings.add(path, 0, "leader epochs", "cannot be read; the next start finds them in the batches")
        return
    for epoch, base_offset, last_offset in (e for check in checks for e in check.batches.epochs):
        recorded = [e for e in entries if e.epoch == epoch]
        if not recorded or recorded[0].start_offset > last_offset:
            position = max(data.find(b'"entries"'), 0)
            findings.add(
                path, position, "leader epochs", f"epoch {epoch} of the batch at offset {base_offset} is not in it"
            )
            return


def _points(directory: Path, around: _Surroundings) -> PartitionPoints | None:
    """Return the checkpoint's entry for the partition; None without an entry, or if it is of an earlier topic of the
    same name."""
    points = around.points.partitions.get(directory.name) if around.points is not None else None
    owner = _owner(directory)
    return points if points is not None and (owner is None or owner.topic_id == points.topic_id) else None


def _check_points(directory: Path, checks: list[SegmentCheck], around: _Surroundings, findings: Findings) -> None:
    points = _points(directory, around)
    if points is None or around.path is None or any(c.findings.damage for c in checks):
        return
    _check_start(directory, checks, around, findings)
    ends = [c.next_offset for c in checks if c.info is not None]
    end = ends[-1] if ends else points.log_start_offset
    for name, value in (
        ("log start", points.log_start_offset),
        ("recovery point", points.recovery_point),
        ("high watermark", points.high_watermark),
    ):
        if value > end:
            position = max(around.points_data.find(f'"{directory.name}"'.encode()), 0)
            last = checks[-1].path.name if checks else "there is no segment"
            findings.add(
                around.path / RECOVERY_POINTS_FILE, position, "checkpoint",
                f"the {name} of {directory.name} is {value}, its log ends at {end} ({last}): files were cut or removed",
            )  # fmt: skip
            return


def _check_start(directory: Path, checks: list[SegmentCheck], around: _Surroundings, findings: Findings) -> None:
    """Check that the first segment begins at or below the checkpoint's log start, unless the object store has the
    earlier records."""
    first = parse_segment_name(checks[0].path.name) if checks else None
    if first is None or checks[0].is_compacted or (directory / JOURNAL_FILE).exists():
        return
    assert around.path is not None
    now = _surroundings(around.path, Findings())  # read again: a log in use records its new start, then removes files
    points = _points(directory, now)
    if points is None or points.log_start_offset >= first or any(end == first for _, end in _gaps(directory)):
        return
    findings.add(
        directory / segment_name(points.log_start_offset), 0, "offsets",
        f"missing file: offsets {points.log_start_offset} to {first - 1} are in no segment; {checks[0].path.name} is "
        "the first",
    )  # fmt: skip


def _check_journal(directory: Path, checks: list[SegmentCheck], findings: Findings) -> None:
    """Check that the journal of the copies in the object store can be read, and that the copies reach the first local
    segment."""
    path = directory / JOURNAL_FILE
    data = read_if_exists(path)
    if data is None:
        return
    try:
        state, end = decode_journal(data)
    except LogCorruptError as e:
        findings.add(path, 0, "journal", str(e))
        return
    if end < len(data):
        findings.note(path, end, "journal", "an unfinished record after a crash; the next start removes it")
    finished = state.finished
    if finished:
        first, behind = finished[0].base_offset, finished[-1].next_offset
        findings.note(
            path, 0, "journal", f"offsets {first} to {behind - 1} are in the object store, which is not checked"
        )
    base = parse_segment_name(checks[0].path.name) if checks else None
    if base is not None and base > state.copied_to and state.local_start_offset > state.copied_to:
        findings.add(
            path,
            0,
            "journal",
            f"offsets {max(0, state.copied_to)} to {base - 1} are neither in local files nor in the object store",
        )


_PARTITION_FILES = frozenset(
    {PARTITION_FILE, TOPIC_FILE, LEADER_EPOCHS_FILE, GAPS_FILE, JOURNAL_FILE, CLEANER_POINT_FILE, TRUNCATION_FILE}
)


_SUFFIXES = frozenset({producer_snapshot.SUFFIX, txn_index.SUFFIX, offset_index.SUFFIX, time_index.SUFFIX})
_LEFTOVERS = frozenset({CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX, TEMPORARY_SUFFIX})


def _is_own(path: Path) -> bool:
    return path.name in _PARTITION_FILES or path.suffix in _SUFFIXES


def _incomplete(path: Path) -> str:
    """Return the reason why the next start refuses a `.swap` file; "" if it does not."""
    try:
        end_of(RealFiles(), path)
    except SparklogError as e:
        return str(e)
    return ""


def _note_others(directory: Path, segments: list[Path], findings: Findings) -> None:
    stems = {p.stem for p in segments}
    has_cleaned = any(directory.glob(f"*{CLEANED_SUFFIX}"))
    for path in sorted(directory.iterdir()):
        if path in segments or path.name in _PARTITION_FILES:
            continue
        if path.suffix in (producer_snapshot.SUFFIX, txn_index.SUFFIX):
            continue
        if path.suffix in (offset_index.SUFFIX, time_index.SUFFIX):
            if path.stem not in stems:
                findings.note(path, 0, "index", "an index without a segment; the next start removes it")
        elif path.suffix in _LEFTOVERS and (reason := odd_file(path)):
            findings.add(path, 0, ODD, reason)  # the next start cannot read or remove it
        elif path.suffix == SWAP_SUFFIX and not has_cleaned and (reason := _incomplete(path)):
            findings.add(path, 0, "compaction", reason)
        elif path.suffix == QUARANTINE_SUFFIX:
            findings.note(path, 0, "quarantine", "bytes that a repair has set aside")
        else:
            findings.note(path, 0, "file", "not a file of a running log: a leftover, or not sparklog's")
