"""Syntax errors from names that are keywords: the corrected text."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import duckdb
import pytest

from sparklog.query.keyword_errors import keyword_error


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as connection:
        yield connection


def hint(connection: duckdb.DuckDBPyConnection, query: str, names: Collection[str] = ()) -> str | None:
    def parses(text: str) -> bool:
        try:
            connection.extract_statements(text)
        except duckdb.Error:
            return False
        return True

    assert not parses(query)
    error = keyword_error(connection, query, parses, lambda: names)
    return None if error is None else str(error)


def test_a_column_that_is_a_keyword_gets_quotes(connection: duckdb.DuckDBPyConnection) -> None:
    text = hint(connection, "SELECT end FROM trips", ["End", "trips"])
    assert text is not None and text.endswith('Write:\nSELECT "End" FROM trips')


def test_the_offset_of_a_record_is_named(connection: duckdb.DuckDBPyConnection) -> None:
    text = hint(connection, "SELECT max(offset) FROM trips", ["trips"])
    assert text == "The offset of a record is the column _offset. Write:\nSELECT max(_offset) FROM trips"


def test_names_are_listed_only_for_a_text_with_a_keyword(connection: duckdb.DuckDBPyConnection) -> None:
    def names() -> Collection[str]:
        pytest.fail("a text without a keyword")

    assert keyword_error(connection, "trips ) minutes", lambda _: False, names) is None


def test_other_syntax_errors_have_no_hint(connection: duckdb.DuckDBPyConnection) -> None:
    assert hint(connection, "SELECT 1 FROM FROM trips", ["trips"]) is None


def test_an_aborted_transaction_does_not_hide_the_keywords(connection: duckdb.DuckDBPyConnection) -> None:
    connection.begin()
    with pytest.raises(duckdb.Error):
        connection.execute("SELECT error('no')")
    text = hint(connection, "SELECT end FROM trips", ["end", "trips"])
    assert text is not None and text.endswith('Write:\nSELECT "end" FROM trips')
