"""The start of a broker: its imports, costs, producer ids, and what a power cut has left."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.cluster import images
from sparklog_broker.config import make_config
from sparklog_broker.partitions.storage import ClusterMetadata, Storage
from sparklog_broker.partitions.topic_directories import TopicDirectories

from sparklog.environment import real_environment
from sparklog.errors import StorageUnavailableError
from sparklog.log.directories.log_directory import LogDirectory
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.metadata.local_coordination import LocalCoordination
from sparklog.metadata.store import TopicSpec
from sparklog.testing._sim_files import SimFiles
from sparklog.types import TopicPartition
from tests.support.brokers import at_work
from tests.support.logs import SCHEMAS, append, records

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


# Imports of a broker before it listens


NOT_TO_START_WITH = (
    "difflib",
    "email",
    "fsspec",
    "importlib.metadata",
    "pandas",
    "prometheus_client",
    "pyarrow.compute",
    "pyarrow.parquet",
    "random",
    "shutil",
    "typer",
    "zipfile",
)
"""Nearly all of a start is imports."""


def test_a_start_imports_only_needed_modules() -> None:
    program = f"import sys, sparklog_broker.main; print([m for m in {NOT_TO_START_WITH} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


# The data directory at a broker's start


class AwayAtFirst:
    """ZooKeeper, whose connection is lost while a broker starts."""

    def __init__(self) -> None:
        self.taken = 0

    def producer_ids_end(self) -> int:
        return 0

    def take_producer_ids(self, count: int, at_least: int = 0) -> int:
        self.taken += 1
        if self.taken == 1:
            raise StorageUnavailableError("the connection is lost")
        return 500


def test_a_broker_starts_without_a_new_producer_id() -> None:
    async def scene() -> int:
        logs = SimpleNamespace(table=SimpleNamespace(logs={}), remote=SimpleNamespace(store=None, cache=None))
        loop = asyncio.get_running_loop()
        ids: Any = AwayAtFirst()
        metadata = ClusterMetadata("c", {}, {}, ids, lambda topic, number: True)
        storage = Storage(make_config({}), loop, real_environment(0o640), cast(Any, logs), metadata)
        return await storage.new_producer_id()

    assert asyncio.run(scene()) == 500


# Changes of topics' files survive crashes


E0 = TopicPartition("events", 0)
DATA = Path("/data")


def started(files: SimFiles) -> LogManager:
    owner = LogOwner("events", "0" * 32, 0, "timestamp")
    manager = LogManager(DATA, files=files)
    manager.load("c1", [PartitionSpec(owner, LogConfig.from_settings({}), SCHEMAS.__getitem__)])
    return manager


def test_a_power_cut_after_a_deletion_leaves_a_log_that_begins_where_it_was_said() -> None:
    """Also if the deleted records had not reached the disk: half of their segment would look like damage."""
    for seed in range(40):
        files = SimFiles()
        manager = started(files)
        log = manager.table.get(E0)
        append(log, records(3))
        log.raise_high_watermark(3)
        assert TopicDirectories(manager).delete_records([(log, -1)]) == [3]
        assert log.durable_log_start_offset == 3
        files.power_cut(random.Random(seed))
        after = started(files)
        assert not after.table.offline
        assert after.table.get(E0).log_start_offset == 3
        files.kill()
