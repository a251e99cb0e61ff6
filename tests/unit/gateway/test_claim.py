"""A gateway that is started by hand: it keeps its claim on the broker, and waits for that of a silent gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sparklog.errors import BrokerNotAvailableError, CoordinatorNotAvailableError, PolicyViolationError
from sparklog.gateway import main
from sparklog.gateway.gateway import Gateway
from sparklog.gateway.groups.model import Join
from sparklog.protocol.apis import Api

JOIN = Join("", None, "c", "h", 60_000, 60_000, "consumer", [("range", b"")], needs_member_id=False)


class Connection:
    """A connection to the broker that answers with `error`, or without one."""

    def __init__(self) -> None:
        self.closed = False
        self.error: Exception | None = None
        self.asked: list[Api] = []

    async def ask(self, api: Api, message: Any, response: type) -> None:
        self.asked.append(api)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed = True


def with_gateway(body: Callable[[Gateway], Awaitable[None]]) -> None:
    async def run() -> None:
        gateway = Gateway(name="mine")
        try:
            await body(gateway)
        finally:
            gateway.close()

    asyncio.run(run())


def test_the_claim_is_kept_on_the_own_connection_or_on_that_of_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> None:
        raise AssertionError("a connection too many")

    async def body(gateway: Gateway) -> None:
        monkeypatch.setattr(gateway, "connect", refuse)
        assert gateway.is_started_by_hand
        await gateway.keep_claim([])
        client, other, own = Connection(), Connection(), Connection()
        await gateway.keep_claim([client, other])  # type: ignore[list-item]
        assert (client.asked, other.asked) == ([Api.METADATA], [])
        gateway._first = own  # type: ignore[assignment]
        await gateway.keep_claim([client])  # type: ignore[list-item]
        assert (client.asked, own.asked) == ([Api.METADATA], [Api.METADATA])

    with_gateway(body)


def test_the_own_connection_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(gateway: Gateway) -> None:
        async def connect(*_: Any) -> Connection:
            if not failures:
                return new
            raise failures.pop()

        failures: list[Exception] = [BrokerNotAvailableError("it restarts")]
        former, new = Connection(), Connection()
        gateway._first = former  # type: ignore[assignment]
        former.closed, former.error = True, BrokerNotAvailableError("closed")
        monkeypatch.setattr(gateway, "connect", connect)
        await gateway.keep_claim([])
        assert new.asked == []
        await gateway.keep_claim([])
        assert new.asked == [Api.METADATA]

    with_gateway(body)


def test_a_gateway_that_has_lost_its_claim_forgets_its_groups(caplog: pytest.LogCaptureFixture) -> None:
    async def body(gateway: Gateway) -> None:
        own = gateway._first = Connection()  # type: ignore[assignment]
        await gateway.groups.join("g", JOIN)
        for error in (CoordinatorNotAvailableError("about to end"), BrokerNotAvailableError("gone")):
            own.error = error
            await gateway.keep_claim([])
            assert gateway.groups.find("g") is not None, error
        own.error = PolicyViolationError("gateway other serves")
        for _ in range(3):
            await gateway.keep_claim([])
        assert gateway.groups.find("g") is None
        assert caplog.text.count("serves no clients any more: gateway other serves") == 1
        own.error = None
        await gateway.keep_claim([])
        await gateway.groups.join("g", JOIN)
        assert gateway.groups.find("g") is not None

    with_gateway(body)


def test_a_new_gateway_waits_for_the_claim_of_a_silent_one_and_stops_for_that_of_a_living_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Starting:
        def __init__(self, *errors: Exception) -> None:
            self.errors = list(errors)

        async def start(self, *, stays_connected: bool) -> None:
            if self.errors:
                raise self.errors.pop(0)

    async def run() -> None:
        stop, silent = asyncio.Event(), CoordinatorNotAvailableError("its claim ends")
        monkeypatch.setattr(main, "_PAUSE_S", 0.0)
        monkeypatch.setattr(main, "REPLACED_WAIT_S", 0.0)
        gateway: Any = Starting(silent, silent, silent)
        await main._find_broker(gateway, stop, stays_connected=True)
        assert gateway.errors == []
        gateway = Starting(silent, PolicyViolationError("it lives"), silent)
        with pytest.raises(PolicyViolationError, match="it lives"):
            await main._find_broker(gateway, stop, stays_connected=True)

    asyncio.run(run())
