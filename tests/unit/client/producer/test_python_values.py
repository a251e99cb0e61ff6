"""Python objects, NumPy arrays and pandas frames in `send_batch`: nothing guessed, nothing changed without a word."""

from __future__ import annotations

import datetime as dt
import math
from array import array
from collections import deque
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sparklog.client.producer.producer_topic import _as_bytes
from sparklog.client.producer.rows import rows_of
from sparklog.errors import InvalidRequestError, SchemaMismatchError
from tests.support.clients import info

NAN = math.nan
UTC = dt.UTC
COUNTS = pa.map_(pa.string(), pa.int32())
SCHEMA = pa.schema(
    [
        *(("x", pa.float64()), ("xs", pa.list_(pa.float64())), ("n", pa.int32()), ("zone", pa.string())),
        *(("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("day", pa.date32())),
        *(("took", pa.duration("us")), ("price", pa.decimal128(10, 2)), ("counts", COUNTS)),
        *(("tags", pa.map_(pa.string(), pa.list_(pa.string()))), ("s", pa.struct([("counts", COUNTS)]))),
        *(("f", pa.float32()), ("fs", pa.list_(pa.float32())), ("fm", pa.map_(pa.string(), pa.float32()))),
        ("fx", pa.struct([("a", pa.float32()), ("b", pa.string())])),
        *(("words", pa.list_(pa.string())), ("times", pa.list_(pa.timestamp("us")))),
        *(("days", pa.list_(pa.date32())), ("big", pa.int64()), ("prices", pa.list_(pa.decimal128(3, 1)))),
    ]
)
TOPIC = info(SCHEMA)


def column(data: Any, name: str) -> list[Any]:
    return list(rows_of(data, TOPIC, None).table.column(name).to_pylist())


def refusal(data: Any, topic: Any = TOPIC) -> str:
    with pytest.raises((SchemaMismatchError, InvalidRequestError, TypeError)) as caught:
        rows_of(data, topic, None)
    return str(caught.value)


def test_nan_is_a_number_except_in_pandas() -> None:
    numbers: list[Any] = [1.0, NAN]
    for data in (
        {"x": numbers},
        {"x": tuple(numbers)},
        {"x": deque(numbers)},
        {"x": array("d", numbers)},
        {"x": np.array(numbers)},
        {"x": np.array(numbers, object)},
        {"x": pa.array(numbers)},
        {"x": pl.Series(numbers)},
        [{"x": x} for x in numbers],
        pl.DataFrame({"x": numbers}),
        pa.table({"x": numbers}),
    ):
        assert str(column(data, "x")) == "[1.0, nan]", data
    for data in ([{"xs": numbers}], {"xs": [numbers]}, {"xs": [np.array(numbers)]}):
        assert str(column(data, "xs")) == "[[1.0, nan]]", data
    for data in (pd.DataFrame({"x": numbers}), {"x": pd.Series(numbers)}, {"x": pd.Index(numbers)}):
        assert column(data, "x") == [1.0, None], data
    assert column({"n": np.ma.array([1, 2], mask=[False, True])}, "n") == [1, None]


def test_nan_in_a_type_without_nan_is_refused() -> None:
    for name in ("n", "price"):
        for data in ({name: [1, NAN]}, {name: np.array([1, NAN])}, [{name: NAN}, {name: 1}]):
            assert "NaN is a number" in refusal(data) and f"column '{name}'" in refusal(data)
    assert "NaN is a number: use None" in refusal({"zone": ["a", NAN]})
    assert "NaN is a number: use None" in refusal({"value": [b"a", NAN]}, info())


def test_nulls_of_pandas_are_null_in_lists_too() -> None:
    noon = dt.datetime(2024, 1, 1, 12, tzinfo=UTC)
    assert column({"zone": ["a", pd.NA, None]}, "zone") == ["a", None, None]
    assert column({"n": [pd.NA, 1]}, "n") == [None, 1]
    assert column({"at": [pd.NaT, noon, None]}, "at") == [None, noon, None]
    frame = pd.DataFrame({"at": pd.to_datetime([noon, None]), "zone": ["a", "b"]})
    assert column(frame.to_dict("records"), "at") == [noon, None]


def test_a_column_is_a_list_or_an_array() -> None:
    for values in (
        *("Harbour", b"Harbour", bytearray(b"H"), memoryview(b"H"), {"a": 1}, {"a"}, {"a": 1}.keys(), iter("ab")),
        *(5, 1.5, None, True, dt.date(2024, 1, 1), np.float64(1), np.array(1.0), np.zeros((2, 2)), pd.Timestamp(0)),
        *(np.array(1, object), np.zeros((2, 2), object)),
        *(pa.scalar(1.0), pd.DataFrame({"x": [1.0]}), (x for x in "ab")),
    ):
        for name in ("zone", "x"):
            said = refusal({name: values})
            assert f"column '{name}' is {type(values).__name__} (" in said, said
            assert f"for one row send [{{'{name}': …}}]" in said and "\n" not in said
        assert "column 'value' is " in refusal({"value": values}, info())
        assert "column 'key' is " in refusal({"value": [b"a"], "key": values}, info())
    assert column({"n": range(2)}, "n") == [0, 1]


def test_rows_without_columns_are_refused() -> None:
    no_columns: list[Any] = [[{}, {}], [{}], pd.DataFrame(index=[1, 2]), pa.table({"x": [1.0, 2.0]}).select([])]
    for data in no_columns:
        for topic in (TOPIC, info()):
            assert "rows without any column" in refusal(data, topic), data
    no_rows: list[Any] = [[], pd.DataFrame(), pl.DataFrame(), {"x": []}]
    for nothing in no_rows:
        assert rows_of(nothing, TOPIC, None).table.num_rows == 0
    assert column([{}, {"n": 1}], "n") == [None, 1]


def test_values_that_are_no_rows_are_refused() -> None:
    for data in ("text", b"bytes", memoryview(b"bytes"), ["a"], [(1, 2)], [None], [[{"n": 1}]], pd.Series([1.0]), 5):
        assert "send_batch takes" in refusal(data)
    for single in (pl.Series("x", [1.0]), pa.chunked_array([[1.0]]), pa.array([1.0])):
        assert 'is one column: send {"column": data}' in refusal(single)
    assert column(pl.Series([{"n": 1}, {"n": 2}]), "n") == [1, 2]  # a stream of structs is a table
    for data in ({1: [1]}, [{1: 1}]):
        assert "a column's name = 1: a text is needed" in refusal(data)


def test_columns_that_polars_cannot_export_are_refused() -> None:
    """polars exports the addresses of Python objects, eight bytes each."""
    objects = pl.DataFrame({"n": [1], "blob": [object()]}, schema={"n": pl.Int32, "blob": pl.Object})
    topic = info(pa.schema([("n", pa.int32()), ("blob", pa.binary())]))
    assert "column 'blob' has polars' type Object" in refusal(objects, topic)
    wide = pl.DataFrame({"n": [1]}, schema={"n": pl.Int128})
    assert "the column 'n' of a type that Arrow does not know" in refusal(wide, topic)
    one_of_two = pl.DataFrame({"n": [1], "wide": [1]}, schema={"n": pl.Int32, "wide": pl.Int128})
    assert "the column 'wide' of a type" in refusal(one_of_two, topic)


def test_sparse_columns_of_pandas_are_taken() -> None:
    sparse = {
        "n": pd.arrays.SparseArray([1, 0, 0, 2], dtype=pd.SparseDtype("int32", 0)),
        "x": pd.arrays.SparseArray([1.5, NAN, 0.0, 2.0]),
        "zone": pd.arrays.SparseArray(["a", None, None, "b"], dtype=pd.SparseDtype(object, None)),
    }
    want = {"n": [1, 0, 0, 2], "x": [1.5, None, 0.0, 2.0], "zone": ["a", None, None, "b"]}
    frame = pd.DataFrame(sparse)
    for data in (frame, {name: frame[name] for name in sparse}, sparse):
        assert {name: column(data, name) for name in sparse} == want


def test_a_type_of_numpy_that_arrow_lacks_is_named() -> None:
    for data in ({"x": np.array([1j])}, pd.DataFrame({"x": np.array([1j])})):
        with pytest.raises(SchemaMismatchError, match="column 'x' is complex128"):
            column(data, "x")


def test_an_index_with_a_name_is_a_column() -> None:
    frame = pd.DataFrame({"zone": ["b", "a", "b"], "n": [1, 2, 3], "x": [0.5, 1.5, 2.5]})
    sums = frame.groupby("zone").sum()
    assert column(sums, "zone") == ["a", "b"] and column(sums, "n") == [2, 4]
    keyed = rows_of(sums, info(SCHEMA, partitions=50, keys=("zone",)), None)
    assert len(set(np.asarray(keyed.partition).tolist())) == 2
    two = frame.set_index(["zone", "n"])
    assert column(two, "zone") == ["b", "a", "b"] and column(two, "n") == [1, 2, 3]
    times = pd.DataFrame({"n": [1]}, index=pd.DatetimeIndex(["2024-01-01"], tz="UTC", name="at"))
    assert column(times, "at") == [dt.datetime(2024, 1, 1, tzinfo=UTC)]
    assert column(pd.DataFrame(index=pd.Index(["a"], name="zone")), "zone") == ["a"]
    assert column(pd.DataFrame({"n": [1]}, index=pd.RangeIndex(1, name="x")), "x") == [0.0]
    envelope = pd.DataFrame({"value": [b"1"]}, index=pd.Index([b"k"], name="key"))
    assert rows_of(envelope, info(), None).table.column("key").to_pylist() == [b"k"]
    assert column(pd.DataFrame({"n": [1]}, index=["no name"]), "n") == [1]


def test_the_index_of_a_series_among_columns_is_a_column_too() -> None:
    frame = pd.DataFrame({"zone": ["b", "a", "b"], "n": [1, 2, 3], "x": [0.5, 1.5, 2.5]})
    sums = frame.groupby("zone").sum()
    assert column({"n": sums["n"]}, "zone") == ["a", "b"]
    assert column({"n": sums["n"], "x": sums["x"]}, "zone") == ["a", "b"]
    assert column({"n": sums["n"], "zone": ["c", "d"]}, "zone") == ["c", "d"]
    assert column({"n": sums["n"].rename_axis("other")}, "n") == [2, 4]
    assert "'zone'" in refusal({"n": sums["n"], "x": sums["x"][::-1]})


def test_an_index_without_a_place_is_refused() -> None:
    said = refusal(pd.DataFrame({"n": [1]}, index=pd.Index(["a"], name="id")))
    assert "the frame's index has the name 'id'" in said and "reset_index(drop=True)" in said
    frame = pd.DataFrame({"zone": ["a"], "n": [1]})
    assert "column 'zone' occurs 2 times" in refusal(frame.set_index("zone", drop=False))
    twice = pd.DataFrame([[b"a", b"b"]], columns=["value", "value"])
    assert "column 'value' occurs 2 times" in refusal(twice, info())


def test_frames_derived_from_pandas_are_pandas() -> None:
    frame_class = type("GeoDataFrame", (pd.DataFrame,), {"__module__": "geopandas"})
    frame = frame_class({"x": [NAN, 1.0]}, index=pd.Index(["a", "b"], name="zone"))
    assert column(frame, "x") == [None, 1.0] and column(frame, "zone") == ["a", "b"]


def test_maps_from_dicts_and_pairs() -> None:
    given = [{"a": 1}, None, {}, [("b", 2), ("c", None)]]
    stored = [[("a", 1)], None, [], [("b", 2), ("c", None)]]
    assert column({"counts": given}, "counts") == stored
    assert column([{"counts": g} for g in given], "counts") == stored
    assert column({"counts": pd.Series(given)}, "counts") == stored
    assert column(pd.DataFrame({"counts": pd.Series([{"a": 1}, NAN])}), "counts") == [[("a", 1)], None]
    assert column([{"s": {"counts": {"a": 1}}}, {"s": None}, {"s": {}}], "s") == [
        {"counts": [("a", 1)]},
        None,
        {"counts": None},
    ]
    assert column({"tags": [{"a": ["x", "y"]}, {"b": None}]}, "tags") == [[("a", ["x", "y"])], [("b", None)]]


def test_objects_inside_maps_are_not_changed_to_fit() -> None:
    for name, value, reason in (
        ("counts", {"a": 1.5}, "truncated"),
        ("counts", {"a": 2**40}, "not in range"),
        ("counts", {1: 1}, "no implicit conversion from int64 to string"),
        ("counts", {None: 1}, "NULL"),
        ("counts", "ab", "use a dict or a list of (key, value) pairs for a map, not 'ab'"),
        ("counts", ["ab"], "not a list with 'ab'"),
        ("tags", {"a": "xyz"}, "from string to list"),
        ("s", {"counts": {"a": 1}, "more": 5}, "unknown field 'more'"),
        ("s", [("counts", {})], "use a dict for a struct"),
    ):
        said = refusal([{name: value}])
        assert reason in said and f"column '{name}'" in said, said


def test_dates_and_times_are_not_mixed() -> None:
    day, noon = dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 12)
    for mixed in ([day, noon], [None, day, noon]):
        for data in (
            {"local": mixed},
            {"day": mixed},
            [{"local": v} for v in mixed],
            pd.DataFrame({"local": pd.Series(mixed, dtype=object)}),
        ):
            assert "dates with times such as 2024-01-01 12:00:00" in refusal(data)
    for times in ([noon, noon.replace(tzinfo=UTC)], [noon.replace(tzinfo=UTC), None, noon]):
        for name in ("at", "local"):
            assert "give all times a zone" in refusal({name: times})
    assert "give all times a zone" in refusal([{"fx": {"a": noon}}, {"fx": {"a": noon.replace(tzinfo=UTC)}}])
    east = noon.replace(tzinfo=dt.timezone(dt.timedelta(hours=5)))
    assert column({"at": [noon.replace(tzinfo=UTC), east]}, "at")[1] == east


def test_booleans_among_numbers_are_refused() -> None:
    for odd in (True, np.True_):
        for number in (1.5, 1, np.float32(1), Decimal("1.5")):
            for mixed in ([number, odd], [odd, number], [None, number, odd, NAN]):
                for data in (
                    *({name: mixed} for name in ("x", "f", "n", "price")),
                    {"xs": [mixed]},
                    {"xs": [[number], [odd]]},
                    {"xs": [np.array(mixed, object)]},
                    {"x": np.array(mixed, object)},
                    [{"fx": {"a": v}} for v in mixed],
                    [{"fm": {"a": v}} for v in mixed],
                    pd.DataFrame({"x": pd.Series(mixed, dtype=object)}),
                ):
                    assert "data do not fit topic" in refusal(data)
    assert "True is a boolean among numbers" in refusal({"x": [1.5, True]})
    assert "boolean among numbers" in refusal({"xs": [[1], np.array([True])]})
    assert column({"x": [1.5, 2, np.int8(3), None]}, "x") == [1.5, 2.0, 3.0, None]
    assert column({"xs": [[1.5], np.array([1, 2])]}, "xs") == [[1.5], [1.0, 2.0]]


def test_a_decimal_is_finite() -> None:
    for text in ("Infinity", "-Infinity", "NaN", "sNaN"):
        for mixed in ([Decimal(text)], [Decimal(1), None, Decimal(text)]):
            assert f"a decimal cannot hold Decimal('{text}')" in refusal({"price": mixed})


def test_numbers_among_dates_and_times_are_refused() -> None:
    day, noon, span = dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 12), dt.timedelta(1)
    for number in (1, 1.5, Decimal(1), np.int64(1), True):
        for name, known in (("day", day), ("local", noon), ("took", span)):
            for mixed in ([known, number], [number, known]):
                assert "data do not fit topic" in refusal({name: mixed})
    assert "1 is a number among dates" in refusal([{"day": day}, {"day": 1}])
    assert column({"day": [day, pd.NaT, None]}, "day") == [day, None, None]
    assert column({"took": [span, np.timedelta64(5, "us")]}, "took") == [span, dt.timedelta(microseconds=5)]


