"""Shell completions: topics, groups, transactional ids, and settings with their values.

The shell's completion script (`sparklog --install-completion`) calls these functions through Typer. If no broker
answers, they return no completion, because the shell would print an error message into the typed line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING

import typer

from sparklog.cli.client_command import client_security, default_address
from sparklog.settings import Scope, Setting, settings_of

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin

BROKER_TIMEOUT_MS = 1_000
OFFERED_MAX = 1_000
"""Largest number of completions. A shell asks the user before it prints a list this long."""
MARK = "_SPARKLOG_COMPLETE"

_typed_before = ""
"""The typed part of the word that bash does not complete: `flush.mode=` if the word is `flush.mode=gr`."""

Offers = list[tuple[str, str]]


def topics(ctx: typer.Context, incomplete: str) -> Offers:
    """Return the names of topics; internal topics only if the typed text begins with an underscore."""
    names = _ask(ctx, lambda admin: admin.list_topics(include_internal=incomplete.startswith("_")))
    return _offers(names, incomplete)


def groups(ctx: typer.Context, incomplete: str) -> Offers:
    """Return the names of consumer groups."""
    return _offers(_ask(ctx, lambda admin: [group.group_id for group in admin.list_groups()]), incomplete)


def transactional_ids(ctx: typer.Context, incomplete: str) -> Offers:
    """Return the transactional ids of producers and of applications."""
    ids = _ask(ctx, lambda admin: [transaction.transactional_id for transaction in admin.list_transactions()])
    return _offers(ids, incomplete)


def setting_names(scope: Scope) -> Callable[[str], Offers]:
    """Return a completion function for the names of settings."""

    def complete(incomplete: str) -> Offers:
        return [(s.name, _first_sentence(s)) for s in settings_of(scope).values() if s.name.startswith(incomplete)]

    return complete


def settings(scope: Scope) -> Callable[[str], Offers]:
    """Return a completion function for NAME=VALUE: it offers names, and values when a single name matches."""

    def complete(incomplete: str) -> Offers:
        offers = complete_setting(scope, _typed_before + incomplete)
        return [(text.removeprefix(_typed_before), meaning) for text, meaning in offers]

    return complete


def complete_setting(scope: Scope, typed: str) -> Offers:
    """Return the completions of `typed`, the beginning of NAME=VALUE.

    If a single name matches, each completion includes a value; else the shell would add a space after the `=`.
    """
    name, equals, value = typed.partition("=")
    candidates = settings_of(scope).values()
    if not equals:
        matching = [s for s in candidates if s.name.startswith(name)]
        if len(matching) != 1:
            return [(f"{s.name}=", _first_sentence(s)) for s in matching]
    else:
        matching = [s for s in candidates if s.name == name]
    return [(f"{s.name}={v}", _first_sentence(s)) for s in matching for v in _values(s) if v.startswith(value)]


def _first_sentence(setting: Setting) -> str:
    """Return the first sentence of a setting's description, because shells print one line per completion."""
    return setting.doc.split(". ")[0].rstrip(".")


def _values(setting: Setting) -> list[str]:
    """Return the values to offer: the choices, or the default and a negative minimum, which has a special meaning."""
    if isinstance(setting.default, bool):
        return ["true", "false"]
    if setting.choices:
        return [choice for choice in setting.choices if choice]
    values = [str(setting.default)]
    if setting.minimum is not None and setting.minimum < 0 and str(setting.minimum) not in values:
        values.append(str(setting.minimum))
    return values


def _ask(ctx: typer.Context, question: Callable[[Admin], list[str]]) -> list[str]:
    """Return the result of `question`; an empty list if the broker does not answer or refuses."""
    from sparklog.client.admin.admin import Admin
    from sparklog.errors import SparklogError

    try:
        with Admin(
            default_address(ctx),
            request_timeout_ms=BROKER_TIMEOUT_MS,
            security=client_security(),
            wait_for_broker=False,
        ) as admin:
            return question(admin)
    except SparklogError:
        return []


def _offers(names: list[str], incomplete: str) -> Offers:
    return [(name, "") for name in sorted(names) if name.startswith(incomplete)][:OFFERED_MAX]


def join_bash_words(environment: MutableMapping[str, str]) -> None:
    """Join the words that bash has split at `=` and `:`, such as `host:9292`, in the variables that Typer reads.

    The piece under the cursor is not joined, because bash replaces only this piece by a completion.
    """
    global _typed_before
    if environment.get(MARK) != "complete_bash" or "COMP_WORDS" not in environment:
        return
    pieces = environment["COMP_WORDS"].split("\n")
    words, _typed_before, incomplete = joined_words(pieces, int(environment["COMP_CWORD"]))
    environment["COMP_WORDS"] = "\n".join([*words, incomplete])
    environment["COMP_CWORD"] = str(len(words))


def joined_words(pieces: list[str], current: int) -> tuple[list[str], str, str]:
    """Join bash's pieces to words. Returns the words before the current word, the current word up to its last `=` or
    `:`, and the rest of the word."""
    *words, word = _join(pieces[: current + 1]) or [""]
    option, equals, rest = word.partition("=")
    if equals and option.startswith("--"):
        words, word = [*words, option], rest
    piece = re.split("[=:]", word)[-1]
    return words, word.removesuffix(piece), piece


def _join(pieces: list[str]) -> list[str]:
    def whole() -> Iterator[str]:
        word, glued = "", True
        for piece in pieces:
            separator = re.fullmatch("[=:]+", piece) is not None
            if not (separator or (glued and piece)):
                yield word
                word = ""
            word, glued = word + piece, separator
        yield word

    return list(whole())
