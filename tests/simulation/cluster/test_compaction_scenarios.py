"""A compacted topic with three real brokers on a quiet network: the removal of tombstones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparklog.testing._sim_loop import Simulation
from tests.simulation.cluster.play import PLAN, STARTED_MS, Play
from tests.simulation.plans import COMPACTED, INPUT, OFTEN, OUTPUT, SAFE
from tests.support.compaction import Row, keyed_batch, last_values, stored

GONE = b"gone"
COMPACTING = PLAN._replace(
    topics={INPUT: {**SAFE, **COMPACTED, "delete.retention.ms": 0}, OUTPUT: SAFE},
    settings=OFTEN,
    replicas_differ=True,
)
LONG_S = 3.0
"""Time for many rounds of the cleaner and of retention."""


@pytest.fixture
def play() -> Iterator[Play]:
    with Simulation(1) as simulation:
        yield Play(simulation, COMPACTING)


def write(play: Play, *rows: Row) -> None:
    play.stored(keyed_batch(rows, STARTED_MS))


def fill(play: Play) -> None:
    """Fill the active segment, so that earlier records are in segments that may be compacted."""
    for number in range(20):
        write(play, (b"filler", b"%d" % number * 200))


def values_of(play: Play, broker_id: int) -> list[bytes | None]:
    """Return the values of the deleted key on a replica."""
    return [row.value for row in stored(play.log(broker_id)) if row.key == GONE]


def test_a_tombstone_stays_for_a_replica_that_is_away_and_goes_when_it_has_it(play: Play) -> None:
    """Else the key is back when the replica leads."""
    write(play, (GONE, b"1"))
    play.until(lambda: play.log(3).log_end_offset == 1)
    play[3].kill()
    write(play, (GONE, None))
    fill(play)
    play.until(lambda: all(values_of(play, i) == [None] for i in (1, 2)))
    play.pass_time(LONG_S)
    assert [values_of(play, i) for i in (1, 2)] == [[None], [None]], "a replica lacks the tombstone"
    play[3].start()
    play.until(lambda: play[3].has_joined and 3 in play.state.isr)
    play.until(lambda: not any(values_of(play, i) for i in (1, 2, 3)))
    play.order(3, 1, 2)
    assert last_values(stored(play.log(3))) == {b"filler": b"19" * 200}
    play.come_to_rest()
