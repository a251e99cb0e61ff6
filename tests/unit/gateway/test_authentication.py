"""The state of a client's authentication at the gateway: it follows the broker's verdict alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from sparklog.errors import IllegalSaslStateError, SaslAuthenticationFailedError, SparklogError
from sparklog.gateway.gateway import Gateway
from sparklog.gateway.handlers.sasl import sasl_authenticate, sasl_handshake
from sparklog.gateway.session import Session
from sparklog.kafka.wire.errors import Kafka
from sparklog.protocol.apis import Api
from sparklog.protocol.security_messages import SaslAuthenticateResponse, SaslHandshakeResponse
from sparklog.security.listeners import Listener, SecurityProtocol
from sparklog.security.sasl import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512

CHALLENGE = SaslAuthenticateResponse(0, b"challenge")
VERDICT = SaslAuthenticateResponse(0, b"", 60_000, principal="User:alice")
REFUSAL = SaslAuthenticationFailedError("authentication failed")


class Broker:
    """A broker's connection that answers SASL messages with `answers`, in their order."""

    def __init__(self, answers: Iterable[SaslAuthenticateResponse | SparklogError]) -> None:
        self._answers = iter(answers)
        self.closed = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self, api: Api, message: Any, response: type) -> Any:
        if api is Api.SASL_HANDSHAKE:
            return SaslHandshakeResponse(0, [message.mechanism])
        answer = next(self._answers)
        if isinstance(answer, SparklogError):
            raise answer
        return answer

    def release(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Stream:
    """A client's stream that is never read."""

    def __init__(self, certificate: bytes = b"") -> None:
        self.is_closed = False
        self._certificate = certificate

    def get_extra_info(self, name: str) -> Any:
        if name == "ssl_object" and self._certificate:
            return SimpleNamespace(getpeercert=lambda binary_form: self._certificate)
        return None

    def close(self) -> None:
        self.is_closed = True


async def session_with(
    broker: Broker, certificate: bytes = b"", protocol: SecurityProtocol = SecurityProtocol.SASL_SSL
) -> tuple[Session, Stream]:
    gateway, stream = Gateway(), Stream(certificate)

    async def connect(*_: Any) -> Broker:
        return broker

    gateway.connect = connect  # type: ignore[method-assign, assignment]
    listener = Listener("L", "127.0.0.1", 0, protocol)
    session = Session(gateway, listener, {}, stream)  # type: ignore[arg-type]
    await session.broker()
    gateway.conversions.close()
    return session, stream


async def exchange(session: Session, mechanism: str, messages: int) -> list[int]:
    """Return the codes of the answers to a handshake and to `messages` messages of the exchange."""
    await sasl_handshake(session, {"mechanism": mechanism}, 1)
    return [(await sasl_authenticate(session, {"auth_bytes": b"x"}, 2))["error_code"] for _ in range(messages)]


@pytest.mark.parametrize("mechanism", [OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512])
@pytest.mark.parametrize("challenges", [0, 1, 2, 5])
def test_a_challenge_does_not_authenticate_and_a_verdict_does(mechanism: str, challenges: int) -> None:
    async def main() -> None:
        session, _ = await session_with(Broker([*[CHALLENGE] * challenges, VERDICT]))
        assert await exchange(session, mechanism, challenges) == [Kafka.NONE] * challenges
        assert not session.is_identified
        assert (await sasl_authenticate(session, {"auth_bytes": b"x"}, 2))["session_lifetime_ms"] == 60_000
        assert session.is_identified

    asyncio.run(main())


@pytest.mark.parametrize("error", [REFUSAL, IllegalSaslStateError("out of order")])
@pytest.mark.parametrize("before", [(), (CHALLENGE,), (VERDICT,), (VERDICT, CHALLENGE)])
def test_a_refusal_ends_the_authentication_also_of_an_authenticated_client(
    before: tuple[SaslAuthenticateResponse, ...], error: SparklogError
) -> None:
    async def main() -> None:
        session, stream = await session_with(Broker([*before, error]))
        codes = await exchange(session, OAUTHBEARER, len(before) + 1)
        assert codes[:-1] == [Kafka.NONE] * len(before) and codes[-1] is not Kafka.NONE
        assert not session.is_identified
        assert session.ends_after_answer
        assert not stream.is_closed, "the client reads the refusal first"

    asyncio.run(main())


def test_a_session_ends_with_the_brokers_connection_that_has_authenticated_it() -> None:
    async def main() -> None:
        for answer, is_closed in ((CHALLENGE, False), (VERDICT, True)):
            broker = Broker([answer])
            session, stream = await session_with(broker)
            await exchange(session, OAUTHBEARER, 1)
            broker.ended.set_result(None)
            await asyncio.sleep(0)
            assert stream.is_closed == is_closed

    asyncio.run(main())


def test_a_session_ends_with_the_brokers_connection_that_has_the_clients_certificate() -> None:
    async def main() -> None:
        for certificate in (b"", b"certificate"):
            broker = Broker([])
            _, stream = await session_with(broker, certificate, SecurityProtocol.SSL)
            broker.ended.set_result(None)  # as at the expiry of the certificate
            await asyncio.sleep(0)
            assert stream.is_closed == bool(certificate)

    asyncio.run(main())


def test_a_refused_token_leaves_the_limits_of_unknown_clients() -> None:
    async def main() -> None:
        session, _ = await session_with(Broker([CHALLENGE]))
        await exchange(session, OAUTHBEARER, 1)
        limits = session.gateway.limits
        assert session.request_bytes_max(limits.request_bytes) == limits.unknown_request_bytes
        session.is_identified = True
        assert session.request_bytes_max(limits.request_bytes) == limits.request_bytes

    asyncio.run(main())
