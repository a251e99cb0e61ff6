"""The simulated cluster of a scenario."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparklog.testing._sim_loop import Simulation
from tests.simulation.cluster.play import Play


@pytest.fixture
def play() -> Iterator[Play]:
    with Simulation(1) as simulation:
        yield Play(simulation)
