"""The canonical JSON of keys against a plain reference, and the partitions that every form chooses."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import kafka.partitioner.default as kafka_python
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparklog.client.producer.partitioner import murmur2, murmur2_array
from sparklog.client.producer.row_keys import keys_of_rows, partitions_of_rows, row_hash
from sparklog.client.producer.rows import rows_of
from sparklog.client.producer.typed_rows import TypedTopic
from sparklog.errors import SchemaMismatchError
from sparklog.format.canonical_json import SLICE_NAME_BYTES, canonical_keys, key_slices
from tests.support.cases import for_each
from tests.support.clients import info

SECOND_US, DAY_US = 1_000_000, 86_400_000_000


def text_json(text: str) -> str:
    """RFC 8785: Python's escapes without those of non-ASCII characters."""
    return json.dumps(text, ensure_ascii=False)


def float_json(number: float, shortest: str) -> str:
    """ECMAScript's Number::toString for `shortest`, the fewest digits of the number as Python writes them."""
    if math.isnan(number):
        return '"NaN"'
    if math.isinf(number):
        return '"Infinity"' if number > 0 else '"-Infinity"'
    if not number:
        return "0"
    sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    assert isinstance(exponent, int)
    s, k = "".join(map(str, digits)), len(digits)
    n = k + exponent
    minus = "-" if sign else ""
    if k <= n <= 21:
        return minus + s + "0" * (n - k)
    if 0 < n <= 21:
        return minus + s[:n] + "." + s[n:]
    if -6 < n <= 0:
        return minus + "0." + "0" * -n + s
    mantissa = s[0] + ("." + s[1:] if k > 1 else "")
    return f"{minus}{mantissa}e{'+' if n > 0 else '-'}{abs(n - 1)}"


def decimal_json(unscaled: int, scale: int) -> str:
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    whole, fraction = (digits[:-scale], "." + digits[-scale:]) if scale else (digits, "")
    return f'"{"-" if unscaled < 0 else ""}{whole}{fraction}"'


def date_text(days: int) -> str:
    """The proleptic Gregorian calendar: 400 years have 146,097 days."""
    era, day = divmod(days + 719_468, 146_097)
    date = dt.date(2000, 3, 1) + dt.timedelta(days=day)
    year = date.year - 2000 + 400 * era
    lead = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{lead}{abs(year):04}-{date.month:02}-{date.day:02}"


def time_json(us: int, zone: str) -> str:
    days, rest = divmod(us, DAY_US)
    seconds, fraction = divmod(rest, SECOND_US)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f'"{date_text(days)}T{clock}{f".{fraction:06}" if fraction else ""}{zone}"'


def duration_json(us: int) -> str:
    days, rest = divmod(abs(us), DAY_US)
    seconds, fraction = divmod(rest, SECOND_US)
    found = f"{'-' if us < 0 else ''}P" + (f"{days}D" if days or not us else "")
    if rest:
        found += f"T{seconds}{f'.{fraction:06}'.rstrip('0') if fraction else ''}S"
    return f'"{found}"'


def int_array(numbers: Iterable[int | None], storage: Any, t: Any) -> Any:
    return pa.array(list(numbers), storage).cast(t) if storage == t else pa.array(list(numbers), storage).view(t)


INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1])
TIMES = INT64 | st.integers(-62_167_219_200, 253_402_300_799).map(lambda s: s * SECOND_US)
DAYS = st.integers(-(2**31), 2**31 - 1) | st.integers(-719_600, 2_932_999)


def float32_text(number: float) -> str:
    return str(np.float32(number))


