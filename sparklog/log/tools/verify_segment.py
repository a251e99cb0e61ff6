"""Checks of one segment file and its indexes against its batches. Reads only.

The footer, every entry of both indexes and the offsets are derived again from the batches and compared. The batches are
decoded with the schema in the head. Remains of a crash or of a broker at work (an incomplete batch at the end of the
last segment, an index that is rebuilt later) are notes, not damage.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from sparklog.environment.files import OddFileError, odd_file, open_regular, read_regular
from sparklog.errors import CorruptBatchError, LogCorruptError
from sparklog.format import offset_index, time_index
from sparklog.format.batch import HEADER_KEY, BatchHeader, TruncatedBatchError
from sparklog.format.index_checksum import entries_in
from sparklog.format.offset_column import has_offset_column, topic_schema
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.format.segment import (
    MAGIC,
    PositionedRead,
    ScanEnd,
    SealedBlocks,
    SegmentHead,
    SegmentInfo,
    decode_head,
    decode_seal,
    encode_head,
    encode_seal,
    parse_segment_name,
    scan,
)
from sparklog.log.segments.batch_times import batch_timestamp_ms
from sparklog.log.segments.header_walk import header_at
from sparklog.log.segments.stored_rows import RowsCheck

Progress = Callable[[int], None]
"""Callback of a check; it gets the number of bytes that were checked since its last call."""

ODD = "file"
"""`kind` of a finding about a path that is no regular file, or a file of an implausible size."""
FINDINGS_MAX = 1000
"""Largest number of findings in a list; further ones are left out, because a file can be damaged all over."""


_OF_THE_SAME_MEANING = "not the bytes that this version writes, but with the same meaning"


class Finding(Struct, frozen=True, order=True):
    """A fault or a note. `position`: position of the byte in the file `path`. `kind`: kind of the object concerned,
    such as "batch" or "footer"."""

    path: str
    position: int
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}, position {self.position}: {self.message}"


class Findings(Struct):
    """Damage, and notes about unusual but allowed states."""

    damage: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    def add(self, path: Path, position: int, kind: str, message: str) -> None:
        if len(self.damage) < FINDINGS_MAX:
            self.damage.append(Finding(str(path), position, kind, message))

    def note(self, path: Path, position: int, kind: str, message: str) -> None:
        if len(self.notes) < FINDINGS_MAX:
            self.notes.append(Finding(str(path), position, kind, message))

    def extend(self, other: Findings) -> None:
        self.damage += other.damage
        self.notes += other.notes


class Batches(Struct):
    """Result of a scan: one list per property, with an entry per batch. `epochs`: (leader epoch, base offset, last
    offset) of the first batch after each change of the epoch."""

    positions: array[int] = field(default_factory=lambda: array("q"))
    metadata_lengths: array[int] = field(default_factory=lambda: array("i"))
    base_offsets: array[int] = field(default_factory=lambda: array("q"))
    timestamps_ms: array[int] = field(default_factory=lambda: array("q"))
    epochs: list[tuple[int, int, int]] = field(default_factory=list)
    records: int = 0

    def __len__(self) -> int:
        return len(self.positions)


class SegmentCheck(Struct):
    """The result for one segment. `info` is None if the head cannot be read. `next_offset` is the offset after the
    segment's last record; -1 if the head cannot be read."""

    path: Path
    findings: Findings
    info: SegmentInfo | None = None
    schema: pa.Schema | None = None
    is_compacted: bool = False
    is_sealed: bool = False
    next_offset: int = -1
    size_bytes: int = 0
    batches: Batches = field(default_factory=Batches)


def read_if_exists(path: Path) -> bytes | None:
    """Return the file's content: None if the file is missing, empty bytes if it cannot be read. For an irregular file,
    `odd_file` has the reason."""
    try:
        return read_regular(path)
    except FileNotFoundError:
        return None
    except (OddFileError, OSError):
        return b""


def check_segment(
    path: Path,
    *,
    is_last: bool,
    stopped_clean: bool,
    gaps: frozenset[tuple[int, int]] = frozenset(),
    progress: Progress = lambda _: None,
) -> SegmentCheck:
    """Read and check the whole segment. `is_last`: it is the last one of its partition, so it can be unsealed.
    `stopped_clean`: no broker has it open and the last stop was clean, so nothing is unfinished. `gaps`: ranges (first
    missing offset, first offset after them) whose records a repair could not save.

    Raises FileNotFoundError, OSError.
    """
    reason = odd_file(path)
    if reason:
        check = SegmentCheck(path, Findings())
        check.findings.add(path, 0, ODD, reason)
        return check
    descriptor = open_regular(path)
    try:
        check = SegmentCheck(path, Findings(), size_bytes=os.fstat(descriptor).st_size)

        def read(position: int, size_bytes: int) -> bytes:
            return os.pread(descriptor, size_bytes, position)

        _Checker(check, read, is_last, stopped_clean, gaps, progress).run()
    finally:
        os.close(descriptor)
    return check


