"""The leader epochs of a log with their start offsets, in memory and in leader-epochs.json.

A follower whose log has diverged is cut back to the last offset at which its epochs and the leader's agree
(`end_offset_for`), never to its high watermark, which lags. The file is written before the first batch of an epoch is
appended. So it can name epochs without records, but it names every epoch with records.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from sparklog.environment.files import FileSystem, read_whole
from sparklog.errors import FencedLeaderEpochError
from sparklog.format.epoch_checkpoint import (
    FIRST_ENTRIES,
    LEADER_EPOCHS_FILE,
    EpochEntry,
    decode_epochs,
    encode_epochs,
)
from sparklog.log.segments.segment import LogSegment

logger = logging.getLogger(__name__)

UNDEFINED = -1


class EpochEnd(NamedTuple):
    """An epoch and the offset after its last record; (-1, -1) if the epoch is not known."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """Entries (epoch, start offset); epochs and start offsets ascend strictly. The tuple `entries` is replaced as a
    whole, so readers need no lock."""

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self.entries: tuple[EpochEntry, ...] = ()
        for entry in entries:
            self.assign(*entry)

    @property
    def latest(self) -> int:
        """The newest epoch; -1 without an entry."""
        return self.entries[-1].epoch if self.entries else UNDEFINED

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Begin `epoch` at `start_offset`, and remove entries with an epoch or a start offset that is not lower. If
        `epoch` is the newest and has begun already, nothing changes. Returns True if the entries have changed."""
        last = self.entries[-1] if self.entries else None
        if last is not None and epoch == last.epoch and start_offset >= last.start_offset:
            return False
        kept = [e for e in self.entries if e.epoch < epoch and e.start_offset < start_offset]
        self.entries = (*kept, EpochEntry(epoch, start_offset))
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Return the end of `epoch`; if it is not known here, the end of the largest known epoch below it.

        The newest epoch ends at the log end. For an epoch newer than all known epochs, and for every epoch of a log
        without epochs, the result is (-1, -1). An epoch older than all known epochs ends at the start of the first
        known epoch.
        """
        if epoch == UNDEFINED or not self.entries or epoch > self.latest:
            return EpochEnd(UNDEFINED, UNDEFINED)
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        epochs = [e.epoch for e in self.entries]
        higher = self.entries[bisect_right(epochs, epoch)]
        floor = bisect_right(epochs, epoch) - 1
        return EpochEnd(self.entries[floor].epoch if floor >= 0 else epoch, higher.start_offset)

    def epoch_of(self, offset: int) -> int:
        """Return the epoch of the record at `offset`; -1 if it is not known."""
        i = bisect_right([e.start_offset for e in self.entries], offset) - 1
        return self.entries[i].epoch if i >= 0 else UNDEFINED

    def between(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return pairs (epoch, its first offset in the range) for the records in [start_offset, end_offset). The first
        epoch is -1 if unknown."""
        inside = [(e.epoch, e.start_offset) for e in self.entries if start_offset < e.start_offset < end_offset]
        return [(self.epoch_of(start_offset), start_offset), *inside]

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forget the epochs that begin at or above `end_offset`. Returns True if there was such an epoch."""
        kept = self.entries[: bisect_left([e.start_offset for e in self.entries], end_offset)]
        changed, self.entries = len(kept) < len(self.entries), kept
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forget the epochs below a new log start. The epoch of `start_offset` begins at `start_offset` from now on.
        Returns True if the entries have changed."""
        i = bisect_right([e.start_offset for e in self.entries], start_offset) - 1
        if i < 0 or (i == 0 and self.entries[0].start_offset == start_offset):
            return False
        self.entries = (EpochEntry(self.entries[i].epoch, start_offset), *self.entries[i + 1 :])
        return True


