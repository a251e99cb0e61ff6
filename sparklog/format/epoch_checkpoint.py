"""leader-epochs.json: the leader epochs of a partition, with the offsets at which they began. One JSON object, written
whole (temporary file, fsync, rename, fsync of the directory) before the first batch of a new epoch is appended. The
first file is written with the partition's directory, so that the partition's first append need not wait for it::

    {"entries": [[0, 0], [3, 1200]], "crc32c": "89abcdef", "version": 1}

``entries``: pairs (epoch, offset of the epoch's first record), both strictly ascending. ``crc32c``: checksum, in
hexadecimal, of the entries as 16-byte little-endian pairs (i64, i64).

The file never lacks an epoch that has records. It can contain epochs whose records the log has lost. If the file is
lost or damaged, the entries are found again in the headers of the batches.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from sparklog.format.checkpoint import decode, encode
from sparklog.format.checksum import crc32c

LEADER_EPOCHS_FILE = "leader-epochs.json"
ENTRIES_MAX = 100_000
_PAIR = struct.Struct("<qq")


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


FIRST_ENTRIES = (EpochEntry(0, 0),)
"""Entries of a new partition."""


class _Content(Struct, frozen=True):
    entries: list[tuple[int, int]]
    crc32c: str
    version: int = 1


def _checksum(entries: Sequence[tuple[int, int]]) -> str:
    value: int = crc32c(b"".join(_PAIR.pack(*e) for e in entries))
    return f"{value:08x}"


def encode_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """Return the content of leader-epochs.json, with its checksum."""
    pairs = [(e.epoch, e.start_offset) for e in entries]
    return encode(_Content(pairs, _checksum(pairs)))


def decode_epochs(data: bytes) -> list[EpochEntry] | None:
    """Return the entries; None if the file is damaged, or its entries do not ascend or are too many."""
    content = decode(data, _Content)
    if content is None or content.version != 1 or len(content.entries) > ENTRIES_MAX:
        return None
    entries = [EpochEntry(*e) for e in content.entries]
    if any(not 0 <= n < 2**63 for e in entries for n in e) or _checksum(entries) != content.crc32c:
        return None
    if any(a.epoch >= b.epoch or a.start_offset >= b.start_offset for a, b in pairwise(entries)):
        return None
    return entries
