"""Completions of SQL and of the prompt's commands. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sparklog.query.names import topics_named, written

OFFERED_MAX = 200
COMMANDS = (".exit", ".format", ".help", ".quit", ".schema", ".tables")
_CLOSED = re.compile(r"\"(?:[^\"]|\"\")*\"|'(?:[^']|'')*'")
_WORD = re.compile(r"[\w.]*$")
_TABLE_COMES = re.compile(r"\b(?:from|join|describe|summarize|into|update|table)\s+$", re.IGNORECASE)


def complete(
    before: str, topics: Sequence[str], columns_of: Callable[[str], Sequence[str]], words: Sequence[str]
) -> tuple[int, list[str]]:
    """Return the completions of the word that ends at the cursor; `before` is the text in front of the cursor.

    In a command, which begins with a dot or a backslash, these are commands, and topics after the first blank. In SQL
    these are topics after FROM and similar words. Elsewhere in SQL these are columns of the topics that `before` names,
    all topics, and `words` (SQL keywords and functions); none if the word is empty.

    The result: the number of characters before the cursor to replace, and their possible replacements."""
    if before.startswith((".", "\\")):
        command, blank, typed = before.partition(" ")
        if blank:
            return len(typed), _matching_names([written(t) for t in topics], typed)
        return len(command), _matching_names(COMMANDS, command)
    typed = _typed_word(before)
    head = before[: len(before) - len(typed)]
    if _TABLE_COMES.search(head):
        return len(typed), _matching_names([written(t) for t in topics], typed)
    if not typed:
        return 0, []
    typed = typed.rpartition(".")[2] if not typed.startswith('"') else typed
    columns = dict.fromkeys(c for topic in topics_named(before, topics) for c in columns_of(topic))
    names = [
        *_matching_names([written(c) for c in columns], typed),
        *_matching_names([written(t) for t in topics], typed),
    ]
    keywords = _matching_names(words, typed)
    if typed.islower():
        keywords = [k.lower() for k in keywords]
    return len(typed), list(dict.fromkeys([*names, *keywords]))[:OFFERED_MAX]


def _typed_word(before: str) -> str:
    """Return the unfinished word at the end of `before`, with its opening double quote; "" inside a string."""
    text = _CLOSED.sub(lambda closed: " " * len(closed[0]), before)
    if "'" in text:
        return ""
    if '"' in text:
        return before[text.index('"') :]
    word = _WORD.search(text)
    return word[0] if word else ""


def _matching_names(names: Sequence[str], typed: str) -> list[str]:
    """Return the names that begin with `typed`, sorted. Case and an opening double quote do not matter."""
    start = typed.lstrip('"').lower()
    return sorted(n for n in names if n.lstrip('"').lower().startswith(start))[:OFFERED_MAX]
