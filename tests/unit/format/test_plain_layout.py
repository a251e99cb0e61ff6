"""Arrow's newer layouts, alone and in each other: taken with every value, or refused with the column's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparklog.client.producer.encoding import BatchEncoder
from sparklog.client.producer.partitioner import StickyPartition
from sparklog.client.producer.pieces import pieces_of
from sparklog.client.producer.rows import rows_of
from sparklog.errors import InvalidTopicError, SchemaMismatchError
from sparklog.format.batch import decode_batch
from sparklog.format.plain_layout import needs_rewriting, plain_layout
from sparklog.format.schema import canonical_schema
from tests.support.clients import info

WORDS = ["a", None, "a text that is too long for a view", "ß", "a", "a"]
ROW_IS_NULL = pa.array([False, True, False])
SLICES = [(0, 3), (1, 2), (1, 1), (2, 0), (0, 2)]


def leaves() -> Iterator[Any]:
    """Six values in each layout that has no children, and in encodings of nested values."""
    text = pa.array(WORDS)
    yield text
    for t in (pa.string_view(), pa.large_string(), pa.binary_view(), pa.large_binary()):
        yield text.cast(t)
    views = text.slice(0, 4).cast(pa.string_view())
    yield text.dictionary_encode()
    yield pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, 0, None], pa.uint8()), views)  # as polars has it
    yield pa.array([1, None, 3, 4, 5, 5]).dictionary_encode()
    yield pc.run_end_encode(text)
    yield pa.RunEndEncodedArray.from_arrays(pa.array([1, 3, 4, 6], pa.int16()), views)
    yield pa.RunEndEncodedArray.from_arrays(
        pa.array([2, 3, 6], pa.int64()), pa.array(["a", None, "b"]).dictionary_encode()
    )
    structs = pa.array([{"x": "y"}, None], pa.struct([("x", pa.string_view())]))
    yield pa.RunEndEncodedArray.from_arrays([2, 6], structs)
    yield pa.DictionaryArray.from_arrays(pa.array([0, 1, None, None, 0, 1]), structs)
    yield pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None, 0, 1]), pa.array([["x"], None, []]))


def nested(values: Any) -> Iterator[Any]:
    """Three rows, the second one null, of six values in each layout that has children."""
    offsets = [0, 2, 4, 6]
    yield pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=ROW_IS_NULL)
    yield pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values, mask=ROW_IS_NULL)
    yield pa.FixedSizeListArray.from_arrays(values, 2, mask=ROW_IS_NULL)
    starts, sizes = [4, 2, 0], [2, 2, 3]  # not in order, and rows that share elements
    views = pa.ListViewArray.from_arrays(
        pa.array(starts, pa.int32()), pa.array(sizes, pa.int32()), values, mask=ROW_IS_NULL
    )
    yield views
    yield pa.LargeListViewArray.from_arrays(pa.array(starts), pa.array(sizes), values, mask=ROW_IS_NULL)
    yield pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(list("abcdef")), values, mask=ROW_IS_NULL)
    yield pa.StructArray.from_arrays([values.slice(2, 3), pa.array([1, 2, 3])], ["p", "q"], mask=ROW_IS_NULL)


def layouts() -> Iterator[Any]:
    """Arrays of three rows or more, nested twice at most."""
    for leaf in leaves():
        yield leaf
        for once in nested(leaf):
            yield once
            yield from nested(pa.concat_arrays([once, once]))


def test_every_layout_keeps_its_values_and_can_be_cast() -> None:
    for array in layouts():
        for start, length in SLICES:
            rows = array.slice(start, length)
            plain = plain_layout(rows)
            plain.validate(full=True)
            assert not needs_rewriting(plain.type), array.type
            assert plain.to_pylist() == rows.to_pylist(), (array.type, start, length)


def test_every_layout_is_stored_as_its_topic_has_it() -> None:
    """A topic made of a table's schema takes the table, in several chunks and with each compression."""
    encoders = {compression: BatchEncoder(compression) for compression in ("none", "lz4", "zstd")}
    for array in layouts():
        table = pa.table({"n": pa.array(range(len(array))), "c": array})
        schema = canonical_schema(table.schema)
        topic = info(schema, partitions=1)
        table = pa.concat_tables([table, table.slice(1, 1), table.slice(0, 0)])
        rows = rows_of(table, topic, None)
        rows.table.validate(full=True)
        for compression, encoder in encoders.items():
            stored = []
            for _, piece in pieces_of(rows, topic, StickyPartition(1), 1 << 20):
                for encoded in encoder.encode_within(piece, topic):
                    stored += decode_batch(encoded.payload, schema).to_pylist()
            assert stored == table.to_pylist(), (array.type, compression)


def test_nulls_of_many_structs_take_one_pass() -> None:
    array = pa.array([[1], [2]])
    for _ in range(40):
        array = pa.StructArray.from_arrays([array], ["a"], mask=pa.array([False, True]))
    assert plain_layout(array).to_pylist() == array.to_pylist()


def test_dictionary_of_views_holds_only_the_values_that_are_used() -> None:
    """An unused category that does not fit refuses nothing."""
    numbers = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array([7, 10**12]))
    rows = rows_of(pa.table({"c": numbers}), info(pa.schema([("c", pa.int32())])), None)
    assert rows.table.column("c").to_pylist() == [7, 7]


def test_polars_categories_also_in_lists_and_structs() -> None:
    words = ["x", None, "y", "x"]
    for kind in (pl.Categorical, pl.Enum(["y", "x"])):
        column = pl.Series(words, dtype=kind)
        frame = pl.DataFrame({"c": column}).with_columns(
            l=pl.concat_list("c", "c"), s=pl.struct("c", b=pl.col("c").cast(pl.String)), k=pl.col("c")
        )
        topic = info(canonical_schema(frame.to_arrow().schema), keys=("k",))
        table = rows_of(frame, topic, None).table
        assert table.column("c").to_pylist() == words
        assert table.column("l").to_pylist() == [[w, w] for w in words]
        assert table.column("s").to_pylist() == [{"c": w, "b": w} for w in words]
    envelope = rows_of(pl.DataFrame({"key": column, "value": column}), info(), None).table
    assert envelope.column("key").to_pylist() == [None if w is None else w.encode() for w in words]


def test_layouts_that_have_no_place_are_refused_by_name() -> None:
    """Of the column and both types, also deep inside; nothing Arrow raises gets out untyped."""
    schema = pa.schema([("n", pa.int64())])
    for array in layouts():
        if array.type.num_fields == 0 and pa.types.is_int64(getattr(array.type, "value_type", array.type)):
            continue
        with pytest.raises(SchemaMismatchError, match="column 'n' is ") as caught:
            rows_of(pa.table({"n": array}), info(schema), None)
        assert f"is {array.type}, the topic has int64" in str(caught.value)
    union = pa.UnionArray.from_dense(
        pa.array([0, 0, 0], pa.int8()), pa.array([0, 1, 2], pa.int32()), [pa.array([1, 2, 3])]
    )
    for array in (union, pa.array([b"x" * 16] * 3, pa.uuid()), pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval())):
        deep = pa.StructArray.from_arrays([array, pa.array(["a"] * 3).dictionary_encode()], ["f", "d"])
        for given in (array, deep):
            with pytest.raises(InvalidTopicError, match="column 'c"):
                canonical_schema(pa.schema([("c", given.type)]))
            with pytest.raises(SchemaMismatchError, match="column 'c' is "):
                rows_of(
                    pa.table({"c": given}),
                    info(pa.schema([("c", pa.struct([("f", pa.int64()), ("d", pa.string())]))])),
                    None,
                )
