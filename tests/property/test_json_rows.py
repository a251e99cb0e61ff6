"""JSON objects as rows: the fast reading gives the values of the rules, and every stored value comes back."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparklog.export.printable import text_or_base64
from sparklog.format.json_exact import base64_as_bytes, text_as_bytes
from sparklog.format.json_rows import JsonRows, JsonRowsError
from sparklog.format.json_values import base64_text, json_values, row_objects

ELEMENT = pa.field("element", pa.decimal128(6, 2))
TYPES: dict[str, Any] = {
    "o": pa.bool_(),
    "tiny": pa.int8(),
    "n": pa.int64(),
    "f": pa.float32(),
    "g": pa.float64(),
    "s": pa.string(),
    "b": pa.binary(),
    "price": pa.decimal128(10, 3),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "day": pa.date32(),
    "span": pa.duration("us"),
    "list": pa.list_(ELEMENT),
    "map": pa.map_(pa.string(), pa.int32()),
    "numbers": pa.map_(pa.int32(), pa.timestamp("us")),
    "blobs": pa.map_(pa.binary(), pa.int32()),
    "struct": pa.struct([pa.field("x", pa.int16()), pa.field("y", pa.list_(pa.field("element", pa.float32())))]),
}
NUMBERS = [
    *(
        "0",
        "-0",
        "-0.0",
        "1",
        "1.0",
        "1e3",
        "1.5",
        "0.1",
        "127",
        "128",
        "-128.0",
        "32768",
        "1e39",
        "1e400",
        "3.4028235e38",
    ),
    *("16777217", "16777217.0", "9007199254740992", "9007199254740993", "9007199254740993.0", "1152921504606847000"),
    *("9223372036854775807", "9223372036854775808", "123456789.1234", "1234567.1230", "1e-999999999", "1e999999999"),
    *(
        "0.0000000000000000000000000000000000000001",
        "0e999",
        "1e1000000000000000000",
        "12345678901234567890123456789012345678901",
        "1" * 5_000,
    ),
]
TEXTS = [
    *(
        "",
        "a",
        " 1",
        "1",
        "1_0",
        "１",
        "NaN",
        "Infinity",
        "-Infinity",
        "nan",
        "aGk=",
        "aGk",
        "12.5",
        "1e2",
        "+5",
        ".5",
        '"',
    ),
    *("2026-01-31", "2026-01-31T12:00:00", "2026-01-31 12:00", "2026-01-31T12:00:00.1234567Z", "0001-01-01"),
    *("2026-01-31t12:00:00.123456000z", "2026-01-31T12:00:00+05:30", "9999-12-31T23:59:59-23:59", "2026-02-30"),
    *("+10000-01-01", "-0001-12-31T00:00:00Z", "２026-01-31", "+999999-01-01T00:00:00", "2026-01-31T24:00:00Z"),
    *("P1DT2H", "PT0.1234567S", "PT1.5S", "-PT1S", "P", "P999999999D", "PT1.5H", " : x", '":', '\\":', "\\", "\n", "é"),
]
SCALARS = st.sampled_from(
    ["null", "true", "false", *NUMBERS, *map(json.dumps, TEXTS), '"\\ud800"', "NaN", "{", '{"base64":"aGk="}']
)
NAMES = st.sampled_from(["x", "y", "a", "1", " 1", "2", "1.0"])


def _object(members: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}{' ' * (len(text) % 2)}: {text}" for name, text in members) + "}"


VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda v: "[" + ",".join(v) + "]")
        | st.lists(st.tuples(NAMES, inner), max_size=3).map(_object)
    ),
    max_leaves=4,
)


def _result(read: Any, texts: list[bytes]) -> Any:
    try:
        return "".join(map(str, read(texts).columns))
    except JsonRowsError as e:
        return list(e.rows)


@given(st.sampled_from(list(TYPES)), st.lists(st.lists(VALUES, max_size=2), min_size=1, max_size=2), st.booleans())
@example("n", [["1", "2"]], True)
@example("n", [["9007199254740993.0"]], True)
@example("f", [["1e39"]], True)
@example("s", [['" : x"'], ['"\\\\\\": "', '"b"']], True)
@example("price", [["1e-999999999"]], True)
@example("g", [["1e1000000000000000000"]], True)
@example("numbers", [['{" 1": null}']], True)
def test_the_fast_reading_gives_the_values_of_the_rules(name: str, rows: list[list[str]], is_text: bool) -> None:
    schema = pa.schema([(name, TYPES[name]), ("z", pa.string())])
    texts = [_object([(name, value) for value in values]).encode() for values in rows]
    reader = JsonRows(schema, text_as_bytes if is_text else base64_as_bytes)
    assert _result(reader.read, texts) == _result(reader._exact, texts)
    if any(len(values) > 1 for values in rows):
        with pytest.raises(JsonRowsError):  # a member twice
            reader.read(texts)


FLOATS = st.floats(width=32)
BLOBS = st.sampled_from([b'{"base64":"YQ=="}', b"{", b'{"a":1}', b"NaN", b"\xff"])
STORED: dict[str, Any] = {
    "o": st.booleans(),
    "tiny": st.integers(-128, 127),
    "n": st.integers(-(2**63), 2**63 - 1),
    "f": FLOATS,
    "g": st.floats(),
    "s": st.text(max_size=5),
    "b": st.binary(max_size=5),
    "price": st.decimals(min_value=-9_999_999, max_value=9_999_999, places=3),
    "at": st.datetimes(timezones=st.just(dt.UTC)),
    "local": st.datetimes(),
    "day": st.dates(),
    "span": st.timedeltas(dt.timedelta(days=-106_751_991), dt.timedelta(days=106_751_991)),
    "list": st.lists(st.none() | st.decimals(min_value=-9_999, max_value=9_999, places=2), max_size=3),
    "map": st.dictionaries(st.text(max_size=3), st.none() | st.integers(0, 9), max_size=3).map(lambda m: [*m.items()]),
    "numbers": st.dictionaries(st.integers(-9, 9), st.none() | st.datetimes(), max_size=3).map(lambda m: [*m.items()]),
    "blobs": st.dictionaries(st.binary(max_size=3) | BLOBS, st.integers(0, 9), max_size=3).map(lambda m: [*m.items()]),
    "struct": st.fixed_dictionaries(
        {"x": st.none() | st.integers(-9, 9), "y": st.none() | st.lists(st.none() | FLOATS)}
    ),
}


@given(st.sampled_from(list(TYPES)), st.data())
def test_every_stored_value_comes_back(name: str, data: st.DataObject) -> None:
    column = pa.array(data.draw(st.lists(st.none() | STORED[name], min_size=1, max_size=4)), TYPES[name])
    spelling = data.draw(st.sampled_from([name, 'a"\\\n']))
    schema = pa.schema([(spelling, TYPES[name])])
    for form, to_bytes in ((base64_text, base64_as_bytes), (text_or_base64, text_as_bytes)):
        rows = row_objects(schema.names, [json_values(column, form)])
        texts = [msgspec.json.encode(row) for row in rows]
        again = JsonRows(schema, to_bytes).read(texts).column(0)
        assert json_values(again, base64_text) == json_values(column, base64_text)
        assert json_values(column.slice(1), form) == json_values(column, form)[1:]


def test_a_number_in_a_maps_key_has_no_blanks() -> None:
    for key in (" 1", "1 ", "\n1"):
        with pytest.raises(JsonRowsError) as refused:
            JsonRows(pa.schema([("m", TYPES["numbers"])])).read([_object([("m", _object([(key, "null")]))]).encode()])
        assert "blanks around the key" in refused.value.rows[0]
