"""The manifest of a backup: its topics, the objects with their records, and the groups' offsets. Pure.

    manifests/<ms>.json      one backup: this module's JSON
    latest.json              the name of the newest manifest
    data/<topic id>/<partition>/<first offset>-<end offset>-<ms>.arrow
                             an Arrow IPC file: `_offset`, and the topic's columns

An object is written once. Later backups name the objects of earlier ones, so they store only newer records.
"""

from __future__ import annotations

import msgspec

from sparklog.errors import InvalidRequestError
from sparklog.format.decoders import json_decoder

FORMAT = 1
LATEST = "latest.json"


class Part(msgspec.Struct, frozen=True):
    """An object with the records of a partition from `first` to `end`."""

    key: str
    first: int
    """First offset."""
    end: int
    """End of the offsets, exclusive."""
    rows: int
    size_bytes: int
    crc32c: int


class PartitionBackup(msgspec.Struct):
    """The records of a partition."""

    start: int
    """First offset of the partition at the cut. Records below it that are in `parts` were deleted before the cut."""
    end: int
    """End of the cut, exclusive."""
    parts: list[Part]
    """Objects in the order of their offsets."""


class TopicBackup(msgspec.Struct):
    """A topic: its definition and its records."""

    name: str
    topic_id: str
    kind: str
    schema: bytes
    """Serialized Arrow schema."""
    key_columns: list[str]
    timestamp_column: str | None
    configs: dict[str, int | float | str | bool]
    partitions: list[PartitionBackup]


class GroupOffset(msgspec.Struct, frozen=True):
    """A committed offset of a group."""

    topic: str
    partition: int
    offset: int
    metadata: str


class Manifest(msgspec.Struct):
    """One backup."""

    format: int
    created_ms: int
    """Time of the cut in ms since 1970."""
    topics: list[TopicBackup]
    groups: dict[str, list[GroupOffset]]


def manifest_key(created_ms: int) -> str:
    """Return the key of a manifest. `created_ms`: time of its cut in ms since 1970."""
    return f"manifests/{created_ms:015d}.json"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as JSON."""
    return msgspec.json.encode(manifest)


def decode_manifest(content: bytes, key: str) -> Manifest:
    """Return the manifest of an object. Raises InvalidRequestError: The object is not a manifest of this format."""
    try:
        manifest = json_decoder(Manifest).decode(content)
    except msgspec.DecodeError as e:
        raise InvalidRequestError(f"{key} is not a backup's manifest: {e}") from e
    if manifest.format != FORMAT:
        raise InvalidRequestError(f"{key} has format {manifest.format}; this release reads format {FORMAT}")
    return manifest


def kept_parts(earlier: PartitionBackup | None, start: int, end: int) -> list[Part]:
    """Return the objects of an earlier backup that a new one needs. `earlier`: the partition in the earlier backup;
    None: it has none. The result: consecutive objects, the first of which holds `start`, and whose offsets are all
    below `end`; empty if no object holds `start`."""
    kept: list[Part] = []
    for part in earlier.parts if earlier is not None else ():
        if part.end <= start and not kept:
            continue  # its records are deleted by now
        if part.end > end or (kept and part.first != kept[-1].end) or (not kept and part.first > start):
            break
        kept.append(part)
    return kept
