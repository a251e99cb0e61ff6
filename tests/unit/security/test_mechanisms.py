"""Tries to get past each mechanism: brokers that cannot prove themselves, messages sent again, mechanisms exchanged."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from sparklog.client.net.session import Session
from sparklog.errors import SaslAuthenticationFailedError, UnsupportedSaslMechanismError
from sparklog.protocol.apis import Api
from sparklog.protocol.security_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from sparklog.security.client_security import ClientSecurity
from sparklog.security.handshake import Authentication, ChooseMechanism, Fail, ListenerRules, SaslToken
from sparklog.security.listeners import SecurityProtocol
from sparklog.security.oauthbearer import OAuthBearerServer, bearer_message
from sparklog.security.plain import PlainServer, plain_message
from sparklog.security.principals import user
from sparklog.security.sasl import MECHANISMS, OAUTHBEARER, PLAIN, SCRAM_MECHANISMS, SCRAM_SHA_256, SaslServer
from sparklog.security.sasl_client import RENEWED_AFTER, renewed_after_s, sasl_client
from sparklog.security.scram import ScramClient, ScramServer, UnknownUsers, make_credential
from sparklog.security.secrets import Secret
from tests.support.cases import for_each

PASSWORD = Secret("pencil")
SERVER_SECRET = bytes(range(32))
CREDENTIALS = {m: {"alice": make_credential(m, PASSWORD)} for m in SCRAM_MECHANISMS}
OTHERS = {m: {"alice": make_credential(m, Secret("another"))} for m in SCRAM_MECHANISMS}


class Tokens:
    """Takes one token until its end, in place of a signature's check."""

    def verify(self, token: str, now_ms: int) -> tuple[str, int]:
        if token != "good" or now_ms >= 5_000:
            raise SaslAuthenticationFailedError("the token is not taken")
        return "alice", 5_000


def server(mechanism: str) -> SaslServer:
    if mechanism == OAUTHBEARER:
        return OAuthBearerServer(Tokens())
    if mechanism == PLAIN:
        return PlainServer(CREDENTIALS[SCRAM_SHA_256].get, UnknownUsers(SCRAM_SHA_256, SERVER_SECRET))
    return ScramServer(mechanism, CREDENTIALS[mechanism].get, UnknownUsers(mechanism, SERVER_SECRET))


def first_message(mechanism: str) -> bytes:
    if mechanism == OAUTHBEARER:
        return bearer_message(Secret("good"))
    if mechanism == PLAIN:
        return plain_message("alice", PASSWORD)
    return ScramClient(mechanism, "alice", PASSWORD).first()


class Broker:
    """A broker for a client's session, whose messages are changed on their way. `seen`: the received messages."""

    def __init__(self, mechanism: str, change: Callable[[int, bytes], bytes] = lambda step, message: message) -> None:
        self._server = server(mechanism)
        self._change = change
        self._steps = 0
        self.seen: list[bytes] = []

    def request(
        self, api: Api, message: Any, response: Any, payload: Any = (), *, timeout_ms: int | None = None
    ) -> Any:
        if api is Api.SASL_HANDSHAKE:
            assert isinstance(message, SaslHandshakeRequest)
            return SaslHandshakeResponse(0, [message.mechanism]), None
        assert isinstance(message, SaslAuthenticateRequest)
        self.seen.append(bytes(message.auth_bytes))
        self._steps += 1
        challenge = self._server.respond(message.auth_bytes, 0).challenge
        return SaslAuthenticateResponse(0, auth_bytes=self._change(self._steps, challenge)), None


def session(mechanism: str) -> Session:
    return Session(ClientSecurity(SecurityProtocol.SASL_SSL, mechanism, "alice", PASSWORD))


def signature_of(mechanism: str, credentials: Any) -> bytes:
    """The server's last message in an exchange of its own."""
    client, other = (
        ScramClient(mechanism, "alice", PASSWORD),
        ScramServer(mechanism, credentials.get, UnknownUsers(mechanism, SERVER_SECRET)),
    )
    return other.respond(client.respond(other.respond(client.first(), 0).challenge), 0).challenge


