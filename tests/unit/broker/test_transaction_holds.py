"""Coordinators pause for a snapshot: for as long as it is held, and never for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from sparklog_broker.coordinators.transaction_holds import HOLDS_MAX, TransactionHolds

from sparklog.errors import ConcurrentTransactionsError


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30))


def test_requests_wait_until_all_holds_have_ended() -> None:
    async def scenario() -> None:
        holds = TransactionHolds(asyncio.get_running_loop(), lambda: {0: 4, 1: 2})
        await holds.passed()
        holds.begin("a", 60)
        holds.begin("b", 60)
        waiting = asyncio.ensure_future(holds.passed())
        await asyncio.sleep(0)
        assert holds.took_effect("a") == {0: 4, 1: 2}
        assert holds.end("b") == {}, "it has not taken effect"
        await asyncio.sleep(0)
        assert not waiting.done()
        assert holds.end("a") == {0: 4, 1: 2}
        await waiting

    run(scenario())


def test_a_hold_ends_by_itself_and_then_was_none() -> None:
    async def scenario() -> None:
        holds = TransactionHolds(asyncio.get_running_loop(), lambda: {0: 4})
        holds.begin("a", 0.01)
        assert holds.took_effect("a") == {0: 4}
        await holds.passed()
        assert holds.end("a") == holds.took_effect("a") == {}

    run(scenario())


def test_partitions_with_a_changed_leader_were_not_held() -> None:
    async def scenario() -> None:
        partitions = {0: 4, 1: 2, 2: 7}
        holds = TransactionHolds(asyncio.get_running_loop(), lambda: dict(partitions))
        holds.begin("a", 60)
        holds.took_effect("a")
        partitions[1] = 3
        del partitions[2]
        assert holds.end("a") == {0: 4}

    run(scenario())


def test_holds_have_a_limit() -> None:
    async def scenario() -> None:
        holds = TransactionHolds(asyncio.get_running_loop(), dict)
        for i in range(HOLDS_MAX):
            holds.begin(f"a{i}", 60)
        with pytest.raises(ConcurrentTransactionsError):
            holds.begin("b", 60)
        holds.end("a0")
        holds.begin("b", 60)
        with pytest.raises(ConcurrentTransactionsError):
            holds.begin("a0", 60)
        for name in ("b", *(f"a{i}" for i in range(1, HOLDS_MAX))):
            holds.end(name)
        await holds.passed()

    run(scenario())
