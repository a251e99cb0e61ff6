"""Codec of the cluster's images and deltas in messages from the controller to the brokers.

The form is MessagePack. A struct is a map from the names of its fields to their values, so that a later release can add
a field with a default. The store has another form, see `metadata/cluster_znodes.py`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from sparklog.errors import InvalidRequestError
from sparklog.format.decoders import msgpack_decoder
from sparklog.replication.cluster_image import ClusterDelta, ClusterImage, PartitionImage
from sparklog.settings import MIB

T = TypeVar("T")

IMAGE_BYTES_MAX = 1024 * MIB
"""Largest image in bytes that a broker decodes."""


class PackedImage(NamedTuple):
    """An image that is compressed by zstd."""

    data: bytes
    size_bytes: int
    """Size without compression."""


Encoded = ClusterImage | ClusterDelta | PartitionImage


def plain(value: object) -> object:
    """Return an immutable mapping as a dict, because msgspec cannot encode it. Raises NotImplementedError for other
    types."""
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} is not a type of the metadata image")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=plain)
_IMAGE = msgpack_decoder(ClusterImage)
_DELTA = msgpack_decoder(ClusterDelta)
_PARTITION = msgpack_decoder(PartitionImage)


def encode(value: Encoded) -> bytes:
    """Return the bytes that `decode_image`, `decode_delta` or `decode_partition` reads."""
    return _ENCODER.encode(value)


def decode_image(data: bytes) -> ClusterImage:
    """Decode an image. Raises InvalidRequestError."""
    return _decode(_IMAGE, data)


def pack_image(image: ClusterImage) -> PackedImage:
    """Return the image in compressed form. Names and replicas repeat, so that 200,000 partitions are 24 MB, and 0.7 MB
    compressed: less than a message can have."""
    data = encode(image)
    return PackedImage(pa.Codec("zstd").compress(data, asbytes=True), len(data))


def unpack_image(packed: PackedImage) -> ClusterImage:
    """Decode a compressed image. Raises InvalidRequestError."""
    if not 0 < packed.size_bytes <= IMAGE_BYTES_MAX:
        raise InvalidRequestError(f"an image of {packed.size_bytes} bytes; at most {IMAGE_BYTES_MAX} are decoded")
    try:
        data = pa.Codec("zstd").decompress(packed.data, packed.size_bytes, asbytes=True)
    except (pa.ArrowException, OSError) as e:
        raise InvalidRequestError(f"the metadata image cannot be decompressed: {e}") from e
    return decode_image(data)


def decode_delta(data: bytes) -> ClusterDelta:
    """Decode a change of the image. Raises InvalidRequestError."""
    return _decode(_DELTA, data)


def decode_partition(data: bytes) -> PartitionImage:
    """Decode a partition of the image. Raises InvalidRequestError."""
    return _decode(_PARTITION, data)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InvalidRequestError(f"the controller's image cannot be read: {e}") from e
