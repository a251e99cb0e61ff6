"""The world of one life: one broker, or a cluster of three to five, each a real broker on a machine of its own; active
clients, faults, healing, and a final reading.

Brokers of a cluster coordinate through a simulated ZooKeeper; a single one through the store in its data directory. The
faults differ: with one broker they come one after the other, and in a cluster they overlap (`trouble.py`). Readings
through each replica, and the stored ISRs, exist only in a cluster.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from sparklog_broker.broker import Broker

from sparklog.errors import SparklogError
from sparklog.metadata.store import TopicSpec
from sparklog.replication.cluster_image import ClusterImage, PartitionImage
from sparklog.replication.controller.model import Elect, ElectionKind, Reassign
from sparklog.testing._sim_cluster_client import ClusterClient
from sparklog.testing._sim_loop import SimLoop, Simulation
from sparklog.testing._sim_machine import SimMachine
from sparklog.testing._sim_node import Node
from sparklog.testing._sim_store import SimStore
from sparklog.testing._sim_zookeeper import SimZooKeeper
from sparklog.types import INTERNAL_TOPICS, TopicPartition
from tests.campaigns.checker.history import Operation
from tests.simulation.alone import AloneTrouble
from tests.simulation.cluster.promises import Promises
from tests.simulation.cluster.trouble import ClusterTrouble
from tests.simulation.plans import INPUT, KEYED, OUTPUT, QUICK, SESSION_MS, SMALL, Plan
from tests.simulation.scene import FINAL_S, PARTITIONS, Scene
from tests.simulation.sim_final import read_committed

FAULT_EVERY_S = (0.05, 0.4)
REPLICAS = 3
START_S = 30.0
REST_S = 60.0
LOOK_S = 0.5


class World(Scene):
    """Brokers, their coordination, faults and promises, beside the clients."""

    def __init__(self, seed: int, plan: Plan, simulation: Simulation, store: SimStore | None = None) -> None:
        super().__init__(seed, plan, simulation, store)
        self.is_alone = not plan.has_zookeeper
        self._zookeeper = self._begin_zookeeper() if plan.has_zookeeper else None
        self._settings: dict[str, object] = {**(SMALL if self.is_alone else QUICK), **plan.settings}
        if plan.disks:
            self._settings["log.dirs"] = ",".join(plan.disks)
        if store is not None:
            self._settings["remote.log.storage.url"] = store.url
        compacted = {n for n, c in plan.topics.items() if c.get("cleanup.policy") == "compact"}
        compacted |= INTERNAL_TOPICS if plan.replicas_differ else set()
        self._promises = Promises(self._zookeeper, compacted)
        self.nodes = self._make_nodes()
        self.is_flushed = all(c.get("flush.mode") == "group" for c in plan.topics.values())
        self.outages = 0
        """Number of times that all brokers have ended at once."""
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self.trouble = AloneTrouble(self) if self.is_alone else ClusterTrouble(self)

    def _begin_zookeeper(self) -> SimZooKeeper:
        loop = self.simulation.loop("zookeeper")
        seed = self.simulation.rng.getrandbits(32)
        zookeeper = SimZooKeeper(seed, session_timeout_ms=SESSION_MS, loop=loop)
        self.operator = zookeeper.client()
        return zookeeper

    @property
    def zookeeper(self) -> SimZooKeeper:
        """ZooKeeper; only of a cluster."""
        assert self._zookeeper is not None
        return self._zookeeper

    def _make_nodes(self) -> list[Node]:
        if self.is_alone:
            return [self._node(0, "broker", SimMachine(self.simulation, "machine"))]
        numbers = self.plan.brokers
        count = numbers[0] if len(numbers) == 1 else self.simulation.rng.choice(numbers)
        nodes = [self._node(i, f"broker-{i}", SimMachine(self.simulation, f"machine-{i}")) for i in range(1, count + 1)]
        self.notes.deletes_everywhere = self.are_all_in_sync
        return nodes

    def _node(self, broker_id: int, host: str, machine: SimMachine) -> Node:
        node = Node(broker_id, host, machine, self.net, self._zookeeper, self._settings)
        self._promises.watch(node)
        return node

    @property
    def elections(self) -> int:
        """Number of leaderships begun."""
        return self._promises.epochs

    def stored_isr(self, tp: TopicPartition) -> tuple[int, ...]:
        """Return the ISR in ZooKeeper, or ()."""
        stored = self._promises.stored
        return () if stored is None else stored.isrs.get(tp, ())

    @property
    def isr_changes(self) -> int:
        """Number of changes of ISRs stored in ZooKeeper."""
        stored = self._promises.stored
        return 0 if stored is None else stored.changes

    def connected(self, loop: SimLoop, host: str) -> ClusterClient:
        return ClusterClient(loop, self.net, host, [node.host for node in self.nodes])

    def clock_ms(self) -> int:
        return self.nodes[0].machine.clock.now_ms()

    def node(self, broker_id: int) -> Node:
        return self.nodes[broker_id - self.nodes[0].id]

    def replace_machine(self, node: Node) -> None:
        """Replace the machine by one with empty disks."""
        node.machine = SimMachine(self.simulation, f"{node.machine.name}'")

    # --- what the brokers know

    def controller(self) -> Node | None:
        """Return the broker with the newest image among those that believe to be the controller."""
        found = [(image.version, n.id) for n in self.nodes if (image := n.controller_image()) is not None]
        return self.node(max(found)[1]) if found else None

    def at_controller(self, work: Callable[[Broker], Coroutine[Any, Any, Any]], *, limit_s: float) -> Any:
        """Return the result of work of the controller's broker."""
        node = self.controller()
        assert node is not None and node.broker is not None and node.loop is not None
        broker = node.broker

        async def run() -> Any:
            assert await broker.cluster.images.decides()
            return await work(broker)

        return self.simulation.complete(node.loop, run(), limit_s=limit_s)

    def ask_controller(self, *asks: Callable[[int], Any]) -> None:
        """Send the controller requests one by one; they may be refused."""
        controller = self.controller()
        if controller is None or controller.is_paused or controller.cluster is None or controller.loop is None:
            return
        membership = controller.cluster.membership

        async def tell() -> None:
            with contextlib.suppress(SparklogError):
                for ask in asks:
                    await membership.ask(ask)

        controller.loop.create_task(tell())

    def controller_image(self) -> ClusterImage | None:
        controller = self.controller()
        return None if controller is None else controller.controller_image()

    @staticmethod
    def partitions_of(image: ClusterImage) -> Iterator[tuple[TopicPartition, PartitionImage]]:
        for name, topic in image.topics.items():
            for number, partition in enumerate(topic.partitions):
                yield TopicPartition(name, number), partition

    @staticmethod
    def leads_something(node: Node) -> bool:
        return node.broker is not None and any(p.replicas.leader == node.id for p in node.broker.partitions.all())

    def are_all_in_sync(self) -> bool:
        image = self.controller_image()
        return (
            self.is_quiet
            and image is not None
            and all(set(p.isr) == set(p.replicas) for _, p in self.partitions_of(image))
        )

    @property
    def is_quiet(self) -> bool:
        """True if no scheduled fault is pending."""
        return all(n.has_joined and not n.is_paused and n.machine.files.cut_at is None for n in self.nodes)

    # --- a run

    def run(self) -> list[Operation]:
        """Run a life and return the operations of all clients. Raises AssertionError for a violation that shows at
        once."""
        self._begin()
        self.begin_clients()
        rng = self.simulation.rng
        kinds = list(self.plan.faults)
        started_s = 0.0 if self.is_alone else self.simulation.now_s  # the start of a single broker is part of its time
        end = started_s + self.plan.seconds
        while self.simulation.now_s < end:
            self.pass_time(rng.uniform(*FAULT_EVERY_S))
            if kinds:
                self.trouble.strike(rng.choices(kinds, list(self.plan.faults.values()))[0])
                self.faults += 1
        self._later.clear()
        self.trouble.heal()
        self._look_on_until_done()
        self.end_clients()
        self._check_nodes()
        self._come_to_rest()
        self.read_everything()
        if self.plan.replicas_differ:
            self._read_from_others()
        self._come_to_rest()  # coordinators may have written meanwhile: transactions of dead clients time out
        self._promises.at_rest(self.nodes)
        return self.operations()

    def _begin(self) -> None:
        for node in self.nodes:
            node.start()
        joined = lambda: all(n.has_joined for n in self.nodes)  # noqa: E731
        if not self.simulation.run(joined, limit_s=self.simulation.now_s + START_S):
            self._check_nodes()
            raise AssertionError(f"not all brokers have started within {START_S:.0f} s")
        self.at_controller(self._make_topics, limit_s=START_S)
        self.simulation.run(self._agree, limit_s=self.simulation.now_s + START_S)

    def _agree(self) -> bool:
        """True if all brokers have the controller's image: a topic's settings apply from then on."""
        image = self.controller_image()
        return image is not None and all(
            node.cluster is not None and node.cluster.images.image.version == image.version for node in self.nodes
        )

    async def _make_topics(self, broker: Broker) -> None:
        replicas = min(REPLICAS, len(self.nodes))
        for topic, configs in self.plan.topics.items():
            partitions = PARTITIONS if topic in (INPUT, OUTPUT) else 1
            await broker.topics.create(TopicSpec(topic, partitions, configs=configs, replication_factor=replicas))
        if self.plan.internal is None:
            return
        for internal in (broker.groups.topic, broker.transactions.topic):
            await internal.ensure()
            await broker.topics.alter(internal.name, self.plan.internal)

    def later(self, delay_s: float, action: Callable[[], object]) -> None:
        """Run `action` between two events after `delay_s`."""
        heapq.heappush(self._later, (self.simulation.now_s + delay_s, next(self._order), action))

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and restart failed machines and processes."""
        end = self.simulation.now_s + seconds
        while self.simulation.now_s < end:
            due = min(end, self._later[0][0]) if self._later else end
            self.simulation.run(self._has_news, limit_s=due)
            while self._later and self._later[0][0] <= self.simulation.now_s:
                heapq.heappop(self._later)[2]()
            self._see_news()
        self._check()

    def _has_news(self) -> bool:
        for node in self.nodes:  # noqa: SIM110 - asked after each event, where a generator costs thrice as much
            if node.failed or node.machine.files.is_off:
                return True
        return False

    def _see_news(self) -> None:
        for node in self.nodes:
            if node.machine.files.is_off:
                self.trouble.is_off(node)
            elif node.failed:
                self.trouble.give_up(node)
            elif node.has_joined and not node.is_paused:
                for tp in node.repair():
                    self.notes.repaired(str(tp))

    def _check(self) -> None:
        self._check_nodes()
        self._promises.look(self.nodes)
        for client in self.clients:
            client.look()

    def _check_nodes(self) -> None:
        self.check_loops(n.loop for n in self.nodes if n.loop is not None)
        for node in self.nodes:
            node.look()

    def _look_on_until_done(self) -> None:
        """Check the promises while the clients end."""
        self.wanted = False
        end = self.simulation.now_s + REST_S
        while self.simulation.now_s < end and not all(c.task.done() for c in self.clients):
            due = min(end, self.simulation.now_s + LOOK_S)
            done = lambda: self._has_news() or all(c.task.done() for c in self.clients)  # noqa: E731
            self.simulation.run(done, limit_s=due)
            self._see_news()
            self._run_due()
            self._check_nodes()
            self._promises.look(self.nodes)

    def _run_due(self) -> None:
        while self._later and self._later[0][0] <= self.simulation.now_s:
            heapq.heappop(self._later)[2]()

    def _come_to_rest(self) -> None:
        end = self.simulation.now_s + REST_S
        why = "?"
        while self.simulation.now_s < end:
            self.simulation.run(self._has_news, limit_s=min(end, self.simulation.now_s + LOOK_S))
            self._see_news()
            self._run_due()
            why = self._unrest()
            if not why:
                return
        raise AssertionError(f"{REST_S:.0f} s after all was healed: {why}")

    def _unrest(self) -> str:
        """Describe the state that is not yet restored; "" if all is."""
        image = self.controller_image()
        if image is None:
            return "there is no controller"
        missing = [n.host for n in self.nodes if not n.has_joined or n.id not in image.brokers]
        if missing:
            return f"not in the cluster: {missing}"
        for tp, partition in self.partitions_of(image):
            if set(partition.isr) != set(partition.replicas) or partition.is_reassigned:
                return f"{tp}: {partition}"
            logs = [self._log(i, tp) for i in partition.replicas]
            if len(set(logs)) != 1 or logs[0][0] != logs[0][1]:
                return f"{tp}: logs end, and are committed up to, {logs}"
        return ""

    def _read_from_others(self) -> None:
        """Read from each replica as the leader: replicas are cleaned alone, but readers get the same records."""
        loop = self.simulation.loop("others")
        names = [f"{t}-{n}" for t in sorted(self.plan.topics) for n in range(PARTITIONS if t in (INPUT, OUTPUT) else 1)]
        found: list[dict[str, list[tuple[int, bytes | None, bytes | None]]]] = []
        for turn in range(REPLICAS):
            self._lead(names, turn)
            client: Any = self.connected(loop, "others")
            rows, _ = self.simulation.complete(loop, read_committed(client, names), limit_s=FINAL_S)
            found.append({n: [(r.offset, r.key, r.value) for r in its] for n, its in rows.items()})
        for rows in found[1:]:
            for name in names:
                self._compare(name, found[0][name], rows[name])

    def _compare(self, name: str, one: list[Any], other: list[Any]) -> None:
        topic = name.rpartition("-")[0]
        if topic == KEYED:
            one, other = (sorted({row[1]: row for row in rows}.values()) for rows in (one, other))
        elif self.plan.topics[topic].get("cleanup.policy") != "compact":
            first = max(
                (rows[0][0] for rows in (one, other) if rows), default=0
            )  # retention comes to one before another
            one, other = ([row for row in rows if row[0] >= first] for rows in (one, other))
        if one != other:
            differing = sorted(set(one) ^ set(other))
            raise AssertionError(f"{name}: what readers get depends on who leads: {differing[:3]}")

    def _lead(self, names: Sequence[str], turn: int) -> None:
        """Let the replica `turn` places behind the first one lead."""
        self.simulation.run(self._suspects_none, limit_s=self.simulation.now_s + REST_S)
        image = self.controller_image()
        assert image is not None
        targets = {}
        for tp, partition in self.partitions_of(image):
            if str(tp) in names:
                replicas = sorted(partition.replicas)
                targets[tp] = (*replicas[turn:], *replicas[:turn])
        self.ask_controller(
            lambda token: Reassign(token, targets),
            lambda token: Elect(token, ElectionKind.PREFERRED, tuple(targets)),
        )

        def leads() -> bool:
            image = self.controller_image()
            return image is not None and all(
                (p := image.partition(tp)) is not None and p.leader == targets[tp][0] for tp in targets
            ) and self._agree()  # fmt: skip

        if not self.simulation.run(leads, limit_s=self.simulation.now_s + REST_S):
            raise AssertionError(f"others do not come to lead: {targets}")

    def _suspects_none(self) -> bool:
        image = self.controller_image()
        return image is not None and not any(broker.is_suspected for broker in image.brokers.values())

    def _log(self, broker_id: int, tp: TopicPartition) -> tuple[int, int]:
        broker = self.node(broker_id).broker
        partition = None if broker is None else broker.partitions.find(tp)
        log = None if partition is None else partition.open_log
        return (-1, -1) if log is None else (log.log_end_offset, log.high_watermark)
