"""Errors of wrong statements: DuckDB's message, with the existing topics and columns. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sparklog.errors import InvalidQueryError, InvalidRequestError, SparklogError, UnknownTopicOrPartitionError
from sparklog.query.names import needs_quotes, written
from sparklog.times import parse_time_ms

NEAR_MAX = 3
SHOWN_MAX = 20
_UNKNOWN_TABLE = re.compile(r"Table with name (?P<name>.+) does not exist!")
_NO_WRITE = re.compile(
    r"(?P<name>\S+) is not an table|base tables?\b|Can only modify view|is of type View, trying to (?:drop|replace)"
)
_OWN_FUNCTION = re.compile(r"executing the UDF: InvalidRequestError: (?P<message>.+)", re.DOTALL)
_WRONG_TIME = re.compile(r'invalid timestamp field format: "(?P<text>[^"\']+)"')
_GUESS = re.compile(r"\nDid you mean [^\n]*\?")


class Advice(NamedTuple):
    """The parts of messages that name options of the program that runs the statements."""

    files: str
    """The next step after a statement that reads a file."""
    memory: str
    """The limit that a statement has exceeded, and its option."""


ADVICE = Advice(
    files="Statements read only the files below a directory of --allow-files, as in `sparklog sql --allow-files . "
    "\"FROM 'zones.csv'\"` (allow_files=['.'] in Python)",
    memory="the query needs more than memory_limit_bytes (--memory-limit)",
)
"""The options of `sparklog sql` and of Python."""


def explained(
    kind: str,
    message: str,
    query: str,
    topics: Iterable[str],
    columns: Mapping[str, Sequence[str]],
    advice: Advice = ADVICE,
) -> SparklogError:
    """Return the error to raise for an exception of DuckDB. `columns`: column names of each topic in the statement."""
    refused = _OWN_FUNCTION.search(message)
    if refused is not None:
        return InvalidQueryError(refused["message"].strip())
    unknown = _UNKNOWN_TABLE.search(message)
    if unknown is not None:
        text = _GUESS.sub("", message)
        return UnknownTopicOrPartitionError(
            f"{text.strip()}\n{_nearest(unknown['name'], topics)}{_quote(query, topics)}"
        )
    written_to = _NO_WRITE.search(message)
    if written_to is not None:
        return InvalidQueryError(_read_only(written_to["name"], columns))
    if kind == "BinderException" and columns:
        listed = "\n".join(f"columns of {topic}: {_list_text(names)}" for topic, names in columns.items())
        return InvalidQueryError(f"{message.strip()}\n{listed}")
    if kind == "PermissionException" and "file" in message:
        return InvalidQueryError(f"{message.strip()}\n{advice.files}")
    if kind == "OutOfMemoryException":
        first = message.strip().splitlines()[0]
        return InvalidQueryError(f"{first}: {advice.memory}")
    return InvalidQueryError(f"{message.strip()}{_moment(message)}{_quote(query, topics)}")


def _read_only(name: str | None, columns: Mapping[str, Sequence[str]]) -> str:
    """Return the error for a statement that changes a topic or a view, as if it were a table."""
    topic = next((t for t in columns if name is None or written(t) == name or t == name), None)
    shown = written(topic) if topic is not None else name or "a view"
    kind = (
        "a topic, which SQL only reads: write with `sparklog produce` or a Producer" if topic is not None else "a view"
    )
    return f"{shown} is {kind}; CREATE TABLE copy AS FROM {'…' if shown == 'a view' else shown} makes a table of the session"


def _moment(message: str) -> str:
    """Return a hint on the function `moment` if the message is about a time that only `moment` can parse; else ""."""
    match = _WRONG_TIME.search(message)
    if match is None:
        return ""
    try:
        parse_time_ms(match["text"], 0)
    except InvalidRequestError:
        return ""
    return f"\nFor words such as yesterday use the function moment: moment('{match['text']}')"


def _nearest(name: str, topics: Iterable[str]) -> str:
    names = sorted(topics)
    by_lower = {topic.lower(): topic for topic in names}
    if same := by_lower.get(name.lower()):  # the statement names another SQL schema, such as `latest`
        return (
            f"Topic {same!r} is the table {written(same)}; the schema latest has the newest row of each key, of topics "
            "with key columns and of envelope topics only"
        )
    near = difflib.get_close_matches(name.lower(), by_lower, n=NEAR_MAX, cutoff=0.6)
    if near:
        return f"Did you mean {' or '.join(written(by_lower[n]) for n in near)}?"
    return f"Topics: {_list_text([written(t) for t in names])}" if names else "There are no topics."


def _quote(query: str, topics: Iterable[str]) -> str:
    """Return a hint on the topics that need double quotes and have none in the statement; "" without such topics."""
    bare = [t for t in topics if needs_quotes(t) and re.search(rf'(?<![\w."-]){re.escape(t)}(?![\w"-])', query)]
    if not bare:
        return ""
    return f"\nA name that is no identifier stands in double quotes: {', '.join(written(t) for t in sorted(bare)[:NEAR_MAX])}"


def _list_text(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_MAX
    return ", ".join(names[:SHOWN_MAX]) + (f" and {more:,} more" if more > 0 else "")
