"""Batches of a sparklog cluster at the offsets of their source."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import CorruptBatchError, LeaderNotAvailableError
from sparklog.format.batch import (
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_GZIP,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_OFFSET_COLUMN,
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
    decode_header,
    encode_batch,
    encode_marker,
    stamp_batch,
    verify_batch,
)
from sparklog.format.offset_column import decode_rows, row_offsets, with_offset_column
from sparklog.format.packed_batch import compression_of_batch
from sparklog.format.schema import TIMESTAMP_TYPE
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.log.model.log_config import LogConfig
from sparklog.log.state.check import check_placed
from sparklog.mirror.copying import AbortedBatches, SourceBatches
from sparklog.mirror.placing import Placed
from sparklog.mirror.source import ConversionTarget
from tests.support.cases import for_each

OLD = pa.schema([("id", pa.int64())])
NEW = pa.schema([("id", pa.int64()), ("at", TIMESTAMP_TYPE)])
THERE = {4: OLD, 7: NEW}
HERE = {1: OLD, 2: NEW}
EPOCH = 5


def batch(base: int, ids: list[int], schema_id: int = 4, offsets: list[int] | None = None, **fields: Any) -> bytes:
    """A batch as the source stores it, with `offsets` for a compacted one."""
    schema = THERE[schema_id]
    columns = {"id": ids, "at": [1_000_000 * (i + 1) for i in range(len(ids))]}
    rows = pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)
    if offsets is not None:
        rows = pa.RecordBatch.from_arrays(
            [*rows.columns, pa.array(offsets, pa.int64())], schema=with_offset_column(schema)
        )
        fields["attributes"] = fields.get("attributes", 0) | ATTRIBUTE_OFFSET_COLUMN
    header = {"min_timestamp_ms": 1_000, "max_timestamp_ms": 9_000} | fields
    append_time_ms = header.pop("append_time_ms", 77)
    data = encode_batch(rows, schema_id=schema_id, **header)
    stamp_batch(data, 0, decode_header(data), base_offset=base, leader_epoch=EPOCH, append_time_ms=append_time_ms)
    return bytes(data)


def end_of_transaction(base: int) -> bytes:
    data = encode_marker(
        OLD, schema_id=4, producer_id=9, producer_epoch=0, coordinator_epoch=0, commit=False, timestamp_ms=1
    )
    stamp_batch(data, 0, decode_header(data), base_offset=base, leader_epoch=EPOCH, append_time_ms=77)
    return bytes(data)


def placed(*batches: bytes, position: int = 0, stable: int = 1_000, aborted: tuple[AbortedBatches, ...] = ()) -> Placed:
    source = SourceBatches(memoryview(b"".join(batches)), stable, aborted, THERE, "at")
    return source.place(position, ConversionTarget(1 << 20, 0, schemas=HERE))


def read(data: memoryview) -> tuple[BatchHeader, list[tuple[int, Any]]]:
    """The header, and each row's offset and id; after the check of the broker that appends the batch."""
    header = decode_header(data)
    verify_batch(data, 0, header)
    check_placed(
        memoryview(bytearray(data)), LogConfig.from_settings({}), HERE.__getitem__, InflatedMemory(), header.base_offset
    )
    rows, offsets = decode_rows(data, HERE[header.schema_id], header)
    return header, list(zip(row_offsets(header, offsets).tolist(), rows.column("id").to_pylist(), strict=True))


@for_each("codec", ["none", "lz4", "zstd"])
def test_a_batch_travels_as_it_lies_with_another_header(codec: str) -> None:
    original = batch(10, [1, 2, 3], compression=codec, attributes=ATTRIBUTE_GZIP, producer_id=3, producer_epoch=1)
    result = placed(original, position=10)
    header, rows = read(result.batches[0])
    assert rows == [(10, 1), (11, 2), (12, 3)] and compression_of_batch(result.batches[0]) == codec
    body = decode_header(original).body_length_bytes
    assert bytes(result.batches[0])[-body:] == original[-body:]
    assert (header.schema_id, header.producer_id, header.base_sequence) == (1, -1, EPOCH)
    assert header.attributes == ATTRIBUTE_GZIP and (header.min_timestamp_ms, header.max_timestamp_ms) == (1_000, 9_000)
    assert (result.next_offset, result.epoch, result.records, result.gap) == (13, EPOCH, 3, 0)


