"""Tables in, batches out: fitting, splitting by partition and size, the envelope."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.encoding import BatchEncoder
from sparklog.client.producer.partitioner import StickyPartition, partition_for_key
from sparklog.client.producer.pieces import pieces_of
from sparklog.client.producer.record_sizes import estimated_bytes
from sparklog.client.producer.rows import envelope_batch, rows_of, to_table
from sparklog.errors import InvalidPartitionsError, MessageTooLargeError, SchemaMismatchError
from sparklog.format.batch import ATTRIBUTE_LOG_APPEND_TIME, decode_batch, decode_header
from sparklog.format.packed_batch import compression_of_batch
from sparklog.format.schema import ENVELOPE_SCHEMA, HEADER_TYPE, fit_table, null_column
from tests.support.cases import for_each
from tests.support.clients import info

TYPED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("tags", HEADER_TYPE)])


def pieces(
    data: Any, topic: TopicInfo, partition: int | None = None, size: int = 1 << 20
) -> list[tuple[int, pa.RecordBatch]]:
    rows = rows_of(data, topic, partition)
    return list(pieces_of(rows, topic, StickyPartition(topic.partitions, start=0), size)) if rows.table.num_rows else []


@for_each(
    "data",
    [
        pa.table({"id": [1, 2], "name": ["a", None]}),
        pa.record_batch({"id": [1, 2], "name": ["a", None]}),
        pd.DataFrame({"id": [1, 2], "name": ["a", None]}, index=["x", "y"]),
        pl.DataFrame({"id": [1, 2], "name": ["a", None]}),
        pa.table({"id": [1, 2], "name": ["a", None]}).to_reader(),
        {"id": [1, 2], "name": ["a", None]},
        {"id": np.array([1, 2]), "name": pa.array(["a", None])},
        [{"id": 1, "name": "a"}, {"id": 2}],
    ],
    ids=["table", "batch", "pandas", "polars", "reader", "dict", "numpy", "rows"],
)
def test_everything_tabular_is_taken(data: Any) -> None:
    table = fit_table(to_table(data, TYPED, "t"), TYPED, "t", nulls_fit=True)
    assert table.schema.equals(TYPED)
    assert table.select(["id", "name"]).to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


def test_pandas_nan_is_null_and_all_nan_fits_every_type() -> None:
    frame = pd.DataFrame(
        {"id": [1.0, np.nan], "name": [np.nan, np.nan], "at": [pd.NaT, pd.Timestamp(1, unit="s", tz="UTC")]}
    )
    rows = fit_table(to_table(frame, TYPED, "t"), TYPED, "t", nulls_fit=True).to_pylist()
    assert [r["id"] for r in rows] == [1, None]
    assert [r["name"] for r in rows] == [None, None]
    assert rows[0]["at"] is None and rows[1]["at"] == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"id": ["x"]}, ["'id'", "int64"]),
        ({"id": [1.5]}, ["'id'", "int64"]),
        ({"nope": [1]}, ["nope", "id, name, at, tags"]),
        (pd.DataFrame({"name": [b"\xff"]}), ["'name'", "string"]),
        (pd.DataFrame({"id": [object()]}), ["'id'", "int64"]),
        ({"id": [1], "name": ["a", "b"]}, ["different lengths"]),
    ],
)
def test_data_that_do_not_fit(data: Any, named: list[str]) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        rows_of(data, info(TYPED), None)
    assert all(n in str(caught.value) for n in named), str(caught.value)


@for_each("data", [b"bytes", "text", 5, [1, 2]])
def test_values_that_are_not_tabular(data: Any) -> None:
    with pytest.raises(TypeError):
        rows_of(data, info(TYPED), None)


@for_each("t", [pa.binary(), HEADER_TYPE, pa.map_(pa.string(), pa.int32()), pa.struct([("a", HEADER_TYPE)])])
def test_null_columns_store_no_children(t: pa.DataType) -> None:
    column = null_column(1000, t)
    column.validate(full=True)
    assert column.null_count == 1000 and column.equals(pa.nulls(1000, t))
    topic = info(pa.schema([("c", t)]))
    encoded = BatchEncoder().encode(pa.record_batch([column], schema=topic.schema), topic)
    assert len(encoded.payload) < 10_000


def test_envelope_from_lists() -> None:
    batch = envelope_batch([b"v", None], [None, b"k"], [None, [("h", b"1"), ("h", None)]], np.array([5, 6]))
    assert batch.schema.equals(ENVELOPE_SCHEMA)
    rows = batch.to_pylist()
    assert [(r["key"], r["value"]) for r in rows] == [(None, b"v"), (b"k", None)]
    assert [r["headers"] for r in rows] == [None, [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [5, 6]
    assert envelope_batch([b"v"], None, None, np.array([5])).column("headers").null_count == 1


def test_encoded_batches_carry_bounds_schema_and_attributes() -> None:
    batch = envelope_batch([b"a", b"b"], None, None, np.array([5_999, 2_000]))
    topic = info(message_timestamp_type="LogAppendTime")
    encoded = BatchEncoder("zstd").encode(batch, topic)
    header = decode_header(encoded.payload)
    assert (header.min_timestamp_ms, header.max_timestamp_ms, header.record_count) == (2, 5, 2)
    assert header.attributes == ATTRIBUTE_LOG_APPEND_TIME
    assert decode_batch(encoded.payload, ENVELOPE_SCHEMA).equals(batch)


@pytest.mark.parametrize("keys", [None, [b"k"] * 1000])
def test_batches_of_many_records_are_packed_unless_they_are_compressed(keys: list[bytes | None] | None) -> None:
    batch = envelope_batch([b"v" * 50] * 1000, keys, None, np.full(1000, 5_999))
    encoded = BatchEncoder().encode(batch, info(message_timestamp_type="LogAppendTime"))
    header = decode_header(encoded.payload)
    assert (encoded.min_timestamp_ms, encoded.max_timestamp_ms, encoded.record_count) == (5, 5, 1000)
    assert (header.min_timestamp_ms, header.max_timestamp_ms, header.record_count) == (5, 5, 1000)
    assert header.attributes == ATTRIBUTE_LOG_APPEND_TIME
    assert len(encoded.payload) < estimated_bytes(batch) - 10_000
    assert compression_of_batch(encoded.payload) == "none"
    assert compression_of_batch(BatchEncoder("lz4").encode(batch, info()).payload) == "lz4"
    typed = BatchEncoder().encode(batch, info(ENVELOPE_SCHEMA)).payload
    assert len(typed) > len(encoded.payload) + 10_000


def test_keyed_rows_go_where_the_hash_says_and_keep_their_order() -> None:
    keys = [b"k%d" % (i % 50) for i in range(10_000)]
    data = pa.table({"key": keys, "value": [b"%d" % i for i in range(10_000)]})
    found: dict[int, list[int]] = {}
    for partition, piece in pieces(data, info(), size=20_000):
        assert all(partition_for_key(k, 4) == partition for k in piece.column("key").to_pylist())
        found.setdefault(partition, []).extend(int(v) for v in piece.column("value").to_pylist())
    assert sorted(itertools.chain(*found.values())) == list(range(10_000))
    assert all(rows == sorted(rows) for rows in found.values())


def test_partition_column_wins_over_key_and_null_means_by_key() -> None:
    data = pa.table({"value": [b"a", b"b", b"c"], "key": [b"k", b"k", None], "partition": [3, None, 2]})
    found = {v: p for p, piece in pieces(data, info()) for v in piece.column("value").to_pylist()}
    assert found == {b"a": 3, b"b": partition_for_key(b"k", 4), b"c": 2}
    with pytest.raises(InvalidPartitionsError, match="row 1 names 4"):
        pieces(pa.table({"value": [b"a", b"b"], "partition": [0, 4]}), info())
    with pytest.raises(InvalidPartitionsError):
        pieces(pa.table({"value": [b"a"], "partition": [-1]}), info())


def test_keyless_rows_are_sticky_and_large_tables_are_spread() -> None:
    small = pieces({"value": [b"x"] * 10}, info())
    assert [p for p, _ in small] == [0]
    large = pieces(pa.table({"value": [b"x" * 100] * 10_000}), info(), size=100_000)
    assert {p for p, _ in large} == {0, 1, 2, 3}
    assert sum(piece.num_rows for _, piece in large) == 10_000
    assert all(piece.nbytes <= 100_000 for _, piece in large)


def test_many_small_chunks_become_few_batches() -> None:
    table = pa.concat_tables([pa.table({"value": [b"x"]}) for _ in range(500)])
    assert len(pieces(table, info())) == 1


def test_no_rows_no_pieces() -> None:
    assert pieces(pa.table({"value": pa.array([], pa.binary())}), info()) == []
    assert pieces([], info(TYPED)) == []


def test_a_row_over_the_limit_is_refused_before_anything_is_taken() -> None:
    topic = info(max_message_bytes=10_000)
    data = {"value": [b"a"] * 1000 + [b"x" * 20_000]}
    rows = rows_of(data, topic, None)
    with pytest.raises(MessageTooLargeError, match="at most 10000"):
        pieces_of(rows, topic, StickyPartition(4), 1 << 20)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_no_batch_is_over_the_topics_limit(compression: str) -> None:
    rng = np.random.default_rng(1)
    topic = info(max_message_bytes=50_000)
    data = {"value": [rng.bytes(int(n)) for n in rng.integers(0, 30_000, 200)]}
    cut = pieces(data, topic, size=1 << 20)
    assert sum(piece.num_rows for _, piece in cut) == 200
    assert all(len(BatchEncoder(compression).encode(piece, topic).payload) <= 50_000 for _, piece in cut)


def test_missing_timestamps_are_now() -> None:
    before = dt.datetime.now(dt.UTC)
    ((_, piece),) = pieces({"value": [b"a", b"b"], "timestamp": [None, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]}, info())
    now, given = piece.column("timestamp").to_pylist()
    assert given.year == 2020 and before <= now <= dt.datetime.now(dt.UTC)


def test_envelope_needs_value() -> None:
    with pytest.raises(SchemaMismatchError, match="needs a column 'value'"):
        rows_of({"key": [b"a"]}, info(), None)
    with pytest.raises(SchemaMismatchError, match="unknown column 'colour'"):
        rows_of({"value": [b"a"], "colour": [1]}, info(), None)


def test_typed_key_columns_decide_and_an_explicit_partition_wins() -> None:
    topic = info(TYPED, keys=("name",))
    data = {"id": [1, 2, 3], "name": ["a", "b", None]}
    found = {i: p for p, piece in pieces(data, topic) for i in piece.column("id").to_pylist()}
    assert found == {1: partition_for_key(b"a", 4), 2: partition_for_key(b"b", 4), 3: 0}
    assert [p for p, _ in pieces(data, topic, partition=2)] == [2]
    with pytest.raises(InvalidPartitionsError):
        pieces(data, topic, partition=4)


def test_values_alone_become_the_same_rows_as_with_the_other_columns() -> None:
    values = [b"a", None, b"", b"ccc"]
    plain = rows_of({"value": values}, info(), None).table
    full = rows_of({"value": values, "key": [None] * 4, "timestamp": plain.column("timestamp")}, info(), None).table
    plain.validate(full=True)
    assert plain.equals(full) and plain.schema.equals(ENVELOPE_SCHEMA)
    text = rows_of({"value": ["a", None, "", "ccc"]}, info(), None).table
    assert text.column("value").equals(plain.column("value"))


def test_a_little_more_than_the_batch_size_is_not_halved() -> None:
    (piece,) = pieces({"value": [b"x" * 100] * 10_000}, info(), size=1 << 20)
    assert piece[1].num_rows == 10_000
    assert len(pieces({"value": [b"x" * 100] * 15_000}, info(), size=1 << 20)) == 2


def test_held_encoded_batches_do_not_share_memory() -> None:
    encoder, topic = BatchEncoder(), info()
    rows = [rows_of({"value": [bytes([i]) * 100] * 5000}, topic, None).table.to_batches()[0] for i in range(4)]
    held = [encoder.encode(r, topic).payload for r in rows]
    assert [decode_batch(p, ENVELOPE_SCHEMA) for p in held] == rows
    del held[1]
    again = encoder.encode(rows[0], topic).payload
    assert [decode_batch(p, ENVELOPE_SCHEMA) for p in held] == [rows[0], rows[2], rows[3]]
    assert decode_batch(again, ENVELOPE_SCHEMA) == rows[0]


@for_each("names", [["key", "value"], ["value", "key"]])
@for_each("kind", [pa.binary(), pa.string(), pa.null()])
def test_a_key_column_without_keys_is_no_key(names: list[str], kind: pa.DataType) -> None:
    columns = {"key": pa.nulls(2, kind), "value": pa.array([b"a", None], pa.binary())}
    rows = rows_of(pa.table({n: columns[n] for n in names}), info(), None)
    assert rows.partition is None
    assert rows.table.schema.equals(ENVELOPE_SCHEMA)
    found = rows.table.drop_columns(["timestamp"]).to_pylist()
    assert found == [{"key": None, "value": v, "headers": None} for v in (b"a", None)]
    with pytest.raises(SchemaMismatchError, match="compacted"):
        rows_of(pa.table(columns), info(cleanup_policy="compact"), None)
