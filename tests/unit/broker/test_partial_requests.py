"""Choice of the incomplete request that loses its memory while other requests wait."""

from __future__ import annotations

import asyncio
import logging

import pytest
from sparklog_broker.network.connection import Connection
from sparklog_broker.network.reply import Reply

from sparklog.environment.memory_budget import MemoryBudget
from sparklog.environment.partial_requests import LOG_S, PartialRequest, PartialRequests
from sparklog.protocol.frames import RequestPrefix
from tests.support.connections import MIB, echo, peer, request, run

STALL_S = 5.0


class Sender:
    """Holds memory until it is closed."""

    def __init__(self, budget: MemoryBudget, half: PartialRequest | None) -> None:
        self.peer_name = "10.0.0.9:1"
        self.partial_request = half
        self.closed = False
        self._budget = budget
        if half is not None:
            assert budget.reserve(self, half.held_bytes, lambda: None)

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        if self.partial_request is not None:
            self._budget.release(self, self.partial_request.held_bytes)


class Waiting:
    """Somebody for whom there is no memory at the moment."""

    def __init__(self, budget: MemoryBudget, size_bytes: int) -> None:
        self._budget = budget
        self._size_bytes = size_bytes
        self.has_got = False
        self._try()

    def _try(self) -> None:
        self.has_got = self._budget.reserve(self, self._size_bytes, self._try)


def full_budget() -> MemoryBudget:
    """Its last owner is the one that may have more than there is."""
    budget = MemoryBudget(4 * MIB)
    assert budget.reserve("exempt", 5 * MIB, lambda: None)
    return budget


def test_senders_without_progress_are_cut_when_others_wait() -> None:
    budget = MemoryBudget(40 * MIB)
    partial_requests = PartialRequests(budget, STALL_S)
    senders = [Sender(budget, PartialRequest(8 * MIB, 10 * MIB, 0.0, 1.0)) for _ in range(4)]
    partial_requests.check(senders, 100.0)
    assert not any(s.closed for s in senders), "nobody waits"
    assert Waiting(budget, MIB).has_got, "the first may have more than there is"
    honest = Waiting(budget, MIB)
    assert not honest.has_got
    partial_requests.check(senders, 1.0 + STALL_S)
    assert not any(s.closed for s in senders), "they have a while"
    partial_requests.check(senders, 1.1 + STALL_S)
    assert all(s.closed for s in senders)
    assert honest.has_got
    assert partial_requests.cut_count == 4


def test_senders_with_progress_and_blocked_ones_stay_connected() -> None:
    budget = full_budget()
    partial_requests = PartialRequests(budget, STALL_S)
    stalled = Sender(budget, PartialRequest(9_000, 16 * 1024, 0.0, 0.0))
    gets_on = Sender(budget, PartialRequest(9_000, 16 * 1024, 97.0, 99.0))
    cannot = Sender(budget, None)
    assert not Waiting(budget, MIB).has_got
    partial_requests.check([stalled, gets_on, cannot], 100.0)
    assert (stalled.closed, gets_on.closed, cannot.closed) == (True, False, False)


def test_the_slowest_sender_is_cut_one_at_a_time() -> None:
    budget = full_budget()
    partial_requests = PartialRequests(budget, STALL_S)
    slow, slower = (Sender(budget, PartialRequest(received, 16 * 1024, 0.0, 99.0)) for received in (900_000, 800_000))
    young = Sender(budget, PartialRequest(1, 16 * 1024, 102.0, 102.0))
    assert not Waiting(budget, MIB).has_got
    partial_requests.check([slow, slower, young], 100.0)
    partial_requests.check([slow, slower, young], 102.0)
    assert not slow.closed
    assert not slower.closed, "who waits has not waited long"
    slow.partial_request, slower.partial_request = (
        PartialRequest(received, 16 * 1024, 0.0, 104.0) for received in (900_000, 800_000)
    )
    partial_requests.check([slow, slower, young], 105.1)
    assert (slow.closed, slower.closed, young.closed) == (False, True, False)
    partial_requests.check([slow, young], 105.2)
    assert (slow.closed, young.closed) == (True, False)


