"""The assertions about streams: they pass, and their messages name the difference."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sparklog.testing import eventually, exactly_once, in_order, same_rows
from sparklog.testing._assertions import POLL_SHARE
from tests.support.cases import for_each

ORDERS = [{"id": 1, "cups": 2}, {"id": 2, "cups": 1}]


def test_exactly_once() -> None:
    exactly_once(ORDERS, pa.table({"id": [2, 1]}), key="id")
    exactly_once(ORDERS, ORDERS, key=["id", "cups"])
    exactly_once(ORDERS, [{"n": 2}, {"n": 4}], key=lambda row: row.get("id", row.get("n", 0) // 2))


@for_each(
    "ids, text",
    [
        ([1], "2 inputs, 1 outputs\n  missing (1): 2"),
        ([1, 2, 2], "more than once (1): 2"),
        ([1, 2, 3], "without an input (1): 3"),
        ([], "missing (2): 1, 2"),
    ],
)
def test_missing_and_repeated_records(ids: list[int], text: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(text)):
        exactly_once(ORDERS, [{"id": i} for i in ids], key="id")


def test_a_column_that_does_not_exist_is_named() -> None:
    with pytest.raises(AssertionError, match="no column 'ident'"):
        exactly_once(ORDERS, ORDERS, key="ident")


def test_order_per_key() -> None:
    rows = [{"bus": "a", "at": 1}, {"bus": "b", "at": 5}, {"bus": "a", "at": 2}, {"bus": "b", "at": 5}]
    in_order(rows, by="at", key="bus")
    with pytest.raises(AssertionError, match="row 2 has 2, and row 1 has 5"):
        in_order(rows, by="at")
    with pytest.raises(AssertionError, match="of key 'a': row 2 has 0, and row 0 has 1"):
        in_order([*rows[:2], {"bus": "a", "at": 0}], by="at", key="bus")


@for_each("values", [(1, None), (None, 1), (1, "x"), (float("nan"), 1.0)])
def test_values_without_an_order_are_not_in_order(values: tuple[Any, Any]) -> None:
    with pytest.raises(AssertionError, match="not in order: row 1"):
        in_order([{"at": value} for value in values], by="at")


@for_each("rows", [None, 5, "text", {"id": 1}, [1], [None], ["ab"]])
def test_arguments_that_are_no_rows_are_named(rows: Any) -> None:
    for call in (
        lambda: exactly_once(rows, ORDERS, key="id"),
        lambda: in_order(rows, by="id"),
        lambda: same_rows(ORDERS, rows),
    ):
        with pytest.raises(TypeError, match="a list of dicts, an Arrow table, or a DataFrame"):
            call()


@for_each("key", [None, 5, [], b"id", [1]])
def test_a_key_names_columns(key: Any) -> None:
    with pytest.raises(TypeError, match="is no key: name a column"):
        exactly_once(ORDERS, ORDERS, key=key)


class _Sim:
    def __init__(self) -> None:
        self.now_s = 0.0

    def advance(self, duration: object) -> None:
        assert isinstance(duration, float)
        self.now_s += duration


def test_eventually_lets_virtual_time_pass() -> None:
    sim = _Sim()
    assert eventually(lambda: sim.now_s >= 3600 and "late", within="2 hours", sim=sim) == "late"
    assert 3600 <= sim.now_s < 3600 * (1 + 2 * POLL_SHARE)
    with pytest.raises(AssertionError, match="not true within 10 s: it returned False"):
        eventually(lambda: sim.now_s < 0, within="10 s", sim=sim)


def test_eventually_tells_the_last_failure() -> None:
    def check() -> bool:
        raise AssertionError("three are missing")

    with pytest.raises(AssertionError, match="three are missing"):
        eventually(check, within=0.01)


def test_equal_rows() -> None:
    same_rows(pa.table({"id": [2, 1], "cups": [1, 2]}), ORDERS)
    same_rows(ORDERS, [{"id": 1.0, "cups": 2}, {"id": 2, "cups": 1}])
    same_rows([], [])
    with pytest.raises(AssertionError, match="another order, from row 0 on"):
        same_rows(ORDERS[::-1], ORDERS, ordered=True)


def test_the_difference_of_rows() -> None:
    with pytest.raises(AssertionError) as whole:
        same_rows([ORDERS[0], {"id": 3, "cups": 1}], ORDERS)
    assert str(whole.value).splitlines() == [
        "rows differ: 2 actual, 2 expected",
        "  only in actual: {'id': 3, 'cups': 1}",
        "  only in expected: {'id': 2, 'cups': 1}",
    ]
    with pytest.raises(AssertionError) as paired:
        same_rows([{"id": 1, "cups": 9}, {"id": 3, "cups": 1}], ORDERS, key="id")
    assert str(paired.value).splitlines()[1:] == [
        "  key 1: cups is 9, expected 2",
        "  only in actual: {'id': 3, 'cups': 1}",
        "  only in expected: {'id': 2, 'cups': 1}",
    ]


def test_long_differences_are_shortened() -> None:
    with pytest.raises(AssertionError, match="… and 90 more"):
        same_rows([{"n": n} for n in range(100)], [])


NAN = float("nan")
UTC_10 = dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC)
SAME_AT_11 = UTC_10.astimezone(dt.timezone(dt.timedelta(hours=1)))
EQUAL = {
    "NaN": (NAN, float("-nan")),
    "NaN in a list": ([1.0, NAN], [1.0, float("-nan")]),
    "NaN in a dict": ({"a": {"b": NAN}}, {"a": {"b": float("-nan")}}),
    "None": (None, None),
    "list and tuple": ([1, [2]], (1, (2,))),
    "NumPy array": (np.array([1, 2]), [1, 2]),
    "dicts of mixed keys": ({1: 2, "a": 3}, {"a": 3, 1: 2}),
    "times of two zones": ([UTC_10], [SAME_AT_11]),
    "set": ({1, 2}, {2, 1}),
}


@for_each("name", list(EQUAL))
def test_equal_values(name: str) -> None:
    one, other = EQUAL[name]
    here, expected = [{"id": 1, "x": one}], [{"id": 1, "x": other}]
    exactly_once(here, expected, key="x")
    exactly_once(here, expected, key=["id", "x"])
    exactly_once(here, expected, key=lambda row: row["x"])
    same_rows(here, expected, ordered=True)
    same_rows(here, expected, key="id")
    with pytest.raises(AssertionError, match=r"key 1: x is .*, expected 5"):
        same_rows(here, [{"id": 1, "x": 5}], key="id")


def test_rows_of_frames() -> None:
    expected = [{"id": 1, "tags": ["a"]}, {"id": None, "tags": None}]
    frames = [
        pd.DataFrame({"id": [1, None], "tags": [np.array(["a"]), None]}),
        pd.DataFrame({"id": pd.array([1, None], dtype="Int64"), "tags": [["a"], None]}),
        pl.DataFrame({"id": [1, None], "tags": [["a"], None]}),
        pa.table({"id": [1, None], "tags": [["a"], None]}),
        pa.table({"id": [1, None], "tags": [["a"], None]}).to_reader(),
        iter(expected),
    ]
    for frame in frames:
        same_rows(frame, expected, ordered=True)
    times = pd.DataFrame({"at": [pd.Timestamp(UTC_10), None]})
    same_rows(times, [{"at": UTC_10}, {"at": None}])


def test_maps_are_dicts() -> None:
    kind = pa.map_(pa.string(), pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int32()))])))
    column = pa.array([[("k", [{"m": [("x", 1)]}, None])], [], None, [("k", None)]], kind)
    same_rows(
        pa.table({"m": column}),
        [{"m": {"k": [{"m": {"x": 1}}, None]}}, {"m": {}}, {"m": None}, {"m": {"k": None}}],
        ordered=True,
    )
    repeated = pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int32()))
    same_rows(pa.table({"m": repeated}), [{"m": [("k", 1), ("k", 2)]}])


@for_each("frame", [pd.DataFrame([[1, 2]], columns=["a", "a"]), pa.table([[1], [2]], names=["a", "a"])])
def test_two_columns_of_one_name_are_refused(frame: Any) -> None:
    with pytest.raises(TypeError, match="two columns have the name a"):
        same_rows(frame, [{"a": 1}])


def test_a_key_inside_a_struct() -> None:
    rows = [{"who": {"id": 1}}, {"who": {"id": 2}}]
    exactly_once(rows, rows[::-1], key="who.id")
    in_order(rows, by="who.id")
    with pytest.raises(AssertionError, match=r"no column 'who\.name'"):
        exactly_once(rows, rows, key="who.name")


def test_lists_are_in_the_order_of_their_elements() -> None:
    in_order([{"at": [1, 2]}, {"at": [1, 10]}], by="at")


def test_an_absent_column_is_named_as_absent() -> None:
    with pytest.raises(AssertionError, match="key 1: n is absent, expected None"):
        same_rows([{"id": 1}], [{"id": 1, "n": None}], key="id")
    with pytest.raises(AssertionError, match="key 1: n is None, expected no such column"):
        same_rows([{"id": 1, "n": None}], [{"id": 1}], key="id")


def test_long_values_are_shortened_near_their_difference() -> None:
    one, other = "x" * 10_000 + "a" + "y" * 10_000, "x" * 10_000 + "b" + "y" * 10_000
    with pytest.raises(AssertionError) as raised:
        same_rows([{"id": 1, "v": one}], [{"id": 1, "v": other}], key="id")
    text = str(raised.value)
    assert len(text) < 1_000
    assert "xa" in text
    assert "xb" in text


@for_each("condition, sim, text", [(None, None, "condition = None"), (lambda: 1, 5, "sim = 5")])
def test_a_wait_names_the_wrong_argument(condition: Any, sim: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        eventually(condition, within=1, sim=sim)
