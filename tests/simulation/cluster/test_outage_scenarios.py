"""All brokers end at the same moment, one scenario each: killed, without power, and without power and flushes. Three
real brokers on a quiet network.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sparklog_broker.cluster.cluster_member import ClusterMember

from sparklog.replication.controller.model import Elect, ElectionKind
from sparklog.testing._sim_loop import Simulation
from tests.simulation.cluster.play import PLAN, SESSION_S, Play
from tests.simulation.cluster.promises import Copied, batches_of
from tests.simulation.plans import FLUSHED, INPUT, OUTPUT
from tests.support.cases import in_gate

FLUSHED_PLAN = PLAN._replace(topics={INPUT: FLUSHED, OUTPUT: FLUSHED}, internal=FLUSHED)


@pytest.fixture(params=["zookeeper stays", "zookeeper ends, too"])
def zookeeper_ends(request: pytest.FixtureRequest) -> Iterator[bool]:
    yield request.param != "zookeeper stays"


def all_come_back(play: Play, *, zookeeper_ends: bool) -> None:
    """Start all brokers after the end of their sessions, or while ZooKeeper, which has kept these, is coming back."""
    if zookeeper_ends:
        play.world.zookeeper.stop()
        play.world.later(2 * SESSION_S, play.world.zookeeper.start)
    play.pass_time(3 * SESSION_S)
    for node in play.world.nodes:
        node.start()
    play.until(lambda: all(node.has_joined for node in play.world.nodes))
    play.until(lambda: (image := play.world.controller_image()) is not None and len(image.brokers) == 3)


def contents(play: Play) -> list[list[Copied]]:
    return [batches_of(play.log(i), 0, play.log(i).log_end_offset) for i in (1, 2, 3)]


def goes_on_with(play: Play, before: list[Copied]) -> None:
    """Wait until all replicas are in sync with the earlier records, and append more."""
    play.until(lambda: set(play.state.isr) == {1, 2, 3} and play.state.leader > 0)
    play.acknowledged()
    play.come_to_rest()
    assert all(content[: len(before)] == before for content in contents(play))


def test_brokers_that_are_killed_together_lose_no_unflushed_record(zookeeper_ends: bool) -> None:
    """Decision 18: the machines continue, so all brokers vouch for their written records, and lead again without
    help."""
    with Simulation(1) as simulation:
        play = Play(simulation)
        for _ in range(5):
            play.acknowledged()
        before = contents(play)[0]
        for node in play.world.nodes:
            node.kill()
        all_come_back(play, zookeeper_ends=zookeeper_ends)
        goes_on_with(play, before)


def test_a_power_cut_of_all_brokers_loses_no_record_flushed_before_its_acknowledgement(
    zookeeper_ends: bool,
) -> None:
    with Simulation(1) as simulation:
        play = Play(simulation, FLUSHED_PLAN)
        for _ in range(5):
            play.acknowledged()
        before = contents(play)[0]
        for _ in range(3):
            for node in play.world.nodes:
                node.power_cut()
            all_come_back(play, zookeeper_ends=zookeeper_ends)
        goes_on_with(play, before)


def test_brokers_without_power_before_their_lives_are_noted_lead_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: their disks counted as emptied, although nothing was written in lives that were not noted."""
    with Simulation(1) as simulation:
        play = Play(simulation, FLUSHED_PLAN)
        for _ in range(5):
            play.acknowledged()
        before = contents(play)[0]
        for node in play.world.nodes:
            node.power_cut()
        with monkeypatch.context() as unnoted:
            unnoted.setattr(ClusterMember, "_on_registered", lambda *_: None)
            play.pass_time(3 * SESSION_S)
            for node in play.world.nodes:
                node.start()
            play.until(lambda: (image := play.world.controller_image()) is not None and len(image.brokers) == 3)
            for node in play.world.nodes:
                node.power_cut()
        all_come_back(play, zookeeper_ends=False)
        goes_on_with(play, before)


@pytest.mark.parametrize("seed", in_gate(range(12), 0, 1))
def test_without_flushes_a_power_cut_of_all_needs_an_unclean_election(seed: int) -> None:
    """A broker whose machine crashed leaves ISR and ELR: the loss of records is not hidden. After the unclean election
    all replicas have the new leader's records.
    """
    with Simulation(seed) as simulation:
        play = Play(simulation)
        for _ in range(5):
            play.acknowledged()
        for node in play.world.nodes:
            node.power_cut()
        all_come_back(play, zookeeper_ends=False)
        play.pass_time(3 * SESSION_S)
        assert (play.state.leader, play.state.isr, play.state.elr) == (-1, (), ())
        last_leader = play.state.last_leader
        play.ask_controller(lambda token: Elect(token, ElectionKind.UNCLEAN))
        play.until(lambda: set(play.state.isr) == {1, 2, 3})
        assert play.state.leader == last_leader
        play.new_producer()
        again = play.acknowledged()
        assert again <= 15  # some of 15 records may be gone
        play.come_to_rest()
        assert len({tuple(content) for content in contents(play)}) == 1


def test_a_killed_broker_whose_machine_then_lost_its_power_does_not_lead() -> None:
    """The boot id in its files is the earlier one, so it vouches for nothing. One of three was only killed: all wait
    for it."""
    with Simulation(1) as simulation:
        play = Play(simulation)
        play.acknowledged()
        for node in play.world.nodes:
            node.kill()
        for node in play.world.nodes[1:]:
            node.power_cut()
        play.pass_time(2 * SESSION_S)
        for node in play.world.nodes[1:]:
            node.start()
        play.until(lambda: play.world.controller_image() is not None and {*play.state.isr, *play.state.elr} == {1})
        play.pass_time(2 * SESSION_S)
        assert play.state.leader == -1
        play[1].start()
        play.until(lambda: play.state.leader == 1 and set(play.state.isr) == {1, 2, 3})
        assert play.acknowledged() == 3
        play.come_to_rest()


@pytest.mark.parametrize("how", ["kill", "power_cut"])
def test_deleted_records_stay_deleted_when_all_end_right_after_the_answer(how: str) -> None:
    """Regression: followers knew their log starts in memory alone, and one of them led next."""
    with Simulation(1) as simulation:
        play = Play(simulation, FLUSHED_PLAN)
        for _ in range(3):
            play.acknowledged()
        play.until(lambda: len({play.log(i).high_watermark for i in (1, 2, 3)}) == 1)
        play.delete_below(5)
        for node in play.world.nodes:
            getattr(node, how)()
        for node in play.world.nodes[1:]:
            node.start()
        play.until(lambda: play.state.leader in (2, 3) and play.leads(play.state.leader))
        assert play.log(play.state.leader).log_start_offset == 5
        assert play.acknowledged() == 9
        play[1].start()
        play.come_to_rest()
