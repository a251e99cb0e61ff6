"""The keys of rows of typed topics, and the partitions that they choose."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.partitioner import murmur2, partitions_for_columns, partitions_for_slices
from sparklog.format.canonical_json import canonical_keys, key_slices
from sparklog.format.key_format import TEXT


def keys_of_rows(columns: Sequence[Any], topic: TopicInfo) -> Any:
    """Return the keys of some rows in the topic's `kafka.key.format`, as an array of binary. `columns`: arrays of the
    topic's key columns, at least one."""
    if topic.key_format == TEXT:
        return columns[0].cast(pa.binary())
    return canonical_keys(columns, topic.key_columns).cast(pa.binary())


def partitions_of_rows(columns: Sequence[Any], topic: TopicInfo) -> np.ndarray:
    """Return the partition of every row, i32. `columns`: arrays or chunked arrays of the topic's key columns, at least
    one."""
    if not topic.key_format:
        return partitions_for_columns(columns, topic.partitions)
    if topic.partitions == 1:
        return np.zeros(len(columns[0]), np.int32)
    if topic.key_format == TEXT:
        return partitions_for_slices(columns[:1], topic.partitions)
    whole = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
    return partitions_for_slices(key_slices(whole, topic.key_columns), topic.partitions)


def row_hash(topic: TopicInfo) -> Callable[[Sequence[Any]], int] | None:
    """Return a function that hashes the key of one row; None if only `partitions_of_rows` can.

    The function takes the values of the key columns, of which each is an int or a str, as the column's type is.
    """
    types = [topic.schema.field(name).type for name in topic.key_columns]
    if not all(pa.types.is_string(t) or pa.types.is_integer(t) for t in types):
        return None
    if topic.key_format == TEXT:
        return lambda values: murmur2(values[0].encode())
    if topic.key_format:
        leads = [(b"," if i else b"{") + _ENCODE(name) + b":" for i, name in enumerate(topic.key_columns)]
        return lambda values: murmur2(b"".join(map(_CONCATENATE, leads, map(_ENCODE, values))) + b"}")
    widths = [0 if pa.types.is_string(t) else t.bit_width // 8 for t in types]

    def fold(values: Sequence[Any]) -> int:
        h = 0
        for value, width in zip(values, widths, strict=True):
            content = value.to_bytes(width, "big", signed=True) if width else value.encode()
            h = (31 * h + murmur2(content)) & 0xFFFFFFFF
        return h

    return fold


_ENCODE = msgspec.json.encode
_CONCATENATE = operator.add
