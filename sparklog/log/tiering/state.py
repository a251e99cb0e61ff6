"""State of a log's remote segments: events in, state out. Pure.

A copy has an id of its own per attempt, so no object is ever overwritten and a late writer does no harm::

    CopyStarted -> CopyFinished -> DeleteStarted -> DeleteFinished
         \\______________________________/

Only finished copies are read. Copies that are started but not finished, or that are being deleted, are orphans: the
next round deletes their objects. A "started" event is on the disk before its step begins, a "finished" event after its
step has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec
from msgspec import Struct

from sparklog.errors import InvalidRequestError, LogCorruptError
from sparklog.format.decoders import msgpack_decoder


class Phase(Enum):
    """Stage in the life of a copy."""

    COPYING = "copying"
    FINISHED = "finished"
    DELETING = "deleting"


class ObjectInfo(Struct, frozen=True, array_like=True):
    """A stored object: its size, and the CRC32C of all its bytes."""

    size_bytes: int
    crc32c: int


class RemoteSegmentMetadata(Struct, frozen=True):
    """A finished copy. `prefix`: its folder below the storage's root; `objects` by file name; `checksum_bytes`: the
    objects are read in pieces of this size, each with a checksum of its own. [`data_position`, `data_end`) are the
    batches. `leader_epochs`: pairs (epoch, first offset) that the segment lies in; `aborted`: the aborted transactions
    whose markers are in it (`sparklog.log.producers.transactions.AbortedEntry`)."""

    id: str
    prefix: str
    base_offset: int
    next_offset: int
    schema_id: int
    size_bytes: int
    data_position: int
    data_end: int
    largest_timestamp_ms: int
    largest_timestamp_offset: int
    append_time_ms: int
    copied_ms: int
    checksum_bytes: int
    objects: dict[str, ObjectInfo]
    leader_epochs: list[tuple[int, int]] = []
    has_gaps: bool = False
    aborted: list[tuple[int, int, int, int]] = []

    @property
    def data_bytes(self) -> int:
        """Bytes of batches."""
        return self.data_end - self.data_position


def encode_segment(segment: RemoteSegmentMetadata) -> bytes:
    """Encode a segment for the wire."""
    return msgspec.msgpack.encode(segment)


def decode_segment(data: bytes) -> RemoteSegmentMetadata:
    """Decode the metadata of a segment. Raises InvalidRequestError."""
    try:
        return msgpack_decoder(RemoteSegmentMetadata).decode(data)
    except msgspec.DecodeError as e:
        raise InvalidRequestError(f"the metadata of a remote segment cannot be read: {e}") from e


class CopyStarted(Struct, frozen=True, tag="copy-started", omit_defaults=True):
    """Objects below `prefix` may exist from now on. `adopted`: another replica has made them, all are there."""

    id: str
    prefix: str
    base_offset: int
    next_offset: int
    adopted: bool = False


class CopyFinished(Struct, frozen=True, tag="copy-finished"):
    """All objects of the copy exist."""

    segment: RemoteSegmentMetadata


class DeleteStarted(Struct, frozen=True, tag="delete-started"):
    """Objects of the copy may be deleted from now on."""

    id: str


class DeleteFinished(Struct, frozen=True, tag="delete-finished"):
    """All objects are gone."""

    id: str


class LocalStart(Struct, frozen=True, tag="local-start"):
    """Local segments wholly below the offset are read from the store; their files may be gone. `producers`: the known
    state of the producers there (`sparklog.log.producers.partition_producers`), because the batches below are not read
    again."""

    offset: int
    producers: bytes = b""


Event = CopyStarted | CopyFinished | DeleteStarted | DeleteFinished | LocalStart


class RemoteCopy(Struct, frozen=True):
    """One attempt. `segment` None: it was never finished."""

    started: CopyStarted
    phase: Phase
    segment: RemoteSegmentMetadata | None = None


class RemoteLogState:
    """The copies by id. Replaced as a whole with every event, so that readers need no lock."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.copies: Mapping[str, RemoteCopy] = {}
        self.local_start = LocalStart(0)
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> None:
        """Apply an event. Raises LogCorruptError for an event that cannot follow the present state; nothing is changed
        then."""
        match event:
            case CopyStarted():
                if event.id in self.copies:
                    raise LogCorruptError(f"copy {event.id} is started twice")
                self._put_copy(event.id, RemoteCopy(event, Phase.COPYING))
            case CopyFinished():
                copy = self._in(event.segment.id, Phase.COPYING)
                self._put_copy(event.segment.id, RemoteCopy(copy.started, Phase.FINISHED, event.segment))
            case DeleteStarted():
                copy = self._in(event.id, Phase.COPYING, Phase.FINISHED, Phase.DELETING)
                self._put_copy(event.id, RemoteCopy(copy.started, Phase.DELETING, copy.segment))
            case DeleteFinished():
                self._in(event.id, Phase.DELETING)
                self.copies = {key: copy for key, copy in self.copies.items() if key != event.id}
            case LocalStart():
                self.local_start = event

    def check(self, event: Event) -> None:
        """Raise LogCorruptError if the event cannot follow."""
        trial = RemoteLogState()
        trial.copies, trial.local_start = self.copies, self.local_start
        trial.apply(event)

    def _in(self, key: str, *phases: Phase) -> RemoteCopy:
        copy = self.copies.get(key)
        if copy is None or copy.phase not in phases:
            found = "unknown" if copy is None else copy.phase.value
            raise LogCorruptError(f"copy {key} is {found}, it should be {' or '.join(p.value for p in phases)}")
        return copy

    def _put_copy(self, key: str, copy: RemoteCopy) -> None:
        self.copies = {**self.copies, key: copy}

    def events(self) -> list[Event]:
        """Return the shortest list of events that produces this state."""
        found: list[Event] = [self.local_start] if self.local_start.offset else []
        for key, copy in self.copies.items():
            found.append(copy.started)
            if copy.segment is not None:
                found.append(CopyFinished(copy.segment))
            if copy.phase is Phase.DELETING:
                found.append(DeleteStarted(key))
        return found

    @property
    def local_start_offset(self) -> int:
        """The first offset on the broker's disk; see `LocalStart`."""
        return self.local_start.offset

    @property
    def finished(self) -> list[RemoteSegmentMetadata]:
        """Return the readable copies, by base offset."""
        found = [c.segment for c in self.copies.values() if c.phase is Phase.FINISHED and c.segment is not None]
        return sorted(found, key=lambda s: s.base_offset)

    @property
    def orphans(self) -> list[RemoteCopy]:
        """Return the copies that will never be finished: their objects are to be deleted."""
        return [c for c in self.copies.values() if c.phase is not Phase.FINISHED]

    @property
    def copied_to(self) -> int:
        """The offset after the last copied record, or -1."""
        return max((s.next_offset for s in self.finished), default=-1)
