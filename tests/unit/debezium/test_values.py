"""Each of Debezium's types becomes the exact value, or is refused with the event and the column."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import DeserializationError, InvalidConfigError
from tests.support.cases import for_each
from tests.unit.debezium.envelopes import CONNECT, DATA, TIME, decimal, event, field, in_base64, unscaled

BIG = 12345678901234567890123456789012345678
INSTANT = datetime(2023, 11, 14, 22, 13, 20, 123456)
US = 1_700_000_000_123_456
POINT = {"x": 1.5, "y": -2.0, "wkb": in_base64(b"wkb"), "srid": 4326}
POINT_FIELDS = [field("x", "double"), field("y", "double"), field("wkb", "bytes"), field("srid", "int32")]
ARRAY = {"field": "v", "type": "array", "items": {"type": "int32"}}
MAP = {"field": "v", "type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}
PAIRS = {"field": "v", "type": "map", "keys": {"type": "int16"}, "values": {"type": "double"}}
DECIMALS = {"field": "v", "type": "array", "items": {k: v for k, v in decimal("", 5, 1).items() if k != "field"}}


def value_of(schema: Any, value: Any, ddl: str | None = None) -> Any:
    """Return the value of an event with a schema part: in a list and a table, which must be equal."""
    text = event("c", None, {"v": value}, [schema])
    columns = None if ddl is None else f"v {ddl}"
    [row] = sparklog.unwrap_debezium([text], columns)
    table = sparklog.unwrap_debezium(pa.table({"value": [text]}), columns)
    assert table.to_pylist() == [row]
    return row["v"]


EXACT: list[tuple[Any, Any, str | None, Any]] = [
    (field("v", "int64"), 9_007_199_254_740_993, None, 9_007_199_254_740_993),
    (field("v", "int16"), -5, "BIGINT", -5),
    (field("v", "int32"), 7, "DECIMAL(10,2)", Decimal("7.00")),
    (field("v", "boolean"), True, None, True),
    (field("v", "double"), 0.1, None, 0.1),
    (field("v", "double"), "-Infinity", None, float("-inf")),
    (field("v", "double"), 12.34, "DECIMAL(10,2)", Decimal("12.34")),
    (field("v", "string"), "12.30", "DECIMAL(10,2)", Decimal("12.30")),
    (field("v", "string"), "1.5E+3", "DECIMAL(10,2)", Decimal("1500.00")),
    (field("v", "bytes"), in_base64(b"\0\xff"), None, b"\0\xff"),
    (decimal("v", 10, 2), unscaled(-1234), None, Decimal("-12.34")),
    (decimal("v", 10, 2), unscaled(128), None, Decimal("1.28")),
    (decimal("v", 38, 0), unscaled(BIG), None, Decimal(BIG)),
    (decimal("v", 10, 2), unscaled(-1234), "DECIMAL(20,4)", Decimal("-12.3400")),
    (decimal("v", 10, 2), unscaled(-4), "STRING", "-0.04"),
    (decimal("v", 60, 1), unscaled(BIG * BIG), None, f"{str(BIG * BIG)[:-1]}.{str(BIG * BIG)[-1]}"),
    (decimal("v", 10, -2), unscaled(12), "DECIMAL(10,0)", Decimal(1200)),
    (field("v", "struct", DATA + "VariableScaleDecimal"), {"scale": 3, "value": unscaled(-1)}, None, "-0.001"),
    (
        field("v", "struct", DATA + "VariableScaleDecimal"),
        {"scale": 1, "value": unscaled(15)},
        "DECIMAL(5,2)",
        Decimal("1.50"),
    ),
    (field("v", "int32", TIME + "Date"), -1, None, date(1969, 12, 31)),
    (field("v", "int32", CONNECT + "Date"), 19_000, None, date(2022, 1, 8)),
    (field("v", "int32", TIME + "Date"), 19_000, "STRING", "2022-01-08"),
    (field("v", "string", TIME + "IsoDate"), "2017-09-15Z", None, date(2017, 9, 15)),
    (field("v", "int32", TIME + "Time"), 37_800_005, None, "10:30:00.005"),
    (field("v", "int32", CONNECT + "Time"), 37_800_000, None, "10:30:00"),
    (field("v", "int64", TIME + "MicroTime"), -3_600_000_001 * 100, None, "-100:00:00.0001"),
    (field("v", "int64", TIME + "NanoTime"), 86_399_999_999_999, None, "23:59:59.999999999"),
    (field("v", "int64", TIME + "MicroTime"), 5, "INTERVAL DAY TO SECOND", timedelta(microseconds=5)),
    (field("v", "int64", TIME + "Timestamp"), US // 1000, None, INSTANT.replace(microsecond=123_000)),
    (field("v", "int64", CONNECT + "Timestamp"), -1, None, datetime(1969, 12, 31, 23, 59, 59, 999_000)),
    (field("v", "int64", TIME + "MicroTimestamp"), US, None, INSTANT),
    (field("v", "int64", TIME + "MicroTimestamp"), US, "TIMESTAMP", INSTANT.replace(tzinfo=UTC)),
    (field("v", "int64", TIME + "MicroTimestamp"), US, "STRING", "2023-11-14T22:13:20.123456"),
    (field("v", "int64", TIME + "MicroTimestamp"), 2**62, "BIGINT", 2**62),
    (field("v", "int64", TIME + "NanoTimestamp"), US * 1000, None, INSTANT),
    (field("v", "int64", TIME + "NanoTimestamp"), US * 1000 + 7, "STRING", "2023-11-14T22:13:20.123456007"),
    (field("v", "string", TIME + "ZonedTimestamp"), "2020-01-01T01:00:00.5+02:00", None, None),
    (field("v", "string", TIME + "ZonedTimestamp"), "2020-01-01T00:00:00.123456000Z", None, None),
    (field("v", "int64", TIME + "MicroDuration"), -5, None, timedelta(microseconds=-5)),
    (field("v", "int32", TIME + "Year"), 2024, None, 2024),
    (field("v", "string", TIME + "Interval"), "P1Y2M3DT4H5M6.78S", None, "P1Y2M3DT4H5M6.78S"),
    (field("v", "string", TIME + "ZonedTime"), "10:30:00Z", None, "10:30:00Z"),
    *(
        (field("v", "string", DATA + name), "text", None, "text")
        for name in ("Json", "Xml", "Uuid", "Enum", "EnumSet", "Ltree")
    ),
    (field("v", "bytes", DATA + "Bits", parameters={"length": "12"}), in_base64(b"\x01\x0a"), None, b"\x01\x0a"),
    (field("v", "bytes", DATA + "Bits", parameters={"length": "12"}), in_base64(b"\x01\x0a"), "INT", 2561),
    (field("v", "struct", DATA + "geometry.Point", fields=POINT_FIELDS), POINT, None, {**POINT, "wkb": b"wkb"}),
    (
        field("v", "struct", DATA + "geometry.Geometry", fields=POINT_FIELDS[2:]),
        {"wkb": in_base64(b"wkb"), "srid": None},
        "STRUCT<srid: INT, wkb: BINARY>",
        {"srid": None, "wkb": b"wkb"},
    ),
    (ARRAY, [1, None, 3], None, [1, None, 3]),
    (DECIMALS, [unscaled(15), None], None, [Decimal("1.5"), None]),
    (MAP, {"a": "1", "b": None}, None, [("a", "1"), ("b", None)]),
    (PAIRS, [[1, 0.5], [2, 1.0]], None, [(1, 0.5), (2, 1.0)]),
]
ZONED = iter(
    (datetime(2019, 12, 31, 23, 0, 0, 500_000, tzinfo=UTC), datetime(2020, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC))
)
EXACT = [(*e[:3], next(ZONED)) if e[3] is None else e for e in EXACT]


@for_each("schema, value, ddl, expected", EXACT, ids=lambda v: str(v)[:70])
def test_the_schema_part_decides(schema: Any, value: Any, ddl: str | None, expected: Any) -> None:
    assert value_of(schema, value, ddl) == expected
    assert value_of(schema, None, ddl) is None


def test_a_decimal_as_a_number_of_json_keeps_its_digits() -> None:
    """`decimal.format=NUMERIC` of the JsonConverter."""
    text = event("c", None, {"v": 0}, [decimal("v", 30, 5)]).replace(b'"v": 0}', b'"v": 1234567890123456789012.34567}')
    [row] = sparklog.unwrap_debezium([text])
    assert row["v"] == Decimal("1234567890123456789012.34567")


@for_each(
    "schema, value, ddl, reason",
    [
        (field("v", "int64", TIME + "NanoTimestamp"), 1, None, "finer than µs"),
        (field("v", "int64", TIME + "MicroTimestamp"), 2**62, None, "years 1 to 9999"),
        (field("v", "int64", TIME + "Timestamp"), 2**62, None, "overflow"),
        (field("v", "int32", TIME + "Date"), 5_000_000, None, "years 1 to 9999"),
        (field("v", "string", TIME + "ZonedTimestamp"), "+294247-01-10T04:00:54.775807Z", None, "parse"),
        (field("v", "string", TIME + "ZonedTimestamp"), "2020-01-01T00:00:00.1234567Z", None, "parse"),
        (field("v", "string", TIME + "ZonedTimestamp"), "2020-01-01T00:00:00Z", "TIMESTAMP_NTZ", "zone"),
        (field("v", "int64"), 5, "TIMESTAMP", "use the type int64"),
        (field("v", "int64"), 2**53 + 1, "DOUBLE", "9007199254740993 would become 9007199254740992"),
        (field("v", "int32"), 40_000, "SMALLINT", "not in range"),
        (field("v", "int64"), 1.0, None, "whole number"),
        (field("v", "int64"), "1", None, "text"),
        (field("v", "boolean"), 1, None, "true or false"),
        (field("v", "double"), 1e39, "FLOAT", "DOUBLE"),
        (field("v", "double"), 0.123456789012, "FLOAT", "DOUBLE"),
        (field("v", "double"), "many", None, "NaN"),
        (field("v", "string"), "NaN", "DECIMAL(10,2)", "digits"),
        (field("v", "string"), "12.345", "DECIMAL(10,2)", "data loss"),
        (field("v", "string"), "1e-999", "DECIMAL(10,2)", "digits after"),
        (field("v", "string"), "9" * 400, "DECIMAL(10,2)", "digits before"),
        (field("v", "string"), "\u0661", "DECIMAL(10,2)", "digits"),
        (field("v", "string"), " 1", "DECIMAL(10,2)", "digits"),
        (decimal("v", 10, 2), "not base64!", None, "base64|padding"),
        (decimal("v", 3, 2), unscaled(1234), None, "precision"),
        (decimal("v", 10, 2), unscaled(1), "DOUBLE", "decimal128"),
        (decimal("v", 10, 2), unscaled(1), "DATE", "decimal128"),
        (field("v", "bytes"), in_base64(b"x"), "STRING", "binary"),
        (field("v", "string", DATA + "Json"), {"a": 1}, None, "an object"),
        (PAIRS, [[1, 0.5], [1, 1.0]], None, "once"),
        (ARRAY, [1, "2"], None, "text"),
    ],
    ids=lambda v: str(v)[:60],
)
def test_a_value_that_does_not_fit_is_refused_by_name(schema: Any, value: Any, ddl: str | None, reason: str) -> None:
    texts = [event("m"), event("c", None, {"v": value}, [schema])]
    with pytest.raises(DeserializationError, match=rf"event 1: column 'v'.*({reason})"):
        sparklog.unwrap_debezium(texts, None if ddl is None else f"v {ddl}")


def plain(ddl: str, value: Any, **hints: Any) -> Any:
    """Return the value of an event without a schema part."""
    [row] = sparklog.unwrap_debezium([event("c", None, {"v": value})], f"v {ddl}", **hints)
    return row["v"]


MICROS = {"types": {"v": "io.debezium.time.MicroTimestamp"}}


@for_each(
    "ddl, value, hints, expected",
    [
        ("BIGINT", 5, {}, 5),
        ("DATE", 19_000, {}, date(2022, 1, 8)),
        ("TIMESTAMP", "2020-01-01T00:00:00Z", {}, datetime(2020, 1, 1, tzinfo=UTC)),
        ("TIMESTAMP", US, MICROS, INSTANT.replace(tzinfo=UTC)),
        ("TIMESTAMP_NTZ", 1, {"connector": {"time.precision.mode": "connect"}}, datetime(1970, 1, 1, 0, 0, 0, 1_000)),
        ("INTERVAL DAY TO SECOND", 1, {"types": {"v": "io.debezium.time.MicroTime"}}, timedelta(microseconds=1)),
        ("DECIMAL(10,2)", unscaled(1234), {}, Decimal("12.34")),
        ("DECIMAL(10,2)", "12.34", {}, Decimal("12.34")),
        ("DECIMAL(10,2)", 12.34, {}, Decimal("12.34")),
        ("DECIMAL(10,2)", 1234, {}, Decimal("1234.00")),
        ("DECIMAL(10,2)", "1234", {"connector": {"decimal.handling.mode": "string"}}, Decimal("1234.00")),
        ("DECIMAL(10,2)", "1234", {"connector": {"decimal.handling.mode": "precise"}}, Decimal("-26588.24")),
        ("DECIMAL(10,2)", "1234", {"types": {"v": "digits"}}, Decimal("1234.00")),
        ("DECIMAL(10,2)", {"scale": 1, "value": unscaled(15)}, {}, Decimal("1.50")),
        ("BINARY", in_base64(b"\0\1\2"), {}, b"\0\1\2"),
        ("BINARY", "abcd", {"connector": {"binary.handling.mode": "hex"}}, b"\xab\xcd"),
        ("BINARY", "_-==", {"connector": {"binary.handling.mode": "base64-url-safe"}}, b"\xff"),
        ("ARRAY<DECIMAL(5,1)>", [unscaled(15)], {}, [Decimal("1.5")]),
        ("STRUCT<a: INT, b: ARRAY<STRING>>", {"a": 1, "b": ["x"]}, {}, {"a": 1, "b": ["x"]}),
        ("MAP<STRING, BIGINT>", {"x": 1}, {}, [("x", 1)]),
    ],
    ids=lambda v: str(v)[:60],
)
def test_types_and_settings_decide_without_a_schema_part(ddl: str, value: Any, hints: Any, expected: Any) -> None:
    assert plain(ddl, value, **hints) == expected
    assert plain(ddl, None, **hints) is None


@for_each(
    "ddl, value, advice",
    [
        ("TIMESTAMP", US, "types="),
        ("INTERVAL DAY TO SECOND", 5, "types="),
        ("DECIMAL(10,2)", "1234", "decimal.handling.mode"),
        ("DECIMAL(10,2)", "1,5", "neither"),
        ("BINARY", "abcd", "binary.handling.mode"),
        ("ARRAY<BINARY>", ["abcd"], "binary.handling.mode"),
        ("BIGINT", "5", "whole number"),
        ("BIGINT", 5.0, "whole number"),
        ("BIGINT", True, "whole number"),
        ("STRING", 5, "text"),
        ("DATE", "tomorrow", "2026"),
    ],
    ids=str,
)
def test_values_of_two_readings_are_refused(ddl: str, value: Any, advice: str) -> None:
    with pytest.raises(DeserializationError, match=rf"event 0: column 'v'.*{advice}"):
        plain(ddl, value)


def test_one_value_decides_the_encoding_of_its_column() -> None:
    texts = [event("c", None, {"v": v}) for v in ("1234", "12.34")]
    found = sparklog.unwrap_debezium(texts, "v DECIMAL(10,2)")
    assert [row["v"] for row in found] == [Decimal(1234), Decimal("12.34")]


def test_events_of_different_schemas() -> None:
    """A column that became wider, and one that was added."""
    narrow = [field("id", "int32")]
    wide = [field("id", "int64"), field("name", "string")]
    texts = [
        event("c", None, {"id": 1}, narrow),
        event("c", None, {"id": 2**40, "name": "x"}, wide),
        event("c", None, {"id": 3}, narrow),
    ]
    found = sparklog.unwrap_debezium(pa.table({"value": texts}))
    assert found.schema.field("id").type == pa.int64()
    assert found.column("id").to_pylist() == [1, 2**40, 3]
    assert found.column("name").to_pylist() == [None, "x", None]


@for_each(
    "schema",
    [
        {"type": "struct"},
        {
            "type": "struct",
            "fields": [{"field": "after", "type": "struct", "fields": [{"field": "a", "type": "int9"}]}],
        },
        {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": 5}]},
        {
            "type": "struct",
            "fields": [{"field": "after", "type": "struct", "fields": [{"field": "v", "type": "array"}]}],
        },
        {
            "type": "struct",
            "fields": [{"field": "after", "type": "struct", "fields": [field("v", "string", TIME + "Date")]}],
        },
    ],
    ids=lambda s: json.dumps(s)[:60],
)
def test_a_broken_schema_part_is_refused(schema: Any) -> None:
    text = json.dumps({"schema": schema, "payload": {"op": "c", "after": {"v": 1}}})
    with pytest.raises(DeserializationError, match="event 0: the schema part"):
        sparklog.unwrap_debezium([text])


@for_each(
    "hints, message",
    [
        ({"connector": {"decimal.handling.mode": "exact"}}, "precise, string, double"),
        ({"connector": {"time.precision.mode": "seconds"}}, "adaptive"),
        ({"connector": {"unavailable.value.placeholder": "hex:xyz"}}, "hex:"),
        ({"types": {"v": "MicroTimestamp"}}, "io.debezium.time.MicroTimestamp"),
        ({"truncate": "ignore"}, "error or skip"),
    ],
    ids=str,
)
def test_wrong_hints_are_refused(hints: Any, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        sparklog.unwrap_debezium([], **hints)