def test_nanoseconds_beyond_microseconds_name_the_remedy() -> None:
    fine, took = pd.Timestamp("2024-01-01 00:00:00.000000005"), pd.Timedelta(5, "ns")
    for data in (
        pd.DataFrame({"local": [fine]}),
        pd.DataFrame({"took": [took]}),
        {"local": np.array(["2024-01-01T00:00:00.000000005"], "datetime64[ns]")},
        {"took": pa.array([5], pa.duration("ns"))},
        pl.DataFrame({"local": pl.Series([5]).cast(pl.Datetime("ns"))}),
    ):
        assert '.dt.floor("us")' in refusal(data) and "would lose data" in refusal(data)
    for data in ({"local": [fine]}, [{"took": took}], pd.DataFrame({"local": pd.Series([fine], dtype=object)})):
        assert 'use .floor("us")' in refusal(data)
    floored = pd.DataFrame({"local": [fine], "took": [took]})
    floored["local"], floored["took"] = floored["local"].dt.floor("us"), floored["took"].dt.floor("us")
    assert column(floored, "took") == [dt.timedelta(0)]


def test_python_floats_are_rounded_to_float_as_json_is() -> None:
    tenth = float(np.float32(0.1))
    assert str(column({"f": [0.1, NAN, math.inf, None, 3]}, "f")) == f"[{tenth}, nan, inf, None, 3.0]"
    assert column([{"f": 0.1}], "f") == [tenth]
    assert column({"fs": [[0.1], None, []]}, "fs") == [[tenth], None, []]
    assert column([{"fm": {"a": 0.1}}], "fm") == [[("a", tenth)]]
    assert column([{"fx": {"b": "q", "a": 0.1}}, {"fx": None}], "fx") == [{"a": tenth, "b": "q"}, None]
    for data in ({"f": [1e300]}, {"fs": [[0.1, 1e39]]}, [{"fm": {"a": 1e300}}], [{"fx": {"a": 1e300}}]):
        assert "is beyond the range of float" in refusal(data)
    assert "-1e+39" in refusal({"f": [0.5, -1e39]})
    for typed in ({"f": np.array([0.1])}, pa.table({"f": [0.1]}), pd.DataFrame({"f": [0.1]}), {"f": pa.array([0.1])}):
        assert "0.1 would become 0.1000" in refusal(typed)
    assert "16777217 would become 16777216" in refusal({"f": [2**24 + 1]})


