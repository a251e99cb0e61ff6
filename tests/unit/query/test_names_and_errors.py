"""Topics in SQL text, and errors of wrong statements."""

from __future__ import annotations

import pytest

from sparklog.errors import InvalidQueryError, UnknownTopicOrPartitionError
from sparklog.query.explain import Advice, explained
from sparklog.query.names import topics_named, written

TOPICS = ["trips", "my-topic", "Rides", "a.b"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM trips", ["trips"]),
        ('FROM "my-topic" JOIN TRIPS USING (x)', ["my-topic", "trips"]),
        ("FROM rides", ["Rides"]),
        ('FROM "a.b"', ["a.b"]),
        ("FROM my-topic", []),
        ("SELECT trips.x", ["trips"]),
        ("SELECT 1", []),
    ],
)
def test_topics_named(query: str, expected: list[str]) -> None:
    assert topics_named(query, TOPICS) == expected


def test_topics_that_case_tells_apart() -> None:
    both = ["Trips", "trips"]
    assert topics_named("FROM trips", both) == ["trips"]
    assert topics_named('FROM "Trips"', both) == ["Trips"]
    assert topics_named("FROM TRIPS", both) == []
    with pytest.raises(InvalidQueryError, match="'Trips' and 'trips' cannot be in one statement"):
        topics_named('FROM "Trips", trips', both)


@pytest.mark.parametrize(("name", "expected"), [("trips", "trips"), ("my-topic", '"my-topic"'), ("1st", '"1st"')])
def test_written(name: str, expected: str) -> None:
    assert written(name) == expected


UNKNOWN = 'Catalog Error: Table with name tripz does not exist!\nDid you mean "pg_tables"?\n\nLINE 1: FROM tripz'


def test_an_unknown_table_gets_the_nearest_topics() -> None:
    error = explained("CatalogException", UNKNOWN, "FROM tripz", TOPICS, {})
    assert isinstance(error, UnknownTopicOrPartitionError)
    assert str(error).splitlines() == [
        "Catalog Error: Table with name tripz does not exist!",
        "",
        "LINE 1: FROM tripz",
        "Did you mean trips?",
    ]
    far = explained("CatalogException", UNKNOWN.replace("tripz", "zzz"), "FROM zzz", TOPICS, {})
    assert str(far).endswith('Topics: Rides, "a.b", "my-topic", trips')
    many = explained(
        "CatalogException", UNKNOWN.replace("tripz", "zzz"), "FROM zzz", [f"q{i:02}" for i in range(50)], {}
    )
    assert str(many).endswith("q19 and 30 more")
    assert str(explained("CatalogException", UNKNOWN, "FROM tripz", [], {})).endswith("There are no topics.")
    other = explained("CatalogException", UNKNOWN.replace("tripz", "trips"), "FROM latest.trips", TOPICS, {})
    assert "Did you mean" not in str(other)
    assert "of topics with key columns and of envelope topics only" in str(other)


def test_names_that_need_quotes_are_named() -> None:
    error = explained("ParserException", "Parser Error: near -", "FROM my-topic", TOPICS, {})
    assert str(error).endswith('\nA name that is no identifier stands in double quotes: "my-topic"')
    assert "double" not in str(explained("ParserException", "Parser Error", 'FRM "my-topic"', TOPICS, {}))


def test_a_wrong_column_gets_the_columns() -> None:
    error = explained("BinderException", "Binder Error: no x", "SELECT x FROM trips", TOPICS, {"trips": ["a", "b"]})
    assert isinstance(error, InvalidQueryError)
    assert str(error) == "Binder Error: no x\ncolumns of trips: a, b"


def test_too_little_memory_names_the_limit() -> None:
    error = explained("OutOfMemoryException", "Out of Memory Error: 1\nset temp_directory", "SELECT 1", TOPICS, {})
    assert "memory_limit_bytes" in str(error)
    assert "temp_directory" not in str(error)


def test_words_for_times_name_their_function() -> None:
    def hint(text: str) -> str:
        message = f'Conversion Error: invalid timestamp field format: "{text}", expected format is (YYYY-MM-DD)'
        query = f"SELECT * FROM trips WHERE _timestamp >= '{text}'"
        return str(explained("ConversionException", message, query, TOPICS, {}))

    assert all(f"moment('{text}')" in hint(text) for text in ("-1h", "yesterday", "today 10:30", "1h ago"))
    assert all("moment" not in hint(text) for text in ("soon", "2026-13-45"))


def test_messages_name_the_options_of_the_program() -> None:
    advice = Advice("no files here", "less memory, please")

    def message(kind: str, text: str, *advice: Advice) -> str:
        return str(explained(kind, text, "FROM 'x'", TOPICS, {}, *advice))

    denied, full = 'Permission Error: Cannot access file "/etc/passwd"', "Out of Memory Error: failed\nmore"
    assert "--allow-files" in message("PermissionException", denied)
    assert message("PermissionException", denied, advice) == f"{denied}\nno files here"
    assert "--memory-limit" in message("OutOfMemoryException", full)
    assert message("OutOfMemoryException", full, advice) == "Out of Memory Error: failed: less memory, please"


def test_a_statement_that_changes_a_topic_is_refused_in_words_of_topics() -> None:
    columns = {"cs": ["id"]}
    for kind, message in (
        ("CatalogException", "Catalog Error: cs is not an table"),
        ("BinderException", "Binder Error: Can only delete from base table"),
        ("BinderException", "Binder Error: Can only merge into base tables!"),
        ("CatalogException", "Catalog Error: Can only modify view with ALTER VIEW statement"),
        ("CatalogException", 'Catalog Error: Existing object "cs" is of type View, trying to drop type Table'),
    ):
        assert str(explained(kind, message, "INSERT INTO cs VALUES (1)", TOPICS, columns)) == (
            "cs is a topic, which SQL only reads: write with `sparklog produce` or a Producer; CREATE TABLE copy AS FROM "
            "cs makes a table of the session"
        )
    view = explained("CatalogException", "Catalog Error: mine is not an table", "INSERT INTO mine", TOPICS, {})
    assert str(view).startswith("mine is a view; CREATE TABLE copy AS FROM mine ")
