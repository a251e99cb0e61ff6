"""The faults of clusters only. Faults overlap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sparklog.metadata.cluster_znodes import CONTROLLER
from sparklog.replication.cluster_image import PartitionImage
from sparklog.replication.controller.model import Elect, ElectionKind, Reassign
from sparklog.testing._sim_loop import SimLoop
from sparklog.testing._sim_node import Node
from sparklog.types import TopicPartition
from tests.simulation.cluster.courses import Courses
from tests.simulation.plans import SESSION_MS
from tests.simulation.trouble import Trouble, wake

if TYPE_CHECKING:
    from tests.simulation.world import World

SESSION_S = SESSION_MS / 1_000


class ClusterTrouble(Trouble):
    """The faults of a cluster."""

    down_s = 1.5
    cuts_s = (0.3, 1.0, 3.0)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._blackout_with: Node | None = None
        """The broker whose scheduled power cut takes the power of all machines; None without one."""
        self.courses = Courses(self)

    @property
    def courses_completed(self) -> int:
        return self.courses.completed

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.world.later(seconds, action)

    def pause(self, loop: SimLoop | None) -> None:
        assert loop is not None
        loop.is_paused = True
        self.after(self.rng.random() * self.rng.choice([1.0, 1.0, 10.0]), lambda: wake(loop))

    def is_off(self, node: Node) -> None:
        if node is self._blackout_with:
            self.blackout()
        else:
            super().is_off(node)

    # --- all brokers at once

    def outage(self) -> None:
        """Kill all processes at the same moment. The machines continue: written records survive, flushed or not
        (decision 18)."""
        self.world.outages += 1
        for node in self.world.nodes:
            if node.is_alive and not node.machine.files.is_off:
                node.kill()
                self._restart_later(node)
        self._perhaps_zookeeper_too()

    def kill_one_by_one(self) -> None:
        """Kill all processes one after the other: the last ones have continued without the first."""
        order = list(self.world.nodes)
        self.rng.shuffle(order)
        gap_s = self.rng.choice([0.01, 0.1, 1.5 * SESSION_S])
        for turn, node in enumerate(order):
            self.world.later(turn * gap_s * self.rng.random(), partial(self._kill_now, node))

    def _kill_now(self, node: Node) -> None:
        if node.is_alive and not node.machine.files.is_off:
            node.kill()
            self._restart_later(node)

    def blackout(self) -> None:
        """Cut the power of all machines at the same moment, including those without a running broker."""
        self.world.outages += 1
        self._blackout_with = None
        for node in self.world.nodes:
            self._crashed(node, node.power_cut)
        self._perhaps_zookeeper_too()

    def blackout_at_step(self) -> None:
        """Schedule a power cut of all machines at one of the next calls of one machine's file system."""
        node = self._node()
        node.machine.files.cut_at = len(node.machine.files.calls) + self.rng.randrange(60)
        self._blackout_with = node

    def _perhaps_zookeeper_too(self) -> None:
        """Stop ZooKeeper too, sometimes. It has all its answers on its disk, and sessions outlive it."""
        if self.rng.random() < 0.4:
            self.zookeeper_away()

    def replace_broker(self) -> None:
        """Give its id to a new, empty machine: one at a time, when all others have all records."""
        node = self._node()
        if self.world.is_quiet and all(self._in_sync(n) for n in self.world.nodes):
            self.suspects[node.id] = node.life
            node.kill()
            self.world.replace_machine(node)
            self.equip(node.machine, self.disks[node.id])
            self._restart_later(node)

    def lose_disk(self, node: Node) -> bool:
        """Cut the machine's power, or replace the machine. Returns False if the others need its records now."""
        if not self.may_crash(node) or not all(self._in_sync(n) for n in self.world.nodes if n is not node):
            return False
        self.suspects[node.id] = node.life
        if self.rng.random() < 0.2:
            node.power_cut()
        else:
            node.kill()
            self.world.replace_machine(node)
            self.equip(node.machine, self.disks[node.id])
        return True

    def late_join(self) -> None:
        self.courses.play(self.courses.late_join())

    def unheard_answer(self) -> None:
        self.courses.play(self.courses.unheard_answer())

    def lagging_mark(self) -> None:
        self.courses.play(self.courses.lagging_mark())

    def move_leaders(self) -> None:
        """Move leaders: an operator sets another order of the replicas, and elects by it."""
        targets = {}
        for tp, partition in self._partitions():
            if self.rng.random() < 0.5:
                order = list(partition.replicas)
                self.rng.shuffle(order)
                targets[tp] = tuple(order)
        if targets:
            self.world.ask_controller(
                lambda token: Reassign(token, targets),
                lambda token: Elect(token, ElectionKind.PREFERRED, tuple(targets)),
            )

    def reassign(self) -> None:
        """Reassign some partitions to other brokers, perhaps slowly."""
        chosen = [tp for tp, _ in self._partitions() if self.rng.random() < 0.4]
        ids = [node.id for node in self.world.nodes]
        targets = {tp: tuple(self.rng.sample(ids, 3)) for tp in chosen}
        throttle_bytes = self.rng.choice([-1, -1, 0, 20_000])
        self.world.ask_controller(lambda token: Reassign(token, targets, throttle_bytes))

    def cancel_reassignments(self) -> None:
        targets = {tp: None for tp, partition in self._partitions() if partition.is_reassigned}
        self.world.ask_controller(lambda token: Reassign(token, targets))

    def _partitions(self) -> list[tuple[TopicPartition, PartitionImage]]:
        """Return the partitions in the image of a controller that takes requests; none without one."""
        controller, image = self.world.controller(), self.world.controller_image()
        if controller is None or image is None or controller.is_paused or controller.cluster is None:
            return []
        return sorted(self.world.partitions_of(image))

    # --- the network

    def cut_link(self) -> None:
        """Cut a link between two brokers, in one direction or both."""
        one, other = self.rng.sample(self.world.nodes, 2)
        self._cut([(one.host, other.host)] + [(other.host, one.host)] * self.rng.randrange(2))

    def isolate_broker(self) -> None:
        """Cut a broker off from the others, in one direction or both; sometimes also from ZooKeeper or clients."""
        node = self._node()
        others = [n.host for n in self.world.nodes if n is not node]
        if self.rng.random() < 0.3:
            others += [c.host for c in self.world.clients]
        direction = self.rng.randrange(3)
        links = [(node.host, other) for other in others if direction != 1]
        links += [(other, node.host) for other in others if direction != 2]
        seconds = self._cut(links)
        if self.rng.random() < 0.3:
            self._without_zookeeper(node, seconds)

    # --- ZooKeeper

    def cut_zookeeper(self) -> None:
        """Cut one broker off from ZooKeeper for a while; it may notice late."""
        self._without_zookeeper(self._node(), self.rng.random() * self.rng.choice([0.3, 2.0]))

    def _without_zookeeper(self, node: Node, seconds: float) -> None:
        node.cut_zookeeper(self.rng.randrange(round(SESSION_MS * 0.7)))
        self.world.later(seconds, node.heal_zookeeper)

    def expire_session(self) -> None:
        """End a broker's session while the broker lives."""
        node = self._node()
        if node.zk is not None and node.zk.session_id:
            self.world.zookeeper.end_session(node.zk.session_id)
            node.cut_zookeeper(self.rng.randrange(300))
            self.world.later(self.rng.random() * 0.5, node.heal_zookeeper)

    def zookeeper_away(self) -> None:
        """Stop ZooKeeper for a time that is long for sessions this short."""
        zookeeper = self.world.zookeeper
        if zookeeper.is_up:
            zookeeper.stop()
            self.world.later(self.rng.random() * self.rng.choice([1.0, 5.0]) * SESSION_S, self._zookeeper_back)

    def _zookeeper_back(self) -> None:
        if not self.world.zookeeper.is_up:
            self.world.zookeeper.start()

    def delete_controller(self) -> None:
        """Delete the controller's node, as an operator who wants another election."""
        self.world.operator.delete(CONTROLLER)

    # --- disks

    # --- the end

    def heal(self) -> None:
        self._zookeeper_back()
        self._blackout_with = None
        super().heal()
