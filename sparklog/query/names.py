"""Names of topics in SQL text. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from sparklog.errors import InvalidQueryError

_NAME = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<bare>\w+)')
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE | re.ASCII)


def topics_named(query: str, topics: Collection[str]) -> list[str]:
    """Return the topics whose names occur in a statement as words or in double quotes, even where a column is meant.

    SQL names are the same in any case: "TRIPS" is the topic "trips" if no other topic differs only by case. Raises
    InvalidQueryError if the statement has two topics that differ only by case.
    """
    by_lower: dict[str, list[str]] = {}
    for topic in topics:
        by_lower.setdefault(topic.lower(), []).append(topic)
    named: dict[str, str] = {}
    for word in sorted({m["bare"] or m["quoted"].replace('""', '"') for m in _NAME.finditer(query)}):
        same = by_lower.get(word.lower(), [])
        if word not in same and len(same) != 1:
            continue
        topic = word if word in same else same[0]
        if named.setdefault(word.lower(), topic) != topic:
            raise InvalidQueryError(
                f"the topics {named[word.lower()]!r} and {topic!r} cannot be in one statement: SQL names are the same "
                "in any case"
            )
    return sorted(named.values())


def literal(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def needs_quotes(name: str) -> bool:
    """True if a name needs double quotes in SQL because of its characters. Keywords are not checked."""
    return _PLAIN_NAME.fullmatch(name) is None


def quoted(name: str) -> str:
    """Return a name as an SQL identifier in double quotes."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def written(name: str) -> str:
    """Return a name as an SQL identifier, in double quotes only if its characters need them."""
    return quoted(name) if needs_quotes(name) else name
