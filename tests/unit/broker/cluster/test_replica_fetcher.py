"""The follower's next request, and its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sparklog_broker.cluster.follower_side.replica_fetcher import (
    FetchEvent,
    FetchLimits,
    FollowerState,
    ReplicaFetcher,
    gaps_below,
)
from sparklog_broker.cluster.peers import Peer

from sparklog.errors import SparklogError
from sparklog.protocol.cluster_messages import (
    GAPS_MAX,
    MissingOffsets,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)
from sparklog.replication.replica.model import Fetch
from sparklog.types import TopicPartition

A, B, C = (TopicPartition("t", n) for n in range(3))
FOREVER_MS = 3_600_000


class Leader:
    """Answers requests as it is told; others wait until they are given up."""

    endpoint = ("leader", 9292)
    address = "leader:9292"

    def __init__(self) -> None:
        self.requests: list[list[int]] = []
        """The partitions that each one named."""
        self.answers: asyncio.Queue[ReplicaFetchResponse | SparklogError] = asyncio.Queue()
        self.asked: asyncio.Queue[ReplicaFetchRequest] = asyncio.Queue()

    async def request(self, _api: Any, message: ReplicaFetchRequest, *_: Any, **__: Any) -> Any:
        self.requests.append(sorted(p.partition for p in message.partitions))
        self.asked.put_nowait(message)
        answer = await self.answers.get()
        if isinstance(answer, SparklogError):
            raise answer
        return answer, b""

    def close(self) -> None:
        pass


def following(key: TopicPartition, *gaps: tuple[int, int]) -> FollowerState:
    partition_log = SimpleNamespace(log_start_offset=0, durable_log_start_offset=0, high_watermark=0, gaps=gaps)
    return FollowerState(key, cast(Any, SimpleNamespace(last_epoch=lambda: -1, copied_to=-1)), cast(Any, partition_log))


def run(scene: Callable[[Leader, ReplicaFetcher, list[FetchEvent]], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        leader, arrived = Leader(), list[FetchEvent]()
        fetcher = ReplicaFetcher(
            cast(Peer, leader),
            2,
            lambda: 7,
            FetchLimits(wait_max_ms=FOREVER_MS, backoff_ms=0),
            lambda: 0,
            arrived.extend,
        )
        task = asyncio.get_running_loop().create_task(fetcher.run())
        try:
            async with asyncio.timeout(30):
                await scene(leader, fetcher, arrived)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(all_of_it())


def answer(*keys: TopicPartition) -> ReplicaFetchResponse:
    return ReplicaFetchResponse(5, [ReplicaFetchResult(*key, 0, 1, 3) for key in keys])


def fetch(number: int = 1, at_ms: int = 0) -> Fetch:
    return Fetch(number, 1, 1, 0, at_ms)


def test_the_next_request_names_the_last_answers_records() -> None:
    """Else the leader would hear of the follower's new end only when the request beside has waited long."""

    async def scene(leader: Leader, fetcher: ReplicaFetcher, arrived: list[FetchEvent]) -> None:
        one, other = following(A), following(B)
        fetcher.ask(one, fetch())
        fetcher.ask(other, fetch())
        assert len((await leader.asked.get()).partitions) == 2
        leader.answers.put_nowait(answer(A))
        while not arrived:
            await asyncio.sleep(0)
        fetcher.ask(one, fetch(2))
        request = await leader.asked.get()
        assert leader.requests == [[0, 1], [0]]
        assert request.max_wait_ms == FOREVER_MS

    run(scene)


def test_effects_that_take_long_are_not_waited_for() -> None:
    async def scene(leader: Leader, fetcher: ReplicaFetcher, arrived: list[FetchEvent]) -> None:
        fetcher.ask(following(A), fetch())
        fetcher.ask(following(B), fetch())
        await leader.asked.get()
        leader.answers.put_nowait(answer(A))
        request = await leader.asked.get()
        assert request.partitions == []
        assert request.max_wait_ms < 100, "and it is looked for again soon"

    run(scene)


def test_more_gaps_than_a_fetch_can_name_are_one() -> None:
    log = following(A, *((2 * i, 2 * i + 1) for i in range(GAPS_MAX + 1))).log
    assert gaps_below(log, 2 * GAPS_MAX) == [MissingOffsets(2 * i, 2 * i + 1) for i in range(GAPS_MAX)]
    assert gaps_below(log, 2 * GAPS_MAX + 1) == [MissingOffsets(0, 2 * GAPS_MAX + 1)]


def test_with_many_partitions_a_new_one_waits_for_the_end_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog_broker.cluster.follower_side.replica_fetcher.INTERRUPTED_MAX", 1)

    async def scene(leader: Leader, fetcher: ReplicaFetcher, arrived: list[FetchEvent]) -> None:
        fetcher.ask(following(A), fetch())
        fetcher.ask(following(C), fetch())
        await leader.asked.get()
        fetcher.ask(following(B), fetch())
        for _ in range(10):
            await asyncio.sleep(0)
        assert leader.requests == [[0, 2]]
        leader.answers.put_nowait(answer())
        await leader.asked.get()
        assert leader.requests == [[0, 2], [1]]

    run(scene)


def test_a_new_partition_ends_a_long_request() -> None:
    async def scene(leader: Leader, fetcher: ReplicaFetcher, arrived: list[FetchEvent]) -> None:
        fetcher.ask(following(A), fetch())
        assert (await leader.asked.get()).max_wait_ms == FOREVER_MS
        fetcher.ask(following(C), fetch(1, at_ms=1))  # not yet
        await asyncio.sleep(0)
        assert leader.requests == [[0]]
        fetcher.ask(following(B), fetch())
        request = await leader.asked.get()
        assert leader.requests == [[0], [0, 1]]
        assert (request.session_id, request.session_epoch) == (0, 0), "a session of its own"
        assert request.max_wait_ms < 100, "more may follow"

    run(scene)
