"""Images on their way from the controller to the brokers."""

from __future__ import annotations

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
from sparklog.replication.image_codec import decode_delta, decode_image, decode_partition, encode
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
