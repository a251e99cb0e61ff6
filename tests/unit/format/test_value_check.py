"""The quick check of values and Arrow's own agree, for any content of the buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import decode_batch, decode_header
from sparklog.format.offset_column import check_new_rows, decode_rows
from sparklog.format.packed_batch import encode_packed_batch
from sparklog.format.schema import canonical_schema
from sparklog.format.value_check import check_values, type_as_bytes
from tests.support.cases import for_each
from tests.unit.format.lies import buffer_place, encoded, envelope, resealed, with_number

LIMIT = 1 << 24
TEXTS = st.lists(st.one_of(st.none(), st.text("az\x7f", max_size=4), st.text(max_size=3)), min_size=1, max_size=12)


def verdict(check: Any) -> bool:
    try:
        check()
    except pa.ArrowInvalid:
        return False
    return True


@given(TEXTS, st.data())
def test_text_with_any_bytes_and_offsets(texts: list[str | None], data: st.DataObject) -> None:
    whole = pa.array(texts, pa.string())
    validity, offsets, values = whole.buffers()
    changed_offsets = np.frombuffer(offsets, "<i4", len(texts) + 1).copy()
    changed_values = np.frombuffer(values, np.uint8).copy() if values else np.zeros(0, np.uint8)
    if data.draw(st.booleans()):
        changed_offsets[data.draw(st.integers(0, len(texts)))] = data.draw(st.integers(-2, 40))
    if len(changed_values) and data.draw(st.booleans()):
        changed_values[data.draw(st.integers(0, len(changed_values) - 1))] = data.draw(st.integers(0, 255))
    buffers = [validity, pa.py_buffer(changed_offsets), pa.py_buffer(changed_values)]
    try:
        column = pa.Array.from_buffers(pa.string(), len(texts), buffers, whole.null_count)
    except pa.ArrowInvalid:
        return  # the first or the last offset: Arrow does not even make the column
    rows = pa.record_batch([column, pa.array(range(len(texts)))], names=["text", "number"])
    assert verdict(lambda: check_values(rows, rows.schema)) == verdict(lambda: rows.validate(full=True))
    some = rows.select([0])
    assert verdict(lambda: check_values(some, rows.schema, [0])) == verdict(lambda: some.validate(full=True))


def nested(text: str) -> pa.RecordBatch:
    rows: dict[str, Any] = {
        "list": pa.array([["plain", text], None, []]),
        "map": pa.array([[("k", "v"), (text, "x")], [], None], pa.map_(pa.string(), pa.string())),
        "struct": pa.array([{"a": text, "b": 1}, None, {"a": "plain", "b": None}]),
        "lists": pa.array([[[text]], [["plain"], None], []]),
    }
    table = pa.table(rows)
    return table.cast(canonical_schema(table.schema)).combine_chunks().to_batches()[0]


@for_each("column", [0, 1, 2, 3])
@for_each("text", ["ascii", "größe"])
def test_nested_text(column: int, text: str) -> None:
    rows = nested(text)
    check_values(rows, rows.schema)
    good = encoded(rows.select([column]))
    bad = resealed(good.replace(text.encode()[:3], b"\xff\xff\xff", 1))
    with pytest.raises(CorruptBatchError, match=f"column '{rows.schema.names[column]}': .*Invalid UTF8"):
        decode_batch(bad, rows.select([column]).schema)


def test_a_type_as_bytes_keeps_everything_else() -> None:
    kind = canonical_schema(nested("x").schema).field("map").type
    as_bytes = type_as_bytes(kind)
    assert as_bytes == pa.map_(pa.binary(), pa.binary())
    assert type_as_bytes(pa.decimal128(5, 2)) == pa.decimal128(5, 2)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_nulls_that_were_seen_before_do_not_vouch_for_others(codec: str) -> None:
    """The broker remembers the columns of nulls only in the last batch."""
    rows = envelope(key=None)
    good = encoded(rows, codec)
    for _ in range(2):
        check_new_rows(memoryview(good), 0, decode_header(good), rows.schema, LIMIT)
    at, size = buffer_place(good, 1)  # the keys' offsets
    for position in range(at, at + size):
        bad = bytearray(good)
        bad[position] ^= 0x41
        resealed(bad)
        try:
            check_new_rows(memoryview(bad), 0, decode_header(bad), rows.schema, LIMIT)
        except CorruptBatchError:
            continue
        assert decode_batch(bad, rows.schema).equals(rows)  # a bit that makes no difference
    check_new_rows(memoryview(good), 0, decode_header(good), rows.schema, LIMIT)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_values_of_compressed_columns_are_checked(codec: str) -> None:
    """Text, digits and nulls, in batches of so many rows that not all is decompressed."""
    n = 600
    price = pa.schema([("price", pa.decimal128(3, 0))])
    digits = encoded(pa.record_batch([pa.array([10**30] * n, pa.decimal128(38, 0))], names=["price"]), codec)
    text = pa.schema([("text", pa.string())])
    bytes_for_text = encoded(pa.record_batch([pa.array([b"\xff%d" % i for i in range(n)])], names=["text"]), codec)
    for data, schema in ((digits, price), (bytes_for_text, text)):
        with pytest.raises(CorruptBatchError, match=schema.names[0] if schema is text else "Arrow"):
            check_new_rows(memoryview(data), 0, decode_header(data), schema, LIMIT)
    numbers = pa.record_batch([pa.array([None if i % 3 else i for i in range(n)], pa.int64())], names=["number"])
    honest = encoded(numbers, codec)
    check_new_rows(memoryview(honest), 0, decode_header(honest), numbers.schema, LIMIT)
    other = pa.record_batch([pa.array([None if i % 4 else i for i in range(n)], pa.int64())], names=["number"])
    fewer = encoded(other, codec)

    lying = with_number(fewer, 1, 1, numbers.column(0).null_count)
    with pytest.raises(CorruptBatchError, match="number"):
        check_new_rows(memoryview(lying), 0, decode_header(lying), numbers.schema, LIMIT)


def numbers_of(rows: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(rows), pa.int64())], names=["number"])


@for_each("form", ["packed", "envelope", "numbers"])
def test_metadata_that_arrow_cannot_read_are_not_taken(form: str) -> None:
    """Also where nothing of the batch has to be decompressed."""
    if form == "numbers":
        rows = numbers_of(600)
        good = encoded(rows, "zstd")
    else:
        rows = envelope(600, key=None)
        good = encoded(rows, "lz4") if form == "envelope" else packed(rows)
    header = decode_header(good)
    check_new_rows(memoryview(good), 0, header, rows.schema, LIMIT)
    for position in range(8, len(good) - header.body_length_bytes):
        for value in {0, 1, 128, 255, good[position] ^ 4} - {good[position]}:
            bad = bytearray(good)
            bad[position] = value
            try:
                changed = decode_header(resealed(bad))
                check_new_rows(memoryview(bad), 0, changed, rows.schema, LIMIT)
            except CorruptBatchError:
                continue
            try:
                assert decode_rows(bad, rows.schema, changed)[0].num_rows == rows.num_rows, (position, value)
            except CorruptBatchError as e:  # the codec's number: what is not decompressed a reader finds out
                assert "ompress" in str(e), (position, value, e)


def packed(rows: pa.RecordBatch) -> bytearray:
    made = encode_packed_batch(rows, schema_id=1)
    assert made is not None
    return bytearray(made.payload)
