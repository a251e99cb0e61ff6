"""Requirements of a readable body: false statements with a right checksum are refused before Arrow trusts them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import ATTRIBUTE_OFFSET_COLUMN, decode_batch, decode_header
from sparklog.format.body_layout import InflatedSizeError, layout_of_schema
from sparklog.format.offset_column import check_new_rows, decode_rows, with_offset_column
from sparklog.format.packed_batch import encode_packed_batch
from sparklog.format.schema import ENVELOPE_SCHEMA, canonical_schema
from sparklog.format.small_batch import SmallRows, decode_small_batch, encode_small_batch, is_small_batch
from tests.golden.make_golden import typed_rows
from tests.support.cases import for_each
from tests.unit.format.lies import (
    all_lies,
    bomb,
    buffer_place,
    encoded,
    envelope,
    resealed,
    vector_position,
    with_number,
    with_offset,
    with_rows,
)

LIMIT = 1 << 24
LIES = all_lies()


def typed(n: int = 40) -> pa.RecordBatch:
    """A column of every kind, some values null."""
    numbers = [None if i % 7 == 0 else i for i in range(n)]
    table = pa.table(
        {
            "flag": pa.array([i % 3 == 0 for i in range(n)]),
            "small": pa.array([None if i % 7 == 0 else i % 100 for i in range(n)], pa.int8()),
            "number": pa.array(numbers, pa.int64()),
            "other": pa.array(numbers, pa.int32()),
            "real": pa.array([i / 3 for i in range(n)]),
            "day": pa.array(numbers, pa.date32()),
            "time": pa.array(numbers, pa.timestamp("us", "UTC")),
            "long": pa.array(numbers, pa.duration("us")),
            "price": pa.array(numbers, pa.decimal128(20, 3)),
            "text": pa.array([f"größe {i}" for i in range(n)]),
            "list": pa.array([list(range(i % 4)) for i in range(n)], pa.list_(pa.int16())),
            "nested": pa.array([[{"a": str(i), "b": [i]}] * (i % 3) for i in range(n)]),
            "map": pa.array([[(f"k{j}", j) for j in range(i % 3)] for i in range(n)], pa.map_(pa.string(), pa.int32())),
            "struct": pa.array([None if i % 5 == 0 else {"x": i, "y": {"z": b"b"}} for i in range(n)]),
        }
    )
    schema = canonical_schema(table.schema)
    return table.cast(schema).combine_chunks().to_batches()[0]


@for_each("compression", ["none", "lz4", "zstd"])
@for_each("rows", [typed(), typed(1), typed(600), typed().slice(7, 9), typed_rows(0, 50)])
def test_honest_batches_of_every_type_are_read(rows: pa.RecordBatch, compression: str) -> None:
    data = encoded(rows, compression)
    assert decode_batch(data, rows.schema).equals(rows)
    some = list(range(0, rows.num_columns, 3))
    assert decode_batch(data, rows.schema, some).equals(rows.select(some))
    check_new_rows(memoryview(data), 0, decode_header(data), rows.schema, LIMIT)


def test_slices_of_larger_columns_are_honest() -> None:
    """Arrow's writer leaves the padding of a column's bytes up to 64, if the buffer continues."""
    for rows in (envelope(), typed(64)):
        for start, length in ((0, 3), (0, 63), (5, 8), (1, 1), (0, 0)):
            piece = rows.slice(start, length)
            if length:
                assert decode_batch(encoded(piece), rows.schema).equals(piece)


@for_each("name", LIES)
def test_a_lie_is_reported(name: str) -> None:
    data = LIES[name]
    header = decode_header(data)
    with pytest.raises(CorruptBatchError):
        decode_rows(data, ENVELOPE_SCHEMA, header, inflated_bytes_max=LIMIT)


FRAMES_OF_VALUES = [
    f"{name}, {codec}" for name in ("a size that is too large", "a frame that is none") for codec in ("lz4", "zstd")
]
"""Parts that the broker does not decompress; a reader does."""


@for_each("name", [name for name in LIES if name not in FRAMES_OF_VALUES])
def test_a_lie_is_not_appended(name: str) -> None:
    data = LIES[name]
    with pytest.raises(CorruptBatchError):
        check_new_rows(memoryview(data), 0, decode_header(data), ENVELOPE_SCHEMA, LIMIT)


@for_each("name", LIES)
@for_each("columns", [[0], [1], [2, 3], []])
def test_some_columns_of_a_lie_are_sound_or_not_read(name: str, columns: list[int]) -> None:
    data = LIES[name]
    try:
        found, _ = decode_rows(data, ENVELOPE_SCHEMA, decode_header(data), columns, inflated_bytes_max=LIMIT)
    except CorruptBatchError:
        return
    assert found.num_rows == decode_header(data).record_count
    for column in found.columns:
        column.validate(full=True)


def test_lies_in_few_rows_are_reported_too() -> None:
    for rows in (4, 5):
        for data in all_lies(rows).values():
            header = decode_header(data)
            assert not is_small_batch(memoryview(data), 0, header)
            with pytest.raises(CorruptBatchError):
                check_new_rows(memoryview(data), 0, header, ENVELOPE_SCHEMA, LIMIT)


@pytest.mark.parametrize(
    ("column", "kind"),
    [("number", pa.int32()), ("other", pa.int64()), ("small", pa.int32()), ("real", pa.float32()), ("day", pa.int64()),
     ("price", pa.int64()), ("flag", pa.int8()), ("text", pa.int64()), ("list", pa.string()), ("number", pa.string())],
)  # fmt: skip
def test_another_type_than_the_schemas(column: str, kind: pa.DataType) -> None:
    rows = typed(100)
    at = rows.schema.get_field_index(column)
    values = pa.array(["1"] * 100 if pa.types.is_string(kind) else [1] * 100, kind)
    data = encoded(rows.set_column(at, column, values))
    with pytest.raises(CorruptBatchError):
        decode_batch(data, rows.schema)


def test_text_that_is_no_utf8_and_null_keys_and_too_many_digits() -> None:
    rows = typed()
    text = bytearray(encoded(rows).replace("größe 7".encode(), b"gr\xff\xffe 7\0\0", 1))
    keys = pa.MapArray.from_arrays([0, 1], pa.array(["k"]), pa.array([1]))
    schema = canonical_schema(pa.schema([("m", keys.type)]))
    null_key = encoded(pa.record_batch([keys.cast(schema.field(0).type)], schema=schema))
    price = pa.schema([("price", pa.decimal128(3, 0))])
    digits = encoded(pa.record_batch([pa.array([10**30], pa.decimal128(38, 0))], names=["price"]))
    node = 2  # the map, its entries, its keys
    null_key = with_number(null_key, 1, 2 * node + 1, 1)
    for data, expected in ((resealed(text), rows.schema), (null_key, schema), (digits, price)):
        with pytest.raises(CorruptBatchError):
            decode_batch(data, expected)


def test_buffers_that_share_bytes_are_refused() -> None:
    data = encoded(typed())
    at, size = (int(n) for n in struct.unpack_from("<qq", data, vector_position(data, 2) + 16 * 5))
    lying = with_number(with_number(data, 2, 2 * 7, at), 2, 2 * 7 + 1, size)
    with pytest.raises(CorruptBatchError, match="share"):
        decode_batch(lying, typed().schema)


# --- what they would take decompressed ---


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_bomb_is_not_decompressed(codec: str) -> None:
    data = bomb(64 << 20, codec)
    assert len(data) < 1 << 20
    header = decode_header(data)
    before = pa.total_allocated_bytes()
    for columns in (None, [1]):
        with pytest.raises(InflatedSizeError, match="67108"):
            decode_rows(data, ENVELOPE_SCHEMA, header, columns, inflated_bytes_max=LIMIT)
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert decode_rows(data, ENVELOPE_SCHEMA, header, [3], inflated_bytes_max=LIMIT)[0].num_rows == 1
    assert decode_rows(data, ENVELOPE_SCHEMA, header, inflated_bytes_max=1 << 27)[0].num_rows == 1


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_bomb_that_says_it_is_small_does_not_grow(codec: str) -> None:
    data = bomb(64 << 20, codec)
    struct.pack_into("<q", data, buffer_place(data, 5)[0], 1000)
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptBatchError):
        decode_batch(resealed(data), ENVELOPE_SCHEMA, inflated_bytes_max=LIMIT)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_sizes_that_no_number_holds_are_too_large() -> None:
    data = encoded(envelope(), "zstd")
    for buffer in (2, 5):
        struct.pack_into("<q", data, buffer_place(data, buffer)[0], 2**63 - 1)
    with pytest.raises(InflatedSizeError):
        decode_batch(resealed(data), ENVELOPE_SCHEMA)


def test_numbers_beyond_their_rows_are_damage_under_any_limit() -> None:
    data = encoded(envelope(), "zstd")
    struct.pack_into("<q", data, buffer_place(data, 16)[0], 2**31)
    with pytest.raises(CorruptBatchError, match="'timestamp': a buffer of 2147483648 bytes") as caught:
        decode_batch(resealed(data), ENVELOPE_SCHEMA, inflated_bytes_max=LIMIT)
    assert not isinstance(caught.value, InflatedSizeError)


@pytest.mark.parametrize("kind", [pa.struct([]), pa.struct([("a", pa.struct([]))])])
def test_rows_that_take_no_bytes_are_counted(kind: pa.DataType) -> None:
    schema = pa.schema([("nothing", kind)])
    rows = pa.array([{f.name: {} for f in kind}] * 3, kind)
    data = with_rows(encoded(pa.record_batch([rows], schema=schema)), 2**31 - 1)
    for columns in (None, [0], []):
        with pytest.raises(InflatedSizeError, match="2147483647 rows"):
            decode_batch(data, schema, columns)


def test_one_bit_a_row_is_enough() -> None:
    """An uncompressed body is never too large: 8 rows are in a byte."""
    schema = pa.schema([("flag", pa.bool_())])
    data = encoded(pa.record_batch([pa.array(np.zeros(80_000, bool))], schema=schema))
    assert decode_batch(data, schema, inflated_bytes_max=10_000).num_rows == 80_000


# --- the ways to read ---


def test_lies_in_a_packed_batch() -> None:
    found = encode_packed_batch(envelope(key=None), schema_id=1)
    assert found is not None
    good = bytearray(found.payload)
    data_bytes = buffer_place(good, 5)[1] - 8
    for row, value in ((300, data_bytes + 1), (300, 2**31 - 1), (0, -1), (150, 0), (150, 2**31 - 1)):
        data = with_offset(good, 4, row, value, before=8)
        for columns in (None, [1]):
            with pytest.raises(CorruptBatchError):
                decode_rows(data, ENVELOPE_SCHEMA, decode_header(data), columns)


def test_lies_in_the_offset_column() -> None:
    stored = with_offset_column(ENVELOPE_SCHEMA)
    rows = envelope(3)
    good = pa.RecordBatch.from_arrays([*rows.columns, pa.array([0, 1, 2])], schema=stored)
    data = resealed(encoded(good), attributes=ATTRIBUTE_OFFSET_COLUMN)
    assert decode_rows(data, ENVELOPE_SCHEMA, decode_header(data))[1] is not None
    for number in (2 * 7 + 1,):  # nulls among the offsets
        lying = with_number(data, 1, number, 1)
        with pytest.raises(CorruptBatchError):
            decode_rows(lying, ENVELOPE_SCHEMA, decode_header(lying), [0])


def test_types_that_no_topic_has_are_refused() -> None:
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.null(), pa.binary(3)):
        with pytest.raises(CorruptBatchError, match="no topic has"):
            layout_of_schema(pa.schema([("c", kind)]))


# --- anything ---

GOOD: list[tuple[bytearray, Any]] = [
    (encoded(envelope(9, headers=True), c), ENVELOPE_SCHEMA) for c in ("none", "lz4", "zstd")
]
GOOD += [(encoded(typed(9), c), typed(9).schema) for c in ("none", "zstd")]


@given(st.sampled_from(GOOD), st.data())
def test_any_number_may_be_anything(good: tuple[bytearray, Any], draw: st.DataObject) -> None:
    """Every i64 of nodes and buffers, every word of the body: the decoded rows are sound, or the batch is damaged."""
    data, schema = bytearray(good[0]), good[1]
    numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-70, 300), st.sampled_from([2**31 - 1, 2**32]))
    size = len(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        start = draw.draw(st.sampled_from([vector_position(data, 1), vector_position(data, 2), size // 8 * 4]))
        at = min(start + 8 * draw.draw(st.integers(0, 60)), size - 8)
        if decode_header(data).stamp_position - 8 < at < decode_header(data).stamp_position + 108:
            continue  # the header's own fields
        struct.pack_into("<q", data, at, draw.draw(numbers))
    header = decode_header(data)
    for columns in (None, [1]):
        try:
            found, _ = decode_rows(data, schema, header, columns, inflated_bytes_max=1 << 16)
        except CorruptBatchError:
            continue
        assert found.num_rows == header.record_count
        found.validate(full=True)
        assert found.nbytes < 1 << 18


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=12), st.booleans(), st.data())
def test_a_small_batch_that_passes_equals_arrows_result(values: list[bytes], keyed: bool, draw: st.DataObject) -> None:
    data = encode_small_batch(SmallRows(values, values[::-1] if keyed else None, range(len(values))), 1)
    header = decode_header(data)
    assert is_small_batch(data, 0, header)
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(8, len(data) - 1))
        data[at] = draw.draw(st.integers(0, 255))
    small = decode_small_batch(data, 0, header)
    if small is not None:
        found = decode_batch(data, ENVELOPE_SCHEMA, header=header)
        assert found.column("value").to_pylist() == small.values
        assert found.column("key").to_pylist() == list(small.keys or [None] * len(values))  # type: ignore[list-item]
