"""One life of a simulated world: real brokers, active clients, faults, healing, a final reading, a verdict.

The world has one broker or a cluster, as the plan of the kind says (`plans.py`). A seed decides everything, including
the kind. `live(seed)` returns the verdict of the campaigns' checker and the trace's hash. A violation names kind and
seed; `python -m tests.simulation.life SEED [KIND] [LENGTH]` repeats it.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import uuid
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

from sparklog.log.housekeeping import tier_run
from sparklog.testing._sim_loop import Simulation, SimulationStuckError
from sparklog.testing._sim_store import SimStore
from tests.campaigns.checker.analysis import Anomaly, Verdict, analyse
from tests.campaigns.checker.report import report
from tests.simulation.plans import PLANS, Plan, kind_of
from tests.simulation.world import World


class Life(NamedTuple):
    """The results of one life."""

    verdict: Verdict
    trace_hash: str
    turns: int
    faults: int
    disk_faults: int
    cleaned: int
    """See `Scene.cleaned`."""
    elections: int
    """Number of leaderships begun."""
    outages: int
    """See `World.outages`."""
    isr_changes: int
    """See `StoredIsr.changes`."""
    courses: int
    """Number of courses that have reached their point; see `cluster/courses.py`."""


def live(seed: int, kind: str | None = None, length: float = 1.0) -> Life:
    """Run one life. `length`: factor of the plan's time with faults. Raises AssertionError for a violation."""
    kind = kind_of(seed) if kind is None else kind
    was_enabled = gc.isenabled()
    gc.disable()  # a life leaves little garbage, and collections would take a fifth of the time
    try:
        return _lived(seed, PLANS[kind].of_length(length))
    except (AssertionError, SimulationStuckError) as e:
        raise AssertionError(f"seed {seed} {kind}: {e}") from e
    finally:
        if was_enabled:
            gc.enable()


class _CopyIds:
    """Replacement of `uuid` for the names of tiered copies, which appear in messages."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128))


def _asked(seed: str, kind: str | None = None, length: str = "1.0") -> tuple[int, str | None, float]:
    """Return the arguments of `live` from the words of a command."""
    return int(seed), kind, float(length)


@contextlib.contextmanager
def _simulated(seed: int, plan: Plan) -> Iterator[tuple[Simulation, SimStore | None]]:
    """Begin a life: return the simulation, whose choices follow from the seed, and the object store or None."""
    with (
        mock.patch.object(tier_run, "uuid", _CopyIds(seed)),
        Simulation(seed) as simulation,
        SimStore() if plan.has_store else contextlib.nullcontext() as store,
    ):
        yield simulation, store


def _lived(seed: int, plan: Plan) -> Life:
    with _simulated(seed, plan) as (simulation, store):
        world = World(seed, plan, simulation, store)
        verdict = analyse(world.run())
        allowed: set[Anomaly] = set()
        if verdict.beyond(allowed):
            raise AssertionError(report(verdict, allowed))
        return Life(
            verdict,
            simulation.trace_hash,
            simulation.turns,
            world.faults,
            world.trouble.touched,
            world.cleaned,
            world.elections,
            world.outages,
            world.isr_changes,
            world.trouble.courses_completed,
        )


if __name__ == "__main__":
    print(sys.argv[1], live(*_asked(*sys.argv[1:])))
