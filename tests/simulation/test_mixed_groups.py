"""Classic clients, clients of the consumer protocol and sparklog's consumers in one group."""

from __future__ import annotations

import random

import pytest

from sparklog.testing._sim_loop import Simulation
from tests.simulation.mixed_groups import World, live
from tests.support.cases import for_each

KINDS = ("ep", "cp", "es", "cs", "ps", "ecps")


def run(seed: int, steps: int, kinds: str) -> None:
    with Simulation(seed) as simulation:
        loop = simulation.loop("gateway")
        failures: list[BaseException] = []
        loop.set_exception_handler(
            lambda _, context: failures.append(context.get("exception") or AssertionError(context))
        )
        world = World(loop, random.Random(seed))
        life = loop.create_task(live(world, steps, kinds))
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
