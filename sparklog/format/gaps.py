"""repaired-gaps.json: the offsets that a repair could not save, so that their absence does not count as damage later.
One JSON object beside the segments, written whole (temporary file, fsync, rename, fsync of the directory)::

    {"gaps": [[1200, 1260]], "version": 1}

Each pair is the first missing offset, and the first offset after the gap. The pairs ascend. There is no checksum. If
the file is lost, the partition is offline, as before the repair; another repair writes the file again. All replicas of
a partition have the same gaps.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from sparklog.format.checkpoint import decode, encode

GAPS_FILE = "repaired-gaps.json"

Gap = tuple[int, int]
"""The first missing offset, and the first offset after the gap."""


class _Content(Struct, frozen=True):
    gaps: list[Gap]
    version: int = 1


def encode_gaps(gaps: Iterable[Gap]) -> bytes:
    """Return the content of repaired-gaps.json. The gaps need not be sorted."""
    return encode(_Content(sorted(gaps)))


def decode_gaps(data: bytes | None) -> list[Gap]:
    """Return the gaps in the file's bytes; an empty list if there is no file (None) or it cannot be read."""
    content = decode(data, _Content) if data is not None else None
    return list(content.gaps) if content is not None else []


def gaps_within(gaps: Iterable[Gap], start_offset: int, end_offset: int) -> list[Gap]:
    """Return the parts of the gaps inside [start_offset, end_offset), ascending."""
    inside = ((max(first, start_offset), min(behind, end_offset)) for first, behind in gaps)
    return sorted(gap for gap in inside if gap[0] < gap[1])
