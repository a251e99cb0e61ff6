"""Failovers before the end of a session, and the faults after which no leader moves. Three real brokers on a quiet
network.
"""

from __future__ import annotations

from typing import Any

from sparklog.replication.controller.model import Suspect
from sparklog.testing._sim_node import Node
from tests.simulation.cluster.play import SESSION_S, Play
from tests.simulation.trouble import wake

SEVERAL_SESSIONS_S = 4 * SESSION_S
LONG_SESSION_MS = 20_000
"""Session timeout in ms that no failover before its end needs."""


def session_of(node: Node) -> int:
    assert node.zk is not None
    return node.zk.session_id


def controller_of(play: Play) -> Node:
    controller = play.world.controller()
    assert controller is not None
    return controller


def leadership(play: Play) -> Any:
    return play.state.leader, play.state.leader_epoch, play.state.isr


def kill_leader(play: Play, leader: Node) -> None:
    """Kill the leader, and see records acknowledged before its session ends."""
    play.order(leader.id, *(node.id for node in play.world.nodes if node is not leader))
    end = play.acknowledged()
    session, play.world.zookeeper.session_timeout_ms = session_of(leader), LONG_SESSION_MS
    leader.kill()
    play.until_turn(lambda: play.state.leader not in (-1, leader.id))
    assert leader.id not in play.state.isr, "acknowledgements would wait for it"
    assert play.acknowledged() == end + 3
    image = play.world.controller_image()
    assert image is not None and image.brokers[leader.id].is_suspected
    assert play.world.zookeeper.has_session(session)


def test_a_killed_leader_is_replaced_before_its_session_ends(play: Play) -> None:
    controller = controller_of(play)
    kill_leader(play, next(node for node in play.world.nodes if node is not controller))


def test_a_killed_controller_is_replaced_before_its_session_ends(play: Play) -> None:
    kill_leader(play, controller_of(play))


def test_a_killed_follower_holds_up_acknowledgements_for_less_than_its_session(play: Play) -> None:
    controller = controller_of(play)
    follower = next(node for node in play.world.nodes if node.id != 1 and node is not controller)
    play.acknowledged()
    session, play.world.zookeeper.session_timeout_ms = session_of(follower), LONG_SESSION_MS
    follower.kill()
    play.until_turn(lambda: follower.id not in play.state.isr)
    play.acknowledged()
    assert play.world.zookeeper.has_session(session)
    assert follower.id not in play.state.isr, "it joins again when it fetches again"


def test_a_broker_that_two_others_do_not_reach_loses_its_leadership_and_no_record(play: Play) -> None:
    """It lives and keeps its session, and cannot acknowledge a record that the new leader lacks."""
    end = play.acknowledged()
    others = (play[2].host, play[3].host, "client")
    links = [link for host in others for link in ((play[1].host, host), (host, play[1].host))]
    for link in links:
        play.world.net.cut(*link)
    play.world.net.reset_between(play[1].host, "client")  # the brokers see late replies, without a reset
    play.until(lambda: play.state.leader in (2, 3) and play.leads(play.state.leader))
    assert play.acknowledged() == end + 3
    play.world.net.heal_links(links)
    play.until(lambda: set(play.state.isr) == {1, 2, 3})
    assert play.acknowledged() == end + 6
    assert play[1].has_joined


def test_a_falsely_suspected_follower_of_an_idle_partition_joins_again(play: Play) -> None:
    """Its fetch waits at the leader, which does not count it any more."""
    play.acknowledged()
    play.pass_time(SEVERAL_SESSIONS_S)
    image = play.world.controller_image()
    assert image is not None
    life, *others = ((i, image.brokers[i].broker_epoch) for i in (2, 1, 3))
    assert play.ask_controller(lambda token: Suspect(token, *life, tuple(others)))
    assert play.state.isr == (1, 3)
    play.until(lambda: set(play.state.isr) == {1, 2, 3})


def test_a_broken_link_between_two_brokers_moves_no_leader(play: Play) -> None:
    before = play.state.leader, play.state.leader_epoch
    play.acknowledged()
    play.world.net.cut(play[1].host, play[2].host)
    play.world.net.reset_between(play[1].host, play[2].host)
    play.pass_time(SEVERAL_SESSIONS_S)
    assert (play.state.leader, play.state.leader_epoch) == before
    image = play.world.controller_image()
    assert image is not None and not any(b.is_suspected for b in image.brokers.values())


def test_a_broker_that_stops_for_less_than_its_session_keeps_its_leaderships(play: Play) -> None:
    """A stopped process still accepts connections."""
    play.acknowledged()
    before, controller = leadership(play), controller_of(play)
    for node in play.world.nodes:
        assert node.loop is not None
        node.loop.is_paused = True
        play.pass_time(0.5 * SESSION_S)
        wake(node.loop)
        play.pass_time(SEVERAL_SESSIONS_S)
    assert leadership(play) == before and controller_of(play) is controller
    play.acknowledged()


def test_reset_connections_alone_move_no_leader(play: Play) -> None:
    before = leadership(play)
    for _ in range(5):
        play.world.net.reset_some(1.0)
        play.pass_time(0.3)
    assert leadership(play) == before
