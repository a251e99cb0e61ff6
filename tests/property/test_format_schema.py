"""Properties of topic schemas over generated Arrow types."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sparklog.errors import InvalidTopicError, SchemaMismatchError
from sparklog.format import schema as s
from sparklog.format.batch import decode_batch, encode_batch, verify_batch
from sparklog.format.batch import decode_header as header_of

UNIT = st.sampled_from(["s", "ms", "us", "ns"])
PLAIN = st.one_of(
    st.sampled_from(
        [
            *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
            *(pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.null()),
            *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
            *(pa.binary(3), pa.time32("s"), pa.time64("us"), pa.month_day_nano_interval(), pa.uuid()),
            *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.uint32(), pa.large_binary())),
        ]
    ),
    st.builds(pa.timestamp, UNIT, st.sampled_from([None, "UTC", "Europe/Berlin", "+02:00"])),
    st.builds(pa.duration, UNIT),
    st.builds(pa.decimal128, st.integers(1, 38), st.integers(-3, 38)),
    st.builds(pa.decimal256, st.integers(1, 76), st.integers(0, 40)),
)
NAME = st.sampled_from(["a", "b", "c", "Ä ö", "x.y", "item"])


def _field(name: str, t: Any, nullable: bool) -> pa.Field:
    return pa.field(name, t, nullable=nullable or pa.types.is_null(t))


def _nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    field = st.builds(_field, NAME, inner, st.booleans())
    return st.one_of(
        field.map(pa.list_),
        field.map(pa.large_list),
        field.map(lambda f: pa.list_(f, 2)),
        st.lists(field, min_size=1, max_size=3, unique_by=lambda f: f.name).map(pa.struct),
        st.builds(pa.map_, st.sampled_from([pa.string(), pa.int16(), pa.large_string()]), field),
    )


TYPES = st.recursive(PLAIN, _nest, max_leaves=6)


def canonical(t: Any) -> pa.Schema:
    try:
        return s.canonical_schema(pa.schema([("c", t)]))
    except InvalidTopicError as e:
        assert "'c" in str(e)
        assume(False)
        raise


@given(TYPES)
@settings(suppress_health_check=[HealthCheck.filter_too_much])
def test_canonical_is_idempotent_and_equals_sparks_layout(t: Any) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    stored = canonical(t)
    again = s.canonical_schema(stored)
    assert again.equals(stored, check_metadata=True)
    assert str(again) == str(stored)
    theirs = to_arrow_schema(from_arrow_schema(stored), timezone="UTC")
    assert theirs.equals(stored, check_metadata=True)
    assert str(theirs) == str(stored)  # also the names inside lists and maps
    assert pa.ipc.read_schema(stored.serialize()).equals(stored, check_metadata=True)


@given(TYPES, st.integers(1, 5))
@settings(suppress_health_check=[HealthCheck.filter_too_much])
def test_nulls_of_any_type_fit_and_travel(t: Any, rows: int) -> None:
    stored = canonical(t)
    fitted = s.fit_table(pa.table({"c": pa.nulls(rows, stored.field(0).type)}), stored, "t")
    batch = fitted.combine_chunks().to_batches()[0]
    data = encode_batch(batch, schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0)
    verify_batch(data, 0, header_of(data))
    decoded = decode_batch(data, stored)
    decoded.validate(full=True)
    assert decoded.equals(batch)


@given(TYPES, TYPES)
@settings(suppress_health_check=[HealthCheck.filter_too_much])
def test_fitting_any_pair_gives_the_schema_or_names_column_and_types(given_type: Any, target: Any) -> None:
    schema = canonical(target)
    with contextlib.suppress(pa.ArrowException):
        table = pa.table({"c": pa.array([None, None], given_type)})
        try:
            fitted = s.fit_table(table, schema, "topic")
        except SchemaMismatchError as e:
            assert f"column 'c' is {given_type}, the topic has {schema.field(0).type} (" in str(e)
        else:
            assert fitted.schema.equals(schema)
            assert fitted.column(0).null_count == 2


NUMBERS = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(12, 3): st.decimals(-(10**8), 10**8, places=3),
}
TARGETS = [pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(9, 2), pa.decimal128(38, 6)]


@given(st.data())
def test_a_number_that_fits_is_the_same_number(data: st.DataObject) -> None:
    source = data.draw(st.sampled_from(list(NUMBERS)))
    target = data.draw(st.sampled_from(TARGETS))
    values = data.draw(st.lists(st.none() | NUMBERS[source], max_size=4))
    column = pa.array(values, source)
    try:
        fitted = s.fit_table(pa.table({"c": column}), pa.schema([("c", target)]), "t").column(0)
    except SchemaMismatchError as e:
        assert f"column 'c' is {source}, the topic has {target} (" in str(e)
        assert any(v is not None for v in values)
        return
    stored = fitted.to_pylist()
    if pa.types.is_decimal(source) != pa.types.is_decimal(target) and pa.types.is_floating(source) != (
        pa.types.is_floating(target)
    ):  # 0.1 is not the same in both, but it comes back
        stored = fitted.cast(source).to_pylist()
    for before, after in zip(column.to_pylist(), stored, strict=True):
        assert after == before or (before != before and after != after)  # Python compares numbers exactly


@given(st.data())
def test_only_the_values_that_rows_have_count(data: st.DataObject) -> None:
    """A column with other values beneath its nulls and around a slice fits, or not, as a copy of its rows does."""
    size = data.draw(st.integers(0, 4))
    number = data.draw(st.sampled_from([st.sampled_from([1, 2**40]), st.sampled_from([0.5, 0.1])]))
    column = pa.array(data.draw(st.lists(st.none() | number, min_size=size, max_size=size)))
    target = data.draw(st.sampled_from([pa.int32(), pa.float32()]))
    for layout in data.draw(st.lists(st.sampled_from(["list", "large_list", "fixed", "struct", "map"]), max_size=3)):
        mask = pa.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), pa.bool_())
        offsets = pa.array(range(size + 1), pa.int32())
        if layout == "struct":
            column = pa.StructArray.from_arrays([column], ["a"], mask=mask)
            target = pa.struct([("a", target)])
        elif layout == "map":
            column = pa.MapArray.from_arrays(offsets, pa.array(range(size)), column, mask=mask)
            target = pa.map_(pa.int64(), target)
        else:
            if layout == "fixed":
                column = pa.FixedSizeListArray.from_arrays(column, 1, mask=mask)
            elif layout == "list":
                column = pa.ListArray.from_arrays(offsets, column, mask=mask)
            else:
                column = pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), column, mask=mask)
            target = pa.list_(pa.field("element", target))
    column = column.slice(data.draw(st.integers(0, size)), data.draw(st.integers(0, size)))
    schema = pa.schema([("c", target)])
    try:
        expected = s.fit_table(pa.table({"c": pa.array(column.to_pylist(), column.type)}), schema, "t")
    except SchemaMismatchError as e:
        with pytest.raises(SchemaMismatchError) as caught:
            s.fit_table(pa.table({"c": column}), schema, "t")
        assert str(caught.value) == str(e)
    else:
        assert s.fit_table(pa.table({"c": column}), schema, "t").equals(expected)
