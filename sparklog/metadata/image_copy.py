"""cluster-image.bin in a broker's data directory: the newest image of the cluster that the broker has applied.

The file has two readers. A starting broker compares ZooKeeper's data with it, to detect an older copy. `sparklog
cluster restore-metadata` writes it back after ZooKeeper's data are lost.

| bytes | content |
|---|---|
| 0 to 3 | CRC-32C of the remaining bytes, big-endian |
| 4 to end | MessagePack: an `ImageCopy`; a struct is a map from the names of its fields to their values |

Every write replaces the file (temporary file, fsync, rename). If the file is lost or damaged, the broker cannot detect
an older store at its next start; the next image creates the file again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from sparklog.environment.files import FileSystem, read_hint
from sparklog.format.checkpoint import CLUSTER_IMAGE_FILE
from sparklog.format.checksum import crc32c
from sparklog.format.decoders import msgpack_decoder
from sparklog.metadata.store_history import StoreMark, mark_of
from sparklog.replication.cluster_image import ClusterImage, TopicImage
from sparklog.replication.image_codec import plain

logger = logging.getLogger(__name__)

_CHECKSUM_BYTES = 4


class ImageCopy(Struct, frozen=True):
    """The content of the file."""

    cluster_id: str
    image: ClusterImage
    """The image, without registered brokers."""
    put_aside: Mapping[str, TopicImage] = field(default_factory=dict)
    """By topic id: the last state of topics that a later image lacked although no order had deleted them."""

    @property
    def mark(self) -> StoreMark:
        """The point in the store's history at which the store had the image."""
        return mark_of(self.cluster_id, self.image)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=plain)


def encode_copy(copy: ImageCopy) -> bytes:
    """Return the content of the file."""
    body = _ENCODER.encode(replace(copy, image=replace(copy.image, brokers={})))
    return crc32c(body).to_bytes(_CHECKSUM_BYTES) + body


def decode_copy(data: bytes) -> ImageCopy | None:
    """Decode the content of the file; None if it is damaged."""
    body = data[_CHECKSUM_BYTES:]
    if len(data) < _CHECKSUM_BYTES or crc32c(body).to_bytes(_CHECKSUM_BYTES) != data[:_CHECKSUM_BYTES]:
        return None
    try:
        return msgpack_decoder(ImageCopy).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_copy(files: FileSystem, data_dir: Path) -> ImageCopy | None:
    """Read the copy in `data_dir`; None if the file is missing or damaged. Raises StorageError if it cannot be read."""
    data = read_hint(files, data_dir / CLUSTER_IMAGE_FILE)
    copy = None if data is None else decode_copy(data)
    if data is not None and copy is None:
        logger.warning("%s is damaged: older data in ZooKeeper cannot be detected now", data_dir / CLUSTER_IMAGE_FILE)
    return copy


def write_copy(files: FileSystem, data_dir: Path, copy: ImageCopy) -> None:
    """Write the copy into `data_dir`. Raises StorageFullError, StorageError."""
    files.write_atomic(data_dir / CLUSTER_IMAGE_FILE, encode_copy(copy))
