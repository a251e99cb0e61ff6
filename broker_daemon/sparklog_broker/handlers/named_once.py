"""Checks that a request names each partition only once, so that repetitions do not enlarge its answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

from sparklog.environment.time_slices import ITEMS_PER_LOOK, LoopTimeSlices
from sparklog.errors import InvalidRequestError
from sparklog.protocol.base import PARTITIONS_PER_REQUEST_MAX
from sparklog.protocol.group_messages import TopicPartitions


class NamedPartition(Protocol):
    """An entry of a request that names a partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


def partition_of(named: NamedPartition) -> Hashable:
    return named.topic, named.partition


async def check_each_once(
    time_slices: LoopTimeSlices, named: Sequence[NamedPartition], identity: Callable[[Any], Hashable] = partition_of
) -> None:
    """Raise InvalidRequestError if two entries have the same identity."""
    if len(named) < 2:
        return
    seen: set[Hashable] = set()
    for i, partition in enumerate(named, 1):
        seen.add(identity(partition))
        if len(seen) < i:
            raise InvalidRequestError(f"the request names partition {partition.topic}-{partition.partition} twice")
        if i % ITEMS_PER_LOOK == 0 and time_slices.due():
            await time_slices.pause()


def check_partition_count(topics: Iterable[TopicPartitions]) -> None:
    """Raise InvalidRequestError if all topics together have too many partitions."""
    count = sum(len(t.partitions) for t in topics)
    if count > PARTITIONS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            f"the request names {count} partitions, at most {PARTITIONS_PER_REQUEST_MAX} are allowed"
        )
