"""Regular expressions of `java.util.regex`, as `subscribePattern` takes them, on Python's `regex` package.

`regex` has nearly all of Java's language in its version 1 behaviour. Differences are translated: quoting, escapes,
classes of POSIX and `java…` properties, character classes (where `regex` knows operators that Java does not), named
back references. Java's grammar: the documentation of `java.util.regex.Pattern`, Java 17. Patterns that Java refuses are
refused, and so are patterns that cannot be translated; the error names the part.

Topic names are ASCII, so classes of ASCII and of Unicode characters are the same for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from sparklog.errors import InvalidConfigError

MATCH_TIMEOUT_S = 5.0
"""A pattern that takes longer for one name (nested quantifiers) is refused."""
PATTERN_CHARS_MAX = 10_000
NESTING_MAX = 100
"""Character classes inside one another."""

_POSIX = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r" \t-\r",
}
_JAVA = {
    "javaLowerCase": "Lower",
    "javaUpperCase": "Upper",
    "javaAlphabetic": "Alpha",
    "javaLetter": "Alpha",
    "javaDigit": "Digit",
    "javaLetterOrDigit": "Alnum",
    "javaWhitespace": "Space",
    "javaSpaceChar": "Blank",
    "javaISOControl": "Cntrl",
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_SAME = frozenset("dDwWsSpP")
"""Escapes of a class that may also stand inside square brackets."""
_SPACES = {"h": r" \t", "v": r"\n-\r"}
_PLACES = frozenset("AZzGbB")
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9]*")
_REPETITION = re.compile(r"\{[0-9]+(,[0-9]*)?\}")
_FLAGS = re.compile(r"([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])")


@lru_cache(maxsize=100)
def java_matcher(pattern: str, *, timeout_s: float = MATCH_TIMEOUT_S) -> Callable[[str], bool]:
    """A function that is True for a name with a part that matches `pattern` (Matcher.find).

    Raises InvalidConfigError for a pattern that Java would refuse or that cannot be translated. The function raises it
    for a name whose match takes too long.
    """
    import regex

    if len(pattern) > PATTERN_CHARS_MAX:
        raise InvalidConfigError(f"subscribePattern has {len(pattern)} characters: at most {PATTERN_CHARS_MAX}")
    translated = _Translation(pattern).result()
    try:
        compiled = regex.compile(translated, regex.VERSION1)
    except (regex.error, RecursionError, OverflowError) as e:
        raise InvalidConfigError(f"subscribePattern = {pattern!r} is not a regular expression: {e}") from None

    def finds(name: str) -> bool:
        try:
            return compiled.search(name, timeout=timeout_s) is not None
        except (TimeoutError, MemoryError, RecursionError):
            raise InvalidConfigError(
                f"subscribePattern = {pattern!r} takes more than {timeout_s:g} s for the topic {name!r}: quantifiers "
                "inside one another have too many ways to match"
            ) from None

    return finds


class _Translation:
    """One pass over a pattern, from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._names: set[str] = set()

    def result(self) -> str:
        out = []
        while self._at < len(self._pattern):
            out.append(self._element())
        return "".join(out)

    # -- reading

    def _fail(self, what: str) -> InvalidConfigError:
        return InvalidConfigError(f"subscribePattern = {self._pattern!r}: {what}")

    def _next(self) -> str:
        char = self._pattern[self._at : self._at + 1]
        self._at += 1
        return char

    def _take(self, prefix: str) -> bool:
        if not self._pattern.startswith(prefix, self._at):
            return False
        self._at += len(prefix)
        return True

    def _upto(self, end: str, what: str) -> str:
        stop = self._pattern.find(end, self._at)
        if stop < 0:
            raise self._fail(f"{what} has no closing {end!r}")
        text = self._pattern[self._at : stop]
        self._at = stop + len(end)
        return text

    # -- outside of square brackets

    def _element(self) -> str:
        start = self._at
        char = self._next()
        if char == "\\":
            return self._escape()
        if char == "[":
            return self._class(depth=1)
        if char == "(" and self._take("?"):
            return self._group()
        if char == "{":
            found = _REPETITION.match(self._pattern, start)
            if found is None:
                raise self._fail(f"illegal repetition at index {start}; a literal brace is \\{{")
            self._at = found.end()
            return found[0]
        return char

    def _group(self) -> str:
        for opening in (":", "=", "!", ">", "<=", "<!"):
            if self._take(opening):
                return f"(?{opening}"
        if self._take("<"):
            name = self._group_name()
            if name in self._names:
                raise self._fail(f"two groups are named {name!r}")
            self._names.add(name)
            return f"(?P<{name}>"
        found = _FLAGS.match(self._pattern, self._at)
        if found is None:
            raise self._fail(f"unknown group (?{self._pattern[self._at : self._at + 1]} at index {self._at - 2}")
        self._at = found.end()
        on, off, end = found[1], found[2] or "", found[3]
        unknown = sorted(set(on + off) - set("idmsuU"))
        if unknown:
            why = "comments are not supported" if "x" in unknown else "there is no such flag"
            raise self._fail(f"the flag (?{unknown[0]}): {why}")
        # UNIX_LINES and the Unicode flags make no difference to a topic's name
        on, off = (re.sub("[duU]", "", flags) for flags in (on, off))
        flags = on + (f"-{off}" if off else "")
        if end == ":":
            return f"(?{flags}:"
        return f"(?{flags})" if flags else ""

    def _group_name(self) -> str:
        name = self._upto(">", "a group's name")
        if not _NAME.fullmatch(name):
            raise self._fail(f"{name!r} is no name for a group: use letters and digits, a letter first")
        return name

    def _escape(self) -> str:
        if self._take("Q"):
            return re.escape(self._read_quoted())
        char = self._pattern[self._at : self._at + 1]
        if char in _PLACES and char:
            self._at += 1
            if char == "b" and self._take("{g}"):
                raise self._fail(r"\b{g} (boundaries of grapheme clusters) is not supported")
            return r"(?=\n?\Z)" if char == "Z" else r"\Z" if char == "z" else f"\\{char}"
        if self._take("k<"):
            return f"(?P={self._group_name()})"
        if self._take("R"):
            return r"(?:\r\n|[\n-\r])"
        if char.isdigit() and char != "0":
            self._at += 1
            return f"(?:\\{char})"
        if char in ("X", "N"):
            raise self._fail(f"\\{char} is not supported")
        return self._of_class() or _literal(self._character())

    def _read_quoted(self) -> str:
        """The text between \\Q, which has been read, and \\E or the end."""
        stop = self._pattern.find(r"\E", self._at)
        text = self._pattern[self._at :] if stop < 0 else self._pattern[self._at : stop]
        self._at = len(self._pattern) if stop < 0 else stop + 2
        return text

    # -- escapes that may stand in square brackets, too; the backslash has been read

    def _of_class(self) -> str:
        """A class such as \\d or \\p{Alpha}, as `regex` writes it; "" if something else comes."""
        char = self._pattern[self._at : self._at + 1]
        if char and char.lower() in _SPACES:
            self._at += 1
            return f"[{'^' if char.isupper() else ''}{_SPACES[char.lower()]}]"
        if not char or char not in _SAME:
            return ""
        self._at += 1
        if char in "pP":
            name = self._upto("}", "a property") if self._take("{") else self._next()
            return self._property(name, negated=char == "P")
        return f"\\{char}"

    def _property(self, name: str, *, negated: bool) -> str:
        posix = _POSIX.get(_JAVA.get(name, name))
        if posix is not None:
            return f"[{'^' if negated else ''}{posix}]"
        import regex

        plain = re.sub(r"^(?:(?:script|sc|block|blk|general_category|gc)=|Is)", "", name)
        written = f"\\{'P' if negated else 'p'}{{{plain}}}"
        try:
            if not re.fullmatch(r"[A-Za-z0-9_ -]+", plain):
                raise ValueError
            regex.compile(written, regex.VERSION1)
        except (regex.error, ValueError):
            raise self._fail(f"the property \\p{{{name}}} is not known") from None
        return written

    def _character(self) -> str:
        """One escaped character."""
        char = self._next()
        if not char:
            raise self._fail("it ends with a backslash")
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "c":
            return chr(ord(self._next() or "@") ^ 64)
        if char == "x" and self._take("{"):
            return self._code(self._upto("}", r"\x"), 16, char)
        if char in "xu":
            digits = 2 if char == "x" else 4
            text = self._pattern[self._at : self._at + digits]
            self._at += digits
            return self._code(text if len(text) == digits else "", 16, char)
        if char == "0":
            found = re.compile(r"[0-3]?[0-7]{1,2}").match(self._pattern, self._at)
            self._at = found.end() if found else self._at
            return self._code(found[0] if found else "", 8, char)
        if char.isascii() and char.isalnum():
            raise self._fail(f"illegal escape sequence \\{char}")
        return char

    def _code(self, digits: str, base: int, escape: str) -> str:
        try:
            if not digits.isalnum():
                raise ValueError
            return chr(int(digits, base))
        except (ValueError, OverflowError):
            raise self._fail(f"illegal escape sequence \\{escape}{digits}") from None

    # -- square brackets

    def _class(self, depth: int) -> str:
        """A character class; its opening bracket has been read."""
        if depth > NESTING_MAX:
            raise self._fail(f"more than {NESTING_MAX} classes inside one another")
        out = ["[^" if self._take("^") else "["]
        empty = True
        while True:
            if self._at >= len(self._pattern):
                raise self._fail("a character class has no closing ']'")
            if self._take("&&"):
                while self._take("&&"):
                    pass
                if len(out) > 1 and not self._pattern.startswith("]", self._at):
                    out.append("&&")
                empty = False
                continue
            if not empty and self._take("]"):
                if len(out) == 1:
                    raise self._fail("a character class has no characters")
                return "".join([*out, "]"])
            out.append(self._member(depth))
            empty = False

    def _member(self, depth: int) -> str:
        """A nested class, a quotation, a range or a character."""
        if self._take("["):
            return self._class(depth + 1)
        if self._take(r"\Q"):
            return "".join(_literal(c) for c in self._read_quoted())
        if self._take("\\"):
            named = self._of_class()
            if named:
                return named
            first = self._character()
        else:
            first = self._next()
        rest = self._pattern[self._at : self._at + 2]
        if len(rest) < 2 or rest[0] != "-" or rest[1] in "][":
            return _literal(first)
        self._at += 1
        last = self._character() if self._take("\\") else self._next()
        if last < first:
            raise self._fail(f"illegal character range {first}-{last}")
        return f"{_literal(first)}-{_literal(last)}"


def _literal(char: str) -> str:
    """`char` with no meaning of its own, inside brackets and outside."""
    return char if char.isalnum() or char == "_" else f"\\x{ord(char):02x}" if char.isascii() else re.escape(char)
