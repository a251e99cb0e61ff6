"""A broker in this process, whose handlers are called without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sparklog_broker.broker import Broker
from sparklog_broker.config import BrokerConfig, make_config
from sparklog_broker.request_context import RequestContext

from sparklog.environment import Environment
from sparklog.metadata.store import TopicSpec

Scenario = Callable[[Broker, RequestContext], Coroutine[Any, Any, None]]


async def started(config: BrokerConfig, environment: Environment | None = None) -> Broker:
    """A broker that has joined its cluster, in which it is alone."""
    broker = Broker.open(config, asyncio.get_running_loop(), environment)
    broker.start()
    await broker.join(())
    return broker


@asynccontextmanager
async def at_work(config: BrokerConfig, environment: Environment | None = None) -> AsyncIterator[Broker]:
    """As `started`; it is closed at the end."""
    broker = await started(config, environment)
    try:
        yield broker
    finally:
        broker.stop_waiting()
        await broker.close()


def run(tmp_path: Path, scenario: Scenario) -> None:
    """Runs `scenario` with a broker that has the topic `t` with two partitions."""

    async def main() -> None:
        broker = await started(make_config({"data.dir": str(tmp_path / "data")}))
        try:
            await broker.topics.create(TopicSpec("t", 2))
            await asyncio.wait_for(scenario(broker, RequestContext(broker, ("127.0.0.1", 1), "127.0.0.1")), 60)
        finally:
            broker.stop_waiting()
            assert await broker.close()

    asyncio.run(main())


async def coordinating(broker: Broker, *, transactions: bool = True) -> None:
    """Returns when the broker has its internal topics, and coordinates groups and `transactions`."""
    for topic, shards in (
        (broker.groups.topic, broker.groups._shards),
        (broker.transactions.topic, broker.transactions._shards),
    )[: 1 + transactions]:
        await topic.ensure()
        while len(shards.led) < topic.partitions or not all(shard.coordinator for shard in shards.led):
            await asyncio.sleep(0.001)