def flipped(message: bytes) -> bytes:
    """One bit of the signature is another one."""
    raw = bytearray(base64.b64decode(message.removeprefix(b"v=")))
    raw[-1] ^= 1
    return b"v=" + base64.b64encode(bytes(raw))


LIES: dict[str, Callable[[bytes, str], bytes]] = {
    "one bit": lambda message, mechanism: flipped(message),
    "zeros": lambda message, mechanism: b"v=" + base64.b64encode(bytes(64 if "512" in mechanism else 32)),
    "cut": lambda message, mechanism: b"v=" + base64.b64encode(base64.b64decode(message[2:])[:-1]),
    "empty": lambda message, mechanism: b"v=",
    "nothing": lambda message, mechanism: b"",
    "no field": lambda message, mechanism: b"ok",
    "not base64": lambda message, mechanism: b"v=***",
    "an error": lambda message, mechanism: b"e=other-error",
    "an error before it": lambda message, mechanism: b"e=other-error," + message,
    "of an exchange before": lambda message, mechanism: signature_of(mechanism, CREDENTIALS[mechanism]),
    "of the other hash": lambda message, mechanism: signature_of(
        next(m for m in SCRAM_MECHANISMS if m != mechanism),
        CREDENTIALS[next(m for m in SCRAM_MECHANISMS if m != mechanism)],
    ),
}


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_broker_that_proves_itself_is_believed(mechanism: str) -> None:
    broker, its_session = Broker(mechanism), session(mechanism)
    its_session.authenticate(broker, 1_000)
    assert its_session.is_authenticated
    assert not any(PASSWORD.reveal().encode() in message for message in broker.seen)


@for_each("lie", LIES)
@for_each("mechanism", SCRAM_MECHANISMS)
def test_a_broker_with_a_wrong_signature_is_refused(mechanism: str, lie: str) -> None:
    broker = Broker(mechanism, lambda step, message: LIES[lie](message, mechanism) if step == 2 else message)
    its_session = session(mechanism)
    with pytest.raises(SaslAuthenticationFailedError):
        its_session.authenticate(broker, 1_000)
    assert not its_session.is_authenticated
    assert len(broker.seen) == 2, "nothing more is sent"


@for_each("mechanism", SCRAM_MECHANISMS)
@for_each("early", [b"", b"v=AAAA", b"e=", b"r=x,s=eA==,i=4096"])
def test_a_broker_that_says_done_before_it_has_proved_itself_is_refused(mechanism: str, early: bytes) -> None:
    broker, its_session = Broker(mechanism, lambda step, message: early), session(mechanism)
    with pytest.raises(SaslAuthenticationFailedError):
        its_session.authenticate(broker, 1_000)
    assert not its_session.is_authenticated
    assert len(broker.seen) == 1, "no proof is given to a broker that does not continue the client's nonce"


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_challenge_of_an_exchange_before_is_refused(mechanism: str) -> None:
    old = server(mechanism).respond(first_message(mechanism), 0).challenge
    broker = Broker(mechanism, lambda step, message: old)
    with pytest.raises(SaslAuthenticationFailedError):
        session(mechanism).authenticate(broker, 1_000)
    assert len(broker.seen) == 1


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_broker_that_asks_for_less_work_gets_no_proof(mechanism: str) -> None:
    def cheaper(step: int, message: bytes) -> bytes:
        return message.rpartition(b",i=")[0] + b",i=1"

    broker = Broker(mechanism, cheaper)
    with pytest.raises(SaslAuthenticationFailedError):
        session(mechanism).authenticate(broker, 1_000)
    assert len(broker.seen) == 1


@for_each("mechanism", [*SCRAM_MECHANISMS, PLAIN])
def test_a_client_never_falls_back_to_a_mechanism_that_the_broker_offers(mechanism: str) -> None:
    class Downgrading:
        def __init__(self) -> None:
            self.seen: list[tuple[Api, Any]] = []

        def request(self, api: Api, message: Any, response: Any, payload: Any = (), **_: Any) -> Any:
            self.seen.append((api, message))
            raise UnsupportedSaslMechanismError("this listener has: PLAIN")

    broker = Downgrading()
    with pytest.raises(UnsupportedSaslMechanismError):
        session(mechanism).authenticate(broker, 1_000)
    assert broker.seen == [(Api.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism))]


