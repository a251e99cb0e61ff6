"""Classic clients, clients of the consumer protocol and sparklog's consumers in one group."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sparklog.testing._sim_loop import Simulation
from tests.simulation.mixed_groups import PARTITIONS, World, join, live
from tests.support.cases import for_each

KINDS = ("ep", "cp", "es", "cs", "ps", "ecps")


def run(seed: int, steps: int, kinds: str) -> None:
    play(seed, lambda world: live(world, steps, kinds))


def play(seed: int, scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario, and check it and its members."""
    with Simulation(seed) as simulation:
        loop = simulation.loop("gateway")
        failures: list[BaseException] = []
        loop.set_exception_handler(
            lambda _, context: failures.append(context.get("exception") or AssertionError(context))
        )
        world = World(loop, random.Random(seed))
        life = loop.create_task(scenario(world))
        simulation.run(lambda: life.done() or any(x.task.done() and not x.is_leaving for x in world.members))
        for member in world.members:
            if member.task.done():
                member.task.result()
        life.result()
        assert not failures


@for_each("kinds", KINDS)
def test_no_partition_is_read_by_two_members(kinds: str) -> None:
    for seed in range(4):
        run(seed, 20, kinds)


@pytest.mark.torture
def test_no_partition_is_read_by_two_members_at_length() -> None:
    for seed in range(2_000):
        run(seed, 60, KINDS[seed % len(KINDS)])


@for_each("late", ["s", "c", ""])
def test_members_join_while_a_group_moves_back(late: str) -> None:
    """The last member of the consumer protocol leaves, and the group becomes a classic group at the next join. A second
    member joins meanwhile, or the only classic member leaves."""

    async def scenario(world: World) -> None:
        ticks = world.loop.create_task(world.tick())
        classic, other = (join(world, kind, kind) for kind in "cp")
        await asyncio.sleep(10.0)
        other.is_leaving = True
        await asyncio.sleep(world.source.random())
        join(world, "c", "second")
        await asyncio.sleep(world.source.random() / 2)
        classic.is_leaving = not late
        for kind in late:
            join(world, kind, "third")
        await asyncio.sleep(120.0)
        assert sorted(p for x in world.members for p in x.held) == list(range(PARTITIONS))
        ticks.cancel()

    for seed in range(50):
        play(seed, scenario)
