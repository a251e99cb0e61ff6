"""Statements of other SQL dialects that list tables and columns, and names that are SQL keywords. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import combinations

from sparklog.client.net.topic_info import TopicInfo
from sparklog.format.key_format import SCHEMA_FORMATS
from sparklog.kafka.values.schemas import key_subject, value_subject
from sparklog.query.names import literal, quoted
from sparklog.query.ranges import OFFSET, PARTITION, TIMESTAMP

KEYWORDS_MAX = 6
"""Largest number of keywords that are tried with quotes, in all combinations. With more of them there is no hint."""
_TABLE_LIST = re.compile(r"\s*(?:show\s+(?:all\s+)?tables|describe|desc)\s*;?\s*", re.IGNORECASE)
_COLUMN_LIST = re.compile(r"\s*show\s+(?:columns|fields)\s+(?:from|in)\s+(?P<table>[^;]+?)\s*;?\s*", re.IGNORECASE)
_LISTING = re.compile(
    r"(?:show\s+(?:all\s+)?tables|(?:describe|desc)(?:\s+(?P<name>[^\W\d]\w*|\"[^\"]+\"))?"
    r"|show\s+(?:columns|fields)\s+(?:from|in)\s+(?:[^\W\d]\w*|\"[^\"]+\"))",
    re.IGNORECASE,
)
_NAME = r"(?:[^\W\d]\w*|\"(?:[^\"]|\"\")+\")"
_DESCRIBE = re.compile(
    rf"\s*(?:(?:describe|desc)(?:\s+table)?|show)\s+(?P<table>(?:{_NAME}\.)?{_NAME})\s*;?\s*", re.IGNORECASE
)
_SHOWN = ("tables", "databases", "schemas", "variables")
"""Lists that SHOW has, beside the columns of a table."""
_BEGINS_A_QUERY = ("select", "with", "from", "values", "table")
_TOKEN = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|\$\$.*?\$\$|(?P<word>[^\W\d]\w*)", re.DOTALL
)


def is_table_list(query: str) -> bool:
    """Return True if a statement lists the tables."""
    return _TABLE_LIST.fullmatch(query) is not None


def is_listing(line: str) -> bool:
    """Return True if a line is a statement that lists tables or a table's columns, and lacks the semicolon."""
    match = _LISTING.fullmatch(line.strip())
    return match is not None and (match["name"] or "").lower() not in _BEGINS_A_QUERY


def table_list(topics: Iterable[str]) -> str:
    """Return an SQL statement that lists the topics, and the tables and views of the session."""
    listed = ", ".join(literal(topic) for topic in topics)
    own = "SELECT table_name FROM duckdb_tables() UNION SELECT view_name FROM duckdb_views() WHERE NOT internal"
    return (
        f"SELECT name FROM (SELECT unnest([{listed}]::VARCHAR[]) AS name UNION {own}) "
        "WHERE name NOT LIKE '\\_\\_%' ESCAPE '\\' ORDER BY name"
    )


def in_this_dialect(query: str) -> str:
    """Return DESCRIBE for a statement such as SHOW COLUMNS FROM, which DuckDB lacks; any other text unchanged."""
    match = _COLUMN_LIST.fullmatch(query)
    return query if match is None else f"DESCRIBE {match['table']}"


def is_description(query: str) -> bool:
    """Return True if a statement is DESCRIBE or SHOW with the name of a table."""
    match = _DESCRIBE.fullmatch(query)
    return match is not None and match["table"].lower() not in (*_BEGINS_A_QUERY, *_SHOWN)


def with_extra(query: str, extras: Mapping[str, str], other: str) -> str:
    """Return a description that has a text in its column `extra`: that of `extras` for the columns in it, and `other`
    for the others; "": no text."""
    match = _DESCRIBE.fullmatch(query)
    assert match is not None
    cases = "".join(f" WHEN {literal(name)} THEN nullif({literal(text)}, '')" for name, text in extras.items())
    extra = f"CASE column_name{cases} ELSE nullif({literal(other)}, '') END"
    return f"SELECT * REPLACE ({extra} AS extra) FROM (DESCRIBE {match['table']})"


def with_subjects(query: str, topic: TopicInfo) -> str:
    """Return a description with the subjects of the topic's schemas in its column `extra`: key columns have that of the
    values and that of the keys."""
    value = value_subject(topic.name) if topic.value_format in SCHEMA_FORMATS else ""
    key = key_subject(topic.name) if topic.key_format in SCHEMA_FORMATS else ""
    if not value and not key:
        return query
    of_values, of_keys = (f"subject {', '.join(filter(None, names))}" for names in ([value], [value, key]))
    extras = dict.fromkeys((PARTITION, OFFSET, TIMESTAMP), "") | dict.fromkeys(
        topic.key_columns if key else (), of_keys
    )
    return with_extra(query, extras, of_values if value else "")


def words_of(query: str) -> frozenset[str]:
    """Return the words of SQL text in lower case, without those in strings, quoted names and comments."""
    return frozenset(match["word"].lower() for match in _TOKEN.finditer(query) if match["word"])


def with_quotes(query: str, names: Collection[str], parses: Callable[[str], bool]) -> tuple[str, list[str]] | None:
    """Try to correct a syntax error by double quotes around names that are keywords. `names`: names of columns and
    topics that are keywords. `parses`: returns True for text without a syntax error. Returns the corrected text and the
    quoted names; None if quotes do not correct it."""
    by_lower = {name.lower(): name for name in names}
    places = [match for match in _TOKEN.finditer(query) if match["word"] and match["word"].lower() in by_lower]
    if len(places) > KEYWORDS_MAX:
        return None
    for count in range(1, len(places) + 1):
        for chosen in combinations(places, count):
            text, at = "", 0
            for place in chosen:
                text += query[at : place.start()] + quoted(by_lower[place[0].lower()])
                at = place.end()
            text += query[at:]
            if parses(text):
                return text, sorted({by_lower[place[0].lower()] for place in chosen})
    return None


def quote_hint(text: str, names: Collection[str]) -> str:
    """Return the error text for a statement that `with_quotes` has corrected."""
    listed = ", ".join(quoted(name) for name in names)
    needs = (
        "is a keyword of SQL: as a name it stands" if len(names) == 1 else "are keywords of SQL: as names they stand"
    )
    return f"{listed} {needs} in double quotes. Write:\n{text.strip()}"
