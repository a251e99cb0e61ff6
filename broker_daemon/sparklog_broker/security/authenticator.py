"""Authentication of peers: runs `sparklog.security.handshake` for each connection of a listener with SASL. On other
listeners, the peer's certificate names the principal.

Some exchanges are slow by design, such as the check of a password (PLAIN). They run on separate threads, so that many
attempts do not slow down authenticated peers. SCRAM is slow only for the client; its exchanges run on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from sparklog.environment.clock import Clock
from sparklog.errors import SaslAuthenticationFailedError, TooManyConnectionsError
from sparklog.protocol.apis import Api
from sparklog.protocol.security_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from sparklog.security.handshake import (
    Authenticated,
    Authentication,
    Challenge,
    ChooseMechanism,
    Effect,
    Event,
    Fail,
    HandshakeRequest,
    LetThrough,
    OfferMechanisms,
    OtherRequest,
    SaslToken,
)
from sparklog.security.oauthbearer import OAuthBearerServer
from sparklog.security.plain import PlainServer
from sparklog.security.principal_mapping import certificate_expiry_ms, certificate_name, map_name, parse_mapping_rules
from sparklog.security.principals import ANONYMOUS, Principal
from sparklog.security.sasl import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SaslServer
from sparklog.security.scram import ScramServer
from sparklog_broker.counters.authentication import AuthenticationCounters
from sparklog_broker.network.connection import Connection, State
from sparklog_broker.network.listening import OpenListener
from sparklog_broker.network.reply import Response
from sparklog_broker.security.certificate_expiry import CertificateExpiry
from sparklog_broker.security.tokens import TokenKeys
from sparklog_broker.security.users import Users
from sparklog_broker.security_config import BrokerSecurity

log = logging.getLogger(__name__)

SASL_APIS = frozenset({Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})
_LOOK_AGAIN_S = 0.05
"""Time in s between two checks of an exchange that runs on a thread."""


class Authenticator:
    """Authenticates connections. Event-loop thread only, except for the exchanges."""

    def __init__(
        self,
        security: BrokerSecurity,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        users: Users,
        tokens: Mapping[str, TokenKeys],
        threads: Executor | None,
    ) -> None:
        """`tokens`: by name, the keys of the listeners with OAUTHBEARER. `threads`: None if no listener authenticates.
        Raises InvalidConfigError for `ssl.principal.mapping.rules`.
        """
        self.counters = AuthenticationCounters()
        self.on_failed: Callable[[Connection, str, str], None] = lambda connection, reason, text: None
        """Called for each failure with the name of its counter, and a text for the log without received bytes."""
        self.on_identified: Callable[[Connection], None] = lambda connection: None
        """Called for each connection after its authentication. If it raises TooManyConnectionsError, the connection is
        closed."""
        self._loop = loop
        self._clock = clock
        self._users = users
        self._tokens = tokens
        self._threads = threads
        self._rules = {
            listener.name: parse_mapping_rules(str(security.of(listener)["ssl.principal.mapping.rules"]))
            for listener in (*security.listeners.bound, *security.gateways)
        }
        self._exchanging: set[Connection] = set()
        self._timers: weakref.WeakKeyDictionary[Connection, asyncio.TimerHandle] = weakref.WeakKeyDictionary()
        """Timers of connections with a deadline: the end of a session or of the time to authenticate."""
        self._by_password: weakref.WeakKeyDictionary[Connection, str] = weakref.WeakKeyDictionary()
        """User names of connections that authenticated with a password."""
        self._certificates = CertificateExpiry(loop, clock, self._certificate_expired)
        users.on_removed = self._end_connections_of

    # -- a new connection

    def greet(self, connection: Connection, listener: OpenListener, certificate: bytes | None) -> None:
        """Set the principal of a new connection's peer, or the authentication that the connection must pass. A
        connection with a certificate is closed when the certificate expires.
        """
        try:
            if certificate is not None:
                self._certificates.watch(connection, certificate_expiry_ms(certificate))
            if not listener.rules.mechanisms:
                connection.principal = self._principal_of(listener, certificate)
                self.on_identified(connection)
                return
        except SaslAuthenticationFailedError as e:
            self._failed(connection, "certificate", f"{listener.name}: {e}")
            connection.refuse(e)
            return
        except TooManyConnectionsError as e:
            connection.refuse(e)
            return
        now_ms = self._clock.now_ms()
        keys = self._tokens.get(listener.name)
        connection.authentication = Authentication(
            listener.rules, lambda mechanism: self._make_server(mechanism, keys), now_ms
        )
        self._watch(connection, connection.authentication)

    def _principal_of(self, listener: OpenListener, certificate: bytes | None) -> Principal:
        if certificate is None:
            return ANONYMOUS
        principal = map_name(self._rules[listener.name], certificate_name(certificate))
        self.counters.succeeded["SSL"] += 1
        return principal

    def _make_server(self, mechanism: str, keys: TokenKeys | None) -> SaslServer:
        if mechanism == OAUTHBEARER and keys is not None:
            return OAuthBearerServer(keys)
        if mechanism == PLAIN:
            return PlainServer(self._users.lookup(SCRAM_SHA_256), self._users.unknown(SCRAM_SHA_256))
        return ScramServer(mechanism, self._users.lookup(mechanism), self._users.unknown(mechanism))

    # -- requests

    async def judge(self, api: int, connection: Connection) -> None:
        """Check that a request other than SASL is allowed at this point of the authentication. Raises
        SaslAuthenticationFailedError, IllegalSaslStateError; the connection is then closed after the answer.
        """
        authentication = connection.authentication
        if authentication is None:
            return
        name = Api(api).name if api in Api.__members__.values() else f"API {api}"
        event: Event = HandshakeRequest() if api == Api.HANDSHAKE else OtherRequest(name)
        effects = authentication.receive(event, self._clock.now_ms())
        if effects != [LetThrough()]:
            await self._apply(connection, effects)
            raise SaslAuthenticationFailedError("the connection has ended")

    async def answer(self, connection: Connection, request: SaslHandshakeRequest | SaslAuthenticateRequest) -> Response:
        """Answer SASL_HANDSHAKE or SASL_AUTHENTICATE. Raises the errors of `judge`, and
        UnsupportedSaslMechanismError.
        """
        if isinstance(request, SaslHandshakeRequest):
            return await self._handshake(request, connection)
        return await self._authenticate(request, connection)

    async def _handshake(self, request: SaslHandshakeRequest, connection: Connection) -> Response:
        authentication = connection.authentication
        assert authentication is not None
        effects = authentication.receive(ChooseMechanism(request.mechanism), self._clock.now_ms())
        answer = await self._apply(connection, effects)
        assert isinstance(answer, OfferMechanisms)
        return Response(SaslHandshakeResponse(0, list(answer.mechanisms)))

    async def _authenticate(self, request: SaslAuthenticateRequest, connection: Connection) -> Response:
        authentication = connection.authentication
        assert authentication is not None
        token = SaslToken(request.auth_bytes)
        if authentication.is_quick(request.auth_bytes):  # faster than passing it to a thread
            effects = authentication.receive(token, self._clock.now_ms())
        else:
            effects = await self._on_thread(authentication, token, connection)
        answer = await self._apply(connection, effects)
        assert isinstance(answer, Challenge)
        response = SaslAuthenticateResponse(
            0,
            auth_bytes=answer.token,
            session_lifetime_ms=answer.session_lifetime_ms,
            principal=str(authentication.principal or ""),
        )
        return Response(response)

    async def _on_thread(
        self, authentication: Authentication, token: SaslToken, connection: Connection
    ) -> list[Effect]:
        self._exchanging.add(connection)
        try:
            return await self._loop.run_in_executor(self._threads, authentication.receive, token, self._clock.now_ms())
        finally:
            self._exchanging.discard(connection)

    async def _apply(self, connection: Connection, effects: list[Effect]) -> Effect | None:
        """Carry out the state machine's effects, and return the effect that the answer contains. A failure is raised
        after its delay.
        """
        answer: Effect | None = None
        for effect in effects:
            match effect:
                case Authenticated(principal, mechanism, again):
                    connection.principal = principal
                    assert connection.authentication is not None
                    self._watch(connection, connection.authentication)
                    (self.counters.repeated if again else self.counters.succeeded)[mechanism] += 1
                    if mechanism != OAUTHBEARER:
                        self._by_password[connection] = principal.name
                    log.debug("%s: is %s (%s)", connection.peer_name, principal, mechanism)
                    if mechanism != OAUTHBEARER and not self._users.knows(principal.name):  # just removed
                        connection.close()
                    elif not again:
                        self.on_identified(connection)
                case Fail(error, delay_ms, reason, text):
                    self._failed(connection, reason, text)
                    await asyncio.sleep(delay_ms / 1000)
                    raise error
                case _:
                    answer = effect
        if answer is None and not effects:  # the authentication has failed before
            raise SaslAuthenticationFailedError("the connection has ended")
        return answer

    def _failed(self, connection: Connection, reason: str, text: str) -> None:
        self.counters.failed[reason] += 1
        log.info("%s: authentication failed: %s", connection.peer_name, text)
        self.on_failed(connection, reason, text)

    # -- the end of sessions

    def _watch(self, connection: Connection, authentication: Authentication) -> None:
        """Schedule the end of the session, or of the time to authenticate. A waiting request does not delay the end."""
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        deadline_ms = authentication.deadline_ms
        if deadline_ms is not None:
            remaining_s = max(deadline_ms - self._clock.now_ms(), 0) / 1000 + _LOOK_AGAIN_S
            self._timers[connection] = self._loop.call_later(
                remaining_s, self._look, weakref.ref(connection), authentication
            )

    def _look(self, reference: weakref.ref[Connection], authentication: Authentication) -> None:
        connection = reference()
        if connection is None or connection.state is not State.OPEN:
            return
        if connection not in self._exchanging:
            for effect in authentication.expire(self._clock.now_ms()):
                assert isinstance(effect, Fail)
                self._failed(connection, effect.reason, effect.log_text)
                connection.close()
                return
        self._watch(connection, authentication)

    def _certificate_expired(self, connection: Connection) -> None:
        """Close a connection whose certificate has expired, even with a waiting request."""
        self._failed(connection, "certificate-expired", "the certificate of the client has expired; disconnecting")
        connection.close()

    def _end_connections_of(self, name: str) -> None:
        """Close the connections of a removed user."""
        for connection in [c for c, user in self._by_password.items() if user == name]:
            log.info("%s: the user %s has been removed; disconnecting", connection.peer_name, name)
            connection.close()