@pytest.mark.parametrize(("chosen", "spoken"), list(itertools.permutations(MECHANISMS, 2)))
def test_messages_of_another_mechanism_than_the_chosen_one_fail(chosen: str, spoken: str) -> None:
    auth = Authentication(ListenerRules("CLIENTS", tuple(MECHANISMS), tls=True), server, 0)
    auth.receive(ChooseMechanism(chosen), 0)
    message = first_message(spoken)
    if {chosen, spoken} == set(SCRAM_MECHANISMS):  # they begin alike; the proof is another hash's
        client = ScramClient(spoken, "alice", PASSWORD)
        (challenge,) = auth.receive(SaslToken(client.first()), 0)
        message = client.respond(challenge.token)  # type: ignore[union-attr]
    effects: list[Any] = auth.receive(SaslToken(message), 0)
    if chosen == OAUTHBEARER:  # RFC 7628: what is wrong is told first, and then it fails
        effects = auth.receive(SaslToken(b"\x01"), 0) or effects
    assert isinstance(effects[-1], Fail)
    assert auth.principal is None


@for_each("mechanism", MECHANISMS)
def test_a_mechanism_that_the_listener_does_not_have_is_refused_with_any_message(mechanism: str) -> None:
    rest = tuple(m for m in MECHANISMS if m != mechanism)
    auth = Authentication(ListenerRules("CLIENTS", rest, tls=True), server, 0)
    (effect,) = auth.receive(ChooseMechanism(mechanism), 0)
    assert isinstance(effect, Fail)
    assert isinstance(effect.error, UnsupportedSaslMechanismError)
    assert auth.receive(SaslToken(first_message(mechanism)), 0) == []
    assert auth.principal is None


@for_each("mechanism", MECHANISMS)
def test_an_exchange_that_has_ended_takes_no_message_again(mechanism: str) -> None:
    exchange = server(mechanism)
    messages = [first_message(mechanism)]
    if mechanism in SCRAM_MECHANISMS:
        client = ScramClient(mechanism, "alice", PASSWORD)
        messages = [client.first()]
        messages.append(client.respond(exchange.respond(messages[0], 0).challenge))
    assert exchange.respond(messages[-1], 0).principal == user("alice")
    for message in messages:
        with pytest.raises(SaslAuthenticationFailedError):
            exchange.respond(message, 0)


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_recorded_exchange_opens_no_other_connection(mechanism: str) -> None:
    client, exchange = ScramClient(mechanism, "alice", PASSWORD), server(mechanism)
    first = client.first()
    proof = client.respond(exchange.respond(first, 0).challenge)
    assert exchange.respond(proof, 0).principal == user("alice")
    again = server(mechanism)
    again.respond(first, 0)
    with pytest.raises(SaslAuthenticationFailedError):
        again.respond(proof, 0)


def test_a_recorded_token_opens_no_connection_after_its_end() -> None:
    exchange = server(OAUTHBEARER)
    step = exchange.respond(first_message(OAUTHBEARER), 5_000)
    assert step.principal is None
    with pytest.raises(SaslAuthenticationFailedError):
        exchange.respond(b"\x01", 5_000)


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_message_after_the_brokers_proof_is_refused(mechanism: str) -> None:
    client, broker = (
        sasl_client(ClientSecurity(SecurityProtocol.SASL_SSL, mechanism, "alice", PASSWORD)),
        server(mechanism),
    )
    proof = client.answer(broker.respond(client.first(), 0).challenge)
    assert proof is not None
    last = broker.respond(proof, 0).challenge
    assert client.answer(last) is None
    with pytest.raises(SaslAuthenticationFailedError, match="more messages"):
        client.answer(last)


def test_a_session_is_renewed_early_enough_for_the_longest_wait() -> None:
    earliest, latest = RENEWED_AFTER
    assert all(earliest * 3_600 <= renewed_after_s(3_600_000, 12.0) <= latest * 3_600 for _ in range(100))
    assert renewed_after_s(30_000, 12.0) == 18
    assert renewed_after_s(2_000, 12.0) == 1
    assert all(earliest * 2 <= renewed_after_s(2_000) <= latest * 2 for _ in range(100))
