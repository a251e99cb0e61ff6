"""Authentication of one connection: a state machine without sockets and clocks.

    state           ChooseMechanism      SaslToken                          OtherRequest     HandshakeRequest
    UNKNOWN         → EXCHANGE           fails                              fails            let through, a few times
    EXCHANGE        fails                → EXCHANGE, KNOWN, or fails        fails            fails
    KNOWN           → EXCHANGE_AGAIN     fails                              let through      let through
    EXCHANGE_AGAIN  fails                → EXCHANGE_AGAIN, KNOWN, or fails  fails            fails
    FAILED          nothing is answered any more

On a SASL listener a connection begins UNKNOWN. On other listeners it begins KNOWN, as the principal of its certificate
or as `User:ANONYMOUS`, and ChooseMechanism fails. Every request after the end of the session fails (KIP-368), also
those of an authentication that has begun before.

Every failure ends the connection. The answer and the end come `failed_delay_ms` later, so that guessing is slow; until
then nothing is read from the connection. All failures of a password have the same text for the peer; the text for a
refused token has the reason. The log gets the reason, without the received bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from sparklog.errors import (
    IllegalSaslStateError,
    InvalidConfigError,
    SaslAuthenticationFailedError,
    SparklogError,
    UnsupportedSaslMechanismError,
)
from sparklog.security.principals import ANONYMOUS, Principal
from sparklog.security.sasl import CREDENTIALS_WRONG, MECHANISMS, PLAIN, SCRAM_MECHANISMS, TOKEN_BYTES_MAX, SaslServer

ANONYMOUS_HANDSHAKES_MAX = 2
MESSAGES_PER_EXCHANGE_MAX = 8
"""Largest number of SASL_AUTHENTICATE requests in one exchange. No mechanism needs more than two."""
QUICK_TOKEN_BYTES_MAX = 256
"""Size in bytes up to which a message is handled on the event loop. SCRAM's messages have 90 to 240 bytes with usual
nonces and names."""
REAUTHENTICATION_INTERVAL_MS_MIN = 1_000
"""Shortest time in ms between two authentications of a connection. An earlier attempt fails, as in Kafka."""


_OUT_OF_ORDER = "not allowed before or during the authentication: does security.protocol (SASL_SSL, SASL_PLAINTEXT) fit the listener?"


class ListenerRules(Struct, frozen=True):
    """Requirements of one listener for its connections. `mechanisms`: accepted SASL mechanisms; empty: no SASL."""

    name: str
    mechanisms: tuple[str, ...] = ()
    tls: bool = False
    failed_delay_ms: int = 100
    """The setting `connection.failed.authentication.delay.ms`; 0: no delay."""
    reauthentication_ms_max: int = 0
    """The setting `connections.max.reauth.ms`; 0: sessions have no limit."""
    authentication_timeout_ms: int = 30_000
    """Time in ms after which a connection that is not authenticated is closed."""

    def __post_init__(self) -> None:
        unknown = set(self.mechanisms) - set(MECHANISMS)
        if unknown:
            raise InvalidConfigError(
                f"sasl.enabled.mechanisms: {', '.join(sorted(unknown))}: use {', '.join(MECHANISMS)}"
            )
        if PLAIN in self.mechanisms and not self.tls:
            raise InvalidConfigError(
                f"listener {self.name}: PLAIN shows the password to the network: use SASL_SSL, or SCRAM-SHA-512"
            )


class HandshakeRequest(NamedTuple):
    """HANDSHAKE: the peer asks for the broker's APIs and versions."""


class ChooseMechanism(NamedTuple):
    """SASL_HANDSHAKE: the peer chooses a mechanism."""

    mechanism: str


class SaslToken(NamedTuple):
    """SASL_AUTHENTICATE: the peer sends a message of the mechanism."""

    token: bytes


class OtherRequest(NamedTuple):
    """Any other request. `api`: the name of its API, or another text if the broker does not know the API."""

    api: str


Event = HandshakeRequest | ChooseMechanism | SaslToken | OtherRequest


class LetThrough(NamedTuple):
    """Effect: handle the request as usual."""


class OfferMechanisms(NamedTuple):
    """Effect: answer ChooseMechanism with the accepted mechanisms."""

    mechanisms: tuple[str, ...]


