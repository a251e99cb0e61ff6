"""The state of a log's remote segments, derived from events. No I/O.

Every attempt to copy a segment has an id of its own, so no object is ever overwritten and a late writer does no harm::

    CopyStarted -> CopyFinished -> DeleteStarted -> DeleteFinished
         \\______________________________/

Only finished copies are read. Copies that are started but not finished, or that are being deleted, are orphans: the
next round deletes their objects, with the exceptions in `tier_run.py`. A "started" event is on the disk before its step
begins, a "finished" event after its step has ended.
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
    """A finished copy of a segment. `prefix`: its folder, relative to the store's URL. `objects`: its objects by name.
    `checksum_bytes`: size of the pieces of the `.arrow` object, each of which has a checksum. The batches are at
    [`data_position`, `data_end`) of this object. `leader_epochs`: pairs (epoch, first offset) of the segment's records.
    `aborted`: the aborted transactions whose markers are in the segment (`sparklog.format.txn_index.AbortedEntry`)."""

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
    """Encode the metadata of a segment as MessagePack, for the protocol."""
    return msgspec.msgpack.encode(segment)


def decode_segment(data: bytes) -> RemoteSegmentMetadata:
    """Decode the metadata of a segment. Raises InvalidRequestError."""
    try:
        return msgpack_decoder(RemoteSegmentMetadata).decode(data)
    except msgspec.DecodeError as e:
        raise InvalidRequestError(f"the metadata of a remote segment cannot be read: {e}") from e


class CopyStarted(Struct, frozen=True, tag="copy-started", omit_defaults=True):
    """From now on, objects below `prefix` can exist. `adopted`: another replica has made the copy, and it is
    complete."""

    id: str
    prefix: str
    base_offset: int
    next_offset: int
    adopted: bool = False


class CopyFinished(Struct, frozen=True, tag="copy-finished"):
    """All objects of the copy exist."""

    segment: RemoteSegmentMetadata


class DeleteStarted(Struct, frozen=True, tag="delete-started"):
    """From now on, objects of the copy can be missing, and the copy is not read."""

    id: str


class DeleteFinished(Struct, frozen=True, tag="delete-finished"):
    """All objects of the copy are deleted, or this replica only forgets the copy."""

    id: str


class LocalStart(Struct, frozen=True, tag="local-start"):
    """The records below `offset` are read from the store; local files of these records can be gone. `producers`: the
    state of the producers at `offset` (`sparklog.log.producers.partition_producers.encode_states`), because the batches
    below are not read again; empty if unknown."""

    offset: int
    producers: bytes = b""


Event = CopyStarted | CopyFinished | DeleteStarted | DeleteFinished | LocalStart


class RemoteCopy(Struct, frozen=True):
    """One attempt to copy a segment. `segment`: metadata of the copy; None if it was never finished."""

    started: CopyStarted
    phase: Phase
    segment: RemoteSegmentMetadata | None = None


class RemoteLogState:
    """The copies by id. Every event replaces the mapping `copies` as a whole, so readers need no lock."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.copies: Mapping[str, RemoteCopy] = {}
        self.local_start = LocalStart(0)
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> None:
        """Apply an event. Raises LogCorruptError, without a change, for an event that contradicts the present state."""
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
        """Raise LogCorruptError if the event contradicts the present state."""
        trial = RemoteLogState()
        trial.copies, trial.local_start = self.copies, self.local_start
        trial.apply(event)

    def _in(self, key: str, *phases: Phase) -> RemoteCopy:
        copy = self.copies.get(key)
        if copy is None or copy.phase not in phases:
            phase = "unknown" if copy is None else copy.phase.value
            raise LogCorruptError(f"copy {key} is {phase}, it should be {' or '.join(p.value for p in phases)}")
        return copy

    def _put_copy(self, key: str, copy: RemoteCopy) -> None:
        self.copies = {**self.copies, key: copy}

    def events(self) -> list[Event]:
        """Return the shortest list of events that produces this state."""
        events: list[Event] = [self.local_start] if self.local_start.offset else []
        for key, copy in self.copies.items():
            events.append(copy.started)
            if copy.segment is not None:
                events.append(CopyFinished(copy.segment))
            if copy.phase is Phase.DELETING:
                events.append(DeleteStarted(key))
        return events

    @property
    def local_start_offset(self) -> int:
        """Offset below which records are read from the store; see `LocalStart`."""
        return self.local_start.offset

    @property
    def finished(self) -> list[RemoteSegmentMetadata]:
        """The copies in phase FINISHED, in the order of their base offsets."""
        segments = [c.segment for c in self.copies.values() if c.phase is Phase.FINISHED and c.segment is not None]
        return sorted(segments, key=lambda s: s.base_offset)

    @property
    def orphans(self) -> list[RemoteCopy]:
        """The copies in phase COPYING or DELETING."""
        return [c for c in self.copies.values() if c.phase is not Phase.FINISHED]

    @property
    def copied_to(self) -> int:
        """The offset after the last record of all finished copies; -1 without one."""
        return max((s.next_offset for s in self.finished), default=-1)
