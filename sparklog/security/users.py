"""Users with passwords: their credentials as security records, one record for each user, under the user's name.

A record is a JSON object: the user's credentials by SCRAM mechanism, in Kafka's notation (`scram.credential_text`). It
contains no password, and nothing with which one can log in; see `scram`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from sparklog.errors import InvalidConfigError, ResourceNotFoundError
from sparklog.security.sasl import SCRAM_MECHANISMS
from sparklog.security.scram import ScramCredential, checked_name, credential_text, parse_credential

Credentials = Mapping[str, ScramCredential]
"""The credentials of one user, by SCRAM mechanism."""


class UserAlteration(NamedTuple):
    """A change of one user's credential for one mechanism (KIP-554). `credential` None: remove it."""

    name: str
    mechanism: str
    credential: ScramCredential | None


def encode_user(credentials: Credentials) -> bytes:
    """Return the value of a user's record."""
    return msgspec.json.encode({mechanism: credential_text(c) for mechanism, c in sorted(credentials.items())})


def decode_user(record: bytes) -> dict[str, ScramCredential]:
    """Decode the value of a user's record. Raises InvalidConfigError, which does not quote the value."""
    try:
        texts = msgspec.json.decode(record, type=dict[str, str])
    except msgspec.DecodeError:
        raise InvalidConfigError("a user's record cannot be read") from None
    return {mechanism: parse_credential(mechanism, text) for mechanism, text in texts.items()}


def parse_initial(text: str) -> dict[str, Credentials]:
    """Parse `sasl.scram.initial.credentials`: `NAME=MECHANISM:salt=…`, separated by semicolons. Returns the credentials
    by user. Raises InvalidConfigError, which does not quote the text."""
    users: dict[str, dict[str, ScramCredential]] = {}
    for part in text.split(";"):
        if part.strip():
            name, _, rest = part.strip().partition("=")
            mechanism, _, credential = rest.partition(":")
            if mechanism not in SCRAM_MECHANISMS:
                raise InvalidConfigError("sasl.scram.initial.credentials: NAME=MECHANISM:salt=… is needed")
            users.setdefault(checked_name(name), {})[mechanism] = parse_credential(mechanism, credential)
    return dict(users)


def altered_users(
    users: Mapping[str, Credentials], alterations: Sequence[UserAlteration]
) -> dict[str, Credentials | None]:
    """Return the new credentials of the users that the alterations name. None: the user is removed, because no
    credential remains. A user whose name is not allowed any more can still be removed.

    Raises InvalidConfigError (an impossible name or mechanism, a credential altered twice), ResourceNotFoundError (a
    credential to remove does not exist). Nothing is altered then.
    """
    changed: dict[str, dict[str, ScramCredential]] = {}
    seen: set[tuple[str, str]] = set()
    for name, mechanism, credential in alterations:
        if mechanism not in SCRAM_MECHANISMS:
            raise InvalidConfigError(f"{mechanism!r} is not a SCRAM mechanism: use {' or '.join(SCRAM_MECHANISMS)}")
        if credential is not None:
            checked_name(name)
        if (name, mechanism) in seen:
            raise InvalidConfigError(f"user {name!r}: {mechanism} is altered twice in one request")
        seen.add((name, mechanism))
        of_user = changed.setdefault(name, dict(users.get(name, {})))
        if credential is not None:
            of_user[mechanism] = credential
        elif of_user.pop(mechanism, None) is None:
            raise ResourceNotFoundError(f"user {name!r} does not exist with {mechanism}")
    return {name: of_user or None for name, of_user in changed.items()}
