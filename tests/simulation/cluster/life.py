"""One life of a simulated cluster; see `tests/simulation/life.py`. `python -m tests.simulation.cluster.life SEED [KIND]
[LENGTH]` repeats one.
"""

from __future__ import annotations

import gc
import sys
from typing import NamedTuple

from sparklog.testing.sim_loop import SimulationStuckError
from tests.checker.analysis import Verdict, analyse
from tests.checker.report import report
from tests.simulation.cluster.plans import CLUSTER_PLANS
from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.life import asked, simulated
from tests.simulation.plans import Plan


class ClusterLife(NamedTuple):
    """The results of one life."""

    verdict: Verdict
    trace_hash: str
    turns: int
    faults: int
    elections: int
    disk_faults: int
    cleaned: int
    """See `Scene.cleaned`."""
    outages: int
    """See `ClusterWorld.outages`."""
    isr_changes: int
    """See `StoredIsr.changes`."""
    courses: int
    """Number of courses that have reached their point; see `courses.py`."""


def kind_of(seed: int) -> str:
    """Return the kind of life that a seed selects."""
    names = tuple(CLUSTER_PLANS)
    return names[seed % len(names)]


def live_cluster(seed: int, kind: str | None = None, length: float = 1.0) -> ClusterLife:
    """Run one life; `length` as in `tests.simulation.life.live`. Raises AssertionError for a violation."""
    kind = kind_of(seed) if kind is None else kind
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _lived(seed, CLUSTER_PLANS[kind].of_length(length))
    except (AssertionError, SimulationStuckError) as e:
        raise AssertionError(f"seed {seed} {kind}: {e}") from e
    finally:
        if was_enabled:
            gc.enable()


def _lived(seed: int, plan: Plan) -> ClusterLife:
    with simulated(seed, plan) as (simulation, store):
        world = ClusterWorld(seed, plan, simulation, store=store)
        verdict = analyse(world.run())
        if verdict.beyond(set()):
            raise AssertionError(report(verdict, set()))
        return ClusterLife(
            verdict,
            simulation.trace_hash,
            simulation.turns,
            world.faults,
            world.elections,
            world.trouble.touched,
            world.cleaned,
            world.outages,
            world.isr_changes,
            world.trouble.courses.completed,
        )


if __name__ == "__main__":
    print(sys.argv[1], live_cluster(*asked(sys.argv[1:])))
