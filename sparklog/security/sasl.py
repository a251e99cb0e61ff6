"""Common parts of the SASL mechanisms: the answer to a message, and the interface of the server's side."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sparklog.security.principals import Principal

TOKEN_BYTES_MAX = 64 * 1024
"""Largest message of any mechanism in bytes. OAUTHBEARER's tokens are the largest messages."""
PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
SCRAM_MECHANISMS = (SCRAM_SHA_256, SCRAM_SHA_512)
MECHANISMS = (*SCRAM_MECHANISMS, PLAIN, OAUTHBEARER)
CREDENTIALS_WRONG = "authentication failed: invalid credentials"
"""Text of every failure with a password. It is always the same, so that it does not reveal which users exist."""


class SaslStep(NamedTuple):
    """The server's answer to one message. `principal` is set at the end of the exchange. `expires_ms` is then the end
    of the credential's validity in ms since 1970; None: it has no end."""

    challenge: bytes
    principal: Principal | None = None
    expires_ms: int | None = None


class SaslServer(Protocol):
    """The server's side of one exchange; used once."""

    def respond(self, token: bytes, now_ms: int) -> SaslStep:
        """Return the answer to the client's next message. Raises SaslAuthenticationFailedError, which ends the
        exchange."""