class LeaderEpochCache(LeaderEpochs):
    """The epochs of the log in `directory`. `begin` writes the file before it changes the memory.

    `file_is_first`: the file has exactly FIRST_ENTRIES, which the creation of a partition writes. So a `begin` that
    leads to these entries does not write the file again.
    """

    def __init__(
        self, files: FileSystem, directory: Path, entries: Iterable[EpochEntry] = (), *, file_is_first: bool = False
    ) -> None:
        self._files = files
        self._path = directory / LEADER_EPOCHS_FILE
        self._file_is_first = file_is_first
        self._is_ahead = False
        """True if the file can differ from the entries in memory: after `expect`, or after a failed write."""
        super().__init__(entries)

    def begin(self, epoch: int, log_end_offset: int) -> None:
        """Begin `epoch` at `log_end_offset`, where its leader appends, and write the file durably before returning.

        Raises FencedLeaderEpochError for an epoch older than the newest, StorageFullError, StorageError.
        """
        if epoch == self.latest and not self._is_ahead:
            return
        if epoch < self.latest:
            raise FencedLeaderEpochError(
                f"{self._path.parent}: leader epoch {epoch} has ended, the log has records of epoch {self.latest}; "
                "read the metadata again"
            )
        changed = LeaderEpochs(self.entries)
        changed.assign(epoch, log_end_offset)
        if not (self._file_is_first and changed.entries == FIRST_ENTRIES):
            self._write(changed.entries)
        self.entries, self._is_ahead = changed.entries, False

    def expect(self, epoch: int, log_end_offset: int) -> None:
        """Begin an epoch like `begin`, but in memory only. An epoch without records does not survive a restart anyway,
        and a broker that takes over thousands of partitions has no time to write their files. Raises
        FencedLeaderEpochError."""
        if epoch < self.latest:
            raise FencedLeaderEpochError(
                f"{self._path.parent}: leader epoch {epoch} has ended, the current epoch is {self.latest}"
            )
        if self.assign(epoch, log_end_offset):
            self._is_ahead = True

    def cut(self, log_end_offset: int) -> None:
        """Forget the epochs that begin at or above the end of a truncated log, durably. Raises StorageFullError,
        StorageError."""
        if self.truncate_from_end(log_end_offset) or self._is_ahead:
            self._write(self.entries)

    def restart_at(self, offset: int) -> None:
        """Forget all epochs, durably, because the log was emptied. Raises StorageFullError, StorageError."""
        if self.entries or self._is_ahead:
            self.entries = ()
            self._write(())

    def _write(self, entries: Sequence[EpochEntry]) -> None:
        self._is_ahead = True  # until it is written
        self._files.write_atomic(self._path, encode_epochs(entries))
        self._file_is_first = self._is_ahead = False


def load_epochs(
    files: FileSystem,
    directory: Path,
    segments: Sequence[LogSegment],
    bounds: tuple[int, int],
) -> LeaderEpochCache:
    """Return the epochs of a log that was just loaded. `bounds`: log start and log end.

    A missing or damaged file is written again from the headers of the batches. A valid file counts more than the
    headers, because it has a checksum and the epoch in a header has none. Raises LogCorruptError, StorageError,
    StorageFullError.
    """
    data = read_whole(files, directory / LEADER_EPOCHS_FILE)
    entries = decode_epochs(data) if data is not None else None
    if entries is None:
        cache = LeaderEpochCache(files, directory, _epochs_in(segments))
        if data is not None:
            logger.warning("%s cannot be read and is rewritten", directory / LEADER_EPOCHS_FILE)
        if cache.entries:
            cache._write(cache.entries)
    else:
        cache = LeaderEpochCache(files, directory, entries, file_is_first=entries == [*FIRST_ENTRIES])
        cache._is_ahead = cache.truncate_from_end(bounds[1])
    cache.truncate_from_start(bounds[0])
    return cache


def _epochs_in(segments: Sequence[LogSegment]) -> list[EpochEntry]:
    """Return the start of every epoch, from the batch headers. Epochs only rise along a log. So all headers of a
    segment are read only if the next segment begins with another epoch, or if the segment is the last one."""
    filled = [s for s in segments if s.data_bytes]
    entries: list[EpochEntry] = []
    firsts = [next(s.headers_from(None))[1] for s in filled]
    for segment, (first, following) in zip(filled, pairwise([*firsts, None]), strict=True):
        assert first is not None
        if following is not None and following.leader_epoch == first.leader_epoch:
            entries.append(EpochEntry(first.leader_epoch, first.base_offset))
        else:
            entries += [EpochEntry(h.leader_epoch, h.base_offset) for _, h in segment.headers_from(None)]
    rising: list[EpochEntry] = []
    for entry in entries:
        if not rising or entry.epoch > rising[-1].epoch:
            rising.append(entry)
    return rising
