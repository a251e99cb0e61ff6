"""A replica is removed and added again so quickly that its leader, or the replica, learns of both at once. Three real
brokers on a quiet network.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sparklog_broker.cluster import suspicions

from sparklog.replication.controller.model import Reassign
from sparklog.testing._sim_loop import Simulation
from sparklog.testing._sim_node import Node
from tests.simulation.cluster.play import TP, Play


class Roles:
    """The leader, a follower, and a third broker that is the controller."""

    def __init__(self, play: Play) -> None:
        controller = play.world.controller()
        assert controller is not None
        self.play = play
        self.controller: Node = controller
        self.leader, self.follower = (node for node in play.world.nodes if node is not controller)
        play.order(self.leader.id, self.controller.id, self.follower.id)
        for _ in range(3):
            play.acknowledged()
        play.until(lambda: set(play.state.isr) == {1, 2, 3})
        play.until(lambda: len({play.log(i).high_watermark for i in (1, 2, 3)}) == 1)

    def cut(self, one: Node, other: Node) -> list[tuple[str, str]]:
        """Cut the links between two brokers, and drop the answers to earlier requests. Returns the links."""
        net = self.play.world.net
        links = [(one.host, other.host), (other.host, one.host)]
        for link in links:
            net.cut(*link)
        net.reset_between(one.host, other.host)
        return links

    def assign(self, *nodes: Node) -> None:
        replicas = tuple(node.id for node in nodes)
        self.play.ask_controller(lambda token: Reassign(token, {TP: replicas}))

    def log_end(self, node: Node) -> int:
        partition = node.broker.partitions.find(TP)  # type: ignore[union-attr]
        log = None if partition is None else partition.open_log
        return -1 if log is None else int(log.log_end_offset)


@pytest.fixture
def roles() -> Iterator[Roles]:
    with Simulation(1) as simulation:
        yield Roles(Play(simulation))


def test_a_removed_replica_that_returns_does_not_join_with_its_old_log(
    roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader learns of both at once, and the new replica cannot reach it yet: the leader's knowledge of the earlier
    log does not count. No broker looks for unreachable ones: they would replace the leader.
    """
    play, follower = roles.play, roles.follower
    monkeypatch.setattr(suspicions, "POLL_INTERVAL_S", 3_600.0)
    play.pass_time(1.0)  # the present interval ends
    apart = roles.cut(roles.leader, roles.controller)
    roles.cut(follower, roles.leader)
    roles.assign(roles.leader, roles.controller)
    play.until(lambda: follower.id not in play.state.replicas and roles.log_end(follower) < 0)
    roles.assign(roles.leader, roles.controller, follower)
    play.until(lambda: roles.log_end(follower) == 0)
    play.world.net.heal_links(apart)
    for _ in range(20):
        play.pass_time(0.1)
        assert follower.id not in play.state.isr
    play.acknowledged()
    play.world.net.heal()
    play.until(lambda: follower.id in play.state.isr)
    play.come_to_rest()


def test_a_replica_that_has_missed_that_it_was_taken_away_and_added_again_joins(roles: Roles) -> None:
    """Its fetch waits at the leader, which has forgotten it meanwhile, and no record is written. Regression: the
    reassignment never ended.
    """
    play, follower = roles.play, roles.follower
    roles.cut(follower, roles.controller)
    leader = roles.leader.broker.partitions.find(TP)  # type: ignore[union-attr]
    assert leader is not None
    roles.assign(roles.leader, roles.controller)
    play.until(lambda: len(leader.replicas.replicas) == 2)
    roles.assign(roles.leader, roles.controller, follower)
    play.until(lambda: len(leader.replicas.replicas) == 3)
    play.world.net.heal()
    play.until(lambda: set(play.state.isr) == {1, 2, 3} and not play.state.is_reassigned)
    assert roles.log_end(follower) == 9
    play.come_to_rest()
