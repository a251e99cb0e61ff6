"""Values as text."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.console.views.messages import message_row
from sparklog.console.views.values import CELL_CHARS_MAX, DETAIL_CHARS_MAX, bytes_cell, cell_of, visible


def test_bytes_are_shown_in_their_own_form() -> None:
    assert bytes_cell(b"hello", 5) == ("hello", "text", 5, False)
    assert bytes_cell(b'{"a": [1, 2]}', 13) == ('{"a": [1, 2]}', "json", 13, False)
    assert bytes_cell(b'{"a": 1.10}', 11, "auto", DETAIL_CHARS_MAX).text == '{\n  "a": 1.10\n}'
    assert bytes_cell(b"\xff\xfe\x00", 3) == ("ff fe 00", "hex", 3, False)
    assert bytes_cell(b"", 0) == ("", "text", 0, False)
    assert bytes_cell(b"{no json", 8).kind == "text"


def test_a_mode_is_forced() -> None:
    assert bytes_cell(b"hi", 2, "hex").text == "68 69"
    assert bytes_cell(b'{"a":1}', 7, "text").kind == "text"
    assert bytes_cell(b"\xff", 1, "text").text == "\ufffd"
    assert bytes_cell(b"\xff", 1, "json").kind == "hex"


def test_hex_in_detail_has_offsets_and_letters() -> None:
    lines = bytes_cell(bytes(range(60, 80)), 20, "hex", DETAIL_CHARS_MAX).text.splitlines()
    assert lines[0] == "00000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK"
    assert lines[1] == "00000010  4c 4d 4e 4f" + " " * 36 + "  LMNO"


def test_a_cut_value_is_marked_and_ends_at_a_character() -> None:
    text = "ü" * 1000
    cell = bytes_cell(text.encode()[:999], 2000)
    assert cell.is_cut
    assert cell.text == "ü" * CELL_CHARS_MAX
    assert cell.size_bytes == 2000
    assert bytes_cell("aü".encode()[:2], 3) == ("a", "text", 3, True)


def test_of_a_large_value_only_the_beginning_is_looked_at() -> None:
    cell = cell_of(pa.scalar(b"{" + b"x" * 10_000_000, pa.large_binary()))
    assert (len(cell.text), cell.size_bytes, cell.is_cut) == (CELL_CHARS_MAX, 10_000_001, True)
    assert len(cell_of(pa.scalar(b"\xff" * 10_000_000), "auto", DETAIL_CHARS_MAX).text) < 2 * DETAIL_CHARS_MAX


def test_invisible_characters_become_visible() -> None:
    assert visible("a\x00b\x1b[31m") == "a\\u0000b\\u001b[31m"
    assert visible("user\u202egnp.exe") == "user\\u202egnp.exe"
    assert visible("zero\u200bwidth") == "zero\\u200bwidth"
    assert visible("line\n\ttab ü 日本") == "line\n\ttab ü 日本"


@given(st.binary(max_size=2000), st.sampled_from(["auto", "text", "json", "hex"]))
def test_any_bytes_can_be_shown(data: bytes, mode: str) -> None:
    for chars_max in (CELL_CHARS_MAX, DETAIL_CHARS_MAX):
        cell = bytes_cell(data, len(data), mode, chars_max)
        assert "\x00" not in cell.text
        assert cell.size_bytes == len(data)


@pytest.mark.parametrize(
    ("value", "type", "text", "kind"),
    [
        (None, pa.int64(), "null", "null"),
        (12, pa.int64(), "12", "number"),
        (1.5, pa.float64(), "1.5", "number"),
        (True, pa.bool_(), "True", "text"),
        ("x", pa.string(), "x", "text"),
        (dt.date(2026, 3, 1), pa.date32(), "2026-03-01", "text"),
        (["a", None, "b"], pa.list_(pa.string()), '["a", null, "b"]', "json"),
        ({"a": 1, "b": "x"}, pa.struct([("a", pa.int8()), ("b", pa.string())]), '{"a": 1, "b": "x"}', "json"),
        ([("k", 1)], pa.map_(pa.string(), pa.int64()), '{"k": 1}', "json"),
    ],
)
def test_types(value: object, type: pa.DataType, text: str, kind: str) -> None:
    cell = cell_of(pa.scalar(value, type))
    assert (cell.text, cell.kind) == (text, kind)


def union(child: pa.Array) -> pa.Array:
    return pa.UnionArray.from_sparse(pa.array([0] * len(child), pa.int8()), [child, pa.nulls(len(child))], ["u", "v"])


def test_a_union_is_shown_as_its_value() -> None:
    rows = union(union(pa.array([{"a": "x"}, {"a": None}])))
    assert [cell_of(row).text for row in rows] == ['{"a": "x"}', '{"a": null}']
    assert cell_of(union(pa.array([2]))[0]) == ("2", "number", -1, False)
    assert cell_of(union(pa.array([None, b"\xff"]))[0]).kind == "null"
    assert cell_of(union(pa.array([None, b"\xff"]))[1]).kind == "hex"
    listed = pa.ListArray.from_arrays([0, 2], union(pa.array(["x", None])))
    assert cell_of(listed[0]).text == '["x", null]'


def test_intervals_and_nanoseconds_are_shown_as_in_files() -> None:
    assert cell_of(pa.scalar((1, -3, 90 * 10**9), pa.month_day_nano_interval())).text == "P1M-3DT90S"
    assert cell_of(pa.scalar(3_723_123_456_789, pa.time64("ns"))).text == "01:02:03.123456789"


def test_a_long_list_is_cut() -> None:
    cell = cell_of(pa.scalar(list(range(1_000_000)), pa.list_(pa.int64())))
    assert cell.text.startswith("[0, 1, 2")
    assert "999,980 more" in cell.text


def test_times_that_python_has_no_object_for() -> None:
    assert cell_of(pa.scalar(2**62, pa.timestamp("us"))).text == "+148108-07-06T14:00:27.387904"


def test_strings_in_lists_are_json() -> None:
    text = cell_of(pa.scalar(['say "hi"'], pa.list_(pa.string()))).text
    assert json.loads(text) == ['say "hi"']


def test_only_a_list_in_a_column_named_headers_is_a_list_of_headers() -> None:
    headers = pa.array(
        [[{"key": "a", "value": b"b"}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    for column, text in ((headers, "a=b"), (pa.array(["X-Trace: 5"]), "X-Trace: 5")):
        row = message_row(0, 5, 7, pa.record_batch([column], names=["headers"]), 0, ["headers"], "auto")
        assert [cell.text for cell in row.cells] == [text]
