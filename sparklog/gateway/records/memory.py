"""The memory of conversions: upper bounds for a batch, and the budget that conversions hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import SparklogError
from sparklog.format.batch import BatchHeader, message_of
from sparklog.format.body_layout import stated_bytes
from sparklog.format.json_size import ROW_JSON_BYTES_MAX
from sparklog.kafka.records import compression
from sparklog.kafka.records.batch_v2 import BatchV2
from sparklog.kafka.records.errors import without_frames
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.settings import MIB

COPIES = 4
"""Copies of the decompressed records that exist at once."""
RECORD_BYTES = 200
"""Memory for the positions, sizes and timestamps of one record, in bytes."""
RECORD_BYTES_MIN = 7
"""Size of the smallest record in bytes."""
JSON_BYTES_MAX = 2 * ROW_JSON_BYTES_MAX
"""Largest size of the JSON of a row in bytes: of its object and of its key, whose columns are in the object, too."""
JSON_PIECE_BYTES = 32 * MIB
"""Size in bytes of JSON after which the rows of a stored batch become another batch for the client."""
JSON_COPIES = 3
"""Ratio between a value's JSON and its bytes in a column, for usual values."""
OBJECT_COPIES = 4
"""Memory for the Python objects of a nested value, as a multiple of the text of its schema."""
RETURNED_BYTES_MIN = 32 * MIB
"""Size of a conversion in bytes after which Arrow returns its free memory to the operating system."""

T = TypeVar("T")


def convert_within(memory: InflatedMemory, size_bytes: int, convert: Callable[[], T]) -> T:
    """Call `convert` while `size_bytes` of `memory` are held; all of it for a larger size, because every stored batch
    can be read. Waits until they are free.

    Raises the errors of `convert`, without their frames: these would keep the decompressed records.
    """
    with memory.hold(size_bytes):
        try:
            outcome: T | SparklogError = convert()
        except SparklogError as e:
            outcome = without_frames(e)
        if size_bytes >= RETURNED_BYTES_MIN:
            pa.default_memory_pool().release_unused()
    if isinstance(outcome, SparklogError):
        raise outcome
    return outcome


def produced_bytes(head: BatchV2, data_bytes: int, topic: TopicInfo, inflated_bytes_max: int) -> int:
    """Return the memory for the conversion of a client's batch with `data_bytes` of records. `inflated_bytes_max`: the
    largest size of its decompressed records, and of its rows in a typed topic."""
    inflated = compression.inflated_bound(head.codec, data_bytes, inflated_bytes_max) if head.codec else data_bytes
    records = min(max(head.record_count, 0), inflated // RECORD_BYTES_MIN)
    rows = 0 if topic.is_envelope else inflated_bytes_max
    return COPIES * (inflated + rows) + RECORD_BYTES * records


def fetched_bytes(message: memoryview, header: BatchHeader, schema: pa.Schema, *, typed: bool) -> int:
    """Return the memory for the conversion of a stored batch. Raises CorruptBatchError."""
    arrow = message_of(message, 0, header)
    body = message[header.size_bytes - header.body_length_bytes : header.size_bytes]
    inflated = max(stated_bytes(arrow, body), len(body))
    entries = max(int(arrow.nodes[:, 0].max(initial=0)), 0)
    size = COPIES * inflated + RECORD_BYTES * entries
    if typed:
        chars, is_nested = _form(schema)
        size += COPIES * min(JSON_COPIES * inflated + chars * entries, JSON_BYTES_MAX)
        size += OBJECT_COPIES * chars * entries if is_nested else 0
    return size


@lru_cache(maxsize=1_000)
def _form(schema: pa.Schema) -> tuple[int, bool]:
    """Return the length of the schema's text, and True if it has nested columns."""
    return len(schema.to_string()), any(pa.types.is_nested(f.type) for f in schema)
