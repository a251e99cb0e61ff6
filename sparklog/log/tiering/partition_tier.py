"""The remote part of one log: its journal, and the segments that are read from the object store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from sparklog.environment.files import FileSystem
from sparklog.errors import LogCorruptError
from sparklog.format.producer_snapshot import ProducerSnapshot
from sparklog.format.txn_index import AbortedEntry
from sparklog.log.model.log_config import LogOwner
from sparklog.log.producers.files import BeforeLocal
from sparklog.log.producers.partition_producers import PartitionProducers, decode_states
from sparklog.log.segments.segment import LogSegment
from sparklog.log.tiering.journal import JOURNAL_FILE, Journal
from sparklog.log.tiering.remote_segment import RemoteAccess, RemoteLogSegment
from sparklog.log.tiering.state import DeleteStarted, Event, LocalStart, RemoteLogState, RemoteSegmentMetadata

NO_ACCESS = RemoteAccess()


class PartitionTier:
    """The remote part of one log. The constructor reads the journal, and raises LogCorruptError, StorageError,
    StorageFullError. Only one thread at a time is allowed to call `record`."""

    def __init__(self, files: FileSystem, directory: Path, owner: LogOwner, access: RemoteAccess = NO_ACCESS) -> None:
        self.access = access
        self._owner = owner
        self._journal = Journal(files, directory)

    @property
    def state(self) -> RemoteLogState:
        return self._journal.state

    def record(self, event: Event) -> None:
        """Append an event to the journal; it is fsynced on return. Raises StorageError, StorageFullError,
        LogCorruptError."""
        self._journal.append(event)

    def close(self) -> None:
        self._journal.close()

    def segment(self, metadata: RemoteSegmentMetadata) -> RemoteLogSegment:
        return RemoteLogSegment(self.access, self._owner, metadata)

    def before(
        self,
        local: Sequence[LogSegment],
        log_start_offset: int,
        gaps: Collection[tuple[int, int]],
        directory: Path,
        *,
        expected: bool,
    ) -> list[RemoteLogSegment]:
        """Return the remote segments before the segments `local`, in order, without those wholly below the log start.

        Raises LogCorruptError if offsets outside `gaps` are missing between two remote segments, or between the last
        one and `local`. Raises it too if a journal is `expected`, there is none, and `local` begins above the log
        start: the log must not lose its beginning unnoticed.
        """
        limit = local[0].base_offset if local else None
        if expected and not self._journal.existed and limit is not None and limit > log_start_offset:
            raise LogCorruptError(
                f"{directory}: the log begins at offset {log_start_offset}, its local files at {limit}, and "
                f"{JOURNAL_FILE}, the list of segments in the object store, is missing: restore it from a copy, or "
                f"rewrite it: sparklog log restore-remote {directory}"
            )
        segments = [
            s
            for s in self.state.finished
            if s.next_offset > log_start_offset and (limit is None or s.next_offset <= limit)
        ]
        bases = [s.base_offset for s in segments[1:]] + ([limit] if limit is not None else [])
        for segment, following in zip(segments, bases, strict=False):
            if segment.next_offset != following and (segment.next_offset, following) not in gaps:
                raise LogCorruptError(
                    f"{directory}: offsets {segment.next_offset} to {following - 1} are neither in local files nor "
                    "in the journal of the object store: files are missing; restore them from a copy"
                )
        return [self.segment(s) for s in segments]

    def cut(self, offset: int) -> None:
        """Record that the log was cut to `offset` (0: it was emptied). Copies with records above `offset` are not read
        any more, even if their segments are still local; the next round of tiering decides if their objects are
        deleted. Raises StorageError, StorageFullError."""
        for metadata in reversed(self.state.finished):
            if metadata.next_offset > offset:
                self.record(DeleteStarted(metadata.id))
                self.access.forget(metadata)
        if self.state.local_start_offset > offset:  # later appends are local
            self.record(LocalStart(offset))

    def release_below(self, offset: int, producers: bytes) -> None:
        """Record that the local files wholly below `offset` can be deleted. `producers`: the encoded state of the
        producers at `offset`. Raises StorageError, StorageFullError."""
        if offset > self.state.local_start_offset:
            self.record(LocalStart(offset, producers))

    def before_local(self, local: Sequence[LogSegment]) -> BeforeLocal:
        """Return the state of producers and transactions before the segments `local`, from the journal: the batches
        before `local` are not read again. Raises LogCorruptError."""
        start = self.state.local_start
        base = local[0].base_offset if local else start.offset
        # if local batches after start.offset were deleted, they cannot be replayed: the states would be too old, and
        # the next batches of the producers would be refused
        states = decode_states(start.producers) if base <= start.offset else []
        aborted = [
            (s.base_offset, [AbortedEntry(*entry) for entry in s.aborted])
            for s in self.state.finished
            if s.aborted and s.next_offset <= max(base, start.offset)
        ]
        return BeforeLocal(start.offset, states, aborted)

    def producers_behind(self, released: Sequence[LogSegment], limit: int) -> PartitionProducers:
        """Return the producers (at most `limit`) with their state at the end of `released`, the oldest local segments.
        Raises StorageError, LogCorruptError."""
        before = self.before_local(released)
        producers = PartitionProducers.resumed(ProducerSnapshot(before.offset, before.states), (), limit=limit)
        producers.replay(released, before.offset, released[-1].next_offset)
        return producers
