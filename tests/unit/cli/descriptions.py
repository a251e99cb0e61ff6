"""Descriptions of topics and partitions, as Admin returns them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparklog.client.admin.admin import PartitionDescription, TopicDescription


def partition(
    number: int = 0,
    leader: int = 0,
    replicas: tuple[int, ...] = (0,),
    isr: tuple[int, ...] = (0,),
    *,
    end: int = 0,
    size_bytes: int = 0,
    error_code: int = 0,
    **more: Any,
) -> PartitionDescription:
    return PartitionDescription(number, leader, 0, end, size_bytes, error_code, replicas=replicas, isr=isr, **more)


def topic(
    *partitions: PartitionDescription, name: str = "t", topic_id: str = "id", configs: dict[str, object] | None = None
) -> TopicDescription:
    count = len(partitions)
    return TopicDescription(name, topic_id, "envelope", count, pa.schema([]), 1, (), None, configs or {}, 0, partitions)
