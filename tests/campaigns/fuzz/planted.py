"""Files from elsewhere: a partition's segments with a hostile batch between honest ones, written past the broker.

Layout: the first segment holds honest rows (offsets 0 to 2), the hostile batch at HOSTILE_OFFSET and honest rows behind
it; the second, which is the active one, honest rows again. The honest rows are of different keys and values each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import decode_header, stamp_batch
from sparklog.format.checkpoint import PARTITION_FILE, PartitionMeta, encode
from sparklog.format.segment import SegmentInfo, encode_head, encode_seal, segment_name
from tests.campaigns.fuzz.cases import SCHEMAS, honest_rows
from tests.campaigns.fuzz.reference import read_batch
from tests.campaigns.fuzz.whole_batches import HOSTILE_OFFSET, encoded
from tests.golden.make_golden import BASE_MS

HONEST_ROWS = 3
_FIRSTS = (1000, 2000, 3000)
Rows = dict[int, tuple[Any, ...]]
"""By offset: a row's values."""


class Planted(NamedTuple):
    """Places of the planted batches. `before` and `after` are the honest rows on either side; `behind` is the offset
    for reading after the hostile batch, None when its header cannot be read."""

    before: Rows
    after: Rows
    behind: int | None


def honest(schema_id: int, number: int, base_offset: int) -> tuple[bytes, Rows]:
    """One honest batch at an offset, and its rows as the reference reads them."""
    data = bytearray(encoded(honest_rows(schema_id, _FIRSTS[number], HONEST_ROWS), schema_id, "none"))
    stamp_batch(data, 0, decode_header(data), base_offset=base_offset, leader_epoch=0, append_time_ms=BASE_MS)
    return bytes(data), rows_of(bytes(data), schema_id)


def rows_of(data: bytes, schema_id: int, *, by_count: bool = False) -> Rows:
    """By the reference. Raises UnreadableError."""
    reading = read_batch(data, SCHEMAS[schema_id], by_count=by_count)
    columns = []
    for column in reading.columns:
        if isinstance(column, Exception):
            raise column
        columns.append(column)
    return dict(zip(reading.offsets, zip(*columns, strict=True), strict=True))


def plant(
    directory: Path, schema_id: int, hostile: bytes, *, topic: str = "events", topic_id: str = "0" * 32,
    partition: int = 0, sealed: bool = True,
) -> Planted:  # fmt: skip
    """Writes the two segments into `directory`, which may hold the partition's other files."""
    try:
        behind: int | None = decode_header(hostile).next_offset
    except CorruptBatchError:
        behind = None
    first, before = honest(schema_id, 0, 0)
    middle_at = HOSTILE_OFFSET + 50 if behind is None else behind
    middle, after = honest(schema_id, 1, middle_at)
    second_base = middle_at + HONEST_ROWS
    last, tail = honest(schema_id, 2, second_base)
    parts = [first, hostile, middle]
    _write(directory, SegmentInfo(topic, topic_id, partition, 0, schema_id), parts, sealed=sealed)
    _write(directory, SegmentInfo(topic, topic_id, partition, second_base, schema_id), [last], sealed=False)
    (directory / PARTITION_FILE).write_bytes(encode(PartitionMeta(topic, topic_id, partition)))
    return Planted(before, after | tail, behind)


def _write(directory: Path, info: SegmentInfo, parts: list[bytes], *, sealed: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    schema = SCHEMAS[info.schema_id]
    head = encode_head(schema, info)
    content = head + b"".join(parts)
    if sealed:
        starts = np.cumsum([len(head), *(len(p) for p in parts[:-1])]).astype(np.int64)
        lengths = np.array([int.from_bytes(p[4:8], "little", signed=True) for p in parts], np.int32)
        content += encode_seal(schema, info, starts, lengths, len(content))
    (directory / segment_name(info.base_offset)).write_bytes(content)
