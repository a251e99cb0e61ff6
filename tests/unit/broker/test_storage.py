"""The data directory at a broker's start."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from sparklog_broker.config import make_config
from sparklog_broker.partitions.storage import ClusterMetadata, Storage

from sparklog.environment import real_environment
from sparklog.errors import StorageUnavailableError


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
        logs = SimpleNamespace(logs={}, remote=SimpleNamespace(store=None, cache=None))
        loop = asyncio.get_running_loop()
        ids: Any = AwayAtFirst()
        metadata = ClusterMetadata("c", {}, {}, ids, lambda topic, number: True)
        storage = Storage(make_config({}), loop, real_environment(0o640), cast(Any, logs), metadata)
        return await storage.new_producer_id()

    assert asyncio.run(scene()) == 500
