"""Values of a result that Arrow has no form for: at any depth text or an error, not another value."""

from __future__ import annotations

import duckdb
import pytest

from sparklog.query.exact_values import HOURS_MAX, HUGE_MAX, with_exact_values
from tests.support.cases import for_each

NESTED = (
    "[NULL, {}]", "[[{}], NULL, []]", "{{'it''s': 1, 'y': {}}}", "row({}, 2)", "{{'a': {{'b': {}}}}}",
    "MAP {{'k': {}}}", "MAP {{{}: 1}}", "array_value(NULL, {})", "array_value([{}], [])", "union_value(\"n \"\"\" := {})",
    "[{{'a': [MAP {{1: {}}}]}}]", "[row({})]",
)  # fmt: skip
LIMITS = (
    (f"to_hours({HOURS_MAX})", f"to_hours({HOURS_MAX + 2})", "an INTERVAL has at most 2,562,046 hours"),
    (f"to_hours(-{HOURS_MAX})", "to_hours(-3_000_000)", "an INTERVAL has at most 2,562,046 hours"),
    (f"{HUGE_MAX}::HUGEINT", f"{HUGE_MAX + 1}::HUGEINT", "a HUGEINT has at most 38 digits"),
    (f"-{HUGE_MAX}::HUGEINT", f"-{HUGE_MAX + 1}::HUGEINT", "a HUGEINT has at most 38 digits"),
    (f"{HUGE_MAX}::UHUGEINT", f"{HUGE_MAX + 1}::UHUGEINT", "a UHUGEINT has at most 38 digits"),
    ("0::UHUGEINT", "md5_number('b')", "a UHUGEINT has at most 38 digits"),
    ("TIME '23:59:59'", "TIME '24:00:00'", "a TIME is below 24:00:00"),
    ("'23:59:59.999999999'::TIME_NS", "'24:00:00'::TIME_NS", "a TIME is below 24:00:00"),
)
TEXTS = (
    ("123456789012345678901234567890123456789012345::BIGNUM", "123456789012345678901234567890123456789012345"),
    ("'0101'::BIT", "0101"), ("'01:02:03+02'::TIMETZ", "01:02:03+02"), ("7::VARIANT", "7"),
)  # fmt: skip


@for_each("form", ("{}", *NESTED))
def test_a_value_beyond_its_limit_is_refused_by_its_column(form: str) -> None:
    connection = duckdb.connect()
    for fits, beyond, limit in LIMITS:
        relation = connection.sql(f"SELECT 1 AS x, {form.format(fits)} AS x")
        exact = with_exact_values(relation).to_arrow_reader(10).read_all()
        exact.validate(full=True)
        assert exact == relation.to_arrow_reader(10).read_all()
        with pytest.raises(duckdb.InvalidInputException, match=f"column x: {limit}.* x::VARCHAR"):
            with_exact_values(connection.sql(f"SELECT 1 AS x, {form.format(beyond)} AS x")).to_arrow_reader(
                10
            ).read_all()


@for_each("form", ("{}", *NESTED))
def test_types_that_arrow_lacks_are_text(form: str) -> None:
    connection = duckdb.connect()
    for value, text in TEXTS:
        if "MAP {{{}" in form and "VARIANT" in value:
            continue  # DuckDB has no such map
        found = with_exact_values(connection.sql(f"SELECT {form.format(value)} AS x, 1::HUGEINT AS y"))
        assert found.fetchall() == connection.sql(f"SELECT {form.format(f'{text!r}')}, 1").fetchall()
    mixed = with_exact_values(connection.sql("SELECT {'t': TIMETZ '24:00:00-01', 'at': TIME '24:00:00'} AS x"))
    with pytest.raises(duckdb.InvalidInputException, match="column x: a TIME is below"):
        mixed.fetchall()


def test_all_types_of_duckdb_are_exact() -> None:
    """A type of a later release of DuckDB shows here."""
    connection = duckdb.connect()
    for name in connection.sql("FROM test_all_types()").columns:
        values = with_exact_values(connection.sql(f'SELECT "{name}" FROM test_all_types()'))
        if name in ("hugeint", "uhugeint", "time", "time_ns"):
            with pytest.raises(duckdb.InvalidInputException, match=f"column {name}: a"):
                values.fetchall()
        else:
            values.to_arrow_reader(10).read_all().validate(full=True)


def test_other_columns_stay_unchanged() -> None:
    connection = duckdb.connect()
    relation = connection.sql("SELECT [1] AS a, {'b': 'c'} AS b, MAP {1: 2} AS c, union_value(n := 1) AS d, {} AS e")
    assert with_exact_values(relation) is relation
    state = connection.sql("SELECT sum(1) EXPORT_STATE")
    assert with_exact_values(state) is state
    nothing = connection.sql("SELECT NULL::INTERVAL[] AS a, {'b': NULL::INTERVAL} AS b, NULL::MAP(INT, INTERVAL) AS c")
    assert with_exact_values(nothing).fetchall() == [(None, {"b": None}, None)]
