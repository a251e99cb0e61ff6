"""Parts of an authentication on the event loop, and parts on threads of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from sparklog_broker.security.authenticator import Authenticator
from sparklog_broker.security.users import Users
from sparklog_broker.security_config import make_security

from sparklog.environment.clock import SystemClock
from sparklog.errors import SaslAuthenticationFailedError
from sparklog.protocol.security_messages import SaslAuthenticateRequest, SaslHandshakeRequest
from sparklog.security.handshake import QUICK_TOKEN_BYTES_MAX, Authentication, ListenerRules
from sparklog.security.plain import PlainServer, plain_message
from sparklog.security.principals import user
from sparklog.security.sasl import PLAIN, SCRAM_MECHANISMS, SCRAM_SHA_256
from sparklog.security.scram import ScramClient, ScramServer, make_credential
from sparklog.security.secrets import Secret
from sparklog.settings import Scope, settings_of

PASSWORD = Secret("correct-horse-battery")
SECRET = b"s" * 32


class CountedThreads(ThreadPoolExecutor):
    def __init__(self) -> None:
        super().__init__(1)
        self.jobs = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs += 1
        return super().submit(fn, *args, **kwargs)


class Peer:
    """The authenticator's view of a connection."""

    peer_name = "a peer"

    def __init__(self, users: Users) -> None:
        def make_server(mechanism: str) -> Any:
            if mechanism == PLAIN:
                return PlainServer(users.lookup(SCRAM_SHA_256), users.unknown(SCRAM_SHA_256))
            return ScramServer(mechanism, users.lookup(mechanism), users.unknown(mechanism))

        rules = ListenerRules("CLIENTS", (*SCRAM_MECHANISMS, PLAIN), tls=True, failed_delay_ms=0)
        self.authentication = Authentication(rules, make_server, SystemClock().now_ms())
        self.principal: object = None


class World:
    def __init__(self) -> None:
        self.users = Users(SECRET, {"alice": {m: make_credential(m, PASSWORD) for m in SCRAM_MECHANISMS}})
        self.threads = CountedThreads()
        settings = {name: setting.default for name, setting in settings_of(Scope.BROKER).items()}
        self.security = make_security(settings, "127.0.0.1:0", "")

    def run(self, talk: Callable[[Callable[[Any], Any]], Any]) -> Peer:
        """`talk(ask)`: a coroutine that sends requests of one peer."""
        peer = Peer(self.users)

        async def all_of_it() -> None:
            loop = asyncio.get_running_loop()
            authenticator = Authenticator(self.security, loop, SystemClock(), self.users, {}, self.threads)

            async def ask(request: Any) -> Any:
                return (await authenticator.answer(peer, request)).message  # type: ignore[arg-type]

            await talk(ask)

        asyncio.run(all_of_it())
        return peer


class Stranger:
    """A new connection, with the answers that it gets."""

    peer_name = "a stranger"

    def __init__(self) -> None:
        self.principal: object = None
        self.refusals: list[Exception] = []

    def refuse(self, error: Exception) -> None:
        self.refusals.append(error)


def test_an_unreadable_certificate_is_refused_and_not_anonymous(world: World) -> None:
    async def greet() -> Stranger:
        authenticator = Authenticator(
            world.security, asyncio.get_running_loop(), SystemClock(), world.users, {}, world.threads
        )
        stranger = Stranger()
        listener = SimpleNamespace(rules=ListenerRules("SSL", (), tls=True, failed_delay_ms=0), name="SSL")
        authenticator.greet(stranger, listener, b"\x30\x03\x02\x01\x01")  # type: ignore[arg-type]
        return stranger

    stranger = asyncio.run(greet())
    assert stranger.principal is None
    assert ["cannot be read" in str(e) for e in stranger.refusals] == [True]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.threads.shutdown()


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_scram_verification_hashes_no_password_and_needs_no_thread(world: World, mechanism: str) -> None:
    async def talk(ask: Any) -> None:
        client = ScramClient(mechanism, "alice", PASSWORD)
        await ask(SaslHandshakeRequest(mechanism))
        proof = client.respond((await ask(SaslAuthenticateRequest(client.first()))).auth_bytes)
        client.finish((await ask(SaslAuthenticateRequest(proof))).auth_bytes)

    assert world.run(talk).principal == user("alice")
    assert world.threads.jobs == 0


def test_a_long_name_is_prepared_on_a_thread(world: World) -> None:
    async def talk(ask: Any) -> None:
        await ask(SaslHandshakeRequest(SCRAM_SHA_256))
        message = b"n,,n=" + b"a" * QUICK_TOKEN_BYTES_MAX + b",r=0123456789"
        await ask(SaslAuthenticateRequest(message))

    world.run(talk)
    assert world.threads.jobs == 1


def test_plain_hashes_and_does_it_on_a_thread(world: World) -> None:
    async def talk(ask: Any) -> None:
        await ask(SaslHandshakeRequest(PLAIN))
        await ask(SaslAuthenticateRequest(plain_message("alice", PASSWORD)))

    assert world.run(talk).principal == user("alice")
    assert world.threads.jobs == 1


def test_a_wrong_password_fails_on_the_loop_as_well(world: World) -> None:
    async def talk(ask: Any) -> None:
        client = ScramClient(SCRAM_SHA_256, "alice", Secret("wrong"))
        await ask(SaslHandshakeRequest(SCRAM_SHA_256))
        proof = client.respond((await ask(SaslAuthenticateRequest(client.first()))).auth_bytes)
        with pytest.raises(SaslAuthenticationFailedError):
            await ask(SaslAuthenticateRequest(proof))

    assert world.run(talk).authentication.principal is None
