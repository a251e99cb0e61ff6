"""The APIs of authentication: proposed, not yet in the table of APIs (`sparklog.protocol.messages`).

Both may be sent before the peer is known, as HANDSHAKE may; everything else may not (`sparklog.security.handshake`).
Proposed numbers: SASL_HANDSHAKE 60, SASL_AUTHENTICATE 61.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import Message
from sparklog.security.sasl import TOKEN_BYTES_MAX


class SaslHandshakeRequest(Message):
    """Chooses a mechanism: the first message of an authentication, and of one again (KIP-368)."""

    mechanism: Annotated[str, Meta(max_length=64)]


class SaslHandshakeResponse(Message):
    """`mechanisms`: those that the listener takes, also if the chosen one is not among them; then `error_code` is
    UNSUPPORTED_SASL_MECHANISM, and the broker closes the connection."""

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
