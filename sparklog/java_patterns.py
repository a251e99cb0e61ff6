r"""Regular expressions of `java.util.regex`, run by Python's `regex` package.

In its version 1 behaviour `regex` has nearly all of Java's language. Quotations, named back references and the classes
of POSIX are written differently there, and are translated. Other constructs that `regex` lacks or reads differently are
refused, and the error names the construct. Java's grammar: `java.util.regex.Pattern`, Java 17.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

from sparklog.errors import InvalidConfigError

T = TypeVar("T")

MATCH_TIMEOUT_S = 5.0
"""Time limit of a match in s. A pattern that takes longer for one text, as nested quantifiers can, is refused."""
PATTERN_CHARS_MAX = 10_000
NESTING_MAX = 100
"""Largest depth of character classes inside one another."""
_TOKEN = re.compile(
    r"""\\Q(?P<quoted>.*?)(?:\\E|\Z)
    | (?P<escape>\\(?:[pP](?:\{[^}]*\}|.) | x[0-9a-fA-F]{2} | u[0-9a-fA-F]{4} | k<[^>]*> | [1-9][0-9]* | .|\Z))
    | (?P<group>\(\?(?:<?[=!] | [:>] | <[a-zA-Z][a-zA-Z0-9]*> | [a-zA-Z-]+[:)] | .|\Z))
    | (?P<repetition>\{(?:[0-9]+(?:,[0-9]*)?\})?)
    | (?P<operator>&&|--|~~|\|\||\[:)
    | (?P<open>\[\^?\]?)
    | (?P<close>\])
    | (?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_SAME_ESCAPE = re.compile(r"\\(?:[dDwWsStnrfa]|x..|u....|[^a-zA-Z0-9])", re.DOTALL)
_SAME_OUTSIDE = re.compile(r"\\[bBA1-9]")
_SAME_PROPERTY = re.compile(r"\\[pP](?:[CLMNPSZ]|\{[CLMNPSZ][a-z]?\}|\{Is[A-Za-z_]+\})")
_SAME_GROUP = re.compile(r"\(\?(?:<?[=!]|[:>]|<[a-zA-Z][a-zA-Z0-9]*>|[ims]*-?[ims]+[:)])")
_POSIX = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-\~",
    "Graph": r"!-\~",
    "Print": r"\ -\~",
    "Blank": r"\ \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r"\ \t-\r",
}
_ENDS = {r"\z": r"\Z", r"\Z": r"(?=\n?\Z)"}


@lru_cache(maxsize=100)
def compile_java(pattern: str, setting: str) -> Any:
    """Return a pattern of the package `regex` that matches as Java's `pattern` does. `setting`: name of the setting
    that has it, for errors. Raises InvalidConfigError: The pattern is too long, wrong, or uses a construct that is not
    supported."""
    import regex

    if len(pattern) > PATTERN_CHARS_MAX:
        raise InvalidConfigError(f"{setting} has {len(pattern)} characters: at most {PATTERN_CHARS_MAX}")
    try:
        return regex.compile("".join(_translated(pattern)), regex.VERSION1 | regex.ASCII)
    except (ValueError, regex.error, RecursionError, OverflowError) as e:
        raise InvalidConfigError(f"{setting} = {pattern!r} is not valid: {e}") from None


def matches_in_time(match: Callable[..., T], text: str, setting: str, timeout_s: float = MATCH_TIMEOUT_S) -> T:
    """Return the result of `match`, a method of a compiled pattern, for `text`. Raises InvalidConfigError for a pattern
    that takes too long or too much memory."""
    try:
        return match(text, timeout=timeout_s)
    except (TimeoutError, MemoryError, RecursionError):
        raise InvalidConfigError(
            f"{setting} takes more than {timeout_s:g} s for {text!r}: quantifiers inside one another have too many "
            "ways to match"
        ) from None


def _translated(pattern: str) -> Iterator[str]:
    """Yield the parts of the translated pattern. Raises ValueError that names the wrong construct."""
    depth = 0
    group_names = set()
    begins_class = False
    for token in _TOKEN.finditer(pattern):
        kind, text = token.lastgroup, token[0]
        if kind == "quoted":
            text = "".join(map(_literal, token["quoted"]))
        elif kind == "escape":
            text = _escape(text, in_class=depth > 0)
        elif kind == "open":
            depth += 1
            if depth > NESTING_MAX:
                raise ValueError(f"more than {NESTING_MAX} character classes inside one another")
            text = text.replace("]", r"\]")
        elif depth and kind == "close":
            depth -= 1
        elif depth and kind == "operator":
            if text != "&&":
                raise _unsupported(f"{text} in a character class")
            if begins_class or pattern.startswith(("]", "&&"), token.end()):
                raise _unsupported("&& at the edge of a character class")
        elif not depth and kind == "group":
            if not _SAME_GROUP.fullmatch(text):
                raise _unsupported(f"{text} at index {token.start()}")
            if text.startswith("(?<") and text.endswith(">"):
                if text in group_names:
                    raise ValueError(f"two groups are named {text[3:-1]!r}")
                group_names.add(text)
        elif not depth and text == "{":
            raise ValueError(f"illegal repetition at index {token.start()}; a literal brace is \\{{")
        yield text
        begins_class = kind == "open"
    if depth:
        raise ValueError("a character class has no closing ']'")


def _escape(text: str, *, in_class: bool) -> str:
    if _SAME_ESCAPE.fullmatch(text) or _SAME_PROPERTY.fullmatch(text):
        return text
    posix = _POSIX.get(text[3:-1]) if text[:2] in (r"\p", r"\P") else None
    if posix is not None:
        return f"[{'^' if text[1] == 'P' else ''}{posix}]"
    if not in_class and _SAME_OUTSIDE.fullmatch(text):
        return f"(?:{text})"  # so that a digit after it does not become part of a group's number
    if not in_class and text.startswith(r"\k<"):
        return f"(?P={text[3:-1]})"
    if not in_class and text in _ENDS:
        return _ENDS[text]
    raise _unsupported(text)


def _literal(char: str) -> str:
    """Return `char` escaped, so that it stands for itself, inside a character class and outside."""
    return f"\\x{ord(char):02x}" if char.isascii() and not char.isalnum() else char


def _unsupported(construct: str) -> ValueError:
    return ValueError(f"{construct} is not supported: write the characters, or a class of them")
