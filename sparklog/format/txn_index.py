"""The aborted-transaction index: the transactions that were aborted by a marker in one segment.

File ``<20-digit base offset of the segment>.txnindex``, little-endian, written whole. A segment without the marker of
an aborted transaction has no such file::

    offset  size  field
    0       4     mark "SLTI"
    4       4     crc32c u32 of everything after it
    8       4     version u32, 1
    12      4     n u32
    16+32i  8     producer_id i64                                           n times, in the order of the markers
    24+32i  8     first_offset i64: the transaction's first offset in this partition
    32+32i  8     last_offset i64: the marker's offset
    40+32i  8     last_stable_offset i64: the last stable offset after the append of the marker

A transaction can begin in an earlier segment than that of its marker. To find the aborted transactions with records in
[start, end), begin with the index of the segment that contains `start`, and go forward until an entry's last stable
offset reaches `end`: transactions that are decided later begin at or above that offset. Example: producer 9's records
100 to 103 are aborted with the marker 104, and no other transaction is open. The entry is (9, 100, 104, 105).

A producer snapshot lists the files that it relies on, with their numbers of entries. If a file is lost or damaged, the
entries are found again by replaying the headers of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparklog.format.checksum import crc32c

SUFFIX = ".txnindex"
MARK = b"SLTI"
VERSION = 1
ENTRY_BYTES = 32
_HEAD = struct.Struct("<4sI")
_COUNT = struct.Struct("<II")


class AbortedEntry(NamedTuple):
    """An aborted transaction. `last_stable_offset`: the first offset of the oldest transaction that was still open when
    the marker came, else the offset after the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def entries_crc(entries: Sequence[AbortedEntry]) -> int:
    """Return the checksum of the bytes of `entries`, as a producer snapshot contains it."""
    value: int = crc32c(_pack(entries))
    return value


def _pack(entries: Sequence[AbortedEntry]) -> bytes:
    return np.array(entries, "<i8").tobytes()


def encode_txn_index(entries: Sequence[AbortedEntry]) -> bytes:
    """Return the content of an index file. The entries must be in the order of their markers."""
    body = _COUNT.pack(VERSION, len(entries)) + _pack(entries)
    return _HEAD.pack(MARK, crc32c(body)) + body


def decode_txn_index(data: bytes) -> list[AbortedEntry] | None:
    """Return the entries; None if the file is damaged, or the offsets of its entries cannot be true."""
    if len(data) < _HEAD.size + _COUNT.size:
        return None
    mark, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    version, count = _COUNT.unpack_from(body)
    if mark != MARK or version != VERSION or len(body) != _COUNT.size + count * ENTRY_BYTES:
        return None
    if crc32c(body) != crc:
        return None
    table = np.frombuffer(body, "<i8", 4 * count, _COUNT.size).reshape(count, 4)
    _, first, last, stable = table.T
    sane = (table >= 0).all() and (first < last).all() and (stable <= last + 1).all()
    if not sane or not (np.diff(last) > 0).all() or not (np.diff(stable) >= 0).all():
        return None
    return [AbortedEntry(*row) for row in table.tolist()]
