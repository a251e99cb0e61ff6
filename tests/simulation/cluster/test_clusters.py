"""Clusters of three to five real brokers on a simulated ZooKeeper, beside clients, crashes, power cuts (also of all at
once), broken links, ended sessions, failing disks and replaced machines: no promise is broken.

A failing seed is repeated with `python -m tests.simulation.life SEED KIND`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.simulation.ablation import CLUSTER_MODULES, safeguards, without
from tests.simulation.life import live
from tests.simulation.plans import CLUSTER_KINDS, PLANS
from tests.simulation.torture import main
from tests.support.cases import in_gate
from tests.support.seeds import GATE_SEEDS, SEED_BASE, WINDOW_SEEDS

TORTURE_SEEDS = 175
SEARCHED, SEARCHED_LONG = 25, 500
"""Number of seeds that are searched for the loss of a safeguard."""
IN_ISR = re.compile(r"broker-[0-9] is in the ISR .* and lacks ")
REPLICA, CONTROLLER = "sparklog.replication.replica.model", "sparklog.replication.controller.model"
FOUND_IN = {
    f"{REPLICA}:maximal_isr": ("cluster-links", 1),
    f"{REPLICA}:divergence_check": ("cluster-links", 18),
    f"{REPLICA}:epoch_truncation": ("cluster-reassigned", 0),
    f"{REPLICA}:latest_after_epoch_start": ("cluster-transactions", 1),
    f"{REPLICA}:keeps_pending": ("cluster-joins", 18),
    f"{REPLICA}:epoch_start_before_join": ("cluster-joins", 8),
    f"{CONTROLLER}:member_epoch_check": ("cluster-joins", 16),
    f"{CONTROLLER}:unclean_restart_forgets": ("cluster-replaced", 41),
    f"{CONTROLLER}:eligible_leaders_only": ("cluster-power", 40),
    f"{CONTROLLER}:epoch_bump": ("cluster-kills", 1),
}
"""In which kind of life the loss of a safeguard shows, and from which seed on it is looked for."""
FOUND_BEFORE_LOSS = {f"{CONTROLLER}:member_epoch_check", f"{CONTROLLER}:unclean_restart_forgets"}
"""Those of which a life has to find the broker that is in a stored ISR and lacks records, before anything is lost."""
FOUND_BY_RULES = {
    f"{REPLICA}:min_insync": "test_replication",
    f"{REPLICA}:has_inert_divergence": "test_replication",
    f"{REPLICA}:stale_answer_drop": "test_replication",
    f"{CONTROLLER}:proposal_epoch_check": "test_replication",
    f"{CONTROLLER}:suspicion_in_sync_only": "test_replication",
}
"""Safeguards whose loss these lives show seldom or never, and the test of the rules' world that shows it: fetch
sessions and streams keep an order that its network does not.
"""


@pytest.mark.parametrize("kind", CLUSTER_KINDS)
def test_no_promise_is_broken(kind: str) -> None:
    lives = [live(seed, kind) for seed in range(GATE_SEEDS)]
    assert sum(life.verdict.acknowledged for life in lives)
    assert all(life.elections >= 6 for life in lives)  # one for each partition that is created
    assert sum(life.faults for life in lives)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", CLUSTER_KINDS)
def test_no_promise_is_broken_in_a_window_of_seeds(kind: str) -> None:
    lives = [live(seed, kind) for seed in range(SEED_BASE, SEED_BASE + WINDOW_SEEDS)]
    assert sum(life.verdict.acknowledged for life in lives) > 10 * WINDOW_SEEDS
    assert sum(life.faults for life in lives) > 5 * WINDOW_SEEDS
    assert sum(life.elections for life in lives) > 9 * WINDOW_SEEDS
    assert sum(life.isr_changes for life in lives) > 4 * WINDOW_SEEDS
    if PLANS[kind].replicas_differ:
        assert sum(life.cleaned for life in lives) > WINDOW_SEEDS
    if PLANS[kind].disks:
        assert sum(life.disk_faults for life in lives) > WINDOW_SEEDS // 2
    if {"late join", "unheard answer"} & {*PLANS[kind].faults}:
        assert sum(life.courses for life in lives) > WINDOW_SEEDS // 2
    if {"outage", "blackout"} & {*PLANS[kind].faults}:
        assert sum(life.outages for life in lives) > WINDOW_SEEDS


@pytest.mark.parametrize("seed", [1087, 1191])
def test_an_empty_machine_with_an_old_id_leads_no_partition(seed: int) -> None:
    """Regression: topics with flush.mode=group counted it as a crashed broker with its flushed records."""
    live(seed, "cluster-replaced")


@pytest.mark.parametrize("seed", [1019, 1083])
def test_a_session_that_ends_twice_without_a_controller_is_no_crash(seed: int) -> None:
    """Regression: the partition stayed without a leader forever."""
    live(seed, "cluster-zookeeper")


@pytest.mark.parametrize("seed", [1518, 3004])
def test_a_partition_whose_disk_fails_acknowledges_only_records_of_the_isr(seed: int) -> None:
    """Regression: requests that waited for replicas were answered with success."""
    live(seed, "cluster-disks")


def test_a_false_broker_of_a_later_life_does_not_keep_the_broker_out() -> None:
    """Regression: its own fetches were refused until the leader changed."""
    live(7009, "cluster-intruders")


@pytest.mark.parametrize("seed", [3008])
def test_a_replica_that_is_removed_and_added_again_at_once_joins(seed: int) -> None:
    """Regression: its fetch waited forever at a leader that had forgotten it."""
    live(seed, "cluster-reassigned")


def _trace_hashes(hash_seed: int, seeds: Mapping[str, int], length: float) -> list[str]:
    """Live in a process with other hashes of strings, one life of each kind; return the hashes of the traces."""
    code = (
        "import sys; from tests.simulation.life import live; "
        f"[print(live(seed, kind, {length}).trace_hash) for kind, seed in {dict(seeds)!r}.items()]"
    )
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=600
    ).stdout.split()


def test_a_seed_gives_one_life_in_every_process() -> None:
    """Regression: the order in a set of partitions, another one in each process, decided about the life of a seed."""
    seeds = {"cluster-kills": 0, "cluster-transactions": 1, "groups": 0}
    one, other = (_trace_hashes(hash_seed, seeds, 0.3) for hash_seed in (1, 2))
    assert one == other
    assert len({*one}) == 3


@pytest.mark.nightly
def test_a_seed_of_every_kind_gives_one_life_in_every_process() -> None:
    seeds = {kind: seed for seed, kind in enumerate(PLANS, SEED_BASE)}
    one, other = (_trace_hashes(hash_seed, seeds, 1.0) for hash_seed in (1, 2))
    assert one == other
    assert len({*one}) == len(PLANS)


def test_a_campaign_counts_its_lives(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "4", "--first", "3", "--worlds", "cluster,broker,rules", "--length", "0.2"]) == 0
    assert "end: 4 lives" in capsys.readouterr().out


def test_a_short_life_has_fewer_faults() -> None:
    whole, short = (live(0, "cluster-kills", length) for length in (1.0, 0.2))
    assert 0 < short.faults < whole.faults / 2


def test_every_safeguard_is_accounted_for() -> None:
    assert {*FOUND_IN, *FOUND_BY_RULES} == {*safeguards(CLUSTER_MODULES)}


def _miss(safeguard: str, seeds: range) -> None:
    kind, _ = FOUND_IN[safeguard]
    with without(safeguard):
        for seed in seeds:
            verdict = _verdict(seed, kind)
            if verdict and (safeguard not in FOUND_BEFORE_LOSS or IN_ISR.search(verdict)):
                return
    raise AssertionError(f"no life of {kind} in {seeds} misses {safeguard}")


def _verdict(seed: int, kind: str) -> str:
    """The violation in a life; "" without one."""
    try:
        live(seed, kind)
    except AssertionError as e:
        return str(e)
    return ""


@pytest.mark.parametrize(
    "safeguard",
    in_gate(
        FOUND_IN,
        f"{REPLICA}:divergence_check",
        f"{REPLICA}:epoch_truncation",
        f"{CONTROLLER}:member_epoch_check",
        f"{CONTROLLER}:unclean_restart_forgets",
    ),
)
def test_without_a_safeguard_a_promise_is_broken(safeguard: str) -> None:
    first = FOUND_IN[safeguard][1]
    _miss(safeguard, range(first, first + SEARCHED))


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("safeguard", FOUND_IN)
def test_without_a_safeguard_other_seeds_notice_it_too(safeguard: str) -> None:
    _miss(safeguard, range(50_000, 50_000 + SEARCHED_LONG))


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", range(10_000, 10_000 + TORTURE_SEEDS, 25))
@pytest.mark.parametrize("kind", CLUSTER_KINDS)
def test_no_promise_is_broken_in_many_lives(kind: str, first: int) -> None:
    for seed in range(first, first + 25):
        live(seed, kind)
