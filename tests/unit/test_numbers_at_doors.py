"""Every door takes the same whole numbers: those that the column's type has exactly. All others are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sparklog.cli.input import InputError, InputOptions, open_input
from sparklog.client.producer.rows import rows_of
from sparklog.client.producer.typed_rows import TypedTopic
from sparklog.debezium import unwrap_debezium
from sparklog.errors import SparklogError
from sparklog.kafka.values.json_records import parse_rows
from tests.support.clients import info
from tests.unit.debezium.envelopes import event

DOUBLE, FLOAT, BIGINT = pa.float64(), pa.float32(), pa.int64()
WIDE, NARROW = pa.decimal128(38, 0), pa.decimal128(5, 2)
NUMBERS: list[tuple[Any, int, bool]] = [
    *((DOUBLE, n, True) for n in (0, -7, 2**53, 2**53 + 2, 2**60, -(2**63), 2**63, 2**64 + 2**12, 10**22)),
    *((DOUBLE, n, False) for n in (2**53 + 1, -(2**53) - 1, 2**60 + 1, 2**63 - 1, 2**64 - 1, 2**64 + 1, 10**400)),
    *((FLOAT, n, True) for n in (2**24, 2**24 + 2, -(2**25), 2**63, 2**100, 10**10)),
    *((FLOAT, n, False) for n in (2**24 + 1, -(2**24) - 1, 123456789, 2**63 - 1, 2**128, 10**400)),
    *((BIGINT, n, -(2**63) <= n < 2**63) for n in (2**53 + 1, -(2**63), 2**63 - 1, 2**63, -(2**63) - 1, 10**30)),
    *((WIDE, n, abs(n) < 10**38) for n in (2**63, 2**64, -(2**100), 10**38 - 1, 10**38, 10**400)),
    *((NARROW, n, abs(n) < 1000) for n in (999, -999, 1000, 10**20)),
]
"""Types, whole numbers, and True for numbers that the type has."""


def row_of(n: Any, t: Any) -> Any:
    state = TypedTopic(info(pa.schema([("v", t)])), 1 << 20, [])
    state.checked({"v": n}, None, None, None, None)
    return from_python([{"v": n}], t)


def from_python(data: Any, t: Any) -> Any:
    return rows_of(data, info(pa.schema([("v", t)])), None).table.column("v").to_pylist()[-1]


def from_text(text: str, format: str, t: Any) -> Any:
    options = InputOptions(schema=pa.schema([("v", t)]))
    return pa.concat_tables([c.table for c in open_input(None, BytesIO(text.encode()), format, options).chunks])["v"][
        0
    ].as_py()


def from_kafka(text: str, t: Any) -> Any:
    return parse_rows(pa.array([text.encode()], pa.binary()), pa.schema([("v", t)]), "t").column(0)[0].as_py()


def from_debezium(n: int, t: Any) -> Any:
    return unwrap_debezium([event("c", after={"v": n})], pa.schema([("v", t)]))[0]["v"]


DOORS: dict[str, Callable[[int, Any], Any]] = {
    "send": row_of,
    "list of dicts": lambda n, t: from_python([{"v": n}], t),
    "dict of columns": lambda n, t: from_python({"v": [n]}, t),
    "among others": lambda n, t: from_python({"v": [None, 1, n]}, t),
    "pandas": lambda n, t: from_python(pd.DataFrame({"v": pd.Series([n], dtype=object)}), t),
    "JSON lines": lambda n, t: from_text(f'{{"v":{n}}}\n', "jsonl", t),
    "CSV": lambda n, t: from_text(f"v\n{n}\n", "csv", t),
    "Kafka": lambda n, t: from_kafka(f'{{"v":{n}}}', t),
    "Debezium": from_debezium,
}
TYPED_DOORS: dict[str, Callable[[Any], Any]] = {
    "NumPy": lambda n: {"v": n},
    "NumPy objects": lambda n: {"v": list(n)},
    "pandas": lambda n: pd.DataFrame({"v": n}),
    "polars": lambda n: pl.DataFrame({"v": n}),
    "Arrow": lambda n: pa.table({"v": pa.array(n)}),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_whole_number_is_taken_exactly_or_refused_by_name(door: str) -> None:
    for t, n, fits in NUMBERS:
        if fits:
            assert DOORS[door](n, t) == n, (t, n)
        else:
            with pytest.raises((SparklogError, InputError)) as caught:
                DOORS[door](n, t)
            assert "v" in str(caught.value) and str(n)[:20] in str(caught.value), (t, n, str(caught.value))


@pytest.mark.parametrize("door", TYPED_DOORS)
def test_integers_of_tables_are_taken_exactly_or_refused_by_name(door: str) -> None:
    for t, n, fits in NUMBERS:
        if not -(2**63) <= n < 2**64:
            continue
        numbers = np.array([n], np.int64 if n < 2**63 else np.uint64)
        if fits:
            assert from_python(TYPED_DOORS[door](numbers), t) == n, (t, n)
        else:
            with pytest.raises(SparklogError) as caught:
                from_python(TYPED_DOORS[door](numbers), t)
            assert "'v'" in str(caught.value), (t, n, str(caught.value))


def test_whole_numbers_fit_inside_of_nested_columns_as_outside() -> None:
    for t, n, fits in NUMBERS:
        nested = [
            (pa.list_(pa.field("element", t)), [1, None, n], [1, None, n]),
            (pa.struct([pa.field("a", t)]), {"a": n}, {"a": n}),
            (pa.map_(pa.string(), t), {"k": n}, [("k", n)]),
            (pa.map_(pa.string(), pa.list_(pa.field("element", t))), {"k": [n]}, [("k", [n])]),
        ]
        for column, value, stored in nested:
            schema = info(pa.schema([("v", column)]))
            for data in ([{"v": value}], [{"v": None}, {"v": value}]):
                if fits:
                    assert rows_of(data, schema, None).table.column("v").to_pylist()[-1] == stored, (column, n)
                else:
                    with pytest.raises(SparklogError, match="'v'"):
                        rows_of(data, schema, None)
            if fits and -(2**63) <= n < 2**63:
                typed = pa.table({"v": [[n]]}) if pa.types.is_list(column) else None
                if typed is not None:
                    assert rows_of(typed, schema, None).table.column("v").to_pylist() == [[n]], (column, n)


def test_large_ints_among_floats_are_exact_or_refused() -> None:
    assert from_python({"v": [0.5, 2**60]}, DOUBLE) == 2**60
    assert from_python({"v": [0.1, 2**25]}, FLOAT) == 2**25
    for mixed in ([0.5, 2**53 + 1], [0.5, np.int64(2**53 + 1)]):
        with pytest.raises(SparklogError, match="9007199254740993 would become 9007199254740992"):
            from_python({"v": mixed}, DOUBLE)
    with pytest.raises(SparklogError, match="16777217 would become 16777216"):
        from_python({"v": [0.5, 2**24 + 1]}, FLOAT)


def test_a_boolean_is_no_number_and_a_number_no_boolean() -> None:
    data: Any
    for t in (DOUBLE, FLOAT, BIGINT, WIDE):
        for data in ([{"v": True}], {"v": [True]}, {"v": [True, 1]}, {"v": np.array([True])}, {"v": [np.True_, 0.5]}):
            with pytest.raises(SparklogError, match="'v'"):
                from_python(data, t)
        with pytest.raises(SparklogError):
            row_of(True, t)
        with pytest.raises(InputError):
            from_text('{"v":true}\n', "jsonl", t)
        with pytest.raises(InputError):
            from_text("v\ntrue\n", "csv", t)
        with pytest.raises(SparklogError):
            from_kafka('{"v":true}', t)
    for data in ([{"v": 1}], {"v": [1]}, {"v": np.array([1])}, {"v": [True, 1]}, {"v": [Decimal(1)]}, {"v": [1.0]}):
        with pytest.raises(SparklogError, match="'v'"):
            from_python(data, pa.bool_())
    with pytest.raises(SparklogError):
        row_of(1, pa.bool_())
