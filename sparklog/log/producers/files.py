"""Files about a log's producers: snapshots, and files of aborted transactions.

They are written at every roll, clean close, compaction and truncation. None is ever required: missing state is replayed
from the headers of the batches, and an empty file counts as missing. A snapshot names the files of aborted transactions
that it relies on, with their numbers of entries and checksums, so an older or newer file is not mistaken for its own. A
snapshot beyond the log end is removed durably before any append there. A snapshot before the first local batch is not
used either, because the records between them cannot be replayed: a transaction that ended there would stay open
forever, and a stored batch would be accepted again.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sparklog.environment.files import FileSystem, read_rebuildable, sync_whole, write_whole
from sparklog.errors import StorageError, StorageFullError
from sparklog.format import producer_snapshot, txn_index
from sparklog.format.producer_snapshot import (
    AbortedFile,
    ProducerSnapshot,
    ProducerState,
    decode_snapshot,
    encode_snapshot,
    snapshot_name,
)
from sparklog.format.txn_index import AbortedEntry, decode_txn_index, encode_txn_index, entries_crc
from sparklog.log.producers.partition_producers import PartitionProducers
from sparklog.log.producers.states import ALL_SAFEGUARDS, PRODUCERS_MAX, Safeguards
from sparklog.log.segments.segment import LogSegment

logger = logging.getLogger(__name__)

SNAPSHOTS_KEPT = 2


class LogBounds(NamedTuple):
    """Beginning and end of a log."""

    log_start: int
    log_end: int


class BeforeLocal(NamedTuple):
    """State of the log's part that is only in the object store, from the journal. `offset`: where the local files
    begin. `states`: the producers at that offset. `aborted`: the aborted transactions by the base offset of the segment
    with their markers."""

    offset: int = 0
    states: Sequence[ProducerState] = ()
    aborted: Sequence[tuple[int, Sequence[AbortedEntry]]] = ()


NO_EARLIER_STATE = BeforeLocal()


class ProducerFiles:
    """The files of one partition directory. Used under the log's write lock."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._snapshots: list[int] = []
        """Offsets of the snapshots, ascending."""
        self._aborted: dict[int, AbortedFile] = {}
        """Descriptions of the files of aborted transactions, by the base offset in their names."""
        self._saved_to = 0
        """All abort markers below this offset are in the files."""
        self._dirty: list[Path] = []
        """Files written since the last fsync."""

    # --- loading ---

    def load(
        self,
        segments: Sequence[LogSegment],
        bounds: LogBounds,
        high_watermark: int,
        safeguards: Safeguards = ALL_SAFEGUARDS,
        before: BeforeLocal = NO_EARLIER_STATE,
        limit: int = PRODUCERS_MAX,
    ) -> PartitionProducers:
        """Return the producers (at most `limit`) of a log with these local `segments`. The sources are the newest
        usable snapshot and the batch headers after it; without a usable snapshot, the state `before` the segments and
        all their headers. Raises StorageError, StorageFullError."""
        names = set(self._files.list_directory(self._directory))
        self._snapshots = sorted(_offsets_in(names, producer_snapshot.SUFFIX))
        self.cut(bounds.log_end)
        replayable_from = segments[0].base_offset if segments else bounds.log_end
        for offset in reversed(self._snapshots):
            loaded = self._resume(offset, bounds, safeguards, limit) if offset >= replayable_from else None
            if loaded is not None:
                loaded.replay(segments, offset, high_watermark)
                break
            self._remove_snapshots([offset])
        else:
            loaded = self._from_the_start(before, segments, high_watermark, safeguards, limit)
            offset = 0
        loaded.open.on_high_watermark(high_watermark)
        self._remove_unknown(names)
        if bounds.log_end > offset and not self._snapshots and segments:
            self.save(loaded, [s.base_offset for s in segments], bounds.log_end)  # so the next start replays less
        return loaded

    def _resume(self, offset: int, bounds: LogBounds, safeguards: Safeguards, limit: int) -> PartitionProducers | None:
        """Return the producers of the snapshot at `offset`; None if the snapshot, or a file that it relies on, cannot
        be used."""
        path = self._directory / snapshot_name(offset)
        data = read_rebuildable(self._files, path)
        snapshot = decode_snapshot(data or b"")
        if snapshot is None or snapshot.offset != offset:
            if data:  # else it was emptied on purpose
                logger.warning("%s cannot be read: the broker uses an older snapshot, or reads all headers", path)
            return None
        entries: list[AbortedEntry] = []
        files: dict[int, AbortedFile] = {}
        for file in sorted(snapshot.aborted_files):
            if file.last_offset < bounds.log_start:
                continue
            aborted = self._read_aborted(file.base_offset)
            if aborted is None or len(aborted) < file.entries or entries_crc(aborted[: file.entries]) != file.crc:
                logger.warning(
                    "%s: a file that it refers to is missing (%d%s)", path, file.base_offset, txn_index.SUFFIX
                )
                return None
            files[file.base_offset] = file
            entries += aborted[: file.entries]
        self._aborted, self._saved_to = files, offset
        return PartitionProducers.resumed(snapshot, entries, safeguards, limit)

    def _from_the_start(
        self,
        before: BeforeLocal,
        segments: Sequence[LogSegment],
        high_watermark: int,
        safeguards: Safeguards,
        limit: int,
    ) -> PartitionProducers:
        """Return the producers from the state `before` the local segments and all headers of these segments. All
        existing snapshots are removed."""
        self._remove_snapshots(self._snapshots)
        self._aborted, self._saved_to = {}, 0
        for base, aborted in before.aborted:
            self._write_aborted(base, aborted)
        entries = [entry for _, aborted in before.aborted for entry in aborted]
        snapshot = ProducerSnapshot(before.offset, before.states)
        producers = PartitionProducers.resumed(snapshot, entries, safeguards, limit)
        producers.replay(segments, before.offset, high_watermark)
        return producers

    def _read_aborted(self, base: int) -> list[AbortedEntry] | None:
        return decode_txn_index(read_rebuildable(self._files, self._path_of_aborted(base)) or b"")

    def _remove_unknown(self, names: set[str]) -> None:
        for base in _offsets_in(names, txn_index.SUFFIX):
            if base not in self._aborted:
                self._files.remove(self._path_of_aborted(base))

    # --- saving ---

    def save(self, producers: PartitionProducers, bases: Sequence[int], offset: int, *, fsync: bool = True) -> None:
        """Write a snapshot at `offset`, the log end. The aborted transactions that no file has yet are written before;
        `bases`: the segments' base offsets, for the names of these files. A failure is only logged: the next start
        replays more. Without `fsync`, the next flush does not fsync the snapshot.
        """
        if offset in self._snapshots or (not bases and not len(producers.states)):
            return
        try:
            for base, entries in _by_segment(producers, bases, self._saved_to):
                self._write_aborted(base, entries)
            path = self._directory / snapshot_name(offset)
            content = ProducerSnapshot(
                offset, producers.states.by_last_use(), producers.open.waiting, sorted(self._aborted.values())
            )
            write_whole(self._files, path, encode_snapshot(content))
        except (StorageFullError, StorageError) as e:
            logger.warning(
                "%s: cannot write the snapshot of the producers at offset %d: %s", self._directory, offset, e
            )
            return
        if fsync:
            self._dirty.append(path)
        self._saved_to = offset
        self._snapshots.append(offset)
        self._remove_snapshots(self._snapshots[:-SNAPSHOTS_KEPT])

    def _write_aborted(self, base: int, entries: Sequence[AbortedEntry]) -> None:
        path = self._path_of_aborted(base)
        write_whole(self._files, path, encode_txn_index(entries))
        self._aborted[base] = _describe(base, entries)
        self._dirty.append(path)

    @property
    def newest_snapshot(self) -> int:
        """Offset of the newest snapshot, or -1."""
        return self._snapshots[-1] if self._snapshots else -1

    @property
    def is_dirty(self) -> bool:
        """True if there is a file to fsync."""
        return bool(self._dirty)

    def take_dirty(self) -> list[Path]:
        """Return the files to fsync, in the order of their fsyncs, and empty the list. Some can be deleted before their
        fsync."""
        dirty, self._dirty = self._dirty, []
        return dirty

    def put_back(self, paths: Sequence[Path]) -> None:
        """Put files that were not fsynced back at the front of the list."""
        self._dirty[:0] = paths

    # --- when the log loses something ---

    def cut(self, end_offset: int) -> None:
        """Remove the snapshots above `end_offset`, durably. Raises StorageError."""
        gone = [offset for offset in self._snapshots if offset > end_offset]
        if gone:
            self._remove_snapshots(gone)
            self._files.sync_directory(self._directory)

    def clear(self) -> None:
        """Remove all snapshots and all files of aborted transactions, for an emptied log. Raises StorageError."""
        self.cut(-1)
        for base in list(self._aborted):
            self._files.remove(self._path_of_aborted(base))
        self._aborted, self._saved_to = {}, 0

    def drop_below(self, log_start_offset: int) -> None:
        """Remove the files whose aborted transactions all end below the log start. Raises StorageError."""
        for file in [f for f in self._aborted.values() if f.last_offset < log_start_offset]:
            self._files.remove(self._path_of_aborted(file.base_offset))
            del self._aborted[file.base_offset]

    def forget_aborted(self, start_offset: int, end_offset: int) -> None:
        """Remove the files of aborted transactions for the segments in [start_offset, end_offset), which were
        compacted, and all snapshots, which rely on these files. The caller then calls `save`. Raises StorageError."""
        self.cut(-1)
        self._saved_to = min(self._saved_to, start_offset)
        for base in [b for b in self._aborted if start_offset <= b < end_offset]:
            self._files.remove(self._path_of_aborted(base))
            del self._aborted[base]

    def _remove_snapshots(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self._files.remove(self._directory / snapshot_name(offset))
        self._snapshots = [o for o in self._snapshots if o not in offsets]

    def _path_of_aborted(self, base: int) -> Path:
        return self._directory / f"{base:020d}{txn_index.SUFFIX}"


def newest_snapshot_offset(files: FileSystem, directory: Path) -> int:
    """Return the offset in the name of the newest snapshot, which was the log end when it was written; 0 without a
    snapshot. Raises StorageError."""
    return max(_offsets_in(set(files.list_directory(directory)), producer_snapshot.SUFFIX), default=0)


def empty_snapshots_above(files: FileSystem, directory: Path, offset: int) -> None:
    """Empty the snapshots above `offset`, because the records from `offset` on are lost. These snapshots know the lost
    batches: a lost batch would count as stored when its producer sends it again. The snapshots keep their names, which
    show the former log end. Raises StorageError, StorageFullError."""
    for snapshot_offset in _offsets_in(set(files.list_directory(directory)), producer_snapshot.SUFFIX):
        if snapshot_offset > offset:
            path = directory / snapshot_name(snapshot_offset)
            write_whole(files, path, b"")
            sync_whole(files, path)


def _describe(base: int, entries: Sequence[AbortedEntry]) -> AbortedFile:
    return AbortedFile(base, entries[-1].last_offset, len(entries), entries_crc(entries))


def _offsets_in(names: set[str], suffix: str) -> list[int]:
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return [int(stem) for stem in stems if len(stem) == 20 and stem.isascii() and stem.isdigit()]


def _by_segment(
    producers: PartitionProducers, bases: Sequence[int], start_offset: int
) -> Iterator[tuple[int, list[AbortedEntry]]]:
    """Yield (base offset, all aborted transactions whose marker is in the segment), for the segments with abort markers
    from `start_offset` on."""
    first = next(producers.aborted.entries(start_offset), None)
    if first is None or not bases:
        return
    i = max(0, bisect_right(bases, first.last_offset) - 1)
    for base, following in zip(bases[i:], [*bases[i + 1 :], 2**63 - 1], strict=True):
        entries = list(producers.aborted.entries(base, following))
        if entries:
            yield base, entries
