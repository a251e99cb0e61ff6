"""`replication_world` with faults that aim at one rule."""

from __future__ import annotations

from sparklog.metadata.cluster_znodes import CONTROLLER
from sparklog.replication.controller.model import Suspect
from tests.simulation.replication_broker import TP, Broker
from tests.simulation.replication_world import SESSION_MS, World


class OverlappingControllers(World):
    """A controller loses ZooKeeper for a while before a write; another one is elected and writes. The first one's
    session survives, so its write arrives late.
    """

    def fault(self) -> None:
        old = self.controller()
        if old is None or old.is_paused or not old.is_alive:
            return
        client = old.zk
        self.zk.cut(client, notice_ms=self.choose(SESSION_MS))
        self.operator.delete(CONTROLLER)
        self.later(self.choose(SESSION_MS // 2), lambda: self._move_at(old))
        for _ in range(3):
            self.later(self.choose(SESSION_MS), self.move_leader)
        self.later(self.choose(SESSION_MS), lambda: self.zk.heal(client))

    def _move_at(self, controller: Broker) -> None:
        if controller.is_alive and not controller.is_paused:
            self.move_leader_at(controller)


class Suspicions(World):
    """Brokers are suspected at any time: dead ones, paused ones, and living leaders. No rule relies on the truth of a
    suspicion.
    """

    def fault(self) -> None:
        if self.choose(2):
            super().fault()
            return
        controller = self.controller()
        if controller is None or controller.is_paused or controller.controller.image is None:
            return
        image = controller.controller.image
        partition = image.partition(TP)
        registered = [b for b in image.brokers.values() if b.broker_id in self.brokers]
        if partition is None or not registered:
            return
        chosen = image.brokers.get(partition.leader) if self.choose(3) else None
        suspect = chosen or registered[self.choose(len(registered))]
        observers = tuple((b.broker_id, b.broker_epoch) for b in registered if b is not suspect)
        controller.session.handle(Suspect(self.fresh(), suspect.broker_id, suspect.broker_epoch, observers))
