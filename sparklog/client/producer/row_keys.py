"""The keys of rows of typed topics, and the partitions that they choose."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.partitioner import murmur2, partitions_for_columns, partitions_for_slices
from sparklog.errors import SchemaMismatchError
from sparklog.format.canonical_json import SLICE_ROWS, canonical_keys, key_slices
from sparklog.format.key_format import SCHEMA_FORMATS, TEXT


def keys_of_rows(columns: Sequence[Any], topic: TopicInfo) -> Any:
    """Return the keys of some rows in the topic's `kafka.key.format`, as an array of binary. `columns`: arrays of the
    topic's key columns, at least one. Raises SchemaMismatchError if the topic's key schema does not allow a key, or if
    the topic has none yet."""
    if topic.key_format == TEXT:
        return columns[0].cast(pa.binary())
    if topic.key_format in SCHEMA_FORMATS:
        return _keys_with_schema(columns, topic)
    return canonical_keys(columns, topic.key_columns).cast(pa.binary())


def partitions_of_rows(columns: Sequence[Any], topic: TopicInfo) -> np.ndarray:
    """Return the partition of every row, i32. `columns`: arrays or chunked arrays of the topic's key columns, at least
    one. Raises as `keys_of_rows`."""
    if not topic.key_format:
        return partitions_for_columns(columns, topic.partitions)
    if topic.partitions == 1 and topic.key_format not in SCHEMA_FORMATS:
        return np.zeros(len(columns[0]), np.int32)
    if topic.key_format == TEXT:
        return partitions_for_slices(columns[:1], topic.partitions)
    whole = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
    if topic.key_format in SCHEMA_FORMATS:  # with one partition, too: the keys must have bytes
        return partitions_for_slices(_slices_with_schema(whole, topic), topic.partitions)
    return partitions_for_slices(key_slices(whole, topic.key_columns), topic.partitions)


def _keys_with_schema(columns: Sequence[Any], topic: TopicInfo) -> Any:
    from sparklog.kafka.values.framed_keys import write_keys  # late: the parsers of schemas take long to load
    from sparklog.kafka.values.schemas import KeySchemaMissingError

    try:
        return write_keys(columns, topic)
    except KeySchemaMissingError as e:
        raise SchemaMismatchError(f"{e}; a row's partition is that of its key in this schema") from None


def _slices_with_schema(columns: Sequence[Any], topic: TopicInfo) -> Iterator[Any]:
    for first in range(0, len(columns[0]), SLICE_ROWS):
        yield _keys_with_schema([column.slice(first, SLICE_ROWS) for column in columns], topic)


def row_hash(topic: TopicInfo) -> Callable[[Sequence[Any]], int] | None:
    """Return a function that hashes the key of one row; None if only `partitions_of_rows` can.

    The function takes the values of the key columns, of which each is an int or a str, as the column's type is.
    """
    types = [topic.schema.field(name).type for name in topic.key_columns]
    if topic.key_format in SCHEMA_FORMATS or not all(pa.types.is_string(t) or pa.types.is_integer(t) for t in types):
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
