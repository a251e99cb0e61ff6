"""The real broker in a simulated machine, beside clients, crashes, power cuts, full and broken disks, an object store
and a bad network: no promise is broken; without any one of the safeguards a promise is broken.

A failing seed is repeated with `python -m tests.simulation.life SEED KIND`.
"""

from __future__ import annotations

import pytest

from tests.simulation.ablation import ANSWERS_FIRST, safeguards, without
from tests.simulation.life import live
from tests.simulation.plans import BROKER_KINDS, PLANS
from tests.support.cases import in_gate
from tests.support.seeds import GATE_SEEDS, SEED_BASE, WINDOW_SEEDS

TORTURE_SEEDS = 175
"""Number of seeds of each kind; together more than 5,000."""
SEARCHED = 500
FOUND_IN = {
    "sparklog.log.producers.states:epoch_check": ("gaps", 23),
    "sparklog.log.producers.states:sequence_check": ("producers", 0),
    "sparklog.log.producers.states:five_batch_memory": ("producers", 1),
    "sparklog.log.producers.states:marker_epoch_rule": ("transactions", 5),
    "sparklog.log.producers.states:content_check": ("intruders", 0),
    "sparklog.log.producers.states:issued_check": ("intruders", 3),
    "sparklog.log.producers.states:verification_guard": ("intruders", 0),
    "sparklog.replication.transactions.model:epoch_check": ("transactions", 5),
    "sparklog.replication.transactions.model:committed_participants_only": ("shared", 0),
    "sparklog.replication.transactions.model:run_fence": ("shared", 2),
    "sparklog.replication.transactions.model:committed_version_check": ("shared", 6),
    "sparklog.replication.transactions.model:markers_before_completion": ("transactions", 71),
    "sparklog.replication.group_membership:wait_for_release": ("groups", 2),
    "sparklog.replication.group_membership:order": ("commits", 12),
    "sparklog.replication.group_membership:owner": ("commits", 2),
    "sparklog.replication.group_membership:pending_offsets": ("groups", 4),
    "sparklog.replication.group_membership:newer_record": ("groups", 0),
    "sparklog.client.producer.sequences:five_batches": ("producers", 1),
    "sparklog.client.producer.sequences:first_alone": ("refusals", 0),
    "sparklog.client.producer.sequences:drain_before_bump": ("producers", 3),
    ANSWERS_FIRST: ("disks", 12),
}
"""In which kind of life the loss of a safeguard shows, and the first seed in which it does."""
FOUND_ELSEWHERE = {
    "sparklog.replication.group_membership:member_epoch": "tests/unit/replication/test_group_membership.py",
    "sparklog.client.producer.sequences:retries_first": "tests/property/test_producer_sequences.py",
    "sparklog.client.producer.sequences:unknown_outcomes": "tests/property/test_producer_sequences.py",
}
"""Those that few lives notice or none, see docs/internals/simulation.md, and the test that does."""
SEARCHED_IN = {
    "sparklog.replication.group_membership:member_epoch": "groups",
    "sparklog.client.producer.sequences:unknown_outcomes": "gaps",
    **{safeguard: kind for safeguard, (kind, _) in FOUND_IN.items()},
}
"""The kinds of lives in which long campaigns look for the loss of a safeguard."""


@pytest.mark.parametrize("kind", BROKER_KINDS)
def test_no_promise_is_broken(kind: str) -> None:
    lives = [live(seed, kind) for seed in range(GATE_SEEDS)]
    assert all(life.verdict.acknowledged for life in lives)
    assert sum(life.faults for life in lives)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", BROKER_KINDS)
def test_no_promise_is_broken_in_a_window_of_seeds(kind: str) -> None:
    lives = [live(seed, kind) for seed in range(SEED_BASE, SEED_BASE + WINDOW_SEEDS)]
    assert sum(life.verdict.acknowledged for life in lives) > WINDOW_SEEDS
    assert sum(life.faults for life in lives) > WINDOW_SEEDS
    if PLANS[kind].disks:
        assert sum(life.disk_faults for life in lives) > WINDOW_SEEDS // 2
    if kind in ("compaction", "retention", "tiering"):
        assert sum(life.cleaned > 0 for life in lives) > WINDOW_SEEDS // 2


def test_a_seed_gives_one_life() -> None:
    assert live(0, "producers") == live(0, "producers") != live(1, "producers")


def test_every_safeguard_is_accounted_for() -> None:
    assert {*FOUND_IN, *FOUND_ELSEWHERE} == {*safeguards(), ANSWERS_FIRST}


@pytest.mark.parametrize(
    "safeguard",
    in_gate(
        FOUND_IN,
        "sparklog.log.producers.states:epoch_check",
        "sparklog.replication.transactions.model:markers_before_completion",
        "sparklog.replication.group_membership:owner",
    ),
)
def test_without_a_safeguard_a_promise_is_broken(safeguard: str) -> None:
    kind, seed = FOUND_IN[safeguard]
    live(seed, kind)
    with without(safeguard), pytest.raises(AssertionError, match=f"^seed {seed} {kind}: "):
        live(seed, kind)


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("safeguard", SEARCHED_IN)
def test_without_a_safeguard_other_seeds_notice_it_too(safeguard: str) -> None:
    kind = SEARCHED_IN[safeguard]
    with without(safeguard), pytest.raises(AssertionError, match=f"^seed [0-9]+ {kind}: "):
        for seed in range(50_000, 50_000 + SEARCHED):
            live(seed, kind)


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", range(10_000, 10_000 + TORTURE_SEEDS, 25))
@pytest.mark.parametrize("kind", BROKER_KINDS)
def test_no_promise_is_broken_in_many_lives(kind: str, first: int) -> None:
    for seed in range(first, first + 25):
        live(seed, kind)