def test_it_is_said_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    budget = full_budget()
    partial_requests = PartialRequests(budget, STALL_S)
    assert not Waiting(budget, MIB).has_got
    with caplog.at_level(logging.INFO):
        partial_requests.check([Sender(budget, PartialRequest(1, 16 * 1024, 0.0, 0.0)) for _ in range(50)], 100.0)
        assert len(caplog.records) == 1
        partial_requests.check([Sender(budget, PartialRequest(1, 16 * 1024, 0.0, 0.0))], 100.0 + LOG_S)
    assert [
        r.getMessage().endswith(f"{n} other clients were disconnected for the same reason")
        for r, n in zip(caplog.records, (0, 49), strict=True)
    ] == [
        True,
        True,
    ]


def test_a_connection_reports_its_held_memory() -> None:
    async def scenario() -> None:
        async with peer(echo, budget_bytes=16 * MIB) as p:
            assert p.connection.partial_request is None
            data = request(1, payload=b"x" * (4 * MIB))
            await p.send(data[:100_000])
            await p.until(lambda: p.connection.partial_request is not None)
            half = p.connection.partial_request
            assert half is not None
            assert half.held_bytes == p.budget.used_bytes > half.received_bytes
            p.connection.mute_now(60_000)
            assert p.connection.partial_request == half, "a quota keeps no memory from others"

    run(scenario)


def test_a_whole_request_that_a_quota_keeps_waiting_is_one_of_them() -> None:
    async def muting(prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply:
        while connection._read_ahead is None:  # the next one is read ahead
            await asyncio.sleep(0)
        connection.mute(3_600_000)
        return await echo(prefix, body, connection)

    async def scenario() -> None:
        async with peer(muting, budget_bytes=16 * MIB) as p:
            await p.send(request(1) + request(2, payload=b"x" * MIB))
            await p.response()
            await p.until(lambda: p.connection.partial_request is not None)
            half = p.connection.partial_request
            assert half is not None
            assert half.held_bytes == p.budget.used_bytes
            assert p.budget.reserve("exempt", 20 * MIB, lambda: None)
            waiting = Waiting(p.budget, MIB)
            assert not waiting.has_got
            PartialRequests(p.budget, STALL_S).check([p.connection], p.loop.time() + STALL_S + 1)
            assert p.closed == [p.connection]
            p.budget.release("exempt", 20 * MIB)
            assert waiting.has_got
            p.budget.release(waiting, MIB)

    run(scenario)


def test_senders_that_wait_for_memory_stay_connected() -> None:
    async def scenario() -> None:
        budget = full_budget()
        async with peer(echo, budget=budget) as p:
            await p.send(request(1, payload=b"x" * (4 * MIB))[:100_000])
            await p.until(lambda: budget.waiting_count > 0)
            assert p.connection.partial_request is None

    run(scenario)


def test_a_cut_connections_memory_goes_to_a_waiting_one() -> None:
    async def scenario() -> None:
        budget = MemoryBudget(2 * MIB)
        data = request(1, payload=b"x" * (4 * MIB))
        async with peer(echo, budget=budget) as first, peer(echo, budget=budget) as second:
            await first.send(data[: 2 * MIB - 100])
            await first.until(lambda: budget.used_bytes > 2 * MIB)
            await second.send(data[:100_000])
            await second.until(lambda: budget.waiting_count > 0)
            honest_data = request(2, payload=b"y" * MIB)
            async with peer(echo, budget=budget) as honest:
                sending = asyncio.ensure_future(honest.send(honest_data))
                await honest.until(lambda: budget.waiting_count > 1)
                connections = [first.connection, second.connection, honest.connection]
                partial_requests = PartialRequests(budget, STALL_S)
                partial_requests.check(connections, honest.loop.time() + STALL_S + 1)
                assert partial_requests.cut_count >= 1
                await sending
                assert (await honest.response())[3] == b"y" * MIB
        assert budget.used_bytes == 0

    run(scenario)
