"""The cost of authorization on small requests: two brokers in one process, with and without `authorizer = acl`, in
turns.

    python -m tests.benchmarks.authorization_cost

Beside the user's own there are 1,000 ACLs of others. A request goes through the dispatcher, without a socket; the
fastest round is shown, and the difference: other load of the machine only adds.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from sparklog.protocol import messages as m
from sparklog.protocol import topic_messages as topics
from sparklog.protocol.base import Message
from sparklog.protocol.messages import Api
from sparklog.security.acls import Operation, Resource, ResourceType
from tests.unit.broker.security.access_world import ADMIN, ALICE, BATCH, World

ROUNDS, REQUESTS = 60, 100
OTHERS = 1_000


async def _made(directory: Path, authorizer: str) -> World:
    world = World(directory, authorizer=authorizer)
    await world.do(ADMIN, Api.CREATE_TOPIC, topics.CreateTopicRequest("t"))
    own = Resource(ResourceType.TOPIC, "t")
    await world.grant(ALICE, [(Operation.READ, own), (Operation.WRITE, own)])
    await world.grant(ALICE, [(Operation.READ, Resource(ResourceType.TOPIC, f"o{i}")) for i in range(OTHERS)])
    return world


async def _round_us(world: World, api: Api, request: Message, payload: bytes) -> float:
    began = time.perf_counter()
    for _ in range(REQUESTS):
        await world.ask(ALICE, api, request, payload)
    return (time.perf_counter() - began) / REQUESTS * 1e6


async def _measure() -> None:
    asked: list[tuple[str, Api, Message, bytes]] = [
        ("offsets of one partition", Api.LIST_OFFSETS, m.ListOffsetsRequest([m.ListOffsetsPartition("t", 0, -1)]), b""),
        ("fetch of nothing", Api.FETCH, m.FetchRequest(0, 0, 1 << 20, 0, [m.FetchPartition("t", 0, 0, 0)]), b""),
        ("produce of 3 rows", Api.PRODUCE, m.ProduceRequest(1, 1_000, [m.ProducePartition("t", 0, len(BATCH))]), BATCH),
    ]
    with tempfile.TemporaryDirectory() as directory:
        without = await _made(Path(directory) / "without", "")
        with_acls = await _made(Path(directory) / "with", "acl")
        for name, api, request, payload in asked:
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(ROUNDS):
                for world, found in zip((without, with_acls), times, strict=True):
                    found.append(await _round_us(world, api, request, payload))
            plain, checked = map(min, times)
            print(f"{name:26} {plain:7.1f} us without, {checked:7.1f} us with: {checked - plain:+.1f} us")
        await without.close()
        await with_acls.close()


if __name__ == "__main__":
    asyncio.run(_measure())
