"""repaired-gaps.json: the offsets a repair could not save, so that their absence is never taken for damage again.
One JSON object beside the segments, written whole (temporary file, fsync, rename, fsync of the directory)::

    {"gaps": [[1200, 1260]], "version": 1}

Each pair: the first offset that is missing and the first that is there again, ascending. No checksum. If the file is
lost the partition is offline, as it was before the repair; repairing it again writes it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from sparklog.format.checkpoint import decode, encode

GAPS_FILE = "repaired-gaps.json"


class _Content(Struct, frozen=True):
    gaps: list[tuple[int, int]]
    version: int = 1


def encode_gaps(gaps: Iterable[tuple[int, int]]) -> bytes:
    """The file's bytes."""
    return encode(_Content(sorted(gaps)))


def decode_gaps(data: bytes | None) -> list[tuple[int, int]]:
    """The gaps; none if there is no file or it cannot be read."""
    content = decode(data, _Content) if data is not None else None
    return list(content.gaps) if content is not None else []
