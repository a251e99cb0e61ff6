"""Clusters in `replication_world`: random seeds, the losses of other systems by name, and rules switched off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.replication_aimed import OverlappingControllers, Suspicions
from tests.simulation.replication_promises import ViolationError
from tests.simulation.replication_world import AllSafeguards, World
from tests.support.cases import in_gate

SEEDS = 100
CHUNKS = 4
ABLATION_SEEDS = 500


def run_seed(seed: int, safeguards: AllSafeguards | None = None) -> World:
    world = World(seed, safeguards)
    try:
        world.run()
    except ViolationError as e:
        raise ViolationError(f"seed {seed}: {e}") from e
    return world


@pytest.mark.parametrize("chunk", in_gate(range(CHUNKS), 0))
def test_no_acknowledged_record_is_lost(chunk: int) -> None:
    worlds = [run_seed(seed) for seed in range(chunk, SEEDS, CHUNKS)]
    assert sum(len(w.promises.acknowledged) for w in worlds) > 10 * len(worlds)
    assert sum(w.promises.epochs_with_acknowledgements for w in worlds) > len(worlds)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_no_acknowledged_record_is_lost_in_thousands_of_runs() -> None:
    for seed in range(1_000, 11_000):
        run_seed(seed)


@pytest.mark.parametrize("seed", [2217, 2528, 2931, 3672])
def test_a_connection_that_comes_back_while_the_last_one_still_fails(seed: int) -> None:
    """A broker that was about to register, or to stand for election, on the broken connection never did so again."""
    run_seed(seed)


def test_a_life_that_was_never_registered_vouches_for_no_lost_data() -> None:
    """A broker crashed, started without reaching ZooKeeper, and was stopped cleanly."""
    run_seed(3133)


def test_overlapping_controllers_keep_the_invariants() -> None:
    for seed in range(20):
        OverlappingControllers(seed).run()


def test_suspicions_of_living_leaders_lose_no_record() -> None:
    worlds = [Suspicions(seed) for seed in range(10)]
    for world in worlds:
        world.run()
    assert sum(w.promises.epochs_with_acknowledgements for w in worlds) > 3 * len(worlds)


def test_a_leader_that_is_elected_again_acknowledges_in_its_present_epoch() -> None:
    """Two others led meanwhile without its knowledge, and one of them wakes up as a leader of the past."""
    Suspicions(5487).run()


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_suspicions_of_living_leaders_lose_no_record_in_thousands_of_runs() -> None:
    for seed in range(1_000, 6_000):
        Suspicions(seed).run()


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = run_seed(5), run_seed(5)
    assert first.promises.acknowledged == second.promises.acknowledged
    assert first.zk.now_ms == second.zk.now_ms


# -- rules switched off

FULL = AllSafeguards()
REPLICA = {name: replace(FULL, replica=replace(FULL.replica, **{name: False})) for name in vars(FULL.replica)}
CONTROLLER = {
    name: replace(FULL, controller=replace(FULL.controller, **{name: False})) for name in vars(FULL.controller)
}
ABLATIONS = {**REPLICA, **CONTROLLER, "fence": replace(FULL, fence=False)}
IN_SCENARIOS = {"member_epoch_check", "unclean_restart_forgets"}
"""Rules that are tested in test_replication_scenarios.py: they need crashes and messages in one order."""
SELDOM_MISSED = {"epoch_start_before_join", "keeps_pending"}
"""Rules whose loss random runs show too seldom for a short search; lives of clusters and the long campaign find it."""
AIMED = {"fence": OverlappingControllers, "suspicion_in_sync_only": Suspicions}
"""Worlds whose faults aim at one rule."""


def is_missed(rule: str, first: int, count: int) -> bool:
    for seed in range(first, first + count):
        try:
            AIMED.get(rule, World)(seed, ABLATIONS[rule]).run()
        except ViolationError:
            return True
    return False


@pytest.mark.parametrize(
    "rule",
    in_gate(
        sorted(set(ABLATIONS) - IN_SCENARIOS - SELDOM_MISSED),
        "has_inert_divergence",
        "epoch_bump",
        "stale_answer_drop",
        "suspicion_in_sync_only",
    ),
)
def test_a_rule_that_is_switched_off_is_missed(rule: str) -> None:
    assert is_missed(rule, 0, ABLATION_SEEDS)


@pytest.mark.torture
@pytest.mark.parametrize("rule", sorted(SELDOM_MISSED))
def test_a_rule_that_is_seldom_missed_is_missed_within_thousands_of_seeds(rule: str) -> None:
    assert is_missed(rule, 0, 10 * ABLATION_SEEDS)
