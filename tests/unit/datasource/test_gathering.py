"""Batches of the log that are decoded together, and get their other columns together, give the rows that each alone
would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_sparklog.schemas import ReadSchema, TopicShape, full_schema, project, select
from pyspark_sparklog.source.assembly import ROWS_TARGET, BatchAssembler

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.rows import envelope_batch
from sparklog.client.reading.consumed import ConsumedBatch, Projection, decode_batches
from sparklog.client.reading.isolation import AbortedOffsets
from sparklog.errors import CorruptBatchError, SchemaMismatchError
from sparklog.format.batch import (
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_OFFSET_COLUMN,
    ATTRIBUTE_TRANSACTIONAL,
    decode_header,
    encode_batch,
    encode_marker,
    iterate_batches,
    stamp_batch,
)
from sparklog.format.offset_column import with_offset_column
from sparklog.format.packed_batch import encode_packed_batch
from sparklog.format.schema import ENVELOPE_SCHEMA, TIMESTAMP_TYPE
from sparklog.format.small_batch import SmallRows, encode_small_batch
from sparklog.protocol.messages import AbortedRange
from sparklog.types import TopicPartition

TP = TopicPartition("events", 3)
INFO = TopicInfo("events", "id", "envelope", 4, 7, {7: ENVELOPE_SCHEMA}, (), None, {}, 0, ())
FULL = full_schema(TopicShape("envelope", ENVELOPE_SCHEMA), include_headers=True, include_metadata=False)
ABORTED_PRODUCER = 66
APPEND_TIME_MS = 1_234


class Rows(NamedTuple):
    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[Any] | None
    timestamps_us: list[int]


def rows_of(count: int, seed: int, *, keys: bool, headers: bool = False, nulls: bool = False) -> Rows:
    values: list[bytes | None] = [b"%d-%d" % (seed, i) for i in range(count)]
    if nulls:
        values[seed % count] = None
    return Rows(
        values,
        [b"k%d" % (i % 3) for i in range(count)] if keys else None,
        [[("h", b"%d" % i)] for i in range(count)] if headers else None,
        [1_000_000 * seed + i // 300 for i in range(count)],
    )


def by_arrow(rows: Rows, *, null_timestamp: bool = False, offsets: list[int] | None = None, **how: Any) -> memoryview:
    stamps = np.array(rows.timestamps_us, np.int64)
    batch = envelope_batch(rows.values, rows.keys, rows.headers, stamps)
    if null_timestamp:
        column = batch.column(3).to_pylist()
        column[0] = None
        batch = batch.set_column(3, "timestamp", pa.array(column, TIMESTAMP_TYPE))
    if offsets is not None:
        columns = [*batch.columns, pa.array(offsets, pa.int64())]
        batch = pa.RecordBatch.from_arrays(columns, schema=with_offset_column(ENVELOPE_SCHEMA))
        how |= {"attributes": ATTRIBUTE_OFFSET_COLUMN, "last_offset_delta": 2 * len(offsets)}
    low, high = int(stamps.min()) // 1000, int(stamps.max()) // 1000
    return encode_batch(batch, schema_id=7, min_timestamp_ms=low, max_timestamp_ms=high, **how)


def small(rows: Rows, attributes: int = 0, producer_id: int = -1) -> memoryview:
    as_small: Any = SmallRows(rows.values, rows.keys, rows.timestamps_us)  # type: ignore[arg-type]
    return encode_small_batch(as_small, 7, attributes, producer_id, 0, 0)


def packed(rows: Rows) -> memoryview:
    stamps = np.array(rows.timestamps_us, np.int64)
    made = encode_packed_batch(envelope_batch(rows.values, rows.keys, None, stamps), schema_id=7)
    assert made is not None
    return made.payload


def marker(commit: bool) -> memoryview:
    return encode_marker(
        ENVELOPE_SCHEMA,
        schema_id=7,
        producer_id=5,
        producer_epoch=0,
        coordinator_epoch=0,
        commit=commit,
        timestamp_ms=9,
    )


KINDS: dict[str, Callable[[int, int, bool], memoryview]] = {
    "small": lambda base, n, keys: small(rows_of(n, base, keys=keys)),
    "small, stamped by the broker": lambda base, n, keys: small(rows_of(n, base, keys=keys), ATTRIBUTE_LOG_APPEND_TIME),
    "small, aborted": lambda base, n, keys: small(
        rows_of(n, base, keys=keys), ATTRIBUTE_TRANSACTIONAL, ABORTED_PRODUCER
    ),
    "headers": lambda base, n, keys: by_arrow(rows_of(n, base, keys=keys, headers=True)),
    "null values": lambda base, n, keys: by_arrow(rows_of(n, base, keys=keys, nulls=True)),
    "null timestamp": lambda base, n, keys: by_arrow(rows_of(n, base, keys=keys), null_timestamp=True),
    "lz4": lambda base, n, keys: by_arrow(rows_of(n, base, keys=keys), compression="lz4"),
    "zstd": lambda base, n, keys: by_arrow(rows_of(n, base, keys=keys), compression="zstd"),
    "packed": lambda base, n, keys: packed(rows_of(300 + n, base, keys=keys)),
    "large": lambda base, n, keys: packed(rows_of(ROWS_TARGET // 2 + n, base, keys=keys)),
    "compacted": lambda base, n, keys: by_arrow(
        rows_of(n, base, keys=keys), offsets=list(range(base + 1, base + 1 + 2 * n, 2))
    ),
    "marker": lambda base, n, keys: marker(keys),
}


class Log(NamedTuple):
    data: pa.Buffer
    aborted: AbortedOffsets
    end: int


def log_of(pieces: list[tuple[str, int, bool]]) -> Log:
    """Batches (kind, rows, with keys), one after the other."""
    messages, aborted, end = [], [], 100
    for kind, count, keys in pieces:
        message = memoryview(bytearray(KINDS[kind](end, count, keys)))
        header = decode_header(message)
        stamp_batch(message, 0, header, base_offset=end, leader_epoch=0, append_time_ms=APPEND_TIME_MS)
        if kind == "small, aborted":
            aborted.append(AbortedRange(ABORTED_PRODUCER, end, end + header.last_offset_delta))
        end += header.last_offset_delta + 1
        messages.append(message)
    return Log(pa.py_buffer(b"".join(messages)), AbortedOffsets(aborted), end)


def consumed(log: Log, schema: ReadSchema, start: int = 0, end: int | None = None) -> list[ConsumedBatch]:
    projection = Projection(INFO, schema.decoded_columns, layout=schema.stored_layout)
    headers = iterate_batches(memoryview(log.data))
    return list(decode_batches(log.data, headers, TP, projection, start, end, aborted=log.aborted))


def one_by_one(batch: ConsumedBatch, schema: ReadSchema, *, log_append_time: bool) -> pa.Table:
    """The rows of a batch for Spark, without any gathering."""
    data, n = batch.data, batch.data.num_rows
    stamps: Any = pa.array(np.asarray(batch.timestamps_ms()) * 1000, pa.int64()).cast(TIMESTAMP_TYPE)
    if not log_append_time and "timestamp" in data.schema.names and not data.column("timestamp").null_count:
        stamps = data.column("timestamp")
    made = {
        "topic": pa.repeat(TP.topic, n),
        "partition": pa.repeat(pa.scalar(TP.partition, pa.int32()), n),
        "offset": pa.array(batch.offsets()),
        "timestamp": stamps,
        "timestampType": pa.repeat(pa.scalar(int(log_append_time), pa.int32()), n),
    }
    columns = [made[f.name] if f.name in made else data.column(f.name) for f in schema.arrow]
    return pa.Table.from_arrays(columns, schema=schema.arrow)


def gathered(
    batches: list[ConsumedBatch], schema: ReadSchema, *, log_append_time: bool = False
) -> list[pa.RecordBatch]:
    assembler = BatchAssembler(schema, TP, log_append_time=log_append_time)
    return [out for b in batches for out in assembler.add(b)] + list(assembler.finish())


pieces_of_a_log = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 9), st.booleans()), max_size=14)
some_columns = st.lists(st.sampled_from(FULL.arrow.names), min_size=1, unique=True)


@given(pieces_of_a_log, some_columns, st.booleans(), st.data())
def test_gathered_rows_are_those_of_each_batch_alone(
    pieces: list[tuple[str, int, bool]], columns: list[str], log_append_time: bool, data: st.DataObject
) -> None:
    log = log_of(pieces)
    start = data.draw(st.integers(0, log.end))
    end = data.draw(st.integers(start, log.end))
    schema = select(FULL, columns)
    alone = [one_by_one(b, schema, log_append_time=log_append_time) for b in consumed(log, schema, start, end)]
    expected = pa.concat_tables([schema.arrow.empty_table(), *alone])
    found = gathered(consumed(log, schema, start, end), schema, log_append_time=log_append_time)
    assert all(b.schema.equals(schema.arrow) and 0 < b.num_rows <= ROWS_TARGET for b in found)
    for batch in found:
        batch.validate(full=True)
    assert pa.Table.from_batches(found, schema.arrow).equals(expected)


def test_small_batches_become_one_without_being_decoded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of([("small", n, bool(n % 2)) for n in range(1, 40)])
    batches = consumed(log, FULL)
    monkeypatch.setattr(ConsumedBatch, "decode", None)  # whoever calls it fails
    [found] = gathered(batches, FULL)
    assert found.column("offset").to_pylist() == list(range(100, log.end))
    assert found.column("timestamp").cast(pa.int64()).to_pylist()[:3] == [100_000_000, 101_000_000, 101_000_000]


def test_unwanted_columns_of_a_small_batch_are_not_decompressed() -> None:
    batches = consumed(log_of([("small", 3, True), ("lz4", 3, True)]), FULL)
    assert [b.decoder is None for b in batches] == [False, True]


def test_a_damaged_batch_fails_the_read_wherever_it_stands() -> None:
    log = log_of([("small", 5, False)] * 3)
    headers = list(iterate_batches(memoryview(log.data)))
    damaged = bytearray(memoryview(log.data))
    position = headers[1][0]
    damaged[position + 8 : position + 40] = bytes(32)
    projection = Projection(INFO, ["value"])
    with pytest.raises(CorruptBatchError, match="events-3 at offset 105: not an Arrow RecordBatch message"):
        gathered(
            list(decode_batches(pa.py_buffer(damaged), headers, TP, projection, 0, check_crcs=False)),
            select(FULL, ["value"]),
        )


def test_a_null_is_reported_with_the_offsets_of_its_batch() -> None:
    log = log_of([("small", 5, False), ("null values", 4, False), ("small", 5, False)])
    schema = project(FULL, StructType([StructField("value", BinaryType(), nullable=False)]))
    with pytest.raises(SchemaMismatchError, match=r"'value' .* events-3 has 1 nulls in offsets 105 to 108:"):
        gathered(consumed(log, schema), schema)
