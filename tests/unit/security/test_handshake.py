"""The authentication of one connection: its table of states, sessions, and that nobody gets past it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import (
    IllegalSaslStateError,
    InvalidConfigError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from sparklog.protocol.base import Message
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
    Event,
    Fail,
    HandshakeRequest,
    LetThrough,
    ListenerRules,
    OfferMechanisms,
    OtherRequest,
    SaslToken,
    State,
)
from sparklog.security.principals import ANONYMOUS, Principal, user
from sparklog.security.sasl import MECHANISMS, SaslStep
from sparklog.security.scram import ScramClient, ScramServer, UnknownUsers, make_credential
from sparklog.security.secrets import Secret
from tests.support.cases import for_each

ALICE, BOB = user("alice"), user("bob")
SCRAM = "SCRAM-SHA-256"
RULES = ListenerRules("CLIENTS", (SCRAM, "SCRAM-SHA-512"), failed_delay_ms=100)
PRODUCE = OtherRequest("PRODUCE")


class TwoMessages:
    """A mechanism: "hello", then a name that is let in, with an expiry if one is given ("alice@5000")."""

    def __init__(self) -> None:
        self._greeted = False

    def respond(self, token: bytes, now_ms: int) -> SaslStep:
        text = token.decode("latin-1")
        if not self._greeted and text == "hello":
            self._greeted = True
            return SaslStep(b"who?")
        name, _, expires = text.partition("@")
        if not self._greeted or name not in ("alice", "bob"):
            raise SaslAuthenticationFailedError("s3cret reason")
        return SaslStep(b"welcome", user(name), int(expires) if expires else None)


def connection(rules: ListenerRules = RULES, **more: Any) -> Authentication:
    return Authentication(rules, lambda mechanism: TwoMessages(), 0, **more)


def log_in(auth: Authentication, now_ms: int = 0, name: bytes = b"alice", mechanism: str = SCRAM) -> list[object]:
    effects: list[object] = []
    for event in (ChooseMechanism(mechanism), SaslToken(b"hello"), SaslToken(name)):
        effects += auth.receive(event, now_ms)
    return effects


def failure(effects: list[Any]) -> Fail:
    (effect,) = effects
    assert isinstance(effect, Fail)
    assert effect.delay_ms == 100
    return effect


def test_a_peer_that_authenticates_is_let_through() -> None:
    auth = connection()
    assert auth.receive(HandshakeRequest(), 0) == [LetThrough()]
    assert auth.principal is None
    assert log_in(auth) == [
        OfferMechanisms(RULES.mechanisms),
        Challenge(b"who?"),
        Authenticated(ALICE, SCRAM, again=False),
        Challenge(b"welcome"),
    ]
    assert auth.principal == ALICE
    assert auth.receive(PRODUCE, 10**12) == [LetThrough()]
    assert auth.deadline_ms is None


@for_each("before", [[], [HandshakeRequest()], [ChooseMechanism(SCRAM)], [ChooseMechanism(SCRAM), SaslToken(b"hello")]])
def test_no_request_is_answered_before_the_peer_is_authenticated(before: list[Event]) -> None:
    auth = connection()
    for event in before:
        auth.receive(event, 0)
    effect = failure(auth.receive(PRODUCE, 0))
    assert isinstance(effect.error, IllegalSaslStateError)
    assert "PRODUCE" in effect.log_text
    for event in (PRODUCE, HandshakeRequest(), ChooseMechanism(SCRAM), SaslToken(b"hello")):
        assert auth.receive(event, 0) == []
    assert (auth.principal, auth.deadline_ms, auth.expire(10**12)) == (None, None, [])


def test_handshakes_before_the_authentication_are_limited() -> None:
    auth = connection()
    assert auth.receive(HandshakeRequest(), 0) == auth.receive(HandshakeRequest(), 0) == [LetThrough()]
    failure(auth.receive(HandshakeRequest(), 0))


def test_messages_out_of_order_fail() -> None:
    auth = connection()
    assert isinstance(failure(auth.receive(SaslToken(b"alice"), 0)).error, IllegalSaslStateError)
    auth = connection()
    auth.receive(ChooseMechanism(SCRAM), 0)
    assert isinstance(failure(auth.receive(ChooseMechanism(SCRAM), 0)).error, IllegalSaslStateError)
    auth = connection()
    log_in(auth)
    assert isinstance(failure(auth.receive(SaslToken(b"hello"), 0)).error, IllegalSaslStateError)


def test_the_listener_decides_about_mechanisms() -> None:
    effect = failure(connection().receive(ChooseMechanism("OAUTHBEARER"), 0))
    assert isinstance(effect.error, UnsupportedSaslMechanismError)
    assert effect.mechanisms == RULES.mechanisms
    with pytest.raises(InvalidConfigError, match="PLAIN"):
        ListenerRules("X", ("PLAIN",))
    assert ListenerRules("X", ("PLAIN",), tls=True).mechanisms == ("PLAIN",)
    with pytest.raises(InvalidConfigError, match="GSSAPI"):
        ListenerRules("X", ("GSSAPI",))


def test_a_failure_has_no_reason_for_the_peer_and_no_secret_in_the_log() -> None:
    auth = connection()
    auth.receive(ChooseMechanism(SCRAM), 0)
    effect = failure(auth.receive(SaslToken(b"hunter2"), 0))
    assert str(effect.error) == "authentication failed: invalid credentials"
    assert effect.reason == "credentials"
    assert "hunter2" not in effect.log_text
    assert "s3cret" not in effect.log_text


def test_listeners_without_sasl() -> None:
    plain = ListenerRules("INSIDE", failed_delay_ms=100)
    assert connection(plain).principal == ANONYMOUS
    auth = connection(plain, certificate_principal=BOB)
    assert (auth.principal, auth.receive(PRODUCE, 0)) == (BOB, [LetThrough()])
    assert isinstance(failure(auth.receive(ChooseMechanism(SCRAM), 0)).error, IllegalSaslStateError)
    # a certificate alone is not enough where the listener asks for SASL
    assert connection(RULES, certificate_principal=BOB).principal is None


def test_a_session_ends_with_its_credential_or_with_the_listeners_limit() -> None:
    def lifetime(limit_ms: int, name: bytes) -> object:
        auth = connection(ListenerRules("L", (SCRAM,), reauthentication_ms_max=limit_ms))
        return log_in(auth, 1_000, name)[-1]

    assert lifetime(0, b"alice") == Challenge(b"welcome", 0)
    assert lifetime(0, b"alice@5000") == Challenge(b"welcome", 4_000)
    assert lifetime(3_000, b"alice@5000") == Challenge(b"welcome", 3_000)
    assert lifetime(3_000, b"alice") == Challenge(b"welcome", 3_000)
    assert isinstance(lifetime(0, b"alice@1000"), Fail)  # expired as it is shown


def test_after_the_session_no_request_is_answered_and_waiting_ones_end() -> None:
    auth = connection()
    log_in(auth, 0, b"alice@5000")
    assert auth.deadline_ms == 5_000
    assert auth.expire(4_999) == []
    assert auth.receive(PRODUCE, 4_999) == [LetThrough()]
    assert failure(auth.receive(PRODUCE, 5_000)).reason == "expired"
    auth = connection()
    log_in(auth, 0, b"alice@5000")
    assert failure(auth.expire(5_000)).reason == "expired"


def test_authenticating_again() -> None:
    auth = connection()
    log_in(auth, 0, b"alice@5000")
    assert Authenticated(ALICE, SCRAM, again=True) in log_in(auth, 4_000, b"alice@9000")
    assert auth.receive(PRODUCE, 8_000) == [LetThrough()]
    assert auth.deadline_ms == 9_000


def test_authenticating_again_cannot_change_principal_or_mechanism_and_is_limited() -> None:
    for again in (
        lambda a: log_in(a, 2_000, b"bob"),
        lambda a: log_in(a, 2_000, mechanism="SCRAM-SHA-512"),
        lambda a: log_in(a, 999),
        lambda a: log_in(a, 2_000, b"nobody"),
        lambda a: [*a.receive(ChooseMechanism(SCRAM), 2_000), *a.receive(PRODUCE, 2_000)],
        # a session that is extended only by beginning would never end
        lambda a: [*a.receive(ChooseMechanism(SCRAM), 4_000), *a.receive(SaslToken(b"hello"), 5_000)],
    ):
        auth = connection()
        log_in(auth, 0, b"alice@5000")
        assert isinstance(again(auth)[-1], Fail)
        assert auth.principal is None


def test_peers_that_do_not_authenticate_in_time_are_cut_off() -> None:
    auth = connection()
    auth.receive(ChooseMechanism(SCRAM), 0)
    assert auth.deadline_ms == 30_000
    assert failure(auth.expire(30_000)).reason == "timeout"
    auth = connection()
    assert failure(auth.receive(ChooseMechanism(SCRAM), 30_000)).reason == "timeout"


def test_an_exchange_has_few_messages() -> None:
    class Endless:
        def respond(self, token: bytes, now_ms: int) -> SaslStep:
            return SaslStep(b"more")

    auth = Authentication(RULES, lambda mechanism: Endless(), 0)
    auth.receive(ChooseMechanism(SCRAM), 0)
    for _ in range(8):
        assert auth.receive(SaslToken(b""), 0) == [Challenge(b"more")]
    failure(auth.receive(SaslToken(b""), 0))


def test_with_the_real_mechanism() -> None:
    credential = make_credential(SCRAM, Secret("pencil"))
    auth = Authentication(RULES, lambda m: ScramServer(m, {"alice": credential}.get, UnknownUsers(m, bytes(32))), 0)
    client = ScramClient(SCRAM, "alice", Secret("pencil"))
    auth.receive(ChooseMechanism(SCRAM), 0)
    (challenge,) = auth.receive(SaslToken(client.first()), 0)
    assert isinstance(challenge, Challenge)
    _, final = auth.receive(SaslToken(client.respond(challenge.token)), 0)
    assert isinstance(final, Challenge)
    client.finish(final.token)
    assert auth.principal == ALICE


EVENTS = st.one_of(
    st.just(HandshakeRequest()),
    st.builds(ChooseMechanism, st.sampled_from([*MECHANISMS, "GSSAPI", ""])),
    st.builds(SaslToken, st.sampled_from([b"hello", b"alice", b"bob", b"alice@5000", b"x", b"\xff", b"y" * 70_000])),
    st.builds(OtherRequest, st.sampled_from(["PRODUCE", "FETCH", "97"])),
)


@given(st.lists(st.tuples(st.integers(0, 3_000), EVENTS), max_size=25))
def test_in_every_order_only_authenticated_peers_are_let_through(events: list[tuple[int, Event]]) -> None:
    """Model: a name was the second message of an exchange, and the session that it began has not ended."""
    auth, now_ms = connection(), 0
    proven: Principal | None = None
    for wait_ms, event in events:
        now_ms += wait_ms
        before = auth.state
        effects = auth.receive(event, now_ms)
        for effect in effects:
            if isinstance(effect, Authenticated):
                assert isinstance(event, SaslToken)
                assert event.token.startswith(effect.principal.name.encode())
                assert proven in (None, effect.principal)
                proven = effect.principal
            elif isinstance(effect, LetThrough) and not isinstance(event, HandshakeRequest):
                assert proven is not None
                assert before is State.KNOWN
                assert auth.deadline_ms is None or now_ms < auth.deadline_ms
        assert auth.principal in (None, proven)
        if any(isinstance(e, Fail) for e in effects) or before is State.FAILED:
            assert auth.state is State.FAILED
        if before is State.FAILED:
            assert effects == []


@for_each(
    "message",
    [
        SaslHandshakeRequest(SCRAM),
        SaslHandshakeResponse(0, [SCRAM]),
        SaslAuthenticateRequest(b"n,,"),
        SaslAuthenticateResponse(0, b"r=", 1),
    ],
)
def test_messages_survive_the_wire(message: Message) -> None:

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message


def test_a_token_that_is_too_large_is_no_message() -> None:

    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(
            msgspec.msgpack.encode(SaslAuthenticateRequest(b"x" * 65_537)), type=SaslAuthenticateRequest
        )
