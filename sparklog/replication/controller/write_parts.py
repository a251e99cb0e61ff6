"""A change of the cluster, split into writes that the store accepts.

Partitions are stored in chunks, each written as a whole, and ZooKeeper accepts about a megabyte per transaction. A
change that fits is one write.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from sparklog.replication.cluster_image import ClusterDelta, ClusterImage, PartitionImage
from sparklog.types import TopicPartition

CHUNK_PARTITIONS = 256
"""Number of a topic's partitions in one chunk."""
WRITE_PARTITIONS_MAX = 5_000
"""Largest number of partitions in the chunks of one write together; a stored partition has about 100 bytes."""


def chunk_of(tp: TopicPartition) -> tuple[str, int]:
    """Return the topic and the number of the chunk that contains the partition."""
    return tp.topic, tp.partition // CHUNK_PARTITIONS


def parts_of(delta: ClusterDelta, stored: ClusterImage) -> Iterator[ClusterDelta]:
    """Yield the parts of `delta` in the order of their writes. The last part has all changes besides partitions.
    `stored`: the image before the delta. An empty delta has no parts."""
    if not delta:
        return
    part: dict[TopicPartition, PartitionImage] = {}
    held: set[tuple[str, int]] = set()
    size = 0
    for tp in sorted(delta.partitions):
        chunk = chunk_of(tp)
        if tp.topic in delta.topics:
            continue  # in the last part, with its topic
        if chunk not in held:
            present = len(stored.topics[tp.topic].partitions) - chunk[1] * CHUNK_PARTITIONS
            weight = min(present, CHUNK_PARTITIONS)
            if part and size + weight > WRITE_PARTITIONS_MAX:
                yield ClusterDelta(partitions=part)
                part, held, size = {}, set(), 0
            held.add(chunk)
            size += weight
        part[tp] = delta.partitions[tp]
    rest = {tp: p for tp, p in delta.partitions.items() if tp.topic in delta.topics}
    last = replace(delta, partitions={**part, **rest})
    if last:
        yield last
