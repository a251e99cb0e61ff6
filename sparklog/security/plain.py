"""PLAIN (RFC 4616): name and password as they are. Only for listeners with TLS; `handshake` refuses it on others.

The password is compared with the user's SCRAM credential, so the server keeps no password. The comparison does the same
work for an unknown user. It takes milliseconds by design: the shell calls it off the event loop.
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
    """One exchange: one message. `lookup` gives SCRAM-SHA-256 credentials."""

    def __init__(self, lookup: CredentialLookup, unknown: UnknownUsers) -> None:
        self._lookup = lookup
        self._unknown_users = unknown
        self._is_used = False

    def respond(self, token: bytes, now_ms: int) -> SaslStep:
        """Take a client's message; see `sasl.SaslServer`."""
        if self._is_used:
            raise SaslAuthenticationFailedError(CREDENTIALS_WRONG)
        self._is_used = True
        name, password = _parse(token)
        unknown = self._unknown_users.credential(name)
        known = self._lookup(name)
        if not credential_matches(SCRAM_SHA_256, password, known or unknown) or known is None:
            raise SaslAuthenticationFailedError(CREDENTIALS_WRONG)
        return SaslStep(b"", user(name))


def plain_message(name: str, password: Secret) -> bytes:
    """Return the client's only message. Raises InvalidConfigError for a NUL character in either."""
    if "\0" in name + password.reveal() or not name:
        raise InvalidConfigError("sasl.username and sasl.password: a name without NUL characters is required")
    return b"\0".join([b"", name.encode(), password.reveal().encode()])


def _parse(token: bytes) -> tuple[str, Secret]:
    """Parse `[authzid] NUL authcid NUL passwd`; an authzid must equal the name: no user acts for another one."""
    try:
        authzid, name, password = token[: MESSAGE_BYTES_MAX + 1].decode().split("\0")
        if authzid not in ("", name) or not password or len(token) > MESSAGE_BYTES_MAX:
            raise ValueError
        return login_name(name), Secret(password)
    except (ValueError, InvalidConfigError):
        raise SaslAuthenticationFailedError(CREDENTIALS_WRONG) from None