def test_markers_and_aborted_batches_become_batches_without_rows() -> None:
    transaction: dict[str, Any] = {
        "attributes": ATTRIBUTE_TRANSACTIONAL, "producer_id": 9, "producer_epoch": 0, "base_sequence": 0
    }  # fmt: skip
    answer = (batch(0, [1, 2], **transaction), batch(2, [3]), end_of_transaction(3), batch(4, [4], **transaction))
    result = placed(*answer, aborted=(AbortedBatches(9, 0, 3),))
    headers, rows = zip(*map(read, result.batches), strict=True)
    assert [*rows] == [[], [(2, 3)], [], [(4, 4)]]
    assert [(h.base_offset, h.last_offset, h.attributes) for h in headers] == [
        (0, 1, 0),
        (2, 2, 0),
        (3, 3, 0),
        (4, 4, 0),
    ]
    assert (result.next_offset, result.records, result.gap) == (5, 2, 3)


def test_batches_end_at_the_last_stable_offset_and_begin_at_the_position() -> None:
    answer = (batch(0, [0, 1]), batch(2, [2, 3, 4]), batch(5, [5]))
    result = placed(*answer, position=3, stable=5)
    assert [read(one)[1] for one in result.batches] == [[(3, 3), (4, 4)]]
    assert (decode_header(result.batches[0]).base_offset, result.next_offset, result.records) == (3, 5, 2)


def test_compacted_batches_and_offsets_between_batches_stay_gaps() -> None:
    result = placed(batch(0, [1, 2], offsets=[1, 3], last_offset_delta=4), batch(9, [5]))
    headers, rows = zip(*map(read, result.batches), strict=True)
    assert [*rows] == [[(1, 1), (3, 2)], [], [(9, 5)]]
    assert [(h.base_offset, h.last_offset) for h in headers] == [(0, 4), (5, 8), (9, 9)]


def test_each_batch_gets_the_schema_here_or_waits_for_it() -> None:
    result = placed(batch(0, [1]), batch(1, [2], schema_id=7))
    assert [decode_header(one).schema_id for one in result.batches] == [1, 2]
    waiting = SourceBatches(memoryview(batch(0, [1], schema_id=7)), 10, (), THERE, None)
    with pytest.raises(LeaderNotAvailableError, match="schema 7"):
        waiting.place(0, ConversionTarget(1 << 20, 0, schemas={1: OLD}))


def test_a_delete_horizon_gives_way_to_the_smallest_timestamp() -> None:
    compacted = batch(
        0, [1, 2], 7, [0, 1], last_offset_delta=1, attributes=ATTRIBUTE_DELETE_HORIZON, min_timestamp_ms=8_888
    )
    header, rows = read(placed(compacted).batches[0])
    assert rows == [(0, 1), (1, 2)]
    assert (header.attributes, header.min_timestamp_ms) == (ATTRIBUTE_OFFSET_COLUMN, 1_000)


def test_the_append_time_of_the_source_stays() -> None:
    for position in (0, 1):
        result = placed(batch(0, [1, 2], attributes=ATTRIBUTE_LOG_APPEND_TIME, append_time_ms=123), position=position)
        header, _ = read(result.batches[0])
        assert header.append_time_ms == 123 and header.attributes & ATTRIBUTE_LOG_APPEND_TIME


@for_each(
    "answer",
    [
        batch(0, [1, 2]) + batch(1, [2]),
        batch(0, [1, 2])[:-8],
        batch(-5, [1, 2, 3, 4, 5, 6]),
        batch(2**62, [1]),
        batch(0, [1]) + batch(2**61, [2]),
        batch(0, [1]).replace(b"SLB1", b"SLB2"),
    ],
)
def test_a_lying_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        SourceBatches(memoryview(answer), 2**62 + 9, (), THERE, None).place(
            0, ConversionTarget(1 << 20, 0, schemas=HERE)
        )
