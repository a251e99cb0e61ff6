"""Names that are keywords, lists of tables, and scripts with commands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.cli.sql.script import parts_of
from sparklog.cli.sql.shell import command_of, is_complete
from sparklog.query.dialect import (
    in_this_dialect,
    is_description,
    is_table_list,
    quote_hint,
    table_list,
    with_extra,
    with_quotes,
    words_of,
)
from sparklog.query.names import quoted
from tests.support.cases import for_each

duckdb = pytest.importorskip("duckdb")
KEYWORDS = ("at", "case", "end", "from", "group", "offset", "order", "select", "table", "when", "where")
NAMES = frozenset({"at", "end", "order", "offset", "group", "Table"})


def parses(text: str) -> bool:
    try:
        return bool(duckdb.extract_statements(text))
    except duckdb.Error:
        return False


@pytest.mark.parametrize(
    ("query", "corrected"),
    [
        ("select at from t", 'select "at" from t'),
        ("SELECT offset, a FROM t WHERE end > 3", 'SELECT "offset", a FROM t WHERE "end" > 3'),
        ("from t where group = 'order' limit 3 offset 2", "from t where \"group\" = 'order' limit 3 offset 2"),
        ("select a from t group by order order by offset", 'select a from t group by "order" order by "offset"'),
        ("select case when end > 1 then 2 end from t", 'select case when "end" > 1 then 2 end from t'),
        ("select /* end */ end -- end\nfrom t", 'select /* end */ "end" -- end\nfrom t'),
        ("select table from table", 'select "Table" from "Table"'),
        ("select 1; select at from t", 'select 1; select "at" from t'),
    ],
)
def test_names_that_are_keywords_get_quotes_where_they_are_names(query: str, corrected: str) -> None:
    assert not parses(query)
    found = with_quotes(query, NAMES, parses)
    assert found is not None
    assert found[0] == corrected
    assert corrected in quote_hint(*found)


@for_each("query", ["selct 1", "select from", "select 'at", "select at at at at at at at at at from t"])
def test_other_mistakes_get_no_quotes(query: str) -> None:
    assert with_quotes(query, NAMES, parses) is None


@given(
    st.lists(st.sampled_from(KEYWORDS), min_size=1, max_size=4), st.sampled_from(["", " WHERE {} = 1", " ORDER BY {}"])
)
def test_a_statement_that_lacks_quotes_alone_is_corrected(columns: list[str], rest: str) -> None:
    names = frozenset(columns)
    query = f"SELECT {', '.join(columns)} FROM t{rest.format(columns[0])}"
    right = f"SELECT {', '.join(map(quoted, columns))} FROM t{rest.format(quoted(columns[0]))}"
    assert parses(right)
    found = with_quotes(query, names, parses)
    assert parses(query) or len(words_of(query) & names) > 6 or found is None or parses(found[0])
    if not parses(query) and len(columns) + bool(rest) <= 4 and not names & {"from", "where", "order", "select"}:
        assert found is not None


def test_lists_of_tables() -> None:
    for query in ("SHOW TABLES", " show all tables ;", "DESCRIBE;", "desc"):
        assert is_table_list(query)
    for query in ("SHOW t", "DESCRIBE t", "SHOW TABLES FROM main", "SELECT 1"):
        assert not is_table_list(query)
    connection = duckdb.connect()
    connection.execute("CREATE TABLE own(a INT); CREATE VIEW __sparklog_newest_0 AS SELECT 1")
    listed = connection.sql(table_list(["it's", "a"])).fetchall()
    assert listed == [("a",), ("it's",), ("own",)]
    assert connection.sql(table_list([])).fetchall() == [("own",)]
    assert in_this_dialect("show columns from trips;") == "DESCRIBE trips"
    assert in_this_dialect('SHOW FIELDS IN "a b"') == 'DESCRIBE "a b"'
    assert in_this_dialect("SELECT 1; SELECT 2") == "SELECT 1; SELECT 2"


def test_commands_among_statements() -> None:
    assert parts_of(".tables") == [".tables"]
    assert parts_of("exit") == [".quit"]
    assert parts_of("SELECT 1;\n.tables\nSELECT\n.5\n;\nquit;\n") == ["SELECT 1;", ".tables", "SELECT\n.5\n;", ".quit"]
    assert parts_of("SELECT 1") == ["SELECT 1"]
    assert parts_of("") == [""]
    assert command_of("EXIT ;") == ".quit"
    assert command_of("exits") == "exits"
    assert is_complete("exit") and is_complete("help") and not is_complete("select")


def test_descriptions_of_a_table() -> None:
    for query in ("DESCRIBE t", ' desc "a b" ;', "SHOW t", "describe table t", 'DESC latest."a b"', "DESCRIBE main.t"):
        assert is_description(query)
    for query in ("DESCRIBE", "DESCRIBE SELECT 1", "desc FROM t", "SELECT 1", "SHOW DATABASES", "SHOW a.b.c"):
        assert not is_description(query)
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t(a INT, b INT, c INT)")
    for query in ("DESCRIBE t;", "SHOW main.t"):
        rows = connection.sql(with_extra(query, {"a": "", "b": "it's"}, "other")).fetchall()
        assert [row[-1] for row in rows] == [None, "it's", "other"]