KINDS: dict[str, tuple[Any, Any, Any]] = {
    "string": (st.text(), lambda v: pa.array(v, pa.string()), text_json),
    "binary": (
        st.binary(max_size=9),
        lambda v: pa.array(v, pa.binary()),
        lambda b: f'"{base64.b64encode(b).decode()}"',
    ),
    "boolean": (st.booleans(), lambda v: pa.array(v, pa.bool_()), lambda b: str(b).lower()),
    "byte": (st.integers(-128, 127), lambda v: pa.array(v, pa.int8()), str),
    "long": (INT64, lambda v: pa.array(v, pa.int64()), str),
    "double": (
        st.floats() | st.integers(-(10**23), 10**23).map(float),
        lambda v: pa.array(v, pa.float64()),
        lambda n: float_json(n, repr(n)),
    ),
    "float": (
        st.floats(width=32) | st.integers(-(10**23), 10**23).map(lambda n: float(np.float32(n))),
        lambda v: pa.array(v, pa.float32()),
        lambda n: float_json(n, float32_text(n)),
    ),
    "decimal": (
        st.integers(-(10**38) + 1, 10**38 - 1),
        lambda v: pa.array([None if n is None else Decimal(f"{n}e-9") for n in v], pa.decimal128(38, 9)),
        lambda n: decimal_json(n, 9),
    ),
    "whole decimal": (
        st.integers(-999, 999),
        lambda v: pa.array([None if n is None else Decimal(n) for n in v], pa.decimal128(3, 0)),
        lambda n: decimal_json(n, 0),
    ),
    "date": (DAYS, lambda v: int_array(v, pa.int32(), pa.date32()), lambda n: f'"{date_text(n)}"'),
    "timestamp": (TIMES, lambda v: int_array(v, pa.int64(), pa.timestamp("us", "UTC")), lambda n: time_json(n, "Z")),
    "local timestamp": (TIMES, lambda v: int_array(v, pa.int64(), pa.timestamp("us")), lambda n: time_json(n, "")),
    "duration": (INT64, lambda v: int_array(v, pa.int64(), pa.duration("us")), duration_json),
}
"""For each kind of column: values, the function that makes its array, and the reference JSON of a value."""


@for_each("kind", KINDS)
def test_each_type_is_written_as_by_a_plain_reference(kind: str) -> None:
    values, array_of, reference = KINDS[kind]

    @given(st.lists(st.none() | values, max_size=20), st.integers(0, 3))
    def check(column: list[Any], skip: int) -> None:
        keys = canonical_keys([array_of(column).slice(skip)], ["k"])
        expected = ['{"k":null}' if v is None else f'{{"k":{reference(v)}}}' for v in column[skip:]]
        assert [key.decode() for key in keys.to_pylist()] == expected

    check()


@given(st.lists(st.tuples(st.none() | st.text(max_size=3), st.none() | INT64, st.binary(max_size=4)), max_size=20))
@example([('"\\\x00\x1f\x7f\u2028é', None, b"")])
def test_several_columns_are_one_object_in_their_order(rows: list[tuple[Any, ...]]) -> None:
    columns = [pa.array([row[i] for row in rows], t) for i, t in enumerate((pa.string(), pa.int64(), pa.binary()))]
    names = ['a"\\\n', "ä", "b"]
    expected = [
        "{"
        + f"{text_json(names[0])}:{'null' if a is None else text_json(a)},"
        + f"{text_json(names[1])}:{'null' if n is None else n},"
        + f'{text_json(names[2])}:"{base64.b64encode(b).decode()}"'
        + "}"
        for a, n, b in rows
    ]
    assert [key.decode() for key in canonical_keys(columns, names).to_pylist()] == expected


def test_numbers_are_those_of_rfc_8785() -> None:
    bits = {
        0x0000000000000000: "0",
        0x8000000000000000: "0",
        0x0000000000000001: "5e-324",
        0x7FEFFFFFFFFFFFFF: "1.7976931348623157e+308",
        0x4340000000000000: "9007199254740992",
        0x44B52D02C7E14AF5: "9.999999999999997e+22",
        0x44B52D02C7E14AF6: "1e+23",
        0x444B1AE4D6E2EF4E: "999999999999999700000",
        0x444B1AE4D6E2EF50: "1e+21",
        0x3EB0C6F7A0B5ED8C: "9.999999999999997e-7",
        0x3EB0C6F7A0B5ED8D: "0.000001",
        0x41B3DE4355555555: "333333333.3333333",
        0xBECBF647612F3696: "-0.0000033333333333333333",
    }
    numbers = np.array(list(bits), np.uint64).view(np.float64)
    keys = canonical_keys([pa.array(numbers.tolist(), pa.float64())], ["n"]).to_pylist()
    assert [re.fullmatch(rb'\{"n":(.*)\}', key)[1].decode() for key in keys] == list(bits.values())  # type: ignore[index]