class _Checker:
    def __init__(
        self,
        check: SegmentCheck,
        read: PositionedRead,
        is_last: bool,
        stopped_clean: bool,
        gaps: frozenset[tuple[int, int]],
        progress: Progress,
    ) -> None:
        self._check = check
        self._read = read
        self._may_be_unfinished = is_last and not stopped_clean
        self._is_last = is_last
        self._gaps = gaps
        self._progress = progress
        self._path = check.path
        self._findings = check.findings
        self._rows: RowsCheck | None = None
        self._misfits: list[tuple[int, str]] = []
        self._fitting_count = 0
        """Number of batches that fit the head's schema."""

    def run(self) -> None:
        head = self._head()
        if head is None:
            return
        check = self._check
        check.info, check.schema = head.info, head.schema
        check.is_compacted = has_offset_column(head.schema)
        check.next_offset = head.info.base_offset
        self._rows = RowsCheck(head.schema)
        seal = decode_seal(self._read, check.size_bytes)
        check.is_sealed = seal is not None
        end = self._scan(head, seal)
        if seal is None:
            self._no_footer(end)
        else:
            self._footer(head, seal)
        self._indexes()
        self._report_misfits()

    # --- head ---

    def _head(self) -> SegmentHead | None:
        try:
            head = decode_head(self._read)
        except TruncatedBatchError as e:
            if self._may_be_unfinished:
                self._findings.note(self._path, 0, "head", f"unfinished: {e}; the next start removes the file")
            else:
                self._findings.add(self._path, 0, "head", str(e))
            return None
        except LogCorruptError as e:
            self._findings.add(self._path, 0, "head", str(e))
            return None
        if head.info.base_offset != parse_segment_name(self._path.name):
            self._findings.add(
                self._path, 0, "head", f"the head has base offset {head.info.base_offset}, the file name another one"
            )
        expected = encode_head(head.schema, head.info)
        if self._read(0, len(expected)) != expected:
            self._findings.note(self._path, 0, "head", _OF_THE_SAME_MEANING)
        return head

    # --- batches ---

    def _scan(self, head: SegmentHead, seal: SealedBlocks | None) -> int:
        """Check all batches, and return the position after the last one. After a bad batch, the check continues at the
        next batch if its position is known."""
        end = seal.data_end if seal else self._check.size_bytes
        position = head.data_position
        while True:
            result = scan(self._read, position, end, self._visit, next_offset=self._check.next_offset)
            if result.end is ScanEnd.END:
                return result.position
            torn = result.end is ScanEnd.TORN and seal is None and self._may_be_unfinished
            if torn:
                count = end - result.position
                self._findings.note(
                    self._path, result.position, "batch",
                    f"{count} bytes are not a whole batch ({result.reason}): an unfinished append; a start after a "
                    "crash removes them",
                )  # fmt: skip
                return result.position
            self._findings.add(
                self._path, result.position, "batch", f"{result.reason} (offset {self._check.next_offset})"
            )
            following = self._behind(result.position, end, seal)
            if following is None or len(self._findings.damage) >= FINDINGS_MAX:
                return result.position
            position = following

    def _behind(self, position: int, end: int, seal: SealedBlocks | None) -> int | None:
        """Return the start of the batch after the bad one at `position`, if it can be found."""
        if seal is not None:
            i = int(np.searchsorted(seal.positions, position, "right"))
            return int(seal.positions[i]) if i < len(seal.positions) else None
        try:
            header = header_at(self._read, position, end)
        except CorruptBatchError:
            return None
        following = position + header.size_bytes
        return following if following < end else None

    def _visit(self, position: int, header: BatchHeader) -> None:
        check, info = self._check, self._check.info
        assert info is not None
        if header.base_offset != check.next_offset and not self._findings.damage:
            message = f"offsets {check.next_offset} to {header.base_offset - 1} are missing before this batch"
            if check.is_compacted:
                pass
            elif (check.next_offset, header.base_offset) in self._gaps:
                self._findings.note(self._path, position, "offsets", f"{message}: a repair removed them")
            else:
                self._findings.add(self._path, position, "offsets", message)
        if header.schema_id != info.schema_id:
            self._findings.add(
                self._path, position, "batch", f"schema {header.schema_id} in a segment of schema {info.schema_id}"
            )
        else:
            self._check_rows(position, header)
        batches = check.batches
        batches.positions.append(position)
        batches.metadata_lengths.append(header.metadata_length_bytes)
        batches.base_offsets.append(header.base_offset)
        batches.timestamps_ms.append(batch_timestamp_ms(header))
        batches.records += header.record_count
        if not batches.epochs or batches.epochs[-1][0] != header.leader_epoch:
            batches.epochs.append((header.leader_epoch, header.base_offset, header.last_offset))
        check.next_offset = header.next_offset
        self._progress(header.size_bytes)

    def _check_rows(self, position: int, header: BatchHeader) -> None:
        """Check that the batch can be decoded with the head's schema, because no checksum covers the head."""
        assert self._rows is not None
        misfit = self._rows.misfit(self._read(position, header.size_bytes), header)
        if misfit is None:
            self._fitting_count += 1
        elif misfit.is_unknown:
            self._findings.note(self._path, position, "batch", f"{misfit.message} (offset {header.base_offset})")
        elif len(self._misfits) < FINDINGS_MAX:
            self._misfits.append((position, f"{misfit.message} (offset {header.base_offset})"))

    def _report_misfits(self) -> None:
        """Report the batches that do not fit the head's schema. If none fits and no other source confirms the schema,
        the finding is about the head, which has no checksum. This comes last, because the other checks end at
        damage."""
        kind, doubt = "batch", ""
        is_certain = self._check.is_sealed or (  # a footer has been compared with the head
            self._check.schema is not None and topic_schema(self._check.schema).equals(ENVELOPE_SCHEMA)
        )
        if not self._fitting_count and not is_certain:
            kind, doubt = "head", "; no batch fits the head's schema, which may be wrong"
        for position, message in self._misfits:
            self._findings.add(self._path, position, kind, message + doubt)

    # --- footer ---

    def _no_footer(self, end: int) -> None:
        size = self._check.size_bytes
        looks_sealed = self._read(max(0, size - len(MAGIC)), len(MAGIC)) == MAGIC
        if looks_sealed:
            self._findings.add(
                self._path, end, "footer", "the footer does not fit the batches; the next start rewrites it"
            )
        elif not self._may_be_unfinished:
            why = "the broker stopped cleanly" if self._is_last else "segments follow it"
            self._findings.add(
                self._path,
                end,
                "footer",
                f"the segment has no footer, but {why}: it was truncated, or sealing was interrupted",
            )
        elif end < size and not self._findings.notes:
            self._findings.note(self._path, end, "footer", "an unfinished footer; the next start completes it")

    def _footer(self, head: SegmentHead, seal: SealedBlocks) -> None:
        """Compare the footer with a newly computed one, because no checksum covers its bytes."""
        batches = self._check.batches
        if self._findings.damage:  # without the bad batches, the footer cannot be computed
            return
        positions = np.array(batches.positions, np.int64)
        lengths = np.array(batches.metadata_lengths, np.int32)
        expected = encode_seal(head.schema, head.info, positions, lengths, seal.data_end)
        footer = self._read(seal.data_end, self._check.size_bytes - seal.data_end)
        if footer == expected:
            return
        shared = min(len(footer), len(expected))
        differs = np.flatnonzero(np.frombuffer(footer, "u1", shared) != np.frombuffer(expected, "u1", shared))
        position = seal.data_end + (int(differs[0]) if len(differs) else shared)
        problem = self._footer_problem(head, seal, positions, lengths)
        if problem:
            self._findings.add(
                self._path, position, "footer", f"{problem}; readers that map the file get wrong results"
            )
        else:
            self._findings.note(self._path, position, "footer", _OF_THE_SAME_MEANING)

    def _footer_problem(self, head: SegmentHead, seal: SealedBlocks, positions: np.ndarray, lengths: np.ndarray) -> str:
        if not np.array_equal(seal.positions, positions) or not np.array_equal(seal.metadata_lengths, lengths):
            return "the footer's list of batches is wrong"
        try:
            with pa.OSFile(str(self._path)) as source:
                schema = pa.ipc.open_file(source).schema
            facts = json.loads((schema.metadata or {})[HEADER_KEY])
            list(schema.names)
        except (pa.ArrowException, OSError, KeyError, ValueError) as e:
            return f"Arrow cannot read the footer: {e}"
        if not schema.remove_metadata().equals(head.schema):
            return "the footer's schema is not the head's"
        if any(facts.get(name) != value for name, value in head.info._asdict().items()):
            return "the footer names another segment than the head"
        return ""

    # --- indexes ---

    def _indexes(self) -> None:
        if self._findings.damage:  # positions after damage cannot be told
            return
        for index, examine in ((offset_index, self._offset_index), (time_index, self._time_index)):
            path = self._path.with_suffix(index.SUFFIX)
            data = read_if_exists(path)
            if data is None:
                if self._check.is_sealed:
                    self._findings.note(path, 0, "index", "missing; the broker rebuilds it on demand")
                continue
            if not self._check.is_sealed:
                self._findings.note(path, 0, "index", "the index of a segment without a footer; the broker rewrites it")
                continue
            self._progress(len(data))
            whole = index.ENTRY.itemsize * entries_in(len(data), index.ENTRY.itemsize, index.TRAILER_BYTES)
            damage_count = len(self._findings.damage)
            examine(path, np.frombuffer(data[:whole], index.ENTRY))
            if len(self._findings.damage) == damage_count and data[whole:] != index.trailer(
                self._base_offset, data[:whole]
            ):
                self._findings.add(path, whole, "index", "wrong checksum; the broker rebuilds the index on demand")

    def _index_finding(self, path: Path, wrong: np.ndarray, entry_bytes: int, fault: str) -> None:
        if len(wrong):
            first = int(wrong[0])
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            self._findings.add(path, first * entry_bytes, "index", f"entry {first} {fault}{more}")

    def _offset_index(self, path: Path, entries: np.ndarray) -> None:
        batches = self._check.batches
        positions = np.array(batches.positions, np.int64)
        offsets = np.array(batches.base_offsets, np.int64) - self._base_offset
        file_positions = entries["position"].astype(np.int64)
        i = np.minimum(np.searchsorted(positions, file_positions), max(len(positions) - 1, 0))
        good = (
            (positions[i] == file_positions) & (offsets[i] == entries["relative_offset"])
            if len(positions)
            else np.zeros(len(entries), bool)
        )
        good[1:] &= file_positions[1:] > file_positions[:-1]
        size = offset_index.ENTRY.itemsize
        self._index_finding(path, np.flatnonzero(~good), size, "does not point to a batch")
        if good.all() and len(entries):
            self._missing_entries(path, positions, i)

    def _missing_entries(self, path: Path, positions: np.ndarray, indexed: np.ndarray) -> None:
        """Note a place where entries of the offset index seem to be missing. An entry is made once more than
        `index.interval.bytes` lie after the last one. The file does not have the interval, but it is smaller than each
        distance between entries. So an entry is missing if a batch without an entry lies at least the smallest distance
        after the last entry. This is only a note: the setting can have been raised, and look-ups only read more."""
        marks = np.concatenate(([0], indexed, [len(positions)]))
        distances = np.diff(positions[marks[:-1]])
        without = positions[marks[1:] - 1] - positions[marks[:-1]]  # up to the last batch that has no entry
        gaps = np.flatnonzero(without >= distances.min())
        if len(gaps):
            first = int(gaps[0])
            self._findings.note(
                path,
                first * offset_index.ENTRY.itemsize,
                "index",
                f"entries seem to be missing before entry {first}: {without[first]} bytes of batches lie between; "
                f"other entries follow after at least {distances.min()} bytes",
            )

    def _time_index(self, path: Path, entries: np.ndarray) -> None:
        batches = self._check.batches
        if not len(batches):
            self._index_finding(path, np.arange(len(entries)), time_index.ENTRY.itemsize, "has no batch")
            return
        offsets = np.array(batches.base_offsets, np.int64) - self._base_offset
        timestamps = np.array(batches.timestamps_ms, np.int64)
        largest = np.maximum.accumulate(timestamps)
        relative_offsets = entries["relative_offset"].astype(np.int64)
        i = np.minimum(np.searchsorted(offsets, relative_offsets), len(offsets) - 1)
        before = np.where(i > 0, largest[i - 1], np.iinfo(np.int64).min)
        reached = (largest[i] == entries["timestamp_ms"]) & (before < entries["timestamp_ms"])
        good = (offsets[i] == relative_offsets) & (reached | (entries["timestamp_ms"] == np.iinfo(np.int64).min))
        good[1:] &= relative_offsets[1:] > relative_offsets[:-1]
        wrong = np.flatnonzero(~good)
        size = time_index.ENTRY.itemsize
        self._index_finding(path, wrong, size, "is not the largest timestamp up to the batch of this entry")
        if not len(wrong) and (not len(entries) or int(entries["timestamp_ms"][-1]) != int(largest[-1])):
            last = f"ends with {int(entries['timestamp_ms'][-1])}" if len(entries) else "is empty"
            self._findings.add(
                path,
                len(entries) * size,
                "index",
                f"stale: it {last}, the segment's largest timestamp is {largest[-1]}",
            )

    @property
    def _base_offset(self) -> int:
        assert self._check.info is not None
        return self._check.info.base_offset
