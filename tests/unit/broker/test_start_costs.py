"""The work of a start that must not grow with the topics, and waits that a start does not need."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.cluster import images
from sparklog_broker.config import make_config

from sparklog.log.directories.log_directory import LogDirectory
from sparklog.metadata.local_coordination import LocalCoordination
from sparklog.metadata.store import TopicSpec
from tests.support.brokers import at_work

JOIN_S = 60.0


@contextmanager
def _counted(owner: type, name: str) -> Iterator[list[str]]:
    """The calls of a method meanwhile."""
    calls: list[str] = []
    method = getattr(owner, name)

    def call(*given: object) -> object:
        calls.append(name)
        return method(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        yield calls


def _restarted(data: Path, topics: int) -> tuple[int, int]:
    """Numbers of transactions of the store and of owners read, in a restart after a clean stop."""
    config = make_config({"data.dir": str(data)})

    async def make() -> None:
        async with at_work(config) as broker:
            for number in range(topics):
                await broker.topics.create(TopicSpec(f"t{number}", 1))

    async def restart() -> None:
        async with at_work(config) as broker:
            assert len(broker.partitions.topics) == topics
            store = broker.cluster._store.coordination
            assert isinstance(store, LocalCoordination)
            store.get("/").result()  # all writes before are done

    asyncio.run(make())
    with (
        _counted(LocalCoordination, "_transaction") as transactions,
        _counted(LogDirectory, "owner_of") as owners,
    ):
        asyncio.run(restart())
    return len(transactions), len(owners)


def test_a_restart_writes_and_reads_owners_as_often_for_many_topics_as_for_few(tmp_path: Path) -> None:
    few, many = (_restarted(tmp_path / str(topics), topics) for topics in (1, 6))
    assert few == many


def test_a_start_does_not_wait_for_another_try_of_its_own_election(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "RETRY_S", 10 * JOIN_S)

    async def start() -> None:
        async with asyncio.timeout(JOIN_S):
            async with at_work(make_config({"data.dir": str(tmp_path / "data")})) as broker:
                assert broker.cluster.has_joined
                assert broker.cluster.images.image.version > (0, 0)

    asyncio.run(start())


def test_a_broker_stops_before_it_has_begun_to_join(tmp_path: Path) -> None:
    async def main() -> None:
        config = make_config({"data.dir": str(tmp_path / "data")})
        broker = Broker.open(config, asyncio.get_running_loop())
        broker.start()
        broker.stop_waiting()
        await broker.close()
        async with at_work(config):
            pass

    asyncio.run(main())
