"""The APIs of authentication, and of users with passwords.

Before a peer is authenticated, it may send only HANDSHAKE, SASL_HANDSHAKE and SASL_AUTHENTICATE
(`sparklog.security.handshake`). No message about users has a password in it: the program that asks for the password
computes the SCRAM credentials.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import NO_VERSION, AnswerVersion, AtLeast, Message, ThrottleMs
from sparklog.security.principals import NAME_CHARS_MAX
from sparklog.security.sasl import TOKEN_BYTES_MAX

USERS_MAX = 1_000
"""Largest number of users in one list of a request."""
SCRAM_BYTES_MAX = 256
"""Largest size of a salt or key, in bytes."""
UserName = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
MechanismName = Annotated[str, Meta(max_length=64)]
ScramBytes = Annotated[bytes, Meta(max_length=SCRAM_BYTES_MAX)]


class SaslHandshakeRequest(Message):
    """Choose a mechanism. This is the first message of an authentication, also when the client authenticates again
    (KIP-368)."""

    mechanism: MechanismName


class SaslHandshakeResponse(Message):
    """The mechanisms that the listener accepts. If the chosen mechanism is not among them, `error_code` is not 0, and
    the broker closes the connection."""

    error_code: int
    mechanisms: list[str]


class SaslAuthenticateRequest(Message):
    """The client's next message of the mechanism."""

    auth_bytes: Annotated[bytes, Meta(max_length=TOKEN_BYTES_MAX)]


class SaslAuthenticateResponse(Message):
    """The broker's answer to a message of the mechanism. `session_lifetime_ms` > 0: the client has to authenticate
    again within this time, or the broker closes the connection; 0: the session has no limit, or the exchange is not
    over."""

    error_code: int
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0
    message: str = ""
    principal: str = ""
    """The client's principal, such as User:alice; "" before the exchange is over."""


class ScramCredentialUpsertion(Message):
    """Set a user's credential for one mechanism (KIP-554)."""

    name: UserName
    mechanism: MechanismName
    iterations: int
    salt: ScramBytes
    stored_key: ScramBytes
    server_key: ScramBytes


class ScramCredentialDeletion(Message):
    """Remove a user's credential for one mechanism."""

    name: UserName
    mechanism: MechanismName


class AlterUserScramCredentialsRequest(Message):
    """Change credentials, all or none of them. `only_new`: fail if a user of `upsertions` exists already;
    `only_existing`: fail if such a user does not exist."""

    deletions: Annotated[list[ScramCredentialDeletion], Meta(max_length=USERS_MAX)]
    upsertions: Annotated[list[ScramCredentialUpsertion], Meta(max_length=USERS_MAX)]
    only_new: bool = False
    only_existing: bool = False
    at_least: AtLeast = NO_VERSION


class AlterUserScramCredentialsResponse(Message):
    """Confirmation that the change is stored, and in effect on the answering broker. It reaches other brokers a moment
    later; a request with `at_least` waits for it."""

    error_code: int = 0
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION


class DescribeUserScramCredentialsRequest(Message):
    """Request users by `names`. None: a page of all users, in the order of their names, after the name `after`."""

    names: Annotated[list[UserName], Meta(max_length=USERS_MAX)] | None = None
    after: UserName = ""
    at_least: AtLeast = NO_VERSION


class ScramCredentialInfo(Message):
    """A credential without its salt and keys."""

    mechanism: str
    iterations: int


class UserCredentials(Message):
    """A user. `credentials` is empty for a requested name that does not exist."""

    name: str
    credentials: list[ScramCredentialInfo]


class DescribeUserScramCredentialsResponse(Message):
    """A page of users. `more`: the next page is requested with the last name as `after`."""

    users: list[UserCredentials]
    more: bool = False
    throttle_ms: ThrottleMs = 0
