"""The keys of records of typed topics at the gateway: they decide the record's partition, and null is a tombstone.

`sparklog.kafka.values.keys` has the rules by which keys fill the key columns. A record in a partition that is not its
key's is refused: equal keys would be in several partitions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.row_keys import keys_of_rows, partitions_of_rows
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX, InvalidRecordError
from sparklog.kafka.values.keys import shown_key


def without_tombstones(values: Any, rows: pa.RecordBatch, topic: TopicInfo) -> Any:
    """Return the values with null for each row of a compacted topic that deletes its key. Other topics have no
    tombstones: their rows without values keep their JSON."""
    columns = [
        column for name, column in zip(rows.schema.names, rows.columns, strict=True) if name not in topic.key_columns
    ]
    if not topic.is_compacted or not columns or not all(column.null_count for column in columns):
        return values
    deletes = columns[0].is_null()
    for column in columns[1:]:
        deletes = pc.and_(deletes, column.is_null())
    return pc.if_else(deletes, pa.scalar(None, pa.binary()), values)


def check_partition(rows: pa.RecordBatch, topic: TopicInfo, partition: int) -> None:
    """Raise InvalidRecordError for the rows whose key chooses another partition than `partition`."""
    if not topic.key_columns or topic.partitions == 1:
        return
    columns = [rows.column(name) for name in topic.key_columns]
    chosen = partitions_of_rows(columns, topic)
    wrong = np.flatnonzero(chosen != partition)[:RECORDS_NAMED_MAX]
    if not len(wrong):
        return
    at = pa.array(wrong.tolist(), pa.int64())
    keys = keys_of_rows([column.take(at) for column in columns], topic).to_pylist()
    raise InvalidRecordError(
        {
            i: f"record {i} is in partition {partition} of {topic.name!r}, but its key {shown_key(key)} belongs to "
            f"partition {chosen[i]} of {topic.partitions}; {_rule_of(topic, key)}"
            for i, key in zip(wrong.tolist(), keys, strict=True)
        }
    )


def _rule_of(topic: TopicInfo, key: bytes | None) -> str:
    if not topic.key_format:
        return (
            "the topic has no kafka.key.format, so its key columns choose the partition by sparklog's own hash: name "
            "the partition, or create a new topic, whose partitions Kafka's clients choose"
        )
    if key is None:
        return "send the key, or name the partition for rows without a key"
    return (
        f"kafka.key.format={topic.key_format}: send exactly these bytes as the key, with the partitioner murmur2 "
        "(librdkafka: partitioner=murmur2_random), and refresh the metadata if the topic has got partitions"
    )
