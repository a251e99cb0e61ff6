"""Courses of events that chance does not produce: each aims at one rule that is alone at one moment. Other faults
continue meanwhile, so a course may end early.

A course is a generator. It yields conditions to wait for, or numbers of seconds to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sparklog.replication.cluster_image import PartitionImage
from sparklog.replication.replica.leader import Leader
from sparklog.testing._sim_net import SimNet
from sparklog.testing._sim_node import Node
from sparklog.types import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.cluster.trouble import ClusterTrouble

Course = Iterator[Callable[[], bool] | float]
POLL_S = 0.002
PATIENCE_S = 3.0
"""Longest wait of a course for a condition, in s."""


class _Cast(NamedTuple):
    """The participants: the partition, its leader and a follower; neither of these is the controller."""

    tp: TopicPartition
    leader: Node
    follower: Node
    controller: Node


class Courses:
    """Runs one course at a time."""

    def __init__(self, trouble: ClusterTrouble) -> None:
        self._trouble = trouble
        self._world = trouble.world
        self._rng = trouble.rng
        self._is_playing = False
        self.completed = 0
        """Number of courses that have reached their point."""

    def play(self, course: Course) -> None:
        """Run a course beside everything else; ignored while another one runs."""
        if not self._is_playing:
            self._is_playing = True
            self._step(course)

    def _step(self, course: Course) -> None:
        wanted = next(course, None)
        if wanted is None:
            self._is_playing = False
        elif isinstance(wanted, float):
            self._world.later(wanted, lambda: self._step(course))
        else:
            self._wait(course, wanted, self._world.simulation.now_s + PATIENCE_S)

    def _wait(self, course: Course, condition: Callable[[], bool], end_s: float) -> None:
        if condition():
            self._step(course)
        elif self._world.simulation.now_s < end_s:
            self._world.later(POLL_S, lambda: self._wait(course, condition, end_s))
        else:
            course.close()  # type: ignore[attr-defined]
            self._is_playing = False

    def _end(self, links: list[tuple[str, str]], *nodes: Node) -> None:
        """End a course, also an abandoned one: restore all links and nodes. It runs later, and so never after the
        life's end."""
        self._world.net.heal_links(links)
        for node in nodes:
            self._world.later(0.0, partial(self._trouble.revive, node))

    # --- late join

    def late_join(self) -> Course:
        """A leader that cannot reach the controller proposes a follower for the ISR. When it can again, the follower's
        machine has lost its records, and runs in another life, which the controller knows and the leader does not. Only
        the controller's comparison of broker epochs keeps the follower out (KIP-841, KIP-903).
        """
        cast = self._cast()
        if cast is None:
            return
        tp, leader, follower, controller = cast
        apart, away = _links(leader, follower), _links(leader, controller)
        net = self._world.net
        try:
            follower.kill()
            yield lambda: self._is_out_of_sync(tp, follower)
            _cut(net, apart)
            self._trouble.revive(follower)
            yield lambda: follower.has_joined and self._knows(leader, tp, follower)
            _cut(net, away)
            net.heal_links(apart)
            yield lambda: self._proposes(leader, tp, follower)
            _cut(net, apart)
            if not follower.is_alive or not self._trouble.lose_disk(follower):
                return
            yield self._rng.random() * 0.3
            self._trouble.revive(follower)
            yield lambda: follower.has_joined and self._is_known(follower)
            net.heal_links(away)
            self.completed += 1
            yield self._rng.random() * 1.5
        finally:
            self._end([*apart, *away], follower)

    # --- unheard answer

    def unheard_answer(self) -> Course:
        """The controller adds a follower to the ISR, and the leader does not get the answer. Then the follower cannot
        reach the leader. Only the pending proposal, which still counts, holds the high watermark back (KIP-497).
        """
        cast = self._cast(apart_from_controller=True)
        if cast is None:
            return
        tp, leader, follower, controller = cast
        apart, answers = _links(leader, follower), [(controller.host, leader.host)]
        net = self._world.net
        try:
            follower.kill()
            yield lambda: self._is_out_of_sync(tp, follower)
            _cut(net, apart)
            self._trouble.revive(follower)
            yield lambda: follower.has_joined and self._knows(leader, tp, follower)
            net.heal_links(apart)
            yield lambda: follower.id in self._world.stored_isr(tp)
            _cut(net, [*apart, *answers])
            net.reset_between(leader.host, controller.host)
            self.completed += 1
            yield 1.5 + self._rng.random()
        finally:
            self._end([*apart, *answers], follower)

    # --- lagging mark

    def lagging_mark(self) -> Course:
        """A follower lags. The other replicas are killed, and the next leader has only an old high watermark from its
        files. The records that the follower lacks were visible: it may join when it has all records of the epoch's
        beginning (KIP-497, KAFKA-7128).
        """
        cast = self._cast(apart_from_controller=True)
        if cast is None:
            return
        tp, leader, follower, _ = cast
        partition = self._partition(tp)
        assert partition is not None
        (next_one,) = (self._world.node(r) for r in partition.replicas if r not in (leader.id, follower.id))
        apart, net = _links(next_one, follower), self._world.net
        try:
            follower.kill()
            yield lambda: self._is_out_of_sync(tp, follower)
            yield self._rng.random() * 0.4
            for node in (leader, next_one):
                if node.is_alive:
                    node.kill()
            self._trouble.revive(next_one)
            self._trouble.revive(follower)
            yield lambda: self._proposes(next_one, tp, follower)
            _cut(net, apart)
            self.completed += 1
            yield self._rng.random()
        finally:
            self._end(apart, leader, next_one, follower)

    # --- what is looked at

    def _cast(self, *, apart_from_controller: bool = False) -> _Cast | None:
        """Return participants while all replicas are in sync, so that no lost record is the only copy.
        `apart_from_controller`: the controller has no replica.
        """
        controller, image = self._world.controller(), self._world.controller_image()
        if controller is None or image is None or not self._world.are_all_in_sync():
            return None
        found = []
        for tp, partition in sorted(self._world.partitions_of(image)):
            if partition.leader in (-1, controller.id) or tp.topic not in self._world.plan.topics:
                continue
            if apart_from_controller and controller.id in partition.replicas:
                continue
            others = [r for r in partition.replicas if r not in (partition.leader, controller.id)]
            found += [_Cast(tp, self._world.node(partition.leader), self._world.node(r), controller) for r in others]
        return self._rng.choice(found) if found else None

    def _partition(self, tp: TopicPartition) -> PartitionImage | None:
        image = self._world.controller_image()
        return None if image is None else image.partition(tp)

    def _is_out_of_sync(self, tp: TopicPartition, follower: Node) -> bool:
        partition = self._partition(tp)
        return partition is not None and follower.id not in partition.isr

    def _is_known(self, node: Node) -> bool:
        image = self._world.controller_image()
        return image is not None and image.known.get(node.id) == node.broker_epoch

    @staticmethod
    def _state(node: Node, tp: TopicPartition) -> Leader | None:
        partition = None if node.broker is None else node.broker.partitions.find(tp)
        state = None if partition is None else getattr(partition.replicas, "state", None)
        return state if isinstance(state, Leader) and not state.has_resigned else None

    def _knows(self, leader: Node, tp: TopicPartition, follower: Node) -> bool:
        state = self._state(leader, tp)
        return state is not None and state._eligible.get(follower.id) == follower.broker_epoch

    def _proposes(self, leader: Node, tp: TopicPartition, follower: Node) -> bool:
        state = self._state(leader, tp)
        return state is not None and state._pending is not None and follower.id in state._pending.members


def _links(one: Node, other: Node) -> list[tuple[str, str]]:
    return [(one.host, other.host), (other.host, one.host)]


def _cut(net: SimNet, links: list[tuple[str, str]]) -> None:
    for link in links:
        net.cut(*link)
