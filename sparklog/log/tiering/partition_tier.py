"""One log's knowledge of its remote part: the journal, and the segments that are read from the store."""

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
    """The remote part of one log, created when the log is opened. One thread at a time records. Raises LogCorruptError,
    StorageError."""

    def __init__(self, files: FileSystem, directory: Path, owner: LogOwner, access: RemoteAccess = NO_ACCESS) -> None:
        self.access = access
        self._owner = owner
        self._journal = Journal(files, directory)

    @property
    def state(self) -> RemoteLogState:
        return self._journal.state

    def record(self, event: Event) -> None:
        """Record an event; it is on the disk on return. Raises StorageError, StorageFullError, LogCorruptError."""
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
        """Return the remote segments in front of `local`, in order, none of them wholly below the log start.

        Raises LogCorruptError if something is missing between them, or between them and the local ones, or, where a
        journal is `expected`, without one in front of these: the log must not begin later and forget the rest.
        """
        limit = local[0].base_offset if local else None
        if expected and not self._journal.was_there and limit is not None and limit > log_start_offset:
            raise LogCorruptError(
                f"{directory}: the log begins at offset {log_start_offset}, its local files at {limit}, and "
                f"{JOURNAL_FILE}, "
                f"the list of segments in the object store, is missing: restore it from a copy, or rewrite it: "
                f"sparklog log restore-remote {directory}"
            )
        found = [
            s
            for s in self.state.finished
            if s.next_offset > log_start_offset and (limit is None or s.next_offset <= limit)
        ]
        bases = [s.base_offset for s in found[1:]] + ([limit] if limit is not None else [])
        for segment, following in zip(found, bases, strict=False):
            if segment.next_offset != following and (segment.next_offset, following) not in gaps:
                raise LogCorruptError(
                    f"{directory}: offsets {segment.next_offset} to {following - 1} are neither in local files nor "
                    "in the journal of the object store: files are missing; restore them from a copy"
                )
        return [self.segment(s) for s in found]

    def cut(self, offset: int) -> None:
        """Record that the log now ends at `offset` (0: it is empty): copies of later records, also of segments that are
        still local, are not read any more, and the next round deletes their objects. Raises StorageError,
        StorageFullError."""
        for metadata in reversed(self.state.finished):
            if metadata.next_offset > offset:
                self.record(DeleteStarted(metadata.id))
                self.access.forget(metadata)
        if self.state.local_start_offset > offset:  # later appends are local
            self.record(LocalStart(offset))

    def release_below(self, offset: int, producers: bytes) -> None:
        """Allow the deletion of local files wholly below `offset`; `producers`: their state at that offset. Raises
        StorageError, StorageFullError."""
        if offset > self.state.local_start_offset:
            self.record(LocalStart(offset, producers))

    def before_local(self, local: Sequence[LogSegment]) -> BeforeLocal:
        """Return the state of producers and transactions before `local`, the log's local segments, because the records
        before them are not read again. Raises LogCorruptError."""
        start = self.state.local_start
        base = local[0].base_offset if local else start.offset
        # Deleted batches in between cannot be replayed: states without them would refuse the next batches.
        states = decode_states(start.producers) if base <= start.offset else []
        aborted = [
            (s.base_offset, [AbortedEntry(*entry) for entry in s.aborted])
            for s in self.state.finished
            if s.aborted and s.next_offset <= max(base, start.offset)
        ]
        return BeforeLocal(start.offset, states, aborted)

    def producers_behind(self, released: Sequence[LogSegment], limit: int) -> PartitionProducers:
        """Return the producers (at most `limit`) as they are after `released`, the oldest local segments. Raises
        StorageError, LogCorruptError."""
        before = self.before_local(released)
        producers = PartitionProducers.resumed(ProducerSnapshot(before.offset, before.states), (), limit=limit)
        producers.replay(released, before.offset, released[-1].next_offset)
        return producers
