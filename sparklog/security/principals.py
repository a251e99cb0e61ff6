"""Principals: who a peer is once it has been authenticated.

A principal is written `User:name`, as Kafka writes it. `ANONYMOUS` is every peer of a listener without
authentication. How a certificate's name becomes a principal is in `principal_mapping`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sparklog.errors import InvalidConfigError

USER_TYPE = "User"
NAME_CHARS_MAX = 1_024
"""Distinguished names are long; nothing longer is one."""


class Principal(NamedTuple):
    """`kind` is "User" (case-sensitive); `name` is what the mechanism proved."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


_COMMA_BEFORE_USER = re.compile(rf",\s*{USER_TYPE}:")

ANONYMOUS = Principal(USER_TYPE, "ANONYMOUS")
ANY_USER = Principal(USER_TYPE, "*")
"""Stands for every principal in an ACL; nobody can be authenticated as it."""


def check_name(name: str) -> str:
    """Returns `name` if a user can have it. Raises InvalidConfigError: empty, too long, "*", or with control
    characters."""
    if not name or name == ANY_USER.name:
        raise InvalidConfigError(f"a user cannot be named {name!r}")
    if len(name) > NAME_CHARS_MAX:
        raise InvalidConfigError(f"a user's name has {len(name)} characters; at most {NAME_CHARS_MAX} are allowed")
    if not name.isprintable():
        raise InvalidConfigError(f"a user's name {name!r}: control characters are not allowed")
    return name


def user(name: str) -> Principal:
    """The principal of a user. Raises InvalidConfigError if nobody can be named so."""
    return Principal(USER_TYPE, check_name(name))


def parse_principal(text: str, *, wildcard: bool = False) -> Principal:
    """`User:name`; with `wildcard` also `User:*`. Raises InvalidConfigError."""
    kind, colon, name = text.partition(":")
    if not colon or kind != USER_TYPE:
        raise InvalidConfigError(f"{text!r} is no principal: write {USER_TYPE}:name")
    if wildcard and name == ANY_USER.name:
        return ANY_USER
    return user(name)


def parse_super_users(text: str) -> frozenset[Principal]:
    """`super.users`: principals separated by semicolons, because names of certificates contain commas.

    Raises InvalidConfigError, also for principals that commas separate: all of them would be one strange name.
    """
    parts = _parts(text.split(";"))
    for part in parts:
        if _COMMA_BEFORE_USER.search(part):
            raise InvalidConfigError(f"{part!r}: separate principals with semicolons, names may have commas in them")
    return frozenset(parse_principal(part) for part in parts)


def _parts(parts: Iterable[str]) -> list[str]:
    return [stripped for part in parts if (stripped := part.strip())]
