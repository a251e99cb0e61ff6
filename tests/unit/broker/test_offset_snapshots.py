"""Requests under one name get one answer; the number of kept answers has a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from sparklog_broker.partitions.offset_snapshots import Extent, OffsetSnapshots, Snapshot

from sparklog.errors import BrokerNotAvailableError
from sparklog.security.principals import user
from sparklog.types import TopicPartition

ALICE, MALLORY = user("alice"), user("mallory")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def taking(found: Snapshot) -> Callable[[], Coroutine[Any, Any, Snapshot]]:
    async def take() -> Snapshot:
        return found

    return take


def test_the_first_request_decides() -> None:
    async def scenario() -> None:
        snapshots = OffsetSnapshots()
        first = await snapshots.of(ALICE, "action", taking({T0: Extent(0, 5), T1: Extent(2, 9)}))
        assert await snapshots.of(ALICE, "action", taking({T0: Extent(0, 6)})) is first
        assert first == {T0: Extent(0, 5), T1: Extent(2, 9)}
        assert await snapshots.of(ALICE, "other", taking({T0: Extent(0, 6)})) == {T0: Extent(0, 6)}

    asyncio.run(scenario())


def test_concurrent_requests_share_a_snapshot_even_if_the_first_is_cancelled() -> None:
    async def scenario() -> None:
        snapshots, told = OffsetSnapshots(), asyncio.Event()

        async def take() -> Snapshot:
            await told.wait()
            return {T0: Extent(0, 5)}

        first = asyncio.create_task(snapshots.of(ALICE, "action", take))
        second = asyncio.create_task(snapshots.of(ALICE, "action", taking({T0: Extent(0, 6)})))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        told.set()
        assert await second == {T0: Extent(0, 5)}

    asyncio.run(scenario())


def test_a_failure_is_reported_and_not_kept() -> None:
    async def scenario() -> None:
        snapshots = OffsetSnapshots()

        async def fail() -> Snapshot:
            raise BrokerNotAvailableError("broker 2 is away")

        with pytest.raises(BrokerNotAvailableError, match="broker 2 is away"):
            await snapshots.of(ALICE, "action", fail)
        assert await snapshots.of(ALICE, "action", taking({T0: Extent(0, 5)})) == {T0: Extent(0, 5)}

    asyncio.run(scenario())


def test_the_least_recently_used_go_first() -> None:
    async def scenario() -> None:
        snapshots = OffsetSnapshots(partitions_max=3)
        for name in "abc":
            await snapshots.of(ALICE, name, taking({T0: Extent(0, 1)}))
        await snapshots.of(ALICE, "a", taking({}))
        await snapshots.of(ALICE, "d", taking({}))  # of nothing, but it takes a place
        assert (
            await snapshots.of(ALICE, "a", taking({}))
            == await snapshots.of(ALICE, "c", taking({}))
            == {T0: Extent(0, 1)}
        )
        assert await snapshots.of(ALICE, "b", taking({T1: Extent(0, 9)})) == {T1: Extent(0, 9)}
        large = await snapshots.of(ALICE, "large", taking({TopicPartition("t", n): Extent(0, 1) for n in range(10)}))
        assert await snapshots.of(ALICE, "large", taking({})) is large, "one is kept, however large"

    asyncio.run(scenario())


def test_a_name_is_its_owners() -> None:
    async def scenario() -> None:
        snapshots = OffsetSnapshots()
        hers = await snapshots.of(ALICE, "action", taking({T0: Extent(0, 5)}))
        assert await snapshots.of(MALLORY, "action", taking({T0: Extent(0, 6)})) == {T0: Extent(0, 6)}
        assert await snapshots.of(ALICE, "action", taking({})) is hers

    asyncio.run(scenario())


def test_a_principal_that_fills_the_cache_loses_only_its_own_snapshots() -> None:
    async def scenario() -> None:
        snapshots = OffsetSnapshots(partitions_max=10)
        hers = await snapshots.of(ALICE, "first", taking({T0: Extent(0, 5)}))
        for i in range(50):
            await snapshots.of(MALLORY, str(i), taking({T0: Extent(0, i), T1: Extent(0, i)}))
        assert await snapshots.of(ALICE, "first", taking({})) is hers
        assert await snapshots.of(MALLORY, "49", taking({})) != {}, "the newest stays"
        assert await snapshots.of(MALLORY, "0", taking({})) == {}

    asyncio.run(scenario())


def test_one_that_is_larger_than_the_limit_is_kept_alone() -> None:
    async def scenario() -> None:
        snapshots = OffsetSnapshots(partitions_max=1)
        await snapshots.of(ALICE, "small", taking({T0: Extent(0, 5)}))
        large = await snapshots.of(MALLORY, "large", taking({T0: Extent(0, 1), T1: Extent(0, 1)}))
        assert await snapshots.of(MALLORY, "large", taking({})) is large
        assert await snapshots.of(ALICE, "small", taking({})) == {}

    asyncio.run(scenario())
