"""The keys of records of typed topics at the gateway: they decide the record's partition, and null is a tombstone.

`sparklog.kafka.values.keys` has the rules by which keys fill the key columns. A record in a partition that is not its
key's is refused: equal keys would be in several partitions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.row_keys import keys_of_rows, partitions_of_rows
from sparklog.format.key_format import SCHEMA_FORMATS
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX, InvalidRecordError
from sparklog.kafka.records.varints import Array
from sparklog.kafka.values.framed_keys import unwritable_keys
from sparklog.kafka.values.keys import SHOWN_BYTES_MAX, shown_key
from sparklog.kafka.values.rows_at_fault import UnwritableRowError


def without_tombstones(values: Any, rows: pa.RecordBatch, topic: TopicInfo) -> Any:
    """Return the values with null for each row of a compacted topic that deletes its key. Other topics have no
    tombstones: their rows without values keep their JSON."""
    if not topic.is_compacted:
        return values
    deletes = empty_rows(rows, topic.key_columns)
    return pc.if_else(pa.array(deletes), pa.scalar(None, pa.binary()), values) if deletes.any() else values


def empty_rows(rows: pa.RecordBatch, key_columns: Collection[str]) -> Array:
    """Return True for each row of a topic with keys that has null in all columns outside the key."""
    columns = [column for name, column in zip(rows.schema.names, rows.columns, strict=True) if name not in key_columns]
    if not key_columns or not columns or not all(column.null_count for column in columns):
        return np.zeros(rows.num_rows, bool)
    is_empty: Array = np.logical_and.reduce(
        [np.asarray(column.is_null().to_numpy(zero_copy_only=False)) for column in columns]
    )
    return is_empty


def check_partition(rows: pa.RecordBatch, topic: TopicInfo, partition: int) -> None:
    """Raise InvalidRecordError for the rows whose key chooses another partition than `partition`, or has no bytes in
    the topic's key schema."""
    has_schema = topic.key_format in SCHEMA_FORMATS
    if not topic.key_columns or (topic.partitions == 1 and not has_schema):
        return
    columns = [rows.column(name) for name in topic.key_columns]
    try:
        chosen = partitions_of_rows(columns, topic)
    except UnwritableRowError:
        raise InvalidRecordError(
            {i: f"record {i}: {reason}" for i, reason in unwritable_keys(columns, topic).items()}
        ) from None
    wrong = np.flatnonzero(chosen != partition)[:RECORDS_NAMED_MAX]
    if not len(wrong):
        return
    at = pa.array(wrong.tolist(), pa.int64())
    keys = keys_of_rows([column.take(at) for column in columns], topic).to_pylist()
    raise InvalidRecordError(
        {
            i: f"record {i} is in partition {partition} of {topic.name!r}, but its key {_shown(key, topic)} belongs to "
            f"partition {chosen[i]} of {topic.partitions}; {_rule_of(topic, key)}"
            for i, key in zip(wrong.tolist(), keys, strict=True)
        }
    )


def _shown(key: bytes | None, topic: TopicInfo) -> str:
    if key is not None and topic.key_format in SCHEMA_FORMATS:
        return f"{key[:SHOWN_BYTES_MAX].hex()} (schema {int.from_bytes(key[1:5], 'big')})"
    return shown_key(key)


def _rule_of(topic: TopicInfo, key: bytes | None) -> str:
    if not topic.key_format:
        return (
            "the topic has no kafka.key.format, so its key columns choose the partition by sparklog's own hash: name "
            "the partition, or create a new topic, whose partitions Kafka's clients choose"
        )
    if key is None:
        return "send the key, or name the partition for rows without a key"
    if topic.key_format in SCHEMA_FORMATS:
        return (
            f"kafka.key.format={topic.key_format}: send exactly these bytes as the key, which are those of the topic's key "
            "schema, with the partitioner murmur2 (librdkafka: partitioner=murmur2_random), and refresh the metadata if "
            "the topic has got partitions"
        )
    return (
        f"kafka.key.format={topic.key_format}: send exactly these bytes as the key, with the partitioner murmur2 "
        "(librdkafka: partitioner=murmur2_random), and refresh the metadata if the topic has got partitions"
    )
