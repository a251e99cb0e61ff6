"""Many transactions at once while appends to the state topic fail: nothing is torn, lost or doubled, and all ends."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.coordinators.internal_topics import InternalTopic

from sparklog.errors import RequestTimedOutError, SparklogError, StorageFullError, TransactionAbortedError
from sparklog.types import shared_transactional_id
from tests.support.transactions import T0, T1, log_of, run, send, visible

CLIENTS, TRANSACTIONS = 8, 6


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """Every so often an append to the state topic fails, before or after the batch has got into the log. How often it
    has."""
    original = InternalTopic.append
    choose = random.Random(7)
    counts: Counter[bool] = Counter()

    async def sometimes(self: InternalTopic, *args: Any, **more: Any) -> Any:
        kind = choose.randrange(20)
        if kind == 0:
            counts[False] += 1
            raise StorageFullError("nothing of it has been written")
        info = await original(self, *args, **more)
        if kind == 1:
            counts[True] += 1
            raise RequestTimedOutError("it has been written, but nobody is told")
        return info

    monkeypatch.setattr(InternalTopic, "append", sometimes)
    return counts


async def persist(request: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """The answer, asked for again after everything that may pass."""
    while True:
        try:
            return await request()
        except SparklogError as e:
            if not e.retriable:
                raise
            await asyncio.sleep(0.005)


async def shop(broker: Broker, name: str, expected: Counter[bytes]) -> None:
    """Run a plain producer; its committed records go into `expected`, once per partition."""
    me = await persist(lambda: broker.transactions.init_producer_id(name, 60_000))
    for n in range(TRANSACTIONS):
        value = f"{name}-{n}".encode()
        await persist(lambda me=me, value=value: send(broker, name, me, 0, value, T0))  # type: ignore[misc]
        await persist(lambda me=me, value=value: send(broker, name, me, 0, value, T1))  # type: ignore[misc]
        commit = n % 3 != 2
        me = await persist(lambda me=me, commit=commit: broker.transactions.end(name, *me, commit=commit))  # type: ignore[misc]
        if commit:
            expected[value] += 1


async def query(broker: Broker, name: str, expected: Counter[bytes]) -> None:
    """A query of three tasks per version, the second of which loses."""
    app = shared_transactional_id(name)
    for version in range(TRANSACTIONS):
        fencing_token = await broker.storage.new_producer_id()

        async def task(number: int, version: int = version, fencing_token: int = fencing_token) -> int:
            joined = await persist(lambda: broker.transactions.join(name, version, "run", fencing_token, 60_000))
            value = f"{name}-{version}-{number}".encode()
            await persist(lambda: send(broker, app, joined.identity, 0, value, T0, T1))
            return int(joined.identity.producer_id)

        ids = await asyncio.gather(*(task(n) for n in range(3)))
        assert await persist(
            lambda version=version, fencing_token=fencing_token, ids=ids: broker.transactions.end_shared(  # type: ignore[misc]
                name, version, "run", fencing_token, [ids[0], ids[2]], commit=True
            )
        )
        expected.update(f"{name}-{version}-{n}".encode() for n in (0, 2))


def test_all_at_once(tmp_path: Path, failing: Counter[bool]) -> None:
    expected: Counter[bytes] = Counter()

    async def scenario(broker: Broker) -> None:
        async def guarded(work: Coroutine[Any, Any, None]) -> None:
            try:
                await work
            except TransactionAbortedError as e:
                raise AssertionError("nothing may have been aborted") from e

        shops = [guarded(shop(broker, f"shop{i}", expected)) for i in range(CLIENTS)]
        queries = [guarded(query(broker, f"query{i}", expected)) for i in range(CLIENTS)]
        await asyncio.gather(*shops, *queries)
        for tp in (T0, T1):
            assert log_of(broker, tp).last_stable_offset == log_of(broker, tp).log_end_offset
            assert Counter(visible(broker, tp)) == expected

    async def after_a_restart(broker: Broker) -> None:
        await broker.transactions.loaded()
        assert Counter(visible(broker, T0)) == Counter(visible(broker, T1)) == expected
        assert {s.state for s in broker.transactions.summaries()} <= {"CompleteCommit", "CompleteAbort"}

    run(tmp_path, scenario, after_a_restart)
    assert min(failing[False], failing[True]) > 5
