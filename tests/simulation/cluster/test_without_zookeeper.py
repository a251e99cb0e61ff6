"""ZooKeeper is away for minutes: brokers and clients continue with their present state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sparklog.metadata.producer_ids import SMALL_BLOCK_IDS
from sparklog.testing._sim_loop import Simulation
from tests.campaigns.checker.analysis import analyse
from tests.campaigns.checker.report import report
from tests.simulation.plans import EVERYBODY, INPUT, OUTPUT, SAFE, Plan
from tests.simulation.world import World

MINUTES_S = 60.0
"""A hundred sessions."""
LOOK_EVERY_S = 30.0
PLAN = Plan(
    EVERYBODY,
    {},
    topics={INPUT: SAFE, OUTPUT: SAFE},
    internal=SAFE,
    brokers=(3,),
    has_zookeeper=True,
    slow_share=0.0,
    think_s=5.0,
)


@pytest.fixture
def world() -> Iterator[World]:
    """Three brokers that have just started, without ZooKeeper."""
    with Simulation(1) as simulation:
        world = World(1, PLAN, simulation)
        world._begin()
        world.zookeeper.stop()
        yield world


def _done(world: World) -> dict[str, int]:
    """Return the progress of each client. Shared transactions have a checkpoint instead of a history."""
    return {
        f"{c.role}-{c.slot}": world.done_batches.get(c.slot, 0)
        if c.role == "shared"
        else sum(h.getvalue().count(b'"end":"ok"') for h in c.histories)
        for c in world.clients
    }


def test_everybody_goes_on(world: World) -> None:
    """Also clients that start only then: producers, transactions of one client and of many, members of groups,
    readers."""
    world.begin_clients()
    before = _done(world)
    for _ in range(int(MINUTES_S / LOOK_EVERY_S)):
        world.pass_time(LOOK_EVERY_S)
        now = _done(world)
        assert not [name for name in before if now[name] <= before[name]]
        before = now
    world.zookeeper.start()
    world.end_clients()
    world._come_to_rest()
    world.read_everything()
    verdict = analyse(world.operations())
    assert not verdict.found, report(verdict)


def test_no_broker_runs_out_of_producer_ids(world: World) -> None:
    """Every task of a shared transaction takes an id, and some brokers have not been asked for any before."""
    found: list[int] = []
    for node in world.nodes:
        assert node.broker is not None and node.loop is not None
        storage = node.broker.storage

        async def draw(count: int, storage=storage) -> list[int]:  # type: ignore[no-untyped-def]
            return await asyncio.gather(*(storage.new_producer_id() for _ in range(count)))

        found += world.simulation.complete(node.loop, draw(5 * SMALL_BLOCK_IDS), limit_s=1.0)
    assert len(set(found)) == len(found)
