"""The table of messages (`messages.txt`), parsed."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

REQUEST, RESPONSE, DATA = "request", "response", "data"
_INTEGERS = ("int8", "int16", "uint16", "int32", "int64")
_NO_DEFAULT = object()


class Versions(NamedTuple):
    """Versions from `first` to `last`, both inclusive."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


class Field(NamedTuple):
    """One field of a message or of a structure in it."""

    name: str
    type: str
    """Type of one element: a simple type, or "{}" for a structure."""
    is_list: bool
    versions: Versions
    null: Versions | None
    """Versions in which the value may be None; None: it never may."""
    tag: int | None
    """Number of a tagged field; None: the field is not tagged."""
    default: Any
    """Value that the encoder writes if the caller gives none. Only valid with `has_default`."""
    has_default: bool
    fields: tuple[Field, ...]
    """Fields of a structure; empty for a simple type."""


class Message(NamedTuple):
    """One request, response, or data structure (DATA)."""

    kind: str
    name: str
    api_key: int
    versions: Versions
    """Versions that the gateway can read and write."""
    served: Versions
    """Versions that the gateway serves; requests in the others are refused."""
    flexible_from: int | None
    """First version with compact lengths and tagged fields; None: no version has them."""
    fields: tuple[Field, ...]

    def is_flexible(self, version: int) -> bool:
        """True if the version has compact lengths and tagged fields."""
        return self.flexible_from is not None and version >= self.flexible_from


@cache
def messages() -> dict[tuple[str, str], Message]:
    """Return all messages of the table, by kind (REQUEST, RESPONSE, DATA) and name."""
    text = files(__package__).joinpath("messages.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    by_name = {}
    start = 0
    while start < len(lines):
        end = start + 1
        while end < len(lines) and lines[end].startswith(" "):
            end += 1
        message = _message(lines[start], lines[start + 1 : end])
        by_name[message.kind, message.name] = message
        start = end
    return by_name


def _message(head: str, lines: list[str]) -> Message:
    kind, name, api_key, versions, *more = head.split()
    options = dict(zip(more[::2], more[1::2], strict=True))
    spoken = _versions(versions, Versions(0, 0))
    served = _versions(options.get("served", versions), spoken)
    fields, rest = _fields(lines, 1, spoken)
    assert not rest, rest
    flexible_from = int(options["flexible"]) if "flexible" in options else None
    return Message(kind, name, int(api_key), spoken, served, flexible_from, fields)


def _fields(lines: list[str], depth: int, spoken: Versions) -> tuple[tuple[Field, ...], list[str]]:
    """Return the fields at the indentation `depth`, and the remaining lines."""
    fields = []
    while lines and _depth(lines[0]) == depth:
        words = lines[0].split(" ")[2 * depth :]
        inner, lines = _fields(lines[1:], depth + 1, spoken)
        fields.append(_field(words, inner, spoken))
    return tuple(fields), lines


def _depth(line: str) -> int:
    return (len(line) - len(line.lstrip(" "))) // 2


def _field(words: list[str], inner: tuple[Field, ...], spoken: Versions) -> Field:
    name, type_name, *marks = words
    versions, null, tag, default = spoken, None, None, _NO_DEFAULT
    is_list = type_name.startswith("[]")
    element = type_name.removeprefix("[]")
    for mark in marks:
        key, equals, value = mark.partition("=")
        if key == "null":
            null = _versions(value, spoken) if equals else spoken
        elif key == "tag":
            tag = int(value)
        elif key == "default":
            default = _default(value, "[]" if is_list else element)
        else:
            versions = _versions(key.removeprefix("v"), spoken)
    if tag is not None and default is _NO_DEFAULT:
        default = [] if is_list else None  # a tagged field may always be left out
    has_default = default is not _NO_DEFAULT
    return Field(name, element, is_list, versions, null, tag, default if has_default else None, has_default, inner)


def _versions(text: str, spoken: Versions) -> Versions:
    if text.endswith("+"):
        return Versions(int(text[:-1]), spoken.last)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


def _default(text: str, type_name: str) -> Any:
    if text == "null":
        return None
    if type_name in _INTEGERS:
        return int(text or "0", 0)
    if type_name == "bool":
        return text == "true"
    return {"[]": [], "string": text, "bytes": b"", "float64": 0.0}.get(type_name)
