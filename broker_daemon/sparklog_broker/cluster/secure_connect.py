"""Authenticated connections to other brokers through the inter-broker listener, with or without TLS."""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import Callable
from concurrent.futures import Executor

from sparklog.errors import BrokerNotAvailableError, SaslAuthenticationFailedError
from sparklog.protocol.apis import Api
from sparklog.protocol.security_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from sparklog.security.client_security import ClientSecurity
from sparklog.security.sasl import OAUTHBEARER
from sparklog.security.sasl_client import STEPS_MAX, SaslClient, renewed_after_s, sasl_client
from sparklog.security.tls import RenewedContext, client_context, handshake_error
from sparklog.security.token_source import token_source
from sparklog_broker.cluster.peer_connection import KEPT_BYTES_MAX, PeerConnection, open_connection
from sparklog_broker.network.receive_buffers import SharedBuffers

LONGEST_WAIT_S = 12.0
"""Time in s before the end of a session by which its connection must be replaced: a request for the controller's image
waits for 10 s. In sessions shorter than twice this time such a request can fail, and is repeated."""
TOKEN_TIMEOUT_S = 5.0


class SecureConnect:
    """Opens connections with TLS or an authentication. Event-loop thread only, except for `renew`. `threads`
    run the blocking parts of an authentication: the computation of SCRAM, and the request for a token.

    A connection is closed between two requests if its session will end soon, or if the certificates or authorities in
    the files have changed since it was opened, so that no revoked certificate stays in use.
    """

    def __init__(self, security: ClientSecurity, threads: Executor, now_s: Callable[[], float]) -> None:
        """Load the certificates. Raises InvalidConfigError."""
        self._security = security
        self._threads = threads
        self._now_s = now_s
        self._buffers = SharedBuffers(KEPT_BYTES_MAX)
        self._context = RenewedContext(client_context, dict(security.tls)) if security.protocol.tls else None
        self._due: weakref.WeakKeyDictionary[PeerConnection, float] = weakref.WeakKeyDictionary()
        self._contexts: weakref.WeakKeyDictionary[PeerConnection, ssl.SSLContext] = weakref.WeakKeyDictionary()
        self._idle: weakref.WeakKeyDictionary[PeerConnection, weakref.WeakMethod[Callable[[], None]]] = (
            weakref.WeakKeyDictionary()
        )

    def renew(self) -> bool:
        """Read certificates and authorities again, and return True if they have changed. Blocks; callable on any
        thread. Raises InvalidConfigError; the old certificates and authorities then stay in use.
        """
        return self._context is not None and self._context.renew()

    def close_when_idle(self, connection: PeerConnection, close_if_idle: Callable[[], None]) -> None:
        """Let `retire` call `close_if_idle`, a bound method, to which only a weak reference is kept."""
        self._idle[connection] = weakref.WeakMethod(close_if_idle)

    def retire(self) -> None:
        """Close idle connections that must be replaced. Busy connections are closed after their request."""
        for connection, reference in list(self._idle.items()):
            close_if_idle = reference()
            if close_if_idle is not None and self.is_due(connection):
                close_if_idle()

    def is_due(self, connection: PeerConnection) -> bool:
        """True if the connection must be replaced, for the reasons in the class's text."""
        if self._context is not None and self._contexts.get(connection) is not self._context.current:
            return True
        due_s = self._due.get(connection)
        return due_s is not None and self._now_s() >= due_s

    async def __call__(self, host: str, port: int) -> PeerConnection:
        """Open a connection, and authenticate this broker if the listener has a mechanism. Raises OSError,
        InvalidConfigError (certificates), SaslAuthenticationFailedError and other errors of the authentication.
        """
        context = self._context.current if self._context is not None else None
        try:
            connection = await open_connection(host, port, self._buffers, context)
        except ssl.SSLError as e:
            raise handshake_error(e, f"the broker at {host}:{port}") from e
        if context is not None:
            self._contexts[connection] = context
        try:
            if self._security.mechanism:
                await self._authenticate(connection, f"the broker at {host}:{port}")
        except BaseException:
            connection.close()
            raise
        return connection

    async def _authenticate(self, connection: PeerConnection, place: str) -> None:
        try:
            await self._exchange_sasl(connection)
        except EOFError as e:
            raise BrokerNotAvailableError(f"{place} closed the connection during the authentication") from e

    async def _exchange_sasl(self, connection: PeerConnection) -> None:
        loop = asyncio.get_running_loop()
        await connection.shake_hands()
        began_s = self._now_s()
        client = await loop.run_in_executor(self._threads, self._client)
        chosen = SaslHandshakeRequest(self._security.mechanism)
        await connection.ask(Api.SASL_HANDSHAKE, chosen, SaslHandshakeResponse)
        message: bytes | None = client.first()
        for _ in range(STEPS_MAX):
            if message is None:
                return
            step = SaslAuthenticateRequest(message)
            reply, _ = await connection.ask(Api.SASL_AUTHENTICATE, step, SaslAuthenticateResponse)
            message = await loop.run_in_executor(self._threads, client.answer, reply.auth_bytes)
            if reply.session_lifetime_ms:
                used_s = renewed_after_s(reply.session_lifetime_ms, LONGEST_WAIT_S)
                self._due[connection] = began_s + used_s
                loop.call_later(used_s, self.retire)  # before the other broker ends the session
        raise SaslAuthenticationFailedError("the other broker does not complete the authentication")

    def _client(self) -> SaslClient:
        token = None
        if self._security.mechanism == OAUTHBEARER:
            token = token_source(self._security.token_endpoint).token(TOKEN_TIMEOUT_S)
        return sasl_client(self._security, token)