def test_a_nested_column_is_no_key() -> None:
    with pytest.raises(SchemaMismatchError, match="list"):
        canonical_keys([pa.array([[1]])], ["k"])


def test_long_names_make_short_slices() -> None:
    name = "n" * (SLICE_NAME_BYTES // 2)
    assert [len(keys) for keys in key_slices([pa.array([1, 2, 3, 4, 5])], [name])] == [1] * 5


@given(st.lists(st.binary(max_size=70), max_size=20))
def test_the_hash_is_that_of_kafka_python(keys: list[bytes]) -> None:
    expected = [kafka_python.murmur2(key) & 0xFFFFFFFF for key in keys]
    assert murmur2_array(pa.array(keys, pa.binary())).tolist() == expected == [murmur2(key) for key in keys]


LONG_AND_TEXT = pa.schema([("id", pa.int64()), ("zone", pa.string()), ("n", pa.int32())])


@for_each("form, keys", [("json", ("id",)), ("json", ("zone", "id")), ("text", ("zone",)), ("json", ("zone",))])
def test_rows_choose_the_partition_of_their_key(form: str, keys: tuple[str, ...]) -> None:
    topic = info(LONG_AND_TEXT, 7, keys, kafka_key_format=form)

    @given(st.lists(st.tuples(INT64, st.text(max_size=5)), max_size=20))
    def check(rows: list[tuple[int, str]]) -> None:
        values = {"id": [i for i, _ in rows], "zone": [z for _, z in rows]}
        columns = [pa.array(values[name], LONG_AND_TEXT.field(name).type) for name in keys]
        hashes = [kafka_python.murmur2(key) for key in keys_of_rows(columns, topic).to_pylist()]
        expected = [(h & 0x7FFFFFFF) % 7 for h in hashes]
        assert partitions_of_rows([pa.chunked_array([c]) for c in columns], topic).tolist() == expected
        of_one = row_hash(topic)
        assert of_one is not None
        singly = [of_one(one) for one in zip(*(values[name] for name in keys), strict=True)]
        assert [(h & 0x7FFFFFFF) % 7 for h in singly] == expected
        objects = [{"id": i, "zone": z} for i, z in rows]
        assert all(typed.checked(one, None, None, None, None)[2] == p for one, p in zip(objects, expected, strict=True))
        if rows:
            assert rows_of(objects, topic, None).partition.tolist() == expected  # type: ignore[union-attr]

    typed = TypedTopic(topic, 1 << 20, [])
    check()


def test_a_topic_without_the_setting_keeps_its_rule() -> None:
    topic = info(LONG_AND_TEXT, 97, ("zone", "id"))
    columns = [pa.array(["a", "ü"]), pa.array([5, -6], pa.int64())]
    folded = [
        (31 * murmur2(zone.encode()) + murmur2(i.to_bytes(8, "big", signed=True))) & 0x7FFFFFFF
        for zone, i in (("a", 5), ("ü", -6))
    ]
    assert partitions_of_rows(columns, topic).tolist() == [h % 97 for h in folded]
    of_one = row_hash(topic)
    assert of_one is not None and [of_one(v) & 0x7FFFFFFF for v in (("a", 5), ("ü", -6))] == folded
    assert keys_of_rows(columns, topic).to_pylist() == [b'{"zone":"a","id":5}', '{"zone":"ü","id":-6}'.encode()]


def test_a_key_of_text_keeps_the_partition_that_it_has_without_the_setting() -> None:
    column = pa.array(["u1", "", None, "ü"])
    forms = [info(LONG_AND_TEXT, 97, ("zone",), **more) for more in ({}, {"kafka_key_format": "text"})]
    without, text = (partitions_of_rows([column], topic).tolist() for topic in forms)
    assert without == text


@for_each(
    "date", ["-0001-12-31", "-0044-03-15", "-0999-01-01", "-1000-01-01", "-10000-01-01", "0000-01-01", "+10000-01-01"]
)
def test_years_have_a_sign_and_four_digits(date: str) -> None:
    """As java.time writes them: `LocalDate.parse` refuses fewer digits."""
    days = int(np.datetime64(date.removeprefix("+"), "D").astype(np.int64))
    assert (
        canonical_keys([int_array([days, 0], pa.int32(), pa.date32())], ["k"])[0].as_py()
        == f'{{"k":"{date}"}}'.encode()
    )
