"""Messages in older versions: without the fields that are newer than the version.

The versions of all APIs are counted together. Each release that changes a message has the next number, which becomes
the newest version of the changed APIs. So a field has one `Since`, although its message can be part of several APIs,
and two versions of an API can be equal.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import NODEFAULT, structs

from sparklog.errors import UnsupportedVersionError
from sparklog.protocol.base import Message, Since


@cache
def _since(message_type: type[Message]) -> dict[str, Since]:
    """Return the marks of the fields that were added after version 0, by name, in the order of the fields."""
    hints = typing.get_type_hints(message_type, include_extras=True)
    marks: dict[str, Since] = {}
    for name in message_type.__struct_fields__:
        for mark in getattr(hints[name], "__metadata__", ()):
            if isinstance(mark, Since):
                marks[name] = mark
    return marks


@cache
def field_names(message_type: type[Message], version: int | None) -> tuple[str, ...]:
    """Return the names of the fields that a message has in a version, in their order. `version` None: the newest
    version."""
    if version is None:
        return message_type.__struct_fields__
    since = _since(message_type)
    return tuple(f for f in message_type.__struct_fields__ if f not in since or since[f].version <= version)


@cache
def newest_field_version(message_type: type[Message]) -> int:
    """Return the version of the newest field in a message, or in the messages that it contains; 0 if no field is
    marked."""
    versions = [mark.version for mark in _since(message_type).values()]
    return max([0, *versions, *map(newest_field_version, _parts(message_type))])


@cache
def _parts(message_type: type[Message]) -> tuple[type[Message], ...]:
    """Return the message types that occur in a message's fields."""
    return tuple(t for hint in typing.get_type_hints(message_type).values() for t in _named_in(hint))


def _named_in(hint: object) -> Iterator[type[Message]]:
    if isinstance(hint, type) and issubclass(hint, Message):
        yield hint
    for argument in typing.get_args(hint):
        yield from _named_in(argument)


def in_version(value: Any, version: int) -> Any:
    """Return `value` (a message, or the value of a field) in the encoding of an older version. Messages with newer
    fields become lists of the remaining fields.

    Raises UnsupportedVersionError if a field that is left out must not be ignored.
    """
    if isinstance(value, Message):
        if newest_field_version(type(value)) <= version:
            return value
        _require_defaults(value, version)
        values = [getattr(value, name) for name in field_names(type(value), version)]
        for place in _places_of_newer(type(value), version):
            values[place] = in_version(values[place], version)
        return values
    if isinstance(value, list):
        return [in_version(item, version) for item in value]
    if isinstance(value, dict):
        return {key: in_version(item, version) for key, item in value.items()}
    return value


@cache
def _places_of_newer(message_type: type[Message], version: int) -> tuple[int, ...]:
    """Return the indices, among the fields of a version, of those that hold messages with newer fields."""
    hints = typing.get_type_hints(message_type)
    names = field_names(message_type, version)
    return tuple(
        i for i, name in enumerate(names) if any(newest_field_version(t) > version for t in _named_in(hints[name]))
    )


def _require_defaults(message: Message, version: int) -> None:
    for name, mark in _since(type(message)).items():
        if mark.version > version and not mark.ignorable and getattr(message, name) != _default(type(message), name):
            raise UnsupportedVersionError(
                f"version {version} of {type(message).__name__}, the newest that both sides have, has no field "
                f"{name!r}: upgrade the other side to version {mark.version}"
            )


def forget_newer(message: Message, version: int) -> None:
    """Reset the fields that `version` does not have to their defaults. A peer of that version has not sent them, and
    the values at their places can have another meaning."""
    if newest_field_version(type(message)) <= version:
        return
    for name, mark in _since(type(message)).items():
        if mark.version > version:
            setattr(message, name, _default(type(message), name))
    for name in field_names(type(message), version):
        _forget_within(getattr(message, name), version)


def _forget_within(value: Any, version: int) -> None:
    if isinstance(value, Message):
        forget_newer(value, version)
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _forget_within(item, version)


@cache
def _default(message_type: type[Message], name: str) -> Any:
    """Return the default of a field. The result is shared and must not be changed in place."""
    field = next(f for f in structs.fields(message_type) if f.name == name)
    return field.default if field.default_factory is NODEFAULT else field.default_factory()
