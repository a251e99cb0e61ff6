"""The store of one broker is copied into an empty ZooKeeper, whatever is interrupted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sparklog_broker.cluster import growth
from sparklog_broker.cluster.growth import COPIED_FILE, COPYING, check_not_copying, grow
from sparklog_broker.config import BrokerConfig, load_config

from sparklog.environment import real_environment
from sparklog.errors import AdoptionRefusedError, DataDirLockedError, StorageUnavailableError
from sparklog.log.directories.broker_epoch import BROKER_EPOCH_FILE
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import Coordination
from sparklog.metadata.local_store import METADATA_FILE, run_steps, wait_for
from sparklog.metadata.store import TopicSpec
from sparklog.replication.cluster_image import NO_LEADER, ClusterImage
from sparklog.security.records import RecordId
from sparklog.testing._sim_zookeeper import SimZooKeeper
from tests.support.brokers import at_work, coordinating
from tests.support.metadata import Stored, read_store


def config_of(directory: Path) -> BrokerConfig:
    return load_config(None, data_dir=str(directory), zookeeper_connect="zk:2181/here")


def connected(server: SimZooKeeper) -> Coordination:
    client = server.client()
    server.advance(server.now_ms + 5_000)
    return client


@pytest.fixture
def single(tmp_path: Path) -> tuple[Path, Stored]:
    """The directory of a broker that has been alone, and the content of its store."""
    data = tmp_path / "data"

    async def fill() -> None:
        async with at_work(load_config(None, data_dir=str(data))) as broker:
            await coordinating(broker)
            await broker.topics.create(TopicSpec("large", 300))
            await broker.topics.create(TopicSpec("t", 2, configs={"retention.ms": 5_000}))
            await broker.security_records.change({RecordId("users", "a/b"): b"salted"})
            await broker.storage.new_producer_id()

    asyncio.run(fill())
    return data, read_store(data / METADATA_FILE)


def image_in(coordination: Coordination) -> ClusterImage:
    epoch = wait_for(coordination.get(znodes.CONTROLLER_EPOCH))
    image: ClusterImage = run_steps(znodes.load_image(coordination, int(epoch.data), epoch.mzxid, epoch.version))
    return image


def check_grown(data: Path, before: Stored, coordination: Coordination) -> None:
    image = image_in(coordination)
    assert wait_for(coordination.get(COPYING)) is None
    cluster = wait_for(coordination.get(znodes.CLUSTER))
    assert znodes.decode(cluster.data, znodes.ClusterNode).cluster_id == before.cluster_id
    assert image.topics.keys() == before.image.topics.keys()
    for name, topic in image.topics.items():
        known = before.image.topics[name]
        assert (topic.topic_id, topic.configs, topic.schemas) == (known.topic_id, known.configs, known.schemas)
        assert [(p.replicas, p.isr, p.leader_epoch) for p in topic.partitions] == [
            (p.replicas, p.isr, p.leader_epoch) for p in known.partitions
        ]
        assert {(p.leader, p.last_leader) for p in topic.partitions} == {(NO_LEADER, 0)}
    assert image.security == before.image.security
    assert image.known == {}, "broker epochs are transaction ids of another store"
    assert int(wait_for(coordination.get(znodes.PRODUCER_IDS)).data) == before.producer_ids_end
    assert not (data / METADATA_FILE).exists() and (data / COPIED_FILE).exists()
    assert not (data / BROKER_EPOCH_FILE).exists()


def test_all_nodes_are_copied_once(single: tuple[Path, Stored]) -> None:
    data, before = single
    coordination = connected(SimZooKeeper(1))
    assert grow(config_of(data), coordination, real_environment())
    check_grown(data, before, coordination)
    assert not grow(config_of(data), coordination, real_environment()), "there is nothing to do"


def test_after_a_crash_anywhere_the_next_start_continues(
    single: tuple[Path, Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, before = single
    server = SimZooKeeper(2)
    monkeypatch.setattr(growth, "WRITE_NODES", 7)
    calls = 0

    class Crash(BaseException):
        pass

    def dies_at(last: int, real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > last:
                raise Crash
            return real(*arguments, **named)

        return call

    for last in range(0, 100, 2):
        calls = 0
        coordination: Any = connected(server)
        environment = real_environment()
        with monkeypatch.context() as patch:
            for name in ("create", "transaction", "delete", "set_data"):
                patch.setattr(coordination, name, dies_at(last, getattr(coordination, name)))
            patch.setattr(environment.files, "rename", dies_at(last, environment.files.rename))
            try:
                done = grow(config_of(data), coordination, environment)
            except Crash:
                assert (data / METADATA_FILE).exists()
                if wait_for(coordination.get(COPYING)) is not None:
                    with pytest.raises(StorageUnavailableError, match="is copying the metadata"):
                        run_steps(check_not_copying(coordination))
                continue
        assert done
        break
    check_grown(data, before, connected(server))


def test_a_target_that_is_not_empty_is_refused_without_a_change(single: tuple[Path, Stored]) -> None:
    data, before = single
    coordination = connected(SimZooKeeper(3))
    wait_for(coordination.create("/zookeeper", b""))
    wait_for(coordination.create("/cluster", znodes.encode(znodes.ClusterNode("another"))))
    with pytest.raises(AdoptionRefusedError, match=r"is not empty \(/cluster\): name an empty path"):
        grow(config_of(data), coordination, real_environment())
    assert wait_for(coordination.children("/")) == ["cluster", "zookeeper"]
    assert read_store(data / METADATA_FILE).image.topics == before.image.topics
    config = load_config(None, data_dir=str(data), zookeeper_connect="zk:2181/here", broker_id=3)
    with pytest.raises(AdoptionRefusedError, match=r"belongs to broker 0: start it with --broker-id 0"):
        grow(config, coordination, real_environment())


def test_while_a_broker_runs_no_file_is_copied(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with at_work(load_config(None, data_dir=str(tmp_path))):
            coordination = connected(SimZooKeeper(4))
            with pytest.raises(DataDirLockedError):
                await asyncio.to_thread(grow, config_of(tmp_path), coordination, real_environment())

    asyncio.run(scenario())
