"""Refused kinds of SQL statements, with a reason for each kind. Pure."""

from __future__ import annotations

import re
from typing import Any

from sparklog.errors import InvalidQueryError

ALLOWED = frozenset(
    {
        "SELECT", "MULTI", "EXPLAIN", "CREATE", "DROP", "ALTER", "INSERT", "UPDATE", "DELETE", "MERGE_INTO", "PREPARE",
        "EXECUTE", "TRANSACTION", "CALL", "VACUUM", "ANALYZE", "CREATE_FUNC", "LOGICAL_PLAN", "RELATION",
    }
)  # fmt: skip
"""Allowed kinds, with DuckDB's names; MULTI is PIVOT. All other kinds are refused, also those of later releases."""
_FILES = "statements cannot write files, and read files only with --allow-files: save a result with --output, or in the console with “Save as”"
_EXTENSIONS = "extensions cannot be installed, loaded or updated: use the functions and types of DuckDB itself"
_DATABASES = "topics are the only tables, and no other database can be attached; create views and tables in the session"
_SETTINGS = (
    "the settings of DuckDB are locked; times are UTC, and memory is limited by memory_limit_bytes (--memory-limit). "
    "SET VARIABLE is allowed"
)
REASONS = {
    "COPY": _FILES,
    "EXPORT": _FILES,
    "COPY_DATABASE": _DATABASES,
    "ATTACH": _DATABASES,
    "DETACH": _DATABASES,
    "LOAD": _EXTENSIONS,
    "EXTENSION": _EXTENSIONS,
    "SET": _SETTINGS,
    "VARIABLE_SET": _SETTINGS,
    "PRAGMA": "PRAGMA and IMPORT are not available; use SHOW TABLES, DESCRIBE name and SUMMARIZE name",
}
_VARIABLE = re.compile(r"\s*(re)?set\s+variable\b", re.IGNORECASE)
_FIRST_WORDS = re.compile(r"\s*([A-Za-z_]+(?:\s+[A-Za-z_]+)?)")
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


PREPARED = ("PREPARE", "EXECUTE")
_PREPARED = "with allowed files statements are not prepared: a prepared COPY would write files"


def check_kind(kind: str, query: str, *, allows_files: bool = False) -> None:
    """Raise InvalidQueryError for a statement that is not allowed. `kind`: DuckDB's name of the statement's kind; "" if
    DuckDB has no name for it. `allows_files`: True if the session is allowed to read files; then PREPARE and EXECUTE
    are refused."""
    if allows_files and kind in PREPARED:
        raise InvalidQueryError(f"{kind}: {_PREPARED}")
    text = _COMMENT.sub(" ", query)
    if kind in ALLOWED or (kind in ("SET", "VARIABLE_SET") and _VARIABLE.match(text)):
        return
    words = _FIRST_WORDS.match(text)
    named = words[1].upper() if words else kind or "this statement"
    reason = _EXTENSIONS if "EXTENSION" in named else REASONS.get(kind, "this kind of statement is not supported")
    raise InvalidQueryError(f"{named}: {reason}")


def kind_of(statement: Any) -> str:
    """Return DuckDB's name of a statement's kind; "" if its Python API lacks the kind, as for UPDATE EXTENSIONS."""
    try:
        kind: str = statement.type.name
    except ValueError:
        return ""
    return kind
