"""A small cluster: real rules (leader, follower, controller, elections, registration) on a simulated ZooKeeper and
network.

Three to five brokers hold one partition, as models of logs. Producers with acks=all and consumers use it while messages
are delayed, lost, repeated and overtake each other, connections are cut in one or both directions, brokers crash (with
the loss of unflushed records), stop cleanly, or pause and return as zombies, and ZooKeeper itself fails. The seed
decides all of it. The promises are in `replication_promises.py`.

With `flush_each` (even seeds; `flush.mode=group`) any number of brokers may crash at any time. Without it, a broker
crashes only while all earlier crashed ones are in sync again: more than min.insync.replicas - 1 simultaneous crashes
lose data by contract.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparklog.errors import SparklogError
from sparklog.metadata.cluster_znodes import CONTROLLER
from sparklog.replication.cluster_image import NO_LEADER, TopicImage
from sparklog.replication.controller import model as controller_model
from sparklog.replication.replica import model as replica_model
from sparklog.testing._sim_zookeeper import SimZooKeeper
from tests.simulation.replication_broker import TP, Broker
from tests.simulation.replication_log import SimLog
from tests.simulation.replication_promises import Promises, check

SESSION_MS = 1_200
RUN_MS = 16_000
REST_MS = 30_000
MIN_INSYNC = 2


@dataclass(frozen=True)
class AllSafeguards:
    """The safeguards of all rules. `fence`: a controller's writes carry the epoch's version."""

    replica: replica_model.Safeguards = field(default_factory=replica_model.Safeguards)
    controller: controller_model.Safeguards = field(default_factory=controller_model.Safeguards)
    fence: bool = True


class World:
    """A run of the cluster."""

    def __init__(
        self, seed: int, safeguards: AllSafeguards | None = None, *, brokers: int = 0, flush_each: bool | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.safeguards = safeguards if safeguards is not None else AllSafeguards()
        self.flush_each = flush_each if flush_each is not None else seed % 2 == 0
        self.zk = SimZooKeeper(seed, session_timeout_ms=SESSION_MS)
        self.operator = self.zk.client()
        self.promises = Promises()
        self.loss_percent = self.choose(2) * self.choose(15)
        self.delay_ms = (1, 5 + self.choose(80))
        self.cut_links: set[tuple[int, int]] = set()
        self.flushes = True
        self.suspects: dict[int, int] = {}
        self._number = 0
        self.brokers: dict[int, Broker] = {}
        for broker_id in range(1, (brokers or (3, 3, 3, 4, 5)[self.choose(5)]) + 1):
            self.brokers[broker_id] = Broker(self, broker_id, SimLog(flush_each=self.flush_each))
        for broker in self.brokers.values():
            broker.start()

    # --- chance, time, network

    def choose(self, options: int) -> int:
        return self.random.randrange(options)

    def fresh(self) -> int:
        self._number += 1
        return self._number

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.zk.at(self.zk.now_ms + delay_ms, action)

    def advance(self, duration_ms: int) -> None:
        self.zk.advance(self.zk.now_ms + duration_ms)

    def _carry(self, source: int, target: int, action: Callable[[], None]) -> None:
        """Carry a message; each has its own delay, so that messages overtake each other."""
        if source == target:
            self.later(1, action)
        elif (source, target) not in self.cut_links and self.choose(100) >= self.loss_percent:
            self.later(self.random.randint(*self.delay_ms), action)
            if self.choose(30) == 0:
                self.later(self.random.randint(300, 4_000), action)  # a copy on a stalled connection

    def ask(
        self,
        source: Broker,
        target: Broker,
        perform: Callable[[Callable[[Any], None]], None],
        on_answer: Callable[..., None],
    ) -> None:
        """Send a request, sometimes twice; `perform` answers now or later."""

        def answer(result: Any) -> None:
            self._carry(target.id, source.id, lambda: on_answer(result))

        self._carry(source.id, target.id, lambda: target.run(lambda: perform(answer)))

    def send(self, source: Broker, target: Broker, read: Callable[[], Any], on_answer: Callable[..., None]) -> None:
        self.ask(source, target, lambda answer: answer(read()), on_answer)

    def ask_controller(self, source: Broker, target: Broker, request: Any, on_answer: Callable[..., None]) -> None:
        def perform(answer: Callable[[Any], None]) -> None:
            target.tokens.setdefault(request.token, answer)
            target.session.handle(request)

        self.ask(source, target, perform, on_answer)

    # --- clients

    def create_topic(self) -> None:
        """Create the topic with a replica on every broker, through the controller."""
        configs = {"min.insync.replicas": MIN_INSYNC, "flush.mode": "group" if self.flush_each else "none"}
        assignment = [list(self.brokers)]
        for _ in range(200):
            self.advance(100)
            controller = self.controller()
            if controller is None or controller.controller.image is None:
                continue
            if TP.topic in controller.controller.image.topics:
                return
            if len(controller.controller.image.brokers) == len(self.brokers):
                topic = TopicImage(TP.topic, "id", (), configs=configs)
                controller.session.handle(controller_model.CreateTopic(self.fresh(), topic, assignment=assignment))
        check(False, "no topic")

    def controller(self) -> Broker | None:
        """Return the controller with the newest image."""
        live = [b for b in self.brokers.values() if b.controller_image() is not None]
        return max(live, key=lambda b: b.controller.image.version, default=None)  # type: ignore[union-attr]

    def produce(self) -> None:
        """Produce to a broker that believes to lead, zombies included."""
        live = [b for b in self.brokers.values() if b.is_alive]
        if not live:
            return
        leaders = [b for b in live if b.leader is not None]
        target = leaders[self.choose(len(leaders))] if leaders else live[self.choose(len(live))]
        value = self.fresh()
        self.later(
            self.random.randint(*self.delay_ms), lambda: target.run(lambda: target.produce(value, lambda _: None))
        )

    def look(self) -> None:
        """Ask a leader for the end offset, as a consumer."""
        for broker in self.brokers.values():
            if broker.leader is not None and broker.is_alive and not broker.is_paused:
                try:
                    latest = broker.leader.latest_offset()
                except SparklogError:
                    continue
                self.promises.on_latest(broker.leader.partition.leader_epoch, latest)

    # --- faults

    def _in_sync(self, broker_id: int) -> bool:
        controller = self.controller()
        if controller is None or controller.controller.image is None:
            return False
        image = controller.controller.image
        partition = image.partition(TP)
        broker = self.brokers[broker_id]
        return (
            partition is not None
            and broker.is_alive
            and broker_id in partition.isr
            and image.known.get(broker_id) == broker.registration.broker_epoch
            and self.suspects.get(broker_id, -1) < broker.life
        )

    def may_crash(self, broker: Broker) -> bool:
        if self.flush_each:
            return True
        for suspect in list(self.suspects):
            if self._in_sync(suspect):
                del self.suspects[suspect]
        return not set(self.suspects) - {broker.id}

    def crash(self, broker: Broker, *, loses: bool = True) -> None:
        self.suspects[broker.id] = broker.life
        broker.crash(loses=loses)

    def pause(self, broker: Broker, duration_ms: int) -> None:
        broker.pause()
        self.zk.cut(broker.zk, notice_ms=duration_ms)
        life = broker.life

        def wake() -> None:
            if broker.life == life and broker.is_alive:
                broker.resume()
                self.zk.heal(broker.zk)

        self.later(duration_ms, wake)

    def isolate(self, broker: Broker, duration_ms: int, direction: int) -> None:
        """Cut the broker off from the others: 0 both ways, 1 outgoing, 2 incoming, 3 both ways and from ZooKeeper."""
        links = {(broker.id, other) for other in self.brokers if direction in (0, 1, 3)}
        links |= {(other, broker.id) for other in self.brokers if direction in (0, 2, 3)}
        self.cut_links |= links
        client = broker.zk
        if direction == 3 and broker.is_alive:
            self.zk.cut(client, notice_ms=self.choose(800))

        def heal() -> None:
            self.cut_links -= links
            self.zk.heal(client)

        self.later(duration_ms, heal)

    def move_leader(self) -> None:
        """Move the leader: an operator sets another order of the replicas, and elects by it."""
        controller = self.controller()
        if controller is not None and not controller.is_paused:
            self.move_leader_at(controller)

    def move_leader_at(self, controller: Broker) -> None:
        """Move the leader through this broker, which may have lost the controller's role."""
        order = list(self.brokers)
        self.random.shuffle(order)
        controller.session.handle(controller_model.Reassign(self.fresh(), {TP: tuple(order)}))
        controller.session.handle(controller_model.Elect(self.fresh(), controller_model.ElectionKind.PREFERRED, (TP,)))

    def fault(self) -> None:
        broker = self.brokers[self.choose(len(self.brokers)) + 1]
        led = [b for b in self.brokers.values() if b.leader is not None and b.is_alive]
        if led and self.choose(3) == 0:
            broker = led[self.choose(len(led))]
        kind = self.choose(9)
        if sum(b.is_alive and not b.is_paused for b in self.brokers.values()) < MIN_INSYNC:
            return
        if not broker.is_alive:
            broker.start()
        elif kind <= 1 and self.may_crash(broker):
            self.crash(broker, loses=bool(self.choose(3)))
            self.later(self.choose(2_500), lambda: None if broker.is_alive else broker.start())
        elif kind == 2 and not broker.is_paused:
            broker.stop_cleanly()
            self.later(self.choose(1_500), lambda: None if broker.is_alive else broker.start())
        elif kind == 3 and not broker.is_paused:
            self.pause(broker, 200 + self.choose(3_000))
        elif kind in (4, 5):
            self.isolate(broker, 300 + self.choose(4_000), self.choose(4))
        elif kind == 6:
            self.zk.cut(broker.zk, notice_ms=self.choose(800))
            client = broker.zk
            self.later(self.choose(2_500), lambda: self.zk.heal(client))
        elif kind == 7:
            self.operator.delete(CONTROLLER)  # to have another one elected
        elif self.zk.is_up and self.choose(3) == 0:
            self.zk.stop()
            self.later(self.choose(3_000), self.zk.start)

    # --- a run

    def run(self, duration_ms: int = RUN_MS) -> None:
        """Run the world with its faults. Raises ViolationError."""
        self.create_topic()
        self.advance(500)
        end = self.zk.now_ms + duration_ms
        while self.zk.now_ms < end:
            self.advance(5 + self.choose(60))
            what = self.choose(20)
            if what == 0:
                self.fault() if self.choose(2) else self.move_leader()
            elif what < 13:
                self.produce()
            else:
                self.look()
        self.settle()

    def settle(self) -> bool:
        """End all faults. Returns True if there is a leader then: after too many crashes there may be none."""
        self.loss_percent = 0
        self.cut_links.clear()
        self.zk.start()
        for broker in self.brokers.values():
            if not broker.is_alive:
                broker.start()
            elif broker.is_paused:
                broker.resume()
            self.zk.heal(broker.zk)
        deadline = self.zk.now_ms + REST_MS
        while self.zk.now_ms < deadline:
            self.advance(500)
            if self._is_at_rest():
                leader = next(b for b in self.brokers.values() if b.leader is not None)
                self.promises.at_rest(leader.log, {b.id: b.log for b in self.brokers.values()})
                return True
        controller = self.controller()
        check(controller is not None, "no controller is elected")
        assert controller is not None
        assert controller.controller.image is not None
        partition = controller.controller.image.partition(TP)
        check(partition is not None and partition.leader == NO_LEADER, f"it does not come to rest: {partition}")
        assert partition is not None
        check(not self.flush_each, f"nobody leads, though nothing can be lost: {partition}")
        return False

    def _is_at_rest(self) -> bool:
        leaders = [b for b in self.brokers.values() if b.leader is not None]
        if len(leaders) != 1 or leaders[0].leader is None:
            return False
        isr = leaders[0].leader.partition.isr
        images = {b.image.partition(TP) for b in self.brokers.values()}
        if len(images) != 1:  # the leader may not know yet that it leads in a newer epoch
            return False
        ends = {b.log.log_end_offset for b in self.brokers.values()}
        return len(isr) == len(self.brokers) and len(ends) == 1 and leaders[0].log.high_watermark in ends
