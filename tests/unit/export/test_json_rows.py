"""JSON lines as columns: blank lines, rows that the block reader cannot have, and the lengths of shown values."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from sparklog.export.json_rows import JsonValueError, needs_rows, read_rows, read_texts, whole_column
from sparklog.format.json_exact import NUMBER_CHARS_MAX, column_value, parse_json, parse_object, text_as_bytes

NUMBERS = pa.schema([("n", pa.int64())])


def test_blank_lines_are_no_rows() -> None:
    assert read_rows(b'\n{"n":1}\n \t\n\n{"n":2}\n', NUMBERS)["n"].to_pylist() == [1, 2]
    assert read_rows(b"\n\n", NUMBERS).num_rows == 0


def test_the_first_misfit_of_a_block_is_its_error() -> None:
    with pytest.raises(JsonValueError, match="column 'n' is int64: \"x\" does not fit"):
        read_rows(b'{"n":1}\n{"n":"x"}\n{"n":"y"}\n', NUMBERS)
    field = pa.field("at", pa.timestamp("us"))
    with pytest.raises(JsonValueError, match="column 'at' is timestamp"):
        whole_column(["2026-11-29T12:00:00", "never"], field)
    with pytest.raises(JsonValueError, match="which is JSON in CSV"):
        read_texts(["[1"], pa.field("l", pa.list_(pa.int64())))


@pytest.mark.parametrize(
    ("t", "alone", "inside"),
    [
        (pa.int64(), False, False),
        (pa.string(), False, False),
        (pa.date32(), False, True),
        (pa.decimal128(5, 2), False, True),
        (pa.binary(), True, True),
        (pa.map_(pa.string(), pa.int64()), True, True),
    ],
    ids=str,
)
def test_columns_that_need_rows(t: Any, alone: bool, inside: bool) -> None:
    assert needs_rows(t) is alone
    for nested in (pa.list_(t), pa.struct([("a", pa.int64()), ("b", t)]), pa.list_(pa.struct([("a", t)]))):
        assert needs_rows(nested) is inside


@pytest.mark.parametrize("length", [58, 59, 500])
def test_a_value_is_shown_up_to_a_length(length: int) -> None:
    """The shown JSON has two quotation marks beside the text; 60 characters are shown."""
    with pytest.raises(JsonValueError) as caught:
        column_value("x" * length, pa.field("n", pa.int64()), text_as_bytes)
    shown = str(caught.value).removeprefix("column 'n' is int64: ").removesuffix(" does not fit")
    assert shown == (f'"{"x" * 58}"' if length == 58 else f'"{"x" * 58}…')
    assert len(shown) == 60


def test_a_number_has_a_largest_length() -> None:
    longest = "1" * NUMBER_CHARS_MAX
    assert parse_json(longest) == int(longest)
    for text in (longest + "1", f"0.{longest}"):
        with pytest.raises(JsonValueError, match=f"at most {NUMBER_CHARS_MAX} characters"):
            parse_json(text)


def test_a_maps_pair_has_two_values() -> None:
    field = pa.field("m", pa.map_(pa.string(), pa.int64()))
    assert column_value([["a", 1]], field, text_as_bytes) == [("a", 1)]
    for wrong in ([["a"]], [["a", 1, 2]], [{"a": 1}], ["ab"]):
        with pytest.raises(JsonValueError, match=r"an array of \[key, value\]"):
            column_value(wrong, field, text_as_bytes)


@pytest.mark.parametrize("text", ['{"a":1,"a":2}', '{"a":{"b":1,"c":[{"d":1,"d":1}]}}', '{"a":1,"\\u0061":2}'])
def test_a_field_twice_is_named(text: str) -> None:
    assert json.loads(text)
    with pytest.raises(JsonValueError, match=r"the field '[ad]' is there twice"):
        parse_object(text.encode())
