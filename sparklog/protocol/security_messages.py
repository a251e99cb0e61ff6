"""The APIs of authentication, and of users with passwords.

SASL_HANDSHAKE and SASL_AUTHENTICATE may be sent before the peer is known, as HANDSHAKE may; everything else may not
(`sparklog.security.handshake`). No message about users holds a password: credentials are made where it was typed.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import NO_VERSION, AnswerVersion, AtLeast, Message, Since, ThrottleMs
from sparklog.security.principals import NAME_CHARS_MAX
from sparklog.security.sasl import TOKEN_BYTES_MAX

USERS_MAX = 1_000
"""Alterations of one request."""
SCRAM_BYTES_MAX = 256
"""Largest size of a salt or a key."""
UserName = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
MechanismName = Annotated[str, Meta(max_length=64)]
ScramBytes = Annotated[bytes, Meta(max_length=SCRAM_BYTES_MAX)]


class SaslHandshakeRequest(Message):
    """Chooses a mechanism: the first message of an authentication, and of one again (KIP-368)."""

    mechanism: MechanismName


class SaslHandshakeResponse(Message):
    """The mechanisms that the listener accepts. If the chosen one is not among them the answer is an error, and the
    broker closes the connection."""

    error_code: int
    mechanisms: list[str]


class SaslAuthenticateRequest(Message):
    """The mechanism's next message."""

    auth_bytes: Annotated[bytes, Meta(max_length=TOKEN_BYTES_MAX)]


class SaslAuthenticateResponse(Message):
    """The mechanism's answer. `session_lifetime_ms` > 0: authenticate again within this time, or the broker closes the
    connection; 0: for as long as the connection lasts, or the exchange is not over."""

    error_code: int
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0
    message: str = ""
    principal: Annotated[str, Since(5, ignorable=True)] = ""
    """The client's principal, such as User:alice; "" before the exchange is over."""


class ScramCredentialUpsertion(Message):
    """Sets a user's credential of one mechanism (KIP-554)."""

    name: UserName
    mechanism: MechanismName
    iterations: int
    salt: ScramBytes
    stored_key: ScramBytes
    server_key: ScramBytes


class ScramCredentialDeletion(Message):
    """Removes a user's credential of one mechanism."""

    name: UserName
    mechanism: MechanismName


class AlterUserScramCredentialsRequest(Message):
    """Change credentials, all or none. `only_new`: setting the credential of an existing user fails; `only_existing`:
    of an unknown one."""

    deletions: Annotated[list[ScramCredentialDeletion], Meta(max_length=USERS_MAX)]
    upsertions: Annotated[list[ScramCredentialUpsertion], Meta(max_length=USERS_MAX)]
    only_new: bool = False
    only_existing: bool = False
    at_least: AtLeast = NO_VERSION


class AlterUserScramCredentialsResponse(Message):
    """The change is stored, and in effect on the answering broker; on others of a cluster a moment later
    (`at_least`)."""

    error_code: int = 0
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION


class DescribeUserScramCredentialsRequest(Message):
    """Request users by `names`. None: all users after `after`, in the order of their names."""

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
