"""Images on their way from the controller to the brokers."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.replication.cluster_image import (
    BrokerImage,
    ClusterDelta,
    ClusterImage,
    PartitionImage,
    TopicImage,
    Version,
)
from sparklog.replication.image_codec import (
    IMAGE_BYTES_MAX,
    PackedImage,
    decode_delta,
    decode_image,
    decode_partition,
    encode,
    pack_image,
    unpack_image,
)
from sparklog.types import TopicPartition
from tests.support.cases import for_each

PARTITION = PartitionImage((1, 2, 3), 1, 4, 5, (1, 2), elr=(3,), adding=(3,))
TOPIC = TopicImage(
    "events", "0" * 32, (PARTITION,), "typed", ("k",), "t", 17, MappingProxyType({"retention.ms": 5}), {1: b"schema"}
)
DELTA = ClusterDelta(
    brokers={1: BrokerImage(1, 44, "r1", ("host:1",), (40, 30), (40, 30, 20), is_stopping=True), 2: None},
    known={1: 44},
    topics={"events": TOPIC, "gone": None},
    partitions={TopicPartition("events", 0): PARTITION},
    configs={"min.insync.replicas": 2, "flush.mode": None},
)


def test_sent_images_arrive() -> None:
    image = ClusterImage().apply(DELTA, Version(3, 170))
    assert decode_image(encode(image)) == image
    assert decode_delta(encode(DELTA)) == DELTA
    assert decode_partition(encode(PARTITION)) == PARTITION


@for_each("decode", [decode_image, decode_delta, decode_partition])
def test_malformed_images_are_refused(decode: object) -> None:
    data = encode(ClusterImage().apply(DELTA, Version(3, 170)))
    for spoiled in (b"", b"\xc1", data[:-1], data + b"x", encode(PARTITION)[:5]):
        with pytest.raises(InvalidRequestError):
            decode(spoiled)  # type: ignore[operator]


def test_an_image_is_sent_in_compressed_form() -> None:
    image = ClusterImage().apply(DELTA, Version(3, 170))
    packed = pack_image(image)
    assert unpack_image(packed) == image and packed.size_bytes == len(encode(image))
    many = ClusterImage(topics={f"t{i}": TopicImage(f"t{i}", f"{i:032}", (PARTITION,) * 20) for i in range(500)})
    assert len(pack_image(many).data) * 10 < len(encode(many))


@for_each(
    "size_bytes, spoil",
    [(0, bytes), (IMAGE_BYTES_MAX + 1, bytes), (5, bytes), (None, lambda data: data[:-4]), (None, lambda _: b"")],
)
def test_malformed_compressed_images_are_refused(size_bytes: int | None, spoil: Callable[[bytes], bytes]) -> None:
    packed = pack_image(ClusterImage().apply(DELTA, Version(3, 170)))
    with pytest.raises(InvalidRequestError):
        unpack_image(PackedImage(spoil(packed.data), packed.size_bytes if size_bytes is None else size_bytes))