class Challenge(NamedTuple):
    """Effect: answer SaslToken. `session_lifetime_ms`: as in SaslAuthenticateResponse."""

    token: bytes
    session_lifetime_ms: int = 0


class Authenticated(NamedTuple):
    """Effect: the connection has this principal from now on. `again`: True if it was authenticated before."""

    principal: Principal
    mechanism: str
    again: bool


class Fail(NamedTuple):
    """Effect: answer with `error` and close the connection, both after `delay_ms`, during which nothing is read.
    `reason`: name of the counter. `log_text`: text for the log and the audit log, without the received bytes.
    `mechanisms`: the accepted ones, for the answer, if the chosen mechanism is not accepted."""

    error: SparklogError
    delay_ms: int
    reason: str
    log_text: str
    mechanisms: tuple[str, ...] = ()


Effect = LetThrough | OfferMechanisms | Challenge | Authenticated | Fail


class State(Enum):
    """A state of the authentication; the module has the table of transitions."""

    UNKNOWN = "unknown"
    EXCHANGE = "exchange"
    KNOWN = "known"
    EXCHANGE_AGAIN = "exchange again"
    FAILED = "failed"


class Authentication:
    """The state of one connection. `make_server` returns the server's side of one exchange, for a mechanism."""

    def __init__(
        self,
        rules: ListenerRules,
        make_server: Callable[[str], SaslServer],
        now_ms: int,
        certificate_principal: Principal | None = None,
    ) -> None:
        """`certificate_principal`: principal of the peer's certificate, which TLS has verified; None: no certificate.
        It is used only if the listener has no SASL."""
        self._rules = rules
        self._make_server = make_server
        self._server: SaslServer | None = None
        self._mechanism = ""
        self._messages = 0
        self._handshakes = 0
        self._since_ms = now_ms
        self._expires_ms: int | None = None
        self.state = State.UNKNOWN if rules.mechanisms else State.KNOWN
        self._principal = None if rules.mechanisms else certificate_principal or ANONYMOUS

    @property
    def principal(self) -> Principal | None:
        """The peer's principal; None before it is known, and after a failure."""
        return None if self.state is State.FAILED else self._principal

    @property
    def deadline_ms(self) -> int | None:
        """Time in ms at which `expire` is due: the end of the session, or of the time for the authentication; None: no
        end."""
        if self.state in (State.UNKNOWN, State.EXCHANGE):
            return self._since_ms + self._rules.authentication_timeout_ms
        return None if self.state is State.FAILED else self._expires_ms

    def is_quick(self, token: bytes) -> bool:
        """Return True if `receive` of this SaslToken takes well below a millisecond, whatever its content. SCRAM's
        server computes little, and the name that it prepares is short."""
        return self._mechanism in SCRAM_MECHANISMS and len(token) <= QUICK_TOKEN_BYTES_MAX

    def expire(self, now_ms: int) -> list[Effect]:
        """Fail a connection whose session, or time for authentication, has ended. Call it at `deadline_ms`, also for a
        connection without requests. Returns no effects before that time."""
        deadline_ms = self.deadline_ms
        if deadline_ms is None or now_ms < deadline_ms:
            return []
        if self._principal is None:
            return self._fail(
                SaslAuthenticationFailedError("no authentication in time"), "timeout", "did not authenticate in time"
            )
        return self._session_expired()

    def receive(self, event: Event, now_ms: int) -> list[Effect]:
        """Return the effects of a request, in their order; none after a failure."""
        if self.state is State.FAILED:
            return []
        deadline_ms = self.deadline_ms
        if deadline_ms is not None and now_ms >= deadline_ms:
            return self.expire(now_ms)
        if isinstance(event, ChooseMechanism):
            return self._choose(event.mechanism, now_ms)
        if isinstance(event, SaslToken):
            return self._exchange(event.token, now_ms)
        if self.state is State.KNOWN:
            return [LetThrough()]
        if isinstance(event, HandshakeRequest) and self.state is State.UNKNOWN:
            self._handshakes += 1
            if self._handshakes <= ANONYMOUS_HANDSHAKES_MAX:
                return [LetThrough()]
        api = event.api if isinstance(event, OtherRequest) else "HANDSHAKE"
        return self._out_of_order(f"{api} in the state {self.state.value!r}")

    def _choose(self, mechanism: str, now_ms: int) -> list[Effect]:
        again = self.state is State.KNOWN
        if not self._rules.mechanisms or self.state not in (State.UNKNOWN, State.KNOWN):
            return self._out_of_order(f"SASL_HANDSHAKE in the state {self.state.value!r}")
        if mechanism not in self._rules.mechanisms:
            error = UnsupportedSaslMechanismError(
                f"mechanism {mechanism[:64]!r} is not enabled: use one of {', '.join(self._rules.mechanisms)}"
            )
            return self._fail(error, "mechanism", f"asked for the mechanism {mechanism[:64]!r}", self._rules.mechanisms)
        if again and mechanism != self._mechanism:
            return self._out_of_order(f"{mechanism} again after {self._mechanism}")
        if again and now_ms < self._since_ms + REAUTHENTICATION_INTERVAL_MS_MIN:
            return self._out_of_order("authenticates again too soon")
        self._mechanism, self._messages = mechanism, 0
        self._server = self._make_server(mechanism)
        self.state = State.EXCHANGE_AGAIN if again else State.EXCHANGE
        return [OfferMechanisms(self._rules.mechanisms)]

    def _exchange(self, token: bytes, now_ms: int) -> list[Effect]:
        if self._server is None:
            return self._out_of_order(f"SASL_AUTHENTICATE in the state {self.state.value!r}")
        self._messages += 1
        try:
            if len(token) > TOKEN_BYTES_MAX or self._messages > MESSAGES_PER_EXCHANGE_MAX:
                raise SaslAuthenticationFailedError(CREDENTIALS_WRONG)
            step = self._server.respond(token, now_ms)
        except SaslAuthenticationFailedError:
            return self._refuse("credentials are wrong")
        if step.principal is None:
            return [Challenge(step.challenge)]
        if step.expires_ms is not None and step.expires_ms <= now_ms:
            return self._refuse("what proves the identity has expired")
        if self._principal not in (None, step.principal):
            return self._refuse(f"was authenticated as {self._principal} and now authenticates as {step.principal}")
        again = self.state is State.EXCHANGE_AGAIN
        self._server, self._principal, self.state, self._since_ms = None, step.principal, State.KNOWN, now_ms
        lifetime_ms = self._lifetime_ms(step.expires_ms, now_ms)
        self._expires_ms = now_ms + lifetime_ms if lifetime_ms else None
        return [Authenticated(step.principal, self._mechanism, again), Challenge(step.challenge, lifetime_ms)]

    def _lifetime_ms(self, expires_ms: int | None, now_ms: int) -> int:
        """Return the lifetime of a session in ms: the shorter of the credential's and the listener's; 0 if neither sets
        an end."""
        limits = [] if expires_ms is None else [expires_ms - now_ms]
        if self._rules.reauthentication_ms_max:
            limits.append(self._rules.reauthentication_ms_max)
        return min(limits, default=0)

    def _refuse(self, why: str) -> list[Effect]:
        failure = getattr(self._server, "failure", "")
        log_text = f"{self._mechanism}: {why}" + (f": {failure}" if failure else "")
        reason = getattr(self._server, "reported", "")
        answer = f"authentication failed: {reason}" if reason else CREDENTIALS_WRONG
        return self._fail(SaslAuthenticationFailedError(answer), "credentials", log_text)

    def _session_expired(self) -> list[Effect]:
        error = SaslAuthenticationFailedError("the session has expired: authenticate again before the end of a session")
        return self._fail(error, "expired", f"the session of {self._principal} has expired")

    def _out_of_order(self, text: str) -> list[Effect]:
        return self._fail(IllegalSaslStateError(_OUT_OF_ORDER), "order", text)

    def _fail(self, error: SparklogError, reason: str, log_text: str, mechanisms: tuple[str, ...] = ()) -> list[Effect]:
        self.state, self._server = State.FAILED, None
        return [Fail(error, self._rules.failed_delay_ms, reason, f"{self._rules.name}: {log_text}", mechanisms)]
