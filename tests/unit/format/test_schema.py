"""Topic schemas: the canonical layout, Spark's opinion of it, fitting data, key and timestamp columns."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import InvalidTopicError, SchemaMismatchError
from sparklog.format import schema as s
from sparklog.format.batch import METADATA_BYTES_MAX, decode_batch, decode_header, encode_batch
from tests.golden.make_golden import TYPED_SCHEMA
from tests.support.cases import for_each

US, UTC = pa.timestamp("us"), pa.timestamp("us", tz="UTC")

CANONICAL = [
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.null(), pa.string()),
    (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
    (pa.dictionary(pa.int32(), pa.uint8()), pa.int16()),
    (pa.large_binary(), pa.binary()),
    (pa.binary_view(), pa.binary()),
    (pa.binary(16), pa.binary()),
    (pa.uint8(), pa.int16()),
    (pa.uint16(), pa.int32()),
    (pa.uint32(), pa.int64()),
    (pa.timestamp("ns", tz="Europe/Berlin"), UTC),
    (pa.timestamp("s"), US),
    (pa.date64(), pa.date32()),
    (pa.float16(), pa.float32()),
    (pa.duration("ns"), pa.duration("us")),
    (pa.decimal256(38, 10), pa.decimal128(38, 10)),
    (pa.decimal128(5, 5), pa.decimal128(5, 5)),
    (pa.large_list(pa.uint8()), pa.list_(pa.field("element", pa.int16()))),
    (pa.run_end_encoded(pa.int32(), pa.string_view()), pa.string()),
    (pa.list_view(pa.uint8()), pa.list_(pa.field("element", pa.int16()))),
    (pa.large_list_view(pa.string_view()), pa.list_(pa.field("element", pa.string()))),
    (pa.list_(pa.float16(), 3), pa.list_(pa.field("element", pa.float32()))),
    (pa.list_(pa.field("x", pa.null())), pa.list_(pa.field("element", pa.string()))),
    (
        pa.struct([pa.field("a", pa.uint8(), nullable=False), ("b", pa.list_(pa.large_string()))]),
        pa.struct([("a", pa.int16()), ("b", pa.list_(pa.field("element", pa.string())))]),
    ),
    (
        pa.map_(pa.large_string(), pa.field("v", pa.timestamp("ms"), nullable=False)),
        pa.map_(pa.string(), US),
    ),
]


@pytest.mark.parametrize(("given", "stored"), CANONICAL, ids=str)
def test_canonical_type(given: Any, stored: Any) -> None:
    found = s.canonical_type(given, "c")
    assert found == stored
    assert str(found) == str(stored)  # equality of nested types ignores field names, the text does not
    assert s.canonical_type(found, "c") == found


@for_each(
    "given",
    [
        pa.uint64(),
        pa.time32("ms"),
        pa.time64("us"),
        pa.decimal256(39, 0),
        pa.decimal128(10, -2),
        pa.decimal128(3, 5),
        pa.month_day_nano_interval(),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.uuid(),
    ],
    ids=str,
)
def test_types_without_a_counterpart_name_column_and_type(given: Any) -> None:
    for nested, name in ((given, "c"), (pa.list_(given), "c"), (pa.struct([("f", given)]), "c.f")):
        with pytest.raises(InvalidTopicError) as e:
            s.canonical_schema(pa.schema([("c", nested)]))
        assert repr(name) in str(e.value)
        assert str(given) in str(e.value)


def test_canonical_columns_are_nullable_and_carry_no_metadata() -> None:
    field = pa.field("a", pa.int32(), nullable=False, metadata={b"k": b"v"})
    found = s.canonical_schema(pa.schema([field], metadata={b"pandas": b"{}"}))
    assert found.equals(pa.schema([pa.field("a", pa.int32(), nullable=True)]), check_metadata=True)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "1 to 10000 columns"),
        (["a", "b", "a"], "'a' occurs twice"),
        (["a", "A"], "'A' occurs twice"),
        (["_offset"], "'_offset' is reserved"),
        (["_Timestamp"], "'_Timestamp' is reserved"),
        (["__offset"], "reserved"),
        ([""], "column '': a name is not empty"),
        (["a", "b\0c"], "has no NUL character"),
        ([str(i) for i in range(10_001)], "has 10001"),
    ],
)
def test_column_names_that_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(InvalidTopicError, match=message):
        s.canonical_schema(pa.schema([pa.field(n, pa.int8()) for n in names]))


def test_struct_fields_must_be_distinct() -> None:
    with pytest.raises(InvalidTopicError, match="column 'c': field 'X' occurs twice"):
        s.canonical_schema(pa.schema([("c", pa.struct([("x", pa.int8()), ("X", pa.int8())]))]))


def test_struct_fields_have_names() -> None:
    with pytest.raises(InvalidTopicError, match="column 'c': field '': a name is not empty"):
        s.canonical_schema(pa.schema([("c", pa.list_(pa.struct([("", pa.int8())])))]))


def test_a_column_name_that_is_not_text() -> None:
    message = pa.schema([("columnname", pa.int8())]).serialize().to_pybytes()
    broken = pa.ipc.read_schema(pa.py_buffer(message.replace(b"columnname", b"column\xff\xfe\xfd\xfc")))
    with pytest.raises(InvalidTopicError, match="not UTF-8"):
        s.canonical_schema(broken)


def nested(depth: int, wrap: Any) -> Any:
    t = pa.int32()
    for _ in range(depth):
        t = wrap(t)
    return t


@pytest.mark.parametrize(
    ("wrap", "levels"),
    [
        (pa.list_, s.NESTING_MAX),
        (lambda t: pa.struct([("f", t)]), s.NESTING_MAX),
        (lambda t: pa.map_(pa.string(), t), s.NESTING_MAX // 2),
    ],
)
def test_depth_is_limited_to_arrows_own_limit(wrap: Any, levels: int) -> None:
    schema = s.canonical_schema(pa.schema([("c", nested(levels, wrap))]))
    rows = pa.record_batch([pa.nulls(3, schema.field(0).type)], schema=schema)
    data = encode_batch(rows, schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0)
    assert decode_batch(data, pa.ipc.read_schema(schema.serialize())).equals(rows)
    for levels_more in (levels + 1, 150):
        with pytest.raises(InvalidTopicError, match="nested more than 60 levels"):
            s.canonical_schema(pa.schema([("c", nested(levels_more, wrap))]))


def test_the_largest_schema_has_batches_that_can_be_read() -> None:
    names = [str(i) for i in range(10_000)]
    wide = pa.struct([(n, pa.string()) for n in names])
    with pytest.raises(InvalidTopicError, match="the schema takes"):
        s.canonical_schema(pa.schema([(n, wide) for n in "abcdefgh"]))
    schema = s.canonical_schema(pa.schema([(n, wide) for n in "abcd"]))
    rows = pa.record_batch([pa.nulls(1, f.type) for f in schema], schema=schema)
    data = encode_batch(rows, schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0)
    assert decode_header(data).metadata_length_bytes < METADATA_BYTES_MAX
    share = s.SCHEMA_BYTES_MAX / schema.serialize().size
    assert share * decode_header(data).metadata_length_bytes < METADATA_BYTES_MAX


@pytest.mark.parametrize("schema", [s.ENVELOPE_SCHEMA, TYPED_SCHEMA], ids=["envelope", "typed"])
def test_spark_has_exactly_this_layout(schema: pa.Schema) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    theirs = to_arrow_schema(from_arrow_schema(schema), timezone="UTC")
    assert theirs.equals(schema, check_metadata=True)
    assert str(theirs) == str(schema)
    assert s.canonical_schema(schema).equals(schema, check_metadata=True)


# ---- fit_table ------------------------------------------------------------------------------------------------------

LIST_I64 = pa.list_(pa.field("element", pa.int64()))
POINT = pa.struct([("x", pa.float64()), ("name", pa.string())])

FITS: list[tuple[Any, list[Any], Any, list[Any]]] = [
    # given type, given values, the topic's type, stored values
    (pa.int8(), [1, None], pa.int64(), [1, None]),
    (pa.int64(), [-128, 127], pa.int8(), [-128, 127]),
    (pa.uint64(), [7], pa.int64(), [7]),
    (pa.int64(), [2**53], pa.float64(), [2.0**53]),
    (pa.float64(), [3.0, None], pa.int32(), [3, None]),
    (pa.float64(), [0.5, None, float("inf")], pa.float32(), [0.5, None, float("inf")]),
    (pa.float32(), [0.5], pa.float64(), [0.5]),
    (pa.float16(), [0.5], pa.float32(), [0.5]),
    (pa.int64(), [5, -99], pa.decimal128(4, 2), [Decimal("5.00"), Decimal("-99.00")]),
    (pa.decimal128(10, 2), [Decimal("7.00")], pa.int16(), [7]),
    (pa.decimal128(10, 2), [Decimal("1.50")], pa.decimal128(6, 1), [Decimal("1.5")]),
    (pa.decimal128(10, 2), [Decimal("1.25"), None], pa.float64(), [1.25, None]),
    (pa.float64(), [1.25, None], pa.decimal128(10, 2), [Decimal("1.25"), None]),
    (pa.large_string(), ["ä"], pa.string(), ["ä"]),
    (pa.string_view(), ["ä"], pa.string(), ["ä"]),
    (pa.dictionary(pa.int8(), pa.string()), ["ä", "ä", None], pa.string(), ["ä", "ä", None]),
    (pa.string(), ["ä"], pa.binary(), ["ä".encode()]),
    (pa.binary(2), [b"ab"], pa.binary(), [b"ab"]),
    (pa.binary_view(), [b"ab"], pa.binary(), [b"ab"]),
    (pa.timestamp("ns"), [1000], US, [dt.datetime(1970, 1, 1, microsecond=1)]),
    (pa.timestamp("s"), [1], US, [dt.datetime(1970, 1, 1, 0, 0, 1)]),
    (pa.timestamp("ms", tz="Asia/Tokyo"), [1], UTC, [dt.datetime(1970, 1, 1, microsecond=1000, tzinfo=dt.UTC)]),
    (pa.date32(), [1], US, [dt.datetime(1970, 1, 2)]),
    (pa.date64(), [86_400_000], pa.date32(), [dt.date(1970, 1, 2)]),
    (US, [86_400_000_000, None], pa.date32(), [dt.date(1970, 1, 2), None]),
    (pa.duration("ms"), [3], pa.duration("us"), [dt.timedelta(milliseconds=3)]),
    (pa.bool_(), [True, None], pa.bool_(), [True, None]),
    (pa.null(), [None, None], pa.int32(), [None, None]),
    (pa.null(), [None], POINT, [None]),
    (pa.null(), [None], pa.map_(pa.string(), pa.int64()), [None]),
    (pa.large_list(pa.int32()), [[1, None], None, []], LIST_I64, [[1, None], None, []]),
    (pa.list_(pa.int16(), 2), [[1, 2]], LIST_I64, [[1, 2]]),
    (pa.list_(pa.field("item", pa.int64(), nullable=False)), [[1]], LIST_I64, [[1]]),
    (pa.list_(pa.null()), [[None], []], LIST_I64, [[None], []]),
    (pa.struct([("name", pa.large_string()), ("x", pa.float32())]), [{"name": "n", "x": 0.5}, None], POINT,
     [{"x": 0.5, "name": "n"}, None]),
    (pa.struct([("x", pa.float64())]), [{"x": 0.5}], POINT, [{"x": 0.5, "name": None}]),
    (pa.map_(pa.large_string(), pa.int32()), [[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64()),
     [[("a", 1), ("b", None)]]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "values", "target", "stored"), FITS, ids=lambda v: str(v)[:60])
def test_fits_without_loss(given: Any, values: list[Any], target: Any, stored: list[Any]) -> None:
    schema = pa.schema([("c", target)])
    chunks = pa.chunked_array([pa.array(values, given), pa.array(values, given)])
    fitted = s.fit_table(pa.table({"c": chunks}), schema, "t")
    fitted.validate(full=True)
    assert fitted.schema.equals(schema)
    assert str(fitted.schema) == str(schema)
    assert fitted.column(0).to_pylist() == stored * 2


REFUSED: list[tuple[Any, list[Any], Any, str]] = [
    (pa.string(), ["1"], pa.int64(), "no implicit conversion"),
    (pa.int64(), [1], pa.string(), "no implicit conversion"),
    (pa.bool_(), [True], pa.int64(), "no implicit conversion"),
    (pa.int64(), [1], pa.bool_(), "no implicit conversion"),
    (pa.int64(), [1], US, "no implicit conversion"),
    (US, [1], pa.int64(), "no implicit conversion"),
    (pa.time32("s"), [1], US, "no implicit conversion"),
    (pa.duration("us"), [1], US, "no implicit conversion"),
    (pa.string(), ["2024-01-01"], UTC, "no implicit conversion"),
    (pa.string(), ["1.5"], pa.decimal128(10, 2), "no implicit conversion"),
    (pa.float64(), [1.5], pa.int64(), "truncated"),
    (pa.float64(), [float("nan")], pa.int64(), "truncated"),
    (pa.float64(), [1e300], pa.int64(), "truncated"),
    (pa.float64(), [0.1], pa.float32(), "0.1 would become"),
    (pa.float64(), [0.5, float("nan"), None, 1e300], pa.float32(), "would become inf"),
    (pa.float64(), [0.123], pa.decimal128(10, 2), "0.123 would become 0.12"),
    (pa.decimal128(38, 0), [Decimal(2**53 + 1)], pa.float64(), "9007199254740993 would become 9007199254740992"),
    (pa.decimal128(10, 2), [Decimal("1.50")], pa.int64(), "data loss"),
    (pa.decimal128(10, 2), [Decimal("100.00")], pa.decimal128(4, 2), "does not fit"),
    (pa.int64(), [100], pa.decimal128(4, 2), "does not fit"),
    (pa.int64(), [128], pa.int8(), "not in range"),
    (pa.uint64(), [2**63], pa.int64(), "not in range"),
    (pa.int64(), [2**53 + 1], pa.float64(), "9007199254740993 would become 9007199254740992"),
    (pa.binary(), [b"a"], pa.string(), "bytes are not text: decode them first"),
    (pa.large_binary(), [b"a"], pa.string(), "bytes are not text"),
    (pa.dictionary(pa.int8(), pa.binary()), [b"a"], pa.string(), "bytes are not text"),
    (US, [1], UTC, "time zone"),
    (UTC, [1], US, "time zone"),
    (pa.date32(), [1], UTC, "time zone"),
    (UTC, [0], pa.date32(), "time zone"),
    (pa.timestamp("ns"), [1], US, "would lose data"),
    (pa.timestamp("s"), [2**60], US, "out of bounds"),
    (US, [1], pa.date32(), "00:00:00.000001 would become 1970-01-01"),
    (pa.duration("ns"), [1], pa.duration("us"), "would lose data"),
    (pa.list_(pa.string()), [["1"]], LIST_I64, "no implicit conversion from string to int64"),
    (pa.list_(pa.float64()), [[0.5], [0.1]], pa.list_(pa.field("element", pa.float32())), "0.1 would become"),
    (pa.list_(pa.binary()), [[b"a"]], pa.list_(pa.field("element", pa.string())), "bytes are not text"),
    (pa.list_(US), [[1]], pa.list_(pa.field("element", UTC)), "time zone"),
    (pa.list_(pa.int64()), [[2**31]], pa.list_(pa.field("element", pa.int32())), "not in range"),
    (pa.list_(pa.int64()), [[1]], pa.int64(), "no implicit conversion"),
    (pa.int64(), [1], LIST_I64, "no implicit conversion"),
    (pa.struct([("x", pa.string())]), [{"x": "1"}], POINT, "field 'x': no implicit conversion"),
    (pa.struct([("x", pa.float64()), ("y", pa.int8())]), [{"x": 0.5, "y": 1}], POINT, "unknown field 'y'"),
    (pa.map_(pa.string(), pa.string()), [[("a", "1")]], pa.map_(pa.string(), pa.int64()), "no implicit conversion"),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)]], pa.map_(pa.int64(), pa.int64()), "no implicit conversion"),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)]],
     pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.int64())]))), "no implicit"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "values", "target", "reason"), REFUSED, ids=lambda v: str(v)[:60])
def test_refused_with_column_and_both_types(given: Any, values: list[Any], target: Any, reason: str) -> None:
    table = pa.table({"ok": pa.array([1] * len(values)), "broken": pa.array(values, given)})
    with pytest.raises(SchemaMismatchError) as e:
        s.fit_table(table, pa.schema([("ok", pa.int64()), ("broken", target)]), "flights")
    message = str(e.value)
    assert message.startswith("data do not fit topic 'flights': column 'broken' is ")
    assert f"is {given}, the topic has {target} (" in message
    assert reason in message
    assert "'ok'" not in message


@pytest.mark.parametrize(
    ("values", "target", "has_remedy"),
    [
        ([1.0, float("nan")], pa.int64(), True),
        ([float("nan"), None], pa.int32(), True),
        ([1.5], pa.int64(), False),
        ([1e300], pa.int64(), False),
    ],
)
def test_nan_for_a_whole_number_is_named_with_its_remedy(values: list[Any], target: Any, has_remedy: bool) -> None:
    with pytest.raises(SchemaMismatchError) as refused:
        s.fit_table(pa.table({"n": pa.array(values, pa.float64())}), pa.schema([("n", target)]), "flights")
    remedy = f"NaN is a number, but not a {target}: use null (None) for a missing value"
    assert (remedy in str(refused.value)) is has_remedy


def test_nan_and_null_are_no_loss_of_digits() -> None:
    values = [0.5, float("nan"), None]
    fitted = s.fit_table(pa.table({"n": pa.array(values, pa.float64())}), pa.schema([("n", pa.float32())]), "flights")
    half, nan, null = fitted.column(0).to_pylist()
    assert (half, null) == (0.5, None) and nan != nan
    decimals = pa.table({"n": pa.array(["1.5", "2"]).cast(pa.decimal128(4, 1))})
    with pytest.raises(SchemaMismatchError) as refused:
        s.fit_table(decimals, pa.schema([("n", pa.int64())]), "flights")
    assert "NaN" not in str(refused.value)


LIST_I32 = pa.list_(pa.field("element", pa.int32()))
SECOND_IS_NULL = pa.array([False, True])
NOT_HELD: list[tuple[Any, Any]] = [
    (pa.array([[1], [2**40]]).slice(0, 1), LIST_I32),
    (pa.array([[1], [2**40]], pa.large_list(pa.int64())).slice(0, 1), LIST_I32),
    (pa.FixedSizeListArray.from_arrays(pa.array([1, 2**40]), 1, mask=SECOND_IS_NULL), LIST_I32),
    (pa.ListArray.from_arrays(pa.array([0, 1, 2]), pa.array([1, 2**40]), mask=SECOND_IS_NULL), LIST_I32),
    (
        pa.array([[("a", 1)], [("b", 2**40)]], pa.map_(pa.string(), pa.int64())).slice(0, 1),
        pa.map_(pa.string(), pa.int32()),
    ),
    (
        pa.MapArray.from_arrays(pa.array([0, 1, 2]), pa.array([1, 2]), pa.array([1, 2**40]), mask=SECOND_IS_NULL),
        pa.map_(pa.int64(), pa.int32()),
    ),
    (
        pa.StructArray.from_arrays([pa.array([5, 2**40])], ["a"], mask=SECOND_IS_NULL),
        pa.struct([("a", pa.int32())]),
    ),
    (
        pa.StructArray.from_arrays([pa.array([[5], [2**40]])], ["a"], mask=SECOND_IS_NULL),
        pa.struct([("a", LIST_I32)]),
    ),
    (
        pa.StructArray.from_arrays([pa.array([0.5, 0.1])], ["a"], mask=SECOND_IS_NULL),
        pa.struct([("a", pa.float32())]),
    ),
    (
        pa.MapArray.from_arrays(pa.array([0, 1, 2]), pa.array([1, 2]), pa.array([0.5, 0.1]), mask=SECOND_IS_NULL),
        pa.map_(pa.int64(), pa.float32()),
    ),
]
"""Arrays with a value that does not fit and that no row has, and types for them."""


@for_each("array, target", NOT_HELD)
def test_values_that_no_row_has_do_not_count(array: Any, target: Any) -> None:
    for column in (array, pa.chunked_array([array.slice(0, 0), array])):
        table = s.fit_table(pa.table({"c": column}), pa.schema([("c", target)]), "t")
        table.validate(full=True)
        assert table.column("c").to_pylist() == array.to_pylist()


def test_a_table_that_fits_is_handed_through() -> None:
    table = pa.table({"a": pa.array([1])})
    assert s.fit_table(table, table.schema, "t") is table


def test_columns_are_matched_by_name_and_missing_ones_are_null() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", LIST_I64)])
    fitted = s.fit_table(pa.table({"b": ["x"], "a": [1]}), schema, "t")
    assert fitted.to_pylist() == [{"a": 1, "b": "x", "c": None}]
    assert fitted.schema.equals(schema)


def test_every_problem_is_named() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    table = pa.table([pa.array(["x"]), pa.array([1.5]), pa.array([1])], names=["a", "b", "z"])
    with pytest.raises(SchemaMismatchError, match=r"unknown column 'z'; column 'a' is string.*; column 'b' is double"):
        s.fit_table(table, schema, "t")
    twice = pa.table([pa.array([1]), pa.array([1])], names=["a", "a"])
    with pytest.raises(SchemaMismatchError, match="column 'a' occurs 2 times"):
        s.fit_table(twice, schema, "t")
    with pytest.raises(SchemaMismatchError, match=r"unknown columns 'x', 'y'; the topic's columns are a, b"):
        s.fit_table(pa.table({"x": [1], "y": [1]}), schema, "t")


# ---- key and timestamp columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "timestamp", "message"),
    [
        (["nope"], None, r"key column 'nope' is not in the schema \(columns: flag, tiny"),
        (["numbers"], None, "key column 'numbers' is list"),
        (["place"], None, "must be a plain value"),
        (["text", "text"], None, "named twice"),
        ([], "nope", "timestamp column 'nope' is not in the schema"),
        ([], "day", r"'day' is date32\[day\], it must be a timestamp"),
    ],
)
def test_columns_that_cannot_be_key_or_timestamp(keys: list[str], timestamp: str | None, message: str) -> None:
    with pytest.raises(InvalidTopicError, match=message):
        s.require_columns(TYPED_SCHEMA, keys, timestamp)


def test_columns_that_can_be_key_and_timestamp() -> None:
    s.require_columns(TYPED_SCHEMA, ["text", "long"], "at")
    s.require_columns(TYPED_SCHEMA, [], "local")
    s.require_columns(TYPED_SCHEMA, [], None)


@pytest.mark.parametrize("t", [US, UTC])
def test_timestamp_bounds_are_floored_to_ms(t: Any) -> None:
    assert s.timestamp_bounds_ms(pa.array([5_999, None, -1, 3], t), 77) == (-1, 5)
    assert s.timestamp_bounds_ms(pa.array([99_999, None, -1], t), 77) == (-1, 99)
    assert s.timestamp_bounds_ms(pa.chunked_array([pa.array([1_000], t), pa.array([2_000], t)]), 77) == (1, 2)
    assert s.timestamp_bounds_ms(pa.array([0, 2_000, 1_000, 9_000], t)[1:3], 77) == (1, 2)
    assert s.timestamp_bounds_ms(pa.array([None], t), 77) == (77, 77)
    assert s.timestamp_bounds_ms(pa.array([], t), 77) == (77, 77)
    assert s.timestamp_bounds_ms(pa.array([1_001], pa.timestamp("ms", tz=t.tz)), 77) == (1_001, 1_001)
