"""Functions that set, describe and remove the credentials of users with passwords (KIP-554).

A password never leaves this process, which derives the salted credentials for the broker from it (`security.scram`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from sparklog.client.admin.call import Call
from sparklog.client.admin.repeating import RepeatPolicy
from sparklog.client.net.paging import after_last
from sparklog.errors import InvalidConfigError, ResourceNotFoundError
from sparklog.protocol.security_messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from sparklog.security.scram import checked_name, make_credential
from sparklog.security.secrets import Secret


class UserDescription(NamedTuple):
    """A user with a password."""

    name: str
    """Name of the user."""
    mechanisms: dict[str, int]
    """Number of iterations by SCRAM mechanism."""


def set_password(
    call: Call,
    name: str,
    password: Secret,
    mechanisms: Sequence[str],
    iterations: int,
    *,
    only_new: bool,
    only_existing: bool,
) -> None:
    """Set a user's password for the mechanisms; see `Admin.set_user_password`."""
    stored = checked_name(name)
    upsertions = []
    for mechanism in mechanisms:
        c = make_credential(mechanism, password, iterations)
        upsertions.append(ScramCredentialUpsertion(stored, mechanism, c.iterations, c.salt, c.stored_key, c.server_key))
    request = AlterUserScramCredentialsRequest([], upsertions, only_new, only_existing)

    def is_stored() -> bool:
        """True if `only_new` is set and the user has these mechanisms. The broker does not show the user's password."""
        mechanisms_stored = [user.mechanisms for user in describe_users(call, [stored])]
        return only_new and mechanisms_stored == [dict.fromkeys(mechanisms, iterations)]

    call.change_once(request, AlterUserScramCredentialsResponse, RepeatPolicy((InvalidConfigError,)), is_stored)


def remove_user(call: Call, name: str) -> None:
    """Remove all of a user's credentials; see `Admin.remove_user`."""
    users = describe_users(call, [name])
    if not users:
        raise ResourceNotFoundError(f"user {name!r} does not exist")
    deletions = [ScramCredentialDeletion(name, mechanism) for mechanism in users[0].mechanisms]
    request = AlterUserScramCredentialsRequest(deletions, [])
    call.change_once(request, AlterUserScramCredentialsResponse, RepeatPolicy((ResourceNotFoundError,)))


def describe_users(call: Call, names: Sequence[str] | None) -> list[UserDescription]:
    """Return the users of these names, or all users; see `Admin.describe_users`."""
    request = DescribeUserScramCredentialsRequest(None if names is None else list(names))
    pages = call.pages(request, DescribeUserScramCredentialsResponse, after_last("users", attrgetter("name")))
    return [
        UserDescription(user.name, {c.mechanism: c.iterations for c in user.credentials})
        for page in pages
        for user in page.users
        if user.credentials
    ]
