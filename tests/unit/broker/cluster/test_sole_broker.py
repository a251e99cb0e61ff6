"""A cluster of one broker: one image for the broker and its controller, few transactions."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sparklog_broker.cluster import created_topics
from sparklog_broker.cluster.cluster_store import READ_ATTEMPTS, ZooKeeperStore
from sparklog_broker.config import make_config

from sparklog.environment import real_environment
from sparklog.errors import StorageUnavailableError
from sparklog.metadata.controller_session import ControllerSession
from sparklog.metadata.coordination import ConnectionLossError, Op
from sparklog.metadata.local_store import (
    CREATED_TOPICS,
    METADATA_FILE,
    open_local,
    read_created_topics,
    read_image,
    take_epochs,
)
from sparklog.metadata.store import TopicSpec
from sparklog.replication.cluster_image import UNKNOWN_WRITES, TopicImage
from sparklog.replication.controller.controller import Controller
from sparklog.types import TopicPartition
from tests.support.brokers import at_work


def test_directories_are_noted_together_and_at_the_latest_by_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(created_topics, "NOTE_BATCH_S", 3_600)
    noted: list[int] = []
    made: dict[str, int] = {}

    async def main() -> None:
        async with at_work(make_config({"data.dir": str(tmp_path)})) as broker:
            zk = broker.cluster._store.coordination
            transaction = zk.transaction

            def counted(ops: Sequence[Op]) -> Future[Any]:
                noted.append(sum(op.path.startswith(CREATED_TOPICS) for op in ops))
                return transaction(ops)

            zk.transaction = counted  # type: ignore[method-assign]
            for name, partitions in (("a", 1), ("b", 2), ("c", 1)):
                made[(await broker.topics.create(TopicSpec(name, partitions))).topic_id] = partitions
            made[(await broker.topics.add_partitions("c", 3)).topic_id] = 3
            assert not any(noted)

    asyncio.run(main())
    assert [count for count in noted if count] == [3]
    coordination = open_local(tmp_path / METADATA_FILE, real_environment(), create=False)
    assert read_created_topics(coordination) == made
    coordination.close()


def test_the_broker_follows_its_own_controllers_image_and_reads_none_twice(tmp_path: Path) -> None:
    async def main() -> None:
        config = make_config({"data.dir": str(tmp_path)})
        async with at_work(config) as broker:
            await broker.topics.create(TopicSpec("t", 2))
        async with at_work(config) as broker:
            cluster = broker.cluster
            assert cluster.image is cluster.membership.controller_image()
            assert cluster.image.topics["t"].schemas is cluster._store.image.topics["t"].schemas
            await broker.topics.create(TopicSpec("u", 1))
            assert cluster.image is cluster.membership.controller_image()

    asyncio.run(main())


def test_an_image_is_read_again_if_a_controller_has_written_since(tmp_path: Path) -> None:
    for case, (missed, is_used) in enumerate(((0, True), (1, False), (None, False))):
        path = tmp_path / f"{case}.db"
        coordination = open_local(path, real_environment(), create=True)
        _, image = read_image(coordination, path)
        writes = UNKNOWN_WRITES if missed is None else image.writes - missed
        known = replace(image, topics={"known": TopicImage("known", "id", ())}, writes=writes)
        steps: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        controller = Controller()
        session = ControllerSession(
            coordination, 1, controller, lambda: 0, lambda effect: None, call=steps.put, cached_image=known
        )
        session.start()
        while controller.image is None:
            steps.get(timeout=30)()
        taken = controller.image
        assert ("known" in taken.topics) is is_used
        _, stored = read_image(coordination, path)
        assert (taken.version, taken.writes, taken.term) == (stored.version, stored.writes, stored.term)
        coordination.close()


def test_epochs_of_logs_get_into_an_older_copy_of_the_store(tmp_path: Path) -> None:
    """A new life would otherwise use a leader epoch for the second time."""
    path = tmp_path / METADATA_FILE

    async def main() -> None:
        async with at_work(make_config({"data.dir": str(tmp_path)})) as broker:
            await broker.topics.create(TopicSpec("t", 2))

    asyncio.run(main())
    coordination = open_local(path, real_environment(), create=False)
    _, older = read_image(coordination, path)
    one, other = (TopicPartition("t", number) for number in range(2))
    told = take_epochs(coordination, older, {one: 9, other: 0, TopicPartition("gone", 0): 5})
    _, stored = read_image(coordination, path)
    coordination.close()
    for image in (told, stored):
        assert [p.leader_epoch for p in image.topics["t"].partitions] == [
            9,
            older.topics["t"].partitions[1].leader_epoch,
        ]
    assert (told.version, told.writes) == (stored.version, stored.writes)


@pytest.mark.parametrize("losses", [READ_ATTEMPTS - 1, READ_ATTEMPTS])
def test_a_start_reads_the_store_again_after_a_connection_that_broke(tmp_path: Path, losses: int) -> None:
    coordination = open_local(tmp_path / METADATA_FILE, real_environment(), create=True)
    create, lost = coordination.create, list[str]()

    def losing(path: str, data: bytes, *, ephemeral: bool = False) -> Future[Any]:
        if len(lost) == losses:
            return create(path, data, ephemeral=ephemeral)
        lost.append(path)
        failed: Future[Any] = Future()
        failed.set_exception(ConnectionLossError("lost"))
        return failed

    coordination.create = losing  # type: ignore[method-assign]

    async def read() -> ZooKeeperStore:
        return await ZooKeeperStore.read(coordination, make_config({"data.dir": str(tmp_path)}), real_environment())

    if losses < READ_ATTEMPTS:
        asyncio.run(read())
        assert len(lost) == losses
    else:
        with pytest.raises(StorageUnavailableError, match="cannot be read: ConnectionLossError"):
            asyncio.run(read())
    coordination.close()