def test_whole_numbers_and_numpys_doubles_are_not_rounded_to_float() -> None:
    mixed: list[Any] = [123456789, 0.5]
    for data in (
        {"f": mixed},
        {"f": [np.int64(123456789), 0.5]},
        {"fs": [mixed]},
        {"fs": [[0.5], np.array([123456789])]},
        [{"fm": {"a": v}} for v in mixed],
        [{"fx": {"a": v}} for v in mixed],
        pd.DataFrame({"f": pd.Series(mixed, dtype=object)}),
    ):
        assert "123456789 would become 123456792, the nearest float" in refusal(data), data
    tenth = np.float64(0.1)
    for data in ({"f": [tenth]}, {"f": [0.1, tenth]}, {"fs": [np.array([0.5, 0.1])]}, [{"fm": {"a": tenth}}]):
        assert "0.1 is a double that float cannot hold exactly: cast it before" in refusal(data), data
    assert "9007199254740993" in refusal({"x": [2**53 + 1, 0.5]})
    assert column({"f": [2**24, 0.5, np.float64(0.5), NAN]}, "f")[:3] == [2**24, 0.5, 0.5]
    assert column({"fs": [np.array([0.5, NAN]), np.array([3]), [0.25]]}, "fs")[1:] == [[3.0], [0.25]]
    for data in ({"n": [np.float16(0.5), 2049]}, {"x": [2049, np.float16(0.5)]}):  # Arrow makes 0 of 0.5
        assert "float16" in refusal(data)


