"""The transaction coordinator in a world of late messages, crashes and zombies; and that each safeguard is needed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import fields

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparklog.replication.transactions import Safeguards
from tests.simulation.transactions_actors import Violation
from tests.simulation.transactions_world import World


def live(seed: int, safeguards: Safeguards | None = None, *, steps: int = 400, durable_first: bool = True) -> World:
    """A life of a world; the same for the same seed. Raises Violation."""
    world = World(random.Random(seed).randrange, safeguards, durable_first=durable_first)
    for _ in range(steps):
        world.step()
    world.settle()
    return world


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow])
@given(st.data())
def test_nothing_is_torn_lost_or_doubled(data: st.DataObject) -> None:
    world = World(lambda n: data.draw(st.integers(0, n - 1)) if n > 1 else 0)
    for _ in range(data.draw(st.integers(0, 80))):
        world.step()
    world.settle()


def test_long_lives() -> None:
    for seed in range(60):
        live(seed)


@pytest.mark.torture
def test_many_long_lives() -> None:
    for seed in range(1_000, 11_000):
        live(seed, steps=800)


@pytest.mark.parametrize("switch", [f.name for f in fields(Safeguards)])
def test_without_a_safeguard_something_breaks(switch: str) -> None:
    for seed in range(1_000):
        try:
            live(seed, Safeguards(**{switch: False}))
        except Violation:
            return
    pytest.fail(f"nobody notices that {switch} is off")


def test_answers_and_markers_have_to_wait_for_the_records() -> None:
    with pytest.raises(Violation):
        for seed in range(1_000):
            live(seed, durable_first=False)


def test_the_lives_are_eventful() -> None:
    """Otherwise the tests above would prove little."""
    outcomes: Counter[tuple[str, bool]] = Counter()
    for seed in range(30):
        world = live(seed)
        for partition in world.partitions.values():
            kinds = ("shared" if h.producer_id in world.promises.owner else "plain" for h, _, _ in partition.decided())
            outcomes.update(zip(kinds, (committed for _, _, committed in partition.decided()), strict=True))
        outcomes["versions", True] += len(world.promises.committed_versions)
    assert outcomes["plain", True] > 100
    assert outcomes["plain", False] > 100
    assert outcomes["shared", True] > 20
    assert outcomes["shared", False] > 100
    assert outcomes["versions", True] > 30
