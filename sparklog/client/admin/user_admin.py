"""Functions that set, describe and remove the credentials of users with passwords (KIP-554).

A password never leaves this process, which derives the salted credentials for the broker from it (`security.scram`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparklog.client.admin.changes import change
from sparklog.client.admin.repeating import RepeatPolicy
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.paging import pages
from sparklog.client.net.retry import Retries, RetryPolicy, until_answered
from sparklog.errors import InvalidConfigError, ResourceNotFoundError
from sparklog.protocol.apis import Api
from sparklog.protocol.security_messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from sparklog.security.sasl import SCRAM_MECHANISMS
from sparklog.security.scram import ITERATIONS_MIN, checked_name, make_credential
from sparklog.security.secrets import Secret


class UserDescription(NamedTuple):
    """A user with a password."""

    name: str
    """Name of the user."""
    mechanisms: dict[str, int]
    """Number of iterations by SCRAM mechanism."""


def set_password(
    cluster: Cluster,
    name: str,
    password: Secret,
    mechanisms: Sequence[str] = SCRAM_MECHANISMS,
    *,
    iterations: int = ITERATIONS_MIN,
    only_new: bool = False,
    only_existing: bool = False,
    timeout_ms: int = 30_000,
) -> None:
    """Set a user's password for the mechanisms, and create the user if necessary. Raises InvalidConfigError: The name,
    the password, a mechanism or `iterations` is not acceptable, or with `only_new` the user exists;
    ResourceNotFoundError."""
    stored = checked_name(name)
    upsertions = []
    for mechanism in mechanisms:
        made = make_credential(mechanism, password, iterations)
        upsertions.append(
            ScramCredentialUpsertion(stored, mechanism, made.iterations, made.salt, made.stored_key, made.server_key)
        )
    request = AlterUserScramCredentialsRequest([], upsertions, only_new, only_existing)
    deadline = Deadline(timeout_ms)
    wanted = dict.fromkeys(mechanisms, iterations)

    def is_there() -> bool:
        """True if `only_new` is set and the user has these mechanisms. The broker does not show the user's password."""
        found = describe_users(cluster, [stored], timeout_ms=deadline.left_ms())
        return only_new and [user.mechanisms for user in found] == [wanted]

    _alter(cluster, request, timeout_ms, RepeatPolicy((InvalidConfigError,)), is_there)


def remove_user(cluster: Cluster, name: str, *, timeout_ms: int = 30_000) -> None:
    """Remove all of a user's credentials; the user's connections end. Raises ResourceNotFoundError."""
    deadline = Deadline(timeout_ms)
    found = describe_users(cluster, [name], timeout_ms=deadline.left_ms())
    if not found:
        raise ResourceNotFoundError(f"user {name!r} does not exist")
    deletions = [ScramCredentialDeletion(name, mechanism) for mechanism in found[0].mechanisms]
    request = AlterUserScramCredentialsRequest(deletions, [])
    _alter(cluster, request, deadline.left_ms(), RepeatPolicy((ResourceNotFoundError,)))


def describe_users(
    cluster: Cluster, names: Sequence[str] | None = None, *, timeout_ms: int = 30_000
) -> list[UserDescription]:
    """Return the users of these names, or all users. Raises ClusterAuthorizationFailedError."""
    attempts = Retries(RetryPolicy.within(timeout_ms))

    def ask(before: DescribeUserScramCredentialsResponse | None) -> DescribeUserScramCredentialsResponse:
        request = DescribeUserScramCredentialsRequest(
            None if names is None else list(names), "" if before is None else before.users[-1].name
        )
        api, response = Api.DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsResponse
        return until_answered(lambda left_ms: cluster.request(api, request, response, timeout_ms=left_ms), attempts)

    def position(page: DescribeUserScramCredentialsResponse) -> object:
        return page.users[-1].name if page.users else None

    return [
        UserDescription(user.name, {c.mechanism: c.iterations for c in user.credentials})
        for page in pages(ask, position)
        for user in page.users
        if user.credentials
    ]


def _alter(
    cluster: Cluster,
    request: AlterUserScramCredentialsRequest,
    timeout_ms: int,
    repeating: RepeatPolicy,
    is_made: Callable[[], bool] = lambda: True,
) -> None:
    change(
        cluster,
        Api.ALTER_USER_SCRAM_CREDENTIALS,
        request,
        AlterUserScramCredentialsResponse,
        timeout_ms,
        repeating=repeating,
        is_made=is_made,
    )