def test_every_sequence_of_python_floats_is_rounded_to_float() -> None:
    tenth = float(np.float32(0.1))
    for values in (deque([0.1]), np.array([0.1], object), (0.1,)):
        assert column({"f": values}, "f") == [tenth]
    assert column(deque([{"f": 0.1}]), "f") == [tenth]
    assert column({"fs": [deque([0.1])]}, "fs") == [[tenth]]


def test_numbers_inside_lists_fit_as_those_outside() -> None:
    rows = [[0.5, None], None]
    for data in ({"fs": rows}, {"fs": pa.array(rows)}, pd.DataFrame({"fs": rows}), pl.DataFrame({"fs": rows})):
        assert column(data, "fs") == rows
    assert column(pa.table({"fs": [[0.5]], "fx": [{"a": 0.5}]}), "fx") == [{"a": 0.5, "b": None}]
    assert column({"xs": [[Decimal("0.5")]], "prices": [[0.5]]}, "xs") == [[0.5]]
    assert "0.1 would become 0.1000" in refusal(pa.table({"fs": [[0.5], [0.1]]}))
    assert "0.1 would become 0.1000" in refusal(pd.DataFrame({"fs": [[0.1]]}))
    assert "would become" in refusal({"prices": [[0.55]]})


def test_masked_values_inside_lists_are_null() -> None:
    masked = np.ma.masked_invalid([1.0, NAN, -999.0])
    stored = [1.0, None, -999.0]
    for data in ({"xs": [masked]}, [{"xs": masked}], pd.DataFrame({"xs": [masked]}), {"xs": [list(masked)]}):
        assert column(data, "xs") == [stored], data
    assert column({"words": [np.ma.array(["a", "b"], mask=[False, True])]}, "words") == [["a", None]]
    dates = np.ma.array(np.array(["2020-01-01", "2021-01-01"], "M8[ns]"), mask=[True, False])
    assert column({"times": [dates]}, "times") == [[None, dt.datetime(2021, 1, 1)]]
    assert column({"fs": [np.ma.array([0.5, 0.1], mask=[False, True])]}, "fs") == [[0.5, None]]
    assert "0.1 is a double that float cannot hold" in refusal({"fs": [np.ma.array([0.5, 0.1], mask=[True, False])]})
    nested = info(pa.schema([("s", pa.struct([("xs", pa.list_(pa.list_(pa.float64())))]))]))
    table = rows_of({"s": [{"xs": np.ma.array([[1.0, 2.0]], mask=[[False, True]])}]}, nested, None).table
    assert table.to_pylist() == [{"s": {"xs": [[1.0, None]]}}]
    assert column({"tags": [{"a": np.ma.array(["a", "b"], mask=[True, False])}]}, "tags") == [[("a", [None, "b"])]]
    assert column([{"n": np.ma.masked}, {"n": 1}], "n") == [None, 1]


