"""INTERVAL in a result: at any depth one that Arrow has no form for is an error, not another number."""

from __future__ import annotations

import duckdb
import pytest

from sparklog.query.intervals import HOURS_MAX, with_checked_intervals
from tests.support.cases import for_each

NESTED = (
    "[INTERVAL 1 DAY, NULL, {}]", "[[{}], NULL, []]", "{{'it''s': 1, 'y': {}}}", "row({}, 2)", "{{'a': {{'b': {}}}}}",
    "MAP {{'k': {}}}", "MAP {{{}: 1}}", "array_value(INTERVAL 1 DAY, {})", "array_value([{}], [])", "union_value(n := {})",
    "[{{'a': [MAP {{1: {}}}]}}]", "[row({})]",
)  # fmt: skip


@for_each("form", ("{}", *NESTED))
def test_a_long_interval_is_refused_by_its_column(form: str) -> None:
    connection = duckdb.connect()
    for hours, fits in ((HOURS_MAX, True), (-HOURS_MAX, True), (HOURS_MAX + 2, False), (-3_000_000, False)):
        interval = f"to_hours({hours})"
        relation = connection.sql(f"SELECT 1 AS x, {form.format(interval)} AS x")
        checked = with_checked_intervals(relation)
        if fits:
            assert checked.to_arrow_reader(10).read_all().column_names == ["x", "x"]
            assert checked.fetchall() == relation.fetchall()
        else:
            with pytest.raises(duckdb.InvalidInputException, match="column x: an INTERVAL has at most 2,562,046 hours"):
                checked.to_arrow_reader(10).read_all()


def test_other_columns_are_left_alone() -> None:
    connection = duckdb.connect()
    relation = connection.sql("SELECT [1] AS a, {'b': 'c'} AS b, MAP {1: 2} AS c, union_value(n := 1) AS d")
    assert with_checked_intervals(relation) is relation
    nothing = connection.sql("SELECT NULL::INTERVAL[] AS a, {'b': NULL::INTERVAL} AS b, NULL::MAP(INT, INTERVAL) AS c")
    assert with_checked_intervals(nothing).fetchall() == [(None, {"b": None}, None)]
