"""Batches for Spark: layout, sizes, metadata columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from pyspark_sparklog.schemas import ReadSchema, TopicShape, full_schema, project, select
from pyspark_sparklog.source.assembly import ROWS_TARGET, BatchAssembler

from sparklog.errors import SchemaMismatchError
from sparklog.format.schema import ENVELOPE_SCHEMA, TIMESTAMP_TYPE
from sparklog.types import TopicPartition

TP = TopicPartition("events", 3)
TYPED = full_schema(TopicShape("typed", pa.schema([("n", pa.int64())])), include_headers=False, include_metadata=True)
ENVELOPE = full_schema(TopicShape("envelope", ENVELOPE_SCHEMA), include_headers=False, include_metadata=False)


class Consumed:
    """The part of the range reader's result that the assembler uses."""

    decoder = None

    def __init__(self, data: pa.RecordBatch, base_offset: int, append_time_ms: int = 1_000) -> None:
        self.data = data
        self.base_offset = base_offset
        self.next_offset = base_offset + data.num_rows
        self.num_rows = data.num_rows
        self.size_bytes = data.nbytes
        self._append_time_ms = append_time_ms

    def offsets(self) -> Any:
        return np.arange(self.base_offset, self.base_offset + self.data.num_rows)

    def timestamps_ms(self) -> Any:
        return np.full(self.data.num_rows, self._append_time_ms)


def numbers(first: int, count: int) -> Consumed:
    return Consumed(pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())}), first)


def run(schema: ReadSchema, *batches: Consumed, log_append_time: bool = False) -> list[pa.RecordBatch]:
    assembler = BatchAssembler(schema, TP, log_append_time=log_append_time)
    made = [out for b in batches for out in assembler.add(b)]
    made += assembler.finish()
    assert all(b.schema.equals(schema.arrow) and b.num_rows > 0 for b in made)
    return made


def test_small_batches_are_gathered() -> None:
    made = run(TYPED, *[numbers(i * 100, 100) for i in range(250)])
    assert [b.num_rows for b in made] == [10_000, 10_000, 5_000]
    table = pa.Table.from_batches(made)
    assert table.column("n").to_pylist() == table.column("_offset").to_pylist() == list(range(25_000))


def test_large_batches_are_sliced_without_a_copy() -> None:
    big = numbers(0, 25_000)
    made = run(TYPED, big)
    assert [b.num_rows for b in made] == [10_000, 10_000, 5_000]
    assert made[2].column(0).buffers()[1].address == big.data.column(0).buffers()[1].address


def test_order_is_kept_between_small_and_large_batches() -> None:
    made = run(TYPED, numbers(0, 10), numbers(10, ROWS_TARGET), numbers(10 + ROWS_TARGET, 10))
    assert pa.Table.from_batches(made).column("_offset").to_pylist() == list(range(20 + ROWS_TARGET))


def test_metadata_columns_of_a_typed_topic() -> None:
    [made] = run(TYPED, numbers(7, 2))
    assert made.to_pylist()[1] == {
        "n": 8,
        "_topic": "events",
        "_partition": 3,
        "_offset": 8,
        "_timestamp": pa.scalar(1_000_000, TIMESTAMP_TYPE).as_py(),
    }


def envelope_row(timestamp_us: int) -> pa.RecordBatch:
    row = {"key": b"k", "value": b"v", "headers": None, "timestamp": timestamp_us}
    return pa.RecordBatch.from_pylist([row], schema=ENVELOPE_SCHEMA)


def test_an_envelopes_rows() -> None:
    [made] = run(ENVELOPE, Consumed(envelope_row(5_000_000), 4))
    assert made.drop_columns(["timestamp"]).to_pylist() == [
        {"key": b"k", "value": b"v", "topic": "events", "partition": 3, "offset": 4, "timestampType": 0}
    ]
    assert made.column("timestamp").cast(pa.int64()).to_pylist() == [5_000_000]


def test_the_brokers_clock_goes_before_the_producers_where_the_topic_says_so() -> None:
    [made] = run(ENVELOPE, Consumed(envelope_row(5_000_000), 4, append_time_ms=9_000), log_append_time=True)
    assert made.column("timestamp").cast(pa.int64()).to_pylist() == [9_000_000]
    assert made.column("timestampType").to_pylist() == [1]


def test_constant_columns_grow_with_the_batches() -> None:
    made = run(select(TYPED, ["_partition"]), numbers(0, 5), numbers(5, 3 * ROWS_TARGET))
    assert sum(b.num_rows for b in made) == 3 * ROWS_TARGET + 5
    assert set(pa.Table.from_batches(made).column("_partition").to_pylist()) == {3}


def test_a_null_in_a_column_declared_not_null_is_refused() -> None:
    schema = project(TYPED, StructType([StructField("n", LongType(), nullable=False)]))
    with_null = Consumed(pa.record_batch({"n": pa.array([1, None], pa.int64())}), 0)
    refused = r"'n' is declared NOT NULL .* events-3 has 1 nulls in offsets 0 to 1"
    with pytest.raises(SchemaMismatchError, match=refused):
        run(schema, with_null)
    after = numbers(2, 5)
    with pytest.raises(SchemaMismatchError, match=refused):
        run(schema, with_null, after)
    assert [b.num_rows for b in run(schema, numbers(0, 3))] == [3]


def test_no_headers_are_null_as_with_kafkas_source() -> None:
    schema = full_schema(TopicShape("envelope", ENVELOPE_SCHEMA), include_headers=True, include_metadata=False)
    one = [{"key": "k", "value": b"v"}]
    rows = [{"key": None, "value": b"x", "headers": h, "timestamp": 1} for h in ([], one, None)]
    data = pa.RecordBatch.from_pylist(rows, ENVELOPE_SCHEMA)
    for batches in ([Consumed(data, 0)], [Consumed(data, 0), Consumed(data, 3)]):
        made = pa.Table.from_batches(run(schema, *batches))
        assert made.column("headers").to_pylist() == [None, one, None] * len(batches)