def test_nulls_of_pandas_inside_lists_are_null() -> None:
    noon = pd.Timestamp("2024-01-01 12:00")
    for cell in ([noon, pd.NaT], [pd.NaT, noon], [noon.to_pydatetime(), pd.NaT]):
        stored = [[None if v is pd.NaT else v for v in cell]]
        assert column({"times": [cell]}, "times") == stored
        assert column(pd.DataFrame({"times": [cell]}), "times") == stored
    for data in ({"times": [[pd.NaT]]}, pd.DataFrame({"times": [[pd.NaT]]})):
        assert column(data, "times") == [[None]]
    day = dt.date(2024, 1, 1)
    assert column({"days": [[day, pd.NaT]]}, "days") == [[day, None]]  # Arrow makes the year 1 of NaT
    assert column(pd.DataFrame({"days": [[day, pd.NaT, NAN]]}), "days") == [[day, None, None]]
    assert column({"words": [["a", pd.NA]]}, "words") == [["a", None]]
    assert column([{"fx": {"b": pd.NA}}], "fx") == [{"a": None, "b": None}]
    cells = pd.DataFrame(
        {"s": [{"counts": pd.NaT}, NAN], "fx": [{"a": NAN}, Decimal("NaN")], "xs": [[NAN, 1.5], pd.NA]}
    )
    assert column(cells, "s") == [{"counts": None}, None]
    assert column(cells, "fx") == [{"a": None, "b": None}, None]
    assert column(cells, "xs") == [[None, 1.5], None]
    assert column({"words": pd.Index([["a", pd.NA], pd.NaT], dtype=object)}, "words") == [["a", None], None]
    lists = info(pa.schema([("l", pa.list_(pa.struct([("a", pa.int32())])))]))
    assert rows_of(pd.DataFrame({"l": [[{"a": 1}, NAN]]}), lists, None).table.to_pylist() == [{"l": [{"a": 1}, None]}]
    fine = pd.Timestamp("2024-01-01 00:00:00.000000005")
    assert 'has nanoseconds, the log keeps microseconds: use .floor("us")' in refusal({"times": [[fine, pd.NaT]]})


