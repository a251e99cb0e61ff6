"""The client's side of SASL exchanges, without sockets. Clients use it, and brokers that connect to other brokers."""

from __future__ import annotations

from typing import Protocol

from sparklog.errors import SaslAuthenticationFailedError
from sparklog.security.client_security import ClientSecurity
from sparklog.security.oauthbearer import bearer_message
from sparklog.security.plain import plain_message
from sparklog.security.sasl import OAUTHBEARER, PLAIN
from sparklog.security.scram import ScramClient
from sparklog.security.secrets import Secret

STEPS_MAX = 8
"""Largest number of messages of a client in one exchange."""
RENEWED_AFTER = (0.85, 0.95)
"""Bounds of the part of its lifetime after which a session is renewed (KIP-368)."""


class SaslClient(Protocol):
    """The client's side of one exchange; used once."""

    def first(self) -> bytes:
        """Return the client's first message."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the message that answers the broker's `challenge`; None if the exchange is over. Raises
        SaslAuthenticationFailedError if the broker's message is not valid, or the broker fails to prove its
        identity."""


def sasl_client(security: ClientSecurity, token: Secret | None = None) -> SaslClient:
    """Return an exchange of the client's mechanism. `token`: the token for OAUTHBEARER; other mechanisms ignore it.
    Raises InvalidConfigError."""
    if security.mechanism == PLAIN:
        return _OneMessage(plain_message(security.username, security.password))
    if security.mechanism == OAUTHBEARER:
        return _OneMessage(bearer_message(token or Secret("")))
    return _Scram(security)


def renewed_after_s(lifetime_ms: int, wait_s_max: float = 0.0) -> float:
    """Return the age in s at which a session that ends after `lifetime_ms` is renewed.

    It is a part of the lifetime that is drawn at random, so that many clients do not renew at the same time, and at
    least `wait_s_max` before the end: the longest time for which a request waits on the session. Of sessions shorter
    than twice this time it is half of the lifetime.
    """
    import random  # only here: a broker starts without it

    lifetime_s = lifetime_ms / 1000
    return min(lifetime_s * random.uniform(*RENEWED_AFTER), max(lifetime_s - wait_s_max, lifetime_s / 2))


class _OneMessage:
    def __init__(self, message: bytes) -> None:
        self._message = message

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        # one byte answers the broker's refusal of a token (RFC 7628), and then the exchange fails
        return b"\x01" if challenge else None


class _Scram:
    def __init__(self, security: ClientSecurity) -> None:
        self._exchange = ScramClient(security.mechanism, security.username, security.password)
        self._steps = 0

    def first(self) -> bytes:
        return self._exchange.first()

    def answer(self, challenge: bytes) -> bytes | None:
        self._steps += 1
        if self._steps == 1:
            return self._exchange.respond(challenge)
        if self._steps > 2:
            raise SaslAuthenticationFailedError("the broker sends more messages than a SCRAM exchange has")
        self._exchange.finish(challenge)
        return None
