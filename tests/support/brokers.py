"""A broker in this process, whose handlers are called without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sparklog_broker.broker import Broker
from sparklog_broker.config import make_config
from sparklog_broker.dispatcher import RequestContext

from sparklog.metadata.store import TopicSpec

Scenario = Callable[[Broker, RequestContext], Coroutine[Any, Any, None]]


def run(tmp_path: Path, scenario: Scenario) -> None:
    """Runs `scenario` with a broker that has the topic `t` with two partitions."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        broker = Broker.open(make_config({"data.dir": str(tmp_path / "data")}), loop)
        broker.start()
        try:
            await broker.topics.create(TopicSpec("t", 2))
            await asyncio.wait_for(scenario(broker, RequestContext(broker, ("127.0.0.1", 1), "127.0.0.1")), 60)
        finally:
            broker.stop_waiting()
            assert await broker.close()

    asyncio.run(main())
