"""Syntax errors whose cause is a name that is a keyword of SQL, with the corrected text."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from sparklog.errors import InvalidQueryError
from sparklog.query.dialect import quote_hint, with_quotes, words_of
from sparklog.query.names import quoted
from sparklog.query.ranges import OFFSET

if TYPE_CHECKING:
    import duckdb


def keyword_error(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    parses: Callable[[str], bool],
    names: Callable[[], Collection[str]],
) -> InvalidQueryError | None:
    """Return the error to raise for text with a syntax error, if double quotes around keywords correct the text; else
    None. `parses`: returns True for text without a syntax error. `names`: returns the topics in the text and their
    columns; it is called only if the text has a keyword."""
    words = words_of(query) & _reserved_words(connection)
    if not words:
        return None
    corrected = with_quotes(query, [name for name in names() if name.lower() in words], parses)
    if corrected is not None:
        return InvalidQueryError(quote_hint(*corrected))
    corrected = with_quotes(query, ["offset"], parses)
    if corrected is not None:  # no topic of the statement has a column `offset`
        return InvalidQueryError(
            f"The offset of a record is the column {OFFSET}. Write:\n"
            f"{corrected[0].replace(quoted('offset'), OFFSET).strip()}"
        )
    return None


def _reserved_words(connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
    with connection.cursor() as cursor:  # outside of the session's transaction, which can be aborted
        keywords = cursor.execute(
            "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved' "
            "UNION SELECT unnest(['at', 'offset', 'window'])"
        )
        return frozenset(name for (name,) in keywords.fetchall())
