"""The SASL session of a connection: the client's authentication, and its repetition before the session ends
(KIP-368)."""

from __future__ import annotations

import time
from typing import Any, Protocol, TypeVar

from sparklog.errors import SaslAuthenticationFailedError
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.security_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from sparklog.security.client_security import ClientSecurity
from sparklog.security.sasl import OAUTHBEARER
from sparklog.security.sasl_client import STEPS_MAX, renewed_after_s, sasl_client
from sparklog.security.token_source import token_source

SASL_APIS = (Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE, Api.HANDSHAKE)

M = TypeVar("M", bound=Message)


class Requests(Protocol):
    """The part of a connection that a session uses."""

    def request(
        self, api: Api, message: Message, response: type[M], payload: Any = (), *, timeout_ms: int | None = None
    ) -> tuple[M, Any]: ...


class Session:
    """The SASL session of one connection."""

    def __init__(self, security: ClientSecurity) -> None:
        self._security = security
        self._renew_at: float | None = None
        self.is_authenticated = False
        self.principal = ""
        """The client's principal, as the broker names it; "" before the authentication."""

    def is_due(self) -> bool:
        """True if it is time to authenticate again before the session ends."""
        return self._renew_at is not None and time.monotonic() >= self._renew_at

    def authenticate(self, connection: Requests, timeout_ms: int) -> None:
        """Prove the client's identity; without SASL nothing happens.

        Raises SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError, UnsupportedApiError
        (an older broker), InvalidConfigError (a token's file), and the errors of `request`.
        """
        security = self._security
        if not security.mechanism:
            return
        begun = time.monotonic()
        token = None
        if security.mechanism == OAUTHBEARER:
            token = token_source(security.token_endpoint).token(timeout_ms / 1000)
        self._renew_at = None
        client = sasl_client(security, token)
        chosen = SaslHandshakeRequest(security.mechanism)
        connection.request(Api.SASL_HANDSHAKE, chosen, SaslHandshakeResponse, timeout_ms=timeout_ms)
        message: bytes | None = client.first()
        lifetime_ms = 0
        try:
            for _ in range(STEPS_MAX):
                if message is None:
                    break
                step = SaslAuthenticateRequest(message)
                answer, _ = connection.request(
                    Api.SASL_AUTHENTICATE, step, SaslAuthenticateResponse, timeout_ms=timeout_ms
                )
                lifetime_ms, self.principal = answer.session_lifetime_ms, answer.principal
                message = client.answer(answer.auth_bytes)
            else:
                raise SaslAuthenticationFailedError("the broker does not complete the authentication")
        except SaslAuthenticationFailedError:
            if security.mechanism == OAUTHBEARER:
                token_source(security.token_endpoint).forget()
            raise
        self.is_authenticated = True
        if lifetime_ms:
            self._renew_at = begun + renewed_after_s(lifetime_ms)
