"""Common parts of the SASL mechanisms: the outcome of a message, and the server's side of one exchange."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sparklog.security.principals import Principal

TOKEN_BYTES_MAX = 64 * 1024
"""No message of any mechanism is larger; OAUTHBEARER's tokens are the largest."""
PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
SCRAM_MECHANISMS = (SCRAM_SHA_256, SCRAM_SHA_512)
MECHANISMS = (*SCRAM_MECHANISMS, PLAIN, OAUTHBEARER)
CREDENTIALS_WRONG = "authentication failed: invalid credentials"
"""The one text of every failure of a password, so that it does not tell which user exists."""


class SaslStep(NamedTuple):
    """The server's answer to one message. `principal` is set at the end of the exchange; `expires_ms` is then the time
    at which the proof of identity ends (None: never)."""

    challenge: bytes
    principal: Principal | None = None
    expires_ms: int | None = None


class SaslServer(Protocol):
    """The server's side of one exchange; used once."""

    def respond(self, token: bytes, now_ms: int) -> SaslStep:
        """Return the answer to the client's next message. Raises SaslAuthenticationFailedError, which ends the
        exchange."""
