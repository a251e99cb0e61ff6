"""The objects of a copied segment: their names, and the content of the `.checksums` object and of the manifest.

::

    <url>/<topic>-<topic id>/<partition>/<20-digit base offset>-<id of the attempt>/
      <base offset>.arrow       the segment as it is: any Arrow tool opens it
      <base offset>.index       its offset index
      <base offset>.timeindex   its time index
      <base offset>.checksums   checksums of the pieces of the .arrow object, below
      <base offset>.columns     places of each batch's columns (`columns.py`); left out if batches are tiny
      manifest.json             metadata and owner of the copy, written last

    .checksums:
    offset  size   field
    0       8      magic "SLRC\\0\\0\\0\\1"
    8       4      piece_bytes u32: size of the pieces; the last piece can be smaller
    12      4      count u32
    16      4 n    crc32c u32 of each piece

All little-endian. The journal has the size and the CRC32C of every object, so the `.checksums` object is checked too.
"""

from __future__ import annotations

import struct

import msgspec
import numpy as np
from msgspec import Struct

from sparklog.errors import CorruptBatchError
from sparklog.format import offset_index, time_index
from sparklog.format.decoders import json_decoder
from sparklog.format.segment import segment_name
from sparklog.log.model.log_config import LogOwner
from sparklog.log.tiering.state import RemoteSegmentMetadata

PIECE_BYTES = 1024 * 1024
"""Size of the pieces of an `.arrow` object, each of which has a checksum. The read cache fetches whole pieces."""
LOCAL_SIDECARS = (offset_index.SUFFIX, time_index.SUFFIX)
"""The files beside a segment that are copied with it."""
CHECKSUMS_SUFFIX = ".checksums"
COLUMNS_SUFFIX = ".columns"
MANIFEST = "manifest.json"
_HEAD = struct.Struct("<8sII")
_MAGIC = b"SLRC\0\0\0\1"


class Manifest(Struct, frozen=True):
    """Content of manifest.json: the owner of a copied segment, and the metadata of the copy."""

    topic: str
    topic_id: str
    partition: int
    segment: RemoteSegmentMetadata
    version: int = 1


def copy_prefix(owner: LogOwner, base_offset: int, copy_id: str) -> str:
    """Return the folder of a copy, relative to the store's URL."""
    return f"{partition_prefix(owner)}/{base_offset:020d}-{copy_id}"


def partition_prefix(owner: LogOwner) -> str:
    """Return the folder of a partition's copies, relative to the store's URL."""
    return f"{owner.topic}-{owner.topic_id}/{owner.partition}"


def object_names(base_offset: int) -> list[str]:
    """Return the names of all objects that a copy can have; the manifest is the last."""
    stem = segment_name(base_offset).removesuffix(".arrow")
    suffixes = (".arrow", *LOCAL_SIDECARS, CHECKSUMS_SUFFIX, COLUMNS_SUFFIX)
    return [*(stem + suffix for suffix in suffixes), MANIFEST]


def object_name(base_offset: int, suffix: str) -> str:
    return segment_name(base_offset).removesuffix(".arrow") + suffix


def encode_checksums(checksums: list[int]) -> bytes:
    return _HEAD.pack(_MAGIC, PIECE_BYTES, len(checksums)) + np.array(checksums, "<u4").tobytes()


def decode_checksums(data: bytes, size_bytes: int) -> np.ndarray:
    """Return the checksums in a `.checksums` object; `size_bytes` is the size of its `.arrow` object. Raises
    CorruptBatchError."""
    magic, piece_bytes, count = _HEAD.unpack_from(data, 0) if len(data) >= _HEAD.size else (b"", 0, 0)
    sane = magic == _MAGIC and piece_bytes == PIECE_BYTES and count == -(-size_bytes // PIECE_BYTES)
    if not sane or len(data) != _HEAD.size + 4 * count:
        raise CorruptBatchError("the list of checksums is not valid")
    return np.frombuffer(data, "<u4", count, _HEAD.size)


def encode_manifest(owner: LogOwner, segment: RemoteSegmentMetadata) -> bytes:
    manifest = Manifest(owner.topic, owner.topic_id, owner.partition, segment)
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(data: bytes) -> Manifest | None:
    """Return the manifest in `data`; None if it cannot be decoded."""
    try:
        return json_decoder(Manifest).decode(data)
    except msgspec.DecodeError:
        return None
