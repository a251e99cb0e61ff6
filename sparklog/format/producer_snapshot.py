"""The producer snapshot: the state of a partition's producers at one offset.

File ``<20-digit offset>.snapshot``, little-endian, written whole::

    size  field
    4     mark "SLPS"
    4     crc32c u32 of everything after it
    4     version u32, 2
    8     offset i64: the state contains all batches below; the same as in the name
    4     p u32   producers
    4     b u32   batches of all producers
    4     u u32   transactions that are decided, but whose marker was not below the high watermark
    4     x u32   files of aborted transactions (sparklog.format.txn_index)
    40·p  producer_id i64, last_time_ms i64, marker_offset i64, transaction_first_offset i64,
          coordinator_epoch i32, epoch i16, batches u16 (at most five)
    40·b  base_offset i64, last_offset i64, append_time_ms i64, first_sequence i32, last_sequence i32,
          crc i64 (u32, the batch's crc32c; -1: not known); the first producer's batches, oldest first, then the
          second's, and so on
    16·u  first_offset i64, last_offset i64 (the marker's)
    24·x  base_offset i64 in the file's name, last_offset i64 of the last entry counted here, entries u32, crc32c u32 of
          the entries' bytes; later entries of the file do not belong to the snapshot

-1 stands for none. A starting log loads the newest snapshot that is
whole, not beyond the log's end, and whose files of aborted transactions exist. Then it replays the headers of the
batches from `offset` on. Without such a snapshot it replays the headers of the whole log.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from sparklog.format.checksum import crc32c

SUFFIX = ".snapshot"
MARK = b"SLPS"
VERSION = 2
BATCHES_MAX = 5
CRC_UNKNOWN = -1
_HEAD = struct.Struct("<4sI")
_COUNTS = struct.Struct("<IqIIII")
_PRODUCER = struct.Struct("<qqqqihH")
_BATCH = struct.Struct("<qqqiiq")
_WAITING = struct.Struct("<qq")
_ABORTED_FILE = struct.Struct("<qqII")


class ProducedBatch(NamedTuple):
    """A producer's batch that is in the log."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    """The broker's clock at the append."""
    first_sequence: int
    last_sequence: int
    crc: int = CRC_UNKNOWN
    """CRC of the batch. It is CRC_UNKNOWN if compaction has rewritten the batch."""


class ProducerState(NamedTuple):
    """The state of one producer. In all numbers -1 stands for none."""

    producer_id: int
    last_time_ms: int
    """The broker's clock at the producer's last batch or marker."""
    marker_offset: int
    """Offset of the producer's last marker."""
    transaction_first_offset: int
    """First offset of the producer's open transaction."""
    coordinator_epoch: int
    epoch: int
    batches: tuple[ProducedBatch, ...]
    """The last batches of this epoch, at most BATCHES_MAX, oldest first."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class AbortedFile(NamedTuple):
    """The entries of a file of aborted transactions (`txn_index`) that the snapshot relies on."""

    base_offset: int
    """Base offset in the file's name."""
    last_offset: int
    """`last_offset` of the last of these entries."""
    entries: int
    """Number of these entries, from the start of the file."""
    crc: int
    """CRC-32C of the bytes of these entries."""


class ProducerSnapshot(NamedTuple):
    """The content of a file. `waiting`: (first offset, marker's offset) of each decided transaction whose marker was
    not below the high watermark."""

    offset: int
    producers: Sequence[ProducerState]
    waiting: Sequence[tuple[int, int]] = ()
    aborted_files: Sequence[AbortedFile] = ()


def snapshot_name(offset: int) -> str:
    return f"{offset:020d}{SUFFIX}"


def encode_snapshot(snapshot: ProducerSnapshot) -> bytes:
    """Return the content of a snapshot file."""
    batches = [b for p in snapshot.producers for b in p.batches]
    parts = [
        _COUNTS.pack(
            VERSION,
            snapshot.offset,
            len(snapshot.producers),
            len(batches),
            len(snapshot.waiting),
            len(snapshot.aborted_files),
        )
    ]
    parts += [_PRODUCER.pack(*p[:-1], len(p.batches)) for p in snapshot.producers]
    parts += [_BATCH.pack(*b) for b in batches]
    parts += [_WAITING.pack(*w) for w in snapshot.waiting]
    parts += [_ABORTED_FILE.pack(*f) for f in snapshot.aborted_files]
    body = b"".join(parts)
    return _HEAD.pack(MARK, crc32c(body)) + body


def decode_snapshot(data: bytes) -> ProducerSnapshot | None:
    """Return the content of a file; None if the file is damaged, or of another version."""
    if len(data) < _HEAD.size + _COUNTS.size:
        return None
    mark, crc = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    version, offset, producers, batches, waiting, files = _COUNTS.unpack_from(body)
    if mark != MARK or version != VERSION:
        return None
    layout = ((_PRODUCER, producers), (_BATCH, batches), (_WAITING, waiting), (_ABORTED_FILE, files))
    size = _COUNTS.size + sum(part.size * count for part, count in layout)
    if len(body) != size or crc32c(body) != crc:
        return None
    tables = []
    position = _COUNTS.size
    for part, count in layout:
        tables.append(list(part.iter_unpack(body[position : position + part.size * count])))
        position += part.size * count
    if offset < 0 or sum(p[-1] for p in tables[0]) != batches or any(p[-1] > BATCHES_MAX for p in tables[0]):
        return None
    remaining = iter([ProducedBatch(*b) for b in tables[1]])
    states = [ProducerState._make((*p[:-1], tuple(next(remaining) for _ in range(p[-1])))) for p in tables[0]]
    return ProducerSnapshot(offset, states, tables[2], [AbortedFile(*f) for f in tables[3]])
