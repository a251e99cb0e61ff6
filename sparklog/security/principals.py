"""Principals: the identities of peers.

A principal is written `User:name`, as in Kafka. On a listener without authentication every peer is `ANONYMOUS`.
`principal_mapping` converts a certificate's name into a principal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from sparklog.errors import InvalidConfigError

USER_TYPE = "User"
NAME_CHARS_MAX = 1_024
"""Largest number of characters of a name; enough for the distinguished names of certificates."""


class Principal(NamedTuple):
    """An identity. `kind` is always "User" (case-sensitive); `name` is the name that the authentication has proved."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


_COMMA_BEFORE_USER = re.compile(rf",\s*{USER_TYPE}:")

ANONYMOUS = Principal(USER_TYPE, "ANONYMOUS")
ANY_USER = Principal(USER_TYPE, "*")
"""In an ACL: every principal. No peer can authenticate with this name."""


def check_name(name: str) -> str:
    """Return `name` if a principal can have it.

    A name has to be in normal form (NFKC, without the characters that SASLprep removes). Otherwise two names could look
    equal to a person, but be different users. Raises InvalidConfigError, which states the fault.
    """
    if not name.strip() or name == ANY_USER.name:
        raise InvalidConfigError(f"a user cannot be named {name!r}")
    if len(name) > NAME_CHARS_MAX:
        raise InvalidConfigError(f"a user's name has {len(name)} characters; at most {NAME_CHARS_MAX} are allowed")
    if not name.isprintable():
        raise InvalidConfigError(f"a user's name {name!r}: control characters and invisible ones are not allowed")
    if name != name.strip():
        raise InvalidConfigError(f"a user's name {name!r} begins or ends with a space: leave it out")
    if name.startswith(f"{USER_TYPE}:"):
        raise InvalidConfigError(f"a user's name {name!r} begins with {USER_TYPE}:, which principals begin with")
    normal = _normal_form(name)
    if normal != name:
        raise InvalidConfigError(f"a user's name {name!r} is not in its normal form (Unicode NFKC): write {normal!r}")
    return name


def check_user_name(name: str) -> str:
    """Return `name` if an authenticated user can have it. Raises InvalidConfigError, also for ANONYMOUS, because a user
    of this name would share its permissions with all peers that are not authenticated."""
    if name == ANONYMOUS.name:
        raise InvalidConfigError(f"a user cannot be named {name!r}: the name stands for peers without authentication")
    return check_name(name)


def _normal_form(name: str) -> str:
    if name.isascii():
        return name
    import stringprep

    return unicodedata.normalize("NFKC", "".join(c for c in name if not stringprep.in_table_b1(c)))


def user(name: str) -> Principal:
    """Return the principal of an authenticated user. Raises InvalidConfigError if no user can have this name."""
    return Principal(USER_TYPE, check_user_name(name))


def parse_principal(text: str, *, wildcard: bool = False) -> Principal:
    """Parse `User:name`. `wildcard`: True to accept `User:*` as ANY_USER. Raises InvalidConfigError."""
    kind, colon, name = text.partition(":")
    if not colon or kind != USER_TYPE:
        raise InvalidConfigError(f"{text!r} is not a principal: write {USER_TYPE}:name")
    if wildcard and name == ANY_USER.name:
        return ANY_USER
    return Principal(USER_TYPE, check_name(name))


def stored_principal(text: str) -> Principal:
    """Parse the principal of a stored entry, or of a search. The name can be one that no user can have: such an
    entry has no effect, but can be shown and removed. Raises InvalidConfigError."""
    kind, colon, name = text.partition(":")
    if not colon or kind != USER_TYPE or not name:
        raise InvalidConfigError(f"{text!r} is not a principal: write {USER_TYPE}:name")
    return Principal(kind, name)


def parse_super_users(text: str) -> frozenset[Principal]:
    """Parse `super.users`: principals separated by semicolons, because names of certificates contain commas.

    Raises InvalidConfigError, also for `,User:` in a name: the principals are then probably separated by commas.
    """
    parts = _parts(text.split(";"))
    for part in parts:
        if _COMMA_BEFORE_USER.search(part):
            raise InvalidConfigError(f"{part!r}: separate principals with semicolons, names may have commas in them")
    return frozenset(parse_principal(part) for part in parts)


def _parts(parts: Iterable[str]) -> list[str]:
    return [stripped for part in parts if (stripped := part.strip())]
