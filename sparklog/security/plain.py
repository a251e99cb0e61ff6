"""PLAIN (RFC 4616): the client sends name and password unencrypted. Only for listeners with TLS; `handshake` refuses
PLAIN on others.

The server keeps no password: it compares the received one with the user's SCRAM credential. For an unknown user the
comparison takes as long. It takes milliseconds by design, so it must not run on the event loop.
"""

from __future__ import annotations

from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.security.principals import user
from sparklog.security.sasl import CREDENTIALS_WRONG, SCRAM_SHA_256, SaslStep
from sparklog.security.scram import (
    CredentialLookup,
    UnknownUsers,
    credential_matches,
    login_name,
)
from sparklog.security.secrets import Secret

MESSAGE_BYTES_MAX = 4_096


class PlainServer:
    """The server's side of one exchange, which has one message. `lookup` returns a user's SCRAM-SHA-256 credential.
    `unknown` returns credentials for other names."""

    def __init__(self, lookup: CredentialLookup, unknown: UnknownUsers) -> None:
        self._lookup = lookup
        self._unknown_users = unknown
        self._is_used = False

    def respond(self, token: bytes, now_ms: int) -> SaslStep:
        """Answer a client's message; see `sasl.SaslServer`."""
        if self._is_used:
            raise SaslAuthenticationFailedError(CREDENTIALS_WRONG)
        self._is_used = True
        name, password = _parse(token)
        unknown = self._unknown_users.credential(name)
        credential = self._lookup(name)
        if not credential_matches(SCRAM_SHA_256, password, credential or unknown) or credential is None:
            raise SaslAuthenticationFailedError(CREDENTIALS_WRONG)
        return SaslStep(b"", user(name))


def plain_message(name: str, password: Secret) -> bytes:
    """Return the client's only message. Raises InvalidConfigError for an empty name, or a NUL character in name or
    password."""
    if "\0" in name + password.reveal() or not name:
        raise InvalidConfigError("sasl.username and sasl.password: a name without NUL characters is required")
    return b"\0".join([b"", name.encode(), password.reveal().encode()])


def _parse(token: bytes) -> tuple[str, Secret]:
    """Parse `[authzid] NUL authcid NUL passwd`. `authzid` has to be empty or the name, because no user may act for
    another."""
    try:
        authzid, name, password = token[: MESSAGE_BYTES_MAX + 1].decode().split("\0")
        if authzid not in ("", name) or not password or len(token) > MESSAGE_BYTES_MAX:
            raise ValueError
        return login_name(name), Secret(password)
    except (ValueError, InvalidConfigError):
        raise SaslAuthenticationFailedError(CREDENTIALS_WRONG) from None