def test_numpy_times_in_lists_are_taken_in_every_unit() -> None:
    for unit in ("D", "h", "m", "s", "ms", "us", "ns"):
        midnight = np.datetime64("2020-01-01", unit)
        assert column({"local": [midnight, None]}, "local") == [dt.datetime(2020, 1, 1), None]
        assert column({"day": [midnight]}, "day") == [dt.date(2020, 1, 1)]
        assert column({"days": [np.array([midnight])]}, "days") == [[dt.date(2020, 1, 1)]]
    hours = [np.timedelta64(3, "h"), np.timedelta64("NaT"), np.timedelta64(1, "us")]
    assert column({"took": hours}, "took") == [dt.timedelta(hours=3), None, dt.timedelta(microseconds=1)]
    noon = dt.datetime(2020, 1, 1, 12)
    assert "mixes dates with times" in refusal({"local": [np.datetime64("2020-01-01"), noon]})


def test_integers_beyond_64_bits_name_the_column_and_the_range() -> None:
    for value in (2**63, -(2**63) - 1):
        for name, low in (("n", -(2**31)), ("big", -(2**63))):
            said = refusal([{name: value}])
            assert f"column '{name}'" in said and f"{value} is not in range: {low} to {-low - 1}" in said
        said = refusal([{"price": value}])
        assert "column 'price'" in said and f"{value} has more than 8 digits before the point" in said
    assert column({"x": [2**63, 0.5], "xs": [[2**63], None]}, "xs") == [[2.0**63], None]
    assert "9223372036854775809 would become 9223372036854775808" in refusal([{"xs": [2**63 + 1]}])


def test_deep_lists_are_refused() -> None:
    deep: Any = "x"
    for _ in range(3000):
        deep = [deep]
    for values in ([deep], [deep, 1]):
        assert "column 'words'" in refusal({"words": values})


def test_a_row_for_a_topic_without_columns_names_both_ways() -> None:
    with pytest.raises(TypeError, match=r"not dict: this topic has no columns; .*json\.dumps\(value\)\.encode\(\)"):
        _as_bytes({"a": 1}, "value")
