"""A campaign against three brokers and a ZooKeeper: processes, disks and the network between them fail, one after the
other, and clients continue meanwhile wherever the rules promise it.

Most faults last until every client has completed something without the absent broker: that is the purpose of several
brokers. The others (`_for_a_while`) take away a contractual need of clients, such as the only way to a healthy leader,
and end by themselves.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaigns.torture.frame import Faults, Outcome, create_topics
from tests.campaigns.torture.machines import CLIENTS, IDS, ZOOKEEPER, Machines, node_of
from tests.campaigns.torture.processes import CampaignError
from tests.campaigns.torture.workforce import Work, Workforce, arm

WHILE_S = (0.3, 8.0)
"""Up to twice a session, and longer than a follower may lag."""
STEP_S = 15.0
"""A step that is not reached by then belongs to a coordinator that this broker is not: the fault is not counted."""
TOPIC_SETTINGS = {"min.insync.replicas": 2, "retention.ms": -1}


@dataclass(frozen=True)
class ClusterPlan:
    """`count` faults; `faults`: the frequency of each kind; `flushed`: topics with flush.mode=group, whose brokers may
    crash one after the other, and all at once; without it the next one crashes when all replicas are in sync again (by
    contract, the other replicas have the unflushed records). `without`: disabled safeguards of the brokers."""

    seed: int
    count: int
    work: Work
    faults: Mapping[str, int]
    flushed: bool = False
    broker_settings: Mapping[str, object] = field(default_factory=dict)
    broker_steps: Sequence[str] = ()
    without: str | None = None


class ClusterCampaign:
    """Everything that runs, and the faults that happen to it."""

    def __init__(self, plan: ClusterPlan, directory: Path) -> None:
        self._plan = plan
        self._rng = random.Random(f"cluster/{plan.seed}")
        self._machines = Machines(directory, plan.broker_settings, plan.without)
        self._clients = Workforce(plan.work, plan.seed, self._rng, directory)
        self._faults = Faults(self, plan.faults, self._rng)
        self.tracebacks: list[str] = []

    def run(self) -> Outcome:
        """Raises CampaignError, also when nothing goes on any more."""
        with self._machines.run():
            try:
                self._begin()
                done, count = self._faults.done, self._plan.count
                self._faults.work(self._wait_for_progress, lambda: done.total() >= count)
                self._clients.finish()
                self._machines.wait_until_in_sync()
                self._clients.read_everything()
                for broker in IDS:
                    self._machines.stop(broker)
            except CampaignError as e:
                raise CampaignError(f"after {dict(self._faults.done)}: {e}\n{self._machines.logs()}") from e
            finally:
                self._clients.kill_all()
        self.tracebacks = self._machines.tracebacks()
        return self._faults.outcome_of(self._clients, {"broker": sum(b.lives for b in self._machines.brokers.values())})

    def _begin(self) -> None:
        settings = TOPIC_SETTINGS | ({"flush.mode": "group"} if self._plan.flushed else {})
        servers = self._machines.bootstrap_servers
        create_topics(servers, self._plan.work.partitions, replication_factor=len(IDS), configs=settings)
        self._clients.start(servers)
        if {"transactional", "pipeline", "member", "shared"} & self._plan.work.clients.keys():
            self._machines.change_internal_topics({k: v for k, v in settings.items() if k != "retention.ms"})

    def _wait_for_progress(self) -> None:
        self._clients.wait_for_progress(self._machines.look)

    # -- faults

    def _for_a_while(self) -> None:
        time.sleep(self._rng.uniform(*WHILE_S))

    def _any_broker(self) -> int:
        return self._rng.choice(IDS)

    def _victim(self) -> int:
        """A broker that may crash now."""
        if not self._plan.flushed:
            self._machines.wait_until_in_sync()
        return self._any_broker()

    # processes

    def _kill_broker(self) -> None:
        self._kill(self._victim())

    def _kill_controller(self) -> bool:
        victim = self._victim()
        controller = self._machines.controller()
        self._kill(controller or victim)
        return controller > 0

    def _kill(self, broker: int) -> None:
        self._machines.kill(broker)
        self._wait_for_progress()
        self._machines.start(broker)

    def _restart_broker(self) -> None:
        """It is back before its session has ended."""
        broker = self._victim()
        self._machines.kill(broker)
        self._machines.start(broker)

    def _kill_two_brokers(self) -> None:
        both = self._rng.sample(IDS, 2)
        for broker in both:
            self._machines.kill(broker)
        self._for_a_while()
        for broker in both:
            self._machines.start(broker)

    def _kill_all_brokers(self) -> None:
        for broker in IDS:
            self._machines.kill(broker)
        for broker in self._rng.sample(IDS, len(IDS)):
            self._machines.start(broker)

    def _stop_broker(self) -> None:
        """In order: others lead its partitions first."""
        broker = self._any_broker()
        self._machines.stop(broker)
        self._wait_for_progress()
        self._machines.start(broker)

    def _pause_broker(self) -> None:
        """Shorter than its session, or until others have taken over: then it wakes up and was a leader once."""
        broker = self._any_broker()
        self._machines.brokers[broker].signal(signal.SIGSTOP)
        try:
            if self._rng.random() < 0.5:
                time.sleep(self._rng.uniform(0.05, 1.5))
            else:
                self._wait_for_progress()
        finally:
            self._machines.brokers[broker].signal(signal.SIGCONT)

    def _kill_broker_at_step(self) -> bool:
        broker = self._victim()
        step = self._rng.choice(self._plan.broker_steps)
        self._machines.kill(broker)
        self._machines.start(broker, arm(step, self._rng))
        deadline = time.monotonic() + STEP_S
        while (running := self._machines.brokers[broker].running) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not running:
            self._faults.steps[step] += 1
        self._machines.kill(broker)
        self._machines.start(broker)
        return not running

    # ZooKeeper

    def _kill_zookeeper(self) -> None:
        """The data plane goes on, where there are leaders."""
        self._machines.wait_until_in_sync()
        self._machines.zookeeper.kill()
        self._wait_for_progress()
        self._for_a_while()
        self._machines.start_zookeeper()

    def _pause_zookeeper(self) -> None:
        self._machines.wait_until_in_sync()
        self._machines.zookeeper.pause()
        try:
            self._wait_for_progress()
            self._for_a_while()
        finally:
            self._machines.zookeeper.resume()

    def _kill_broker_without_zookeeper(self) -> None:
        """Nobody can take over until ZooKeeper is back."""
        broker = self._victim()
        self._machines.zookeeper.kill()
        self._machines.kill(broker)
        self._for_a_while()
        self._machines.start_zookeeper()
        self._wait_for_progress()
        self._machines.start(broker)

    def _depose_controller(self) -> None:
        self._machines.depose_controller()

    # the network

    def _cut(self, broker: int, others: Sequence[str], *, both: bool | None = None) -> None:
        """One way, either of the two, or both ways."""
        network, name = self._machines.network, node_of(broker)
        direction = self._rng.choice(("out", "in", "both")) if both is None else "both"
        for other in others:
            if direction != "in":
                network.cut(name, other)
            if direction != "out":
                network.cut(other, name)

    def _others(self, broker: int) -> list[str]:
        return [node_of(i) for i in IDS if i != broker]

    def _cut_broker_from_brokers(self) -> None:
        """It has its session, and leads without followers: nothing can be acknowledged there."""
        broker = self._any_broker()
        self._cut(broker, self._others(broker))
        self._for_a_while()
        self._machines.network.heal()

    def _cut_two_brokers(self) -> None:
        one, other = self._rng.sample(IDS, 2)
        self._cut(one, [node_of(other)])
        self._for_a_while()
        self._machines.network.heal()

    def _cut_broker_from_clients(self) -> None:
        self._cut(self._any_broker(), [CLIENTS])
        self._for_a_while()
        self._machines.network.heal()

    def _cut_broker_from_zookeeper(self) -> None:
        """Its session ends, others lead; it believes in itself until it hears of that."""
        self._cut(self._any_broker(), [ZOOKEEPER])
        self._wait_for_progress()
        self._for_a_while()
        self._machines.network.heal()

    def _cut_zookeeper_off(self) -> None:
        self._machines.wait_until_in_sync()
        for broker in IDS:
            self._cut(broker, [ZOOKEEPER], both=True)
        self._wait_for_progress()
        self._for_a_while()
        self._machines.network.heal()

    def _isolate_broker(self) -> None:
        """Isolate a broker from all but the clients, which may continue to ask it: they must find the present
        leaders."""
        broker = self._any_broker()
        self._cut(broker, [*self._others(broker), ZOOKEEPER], both=True)
        self._wait_for_progress()
        self._machines.network.heal()

    def _cut_broker_off(self) -> None:
        broker = self._any_broker()
        self._cut(broker, [*self._others(broker), ZOOKEEPER, CLIENTS], both=True)
        self._wait_for_progress()
        self._machines.network.heal()

    # disks: every broker leads some partitions and follows in others, so each of these is both

    def _fill_disk(self) -> None:
        broker = self._any_broker()
        self._machines.fill_disk(broker)
        self._for_a_while()
        self._machines.empty_disk(broker)

    def _fail_disk(self) -> None:
        """The only disk of a broker: it ends by itself, and others go on."""
        broker = self._victim()
        self._machines.up.discard(broker)
        with self._machines.failing_disk(broker):
            code = self._machines.brokers[broker].wait_for_end()
        if code != 1:
            raise CampaignError(f"broker {broker}, whose disk has failed, has ended with {code}")
        self._wait_for_progress()
        self._machines.start(broker)

    # clients

    def _kill_client(self) -> None:
        self._clients.kill_one()

    def _pause_client(self) -> None:
        self._clients.pause_one()

    def _zombie_client(self) -> None:
        self._clients.replace_one(self._machines.look)

    def _kill_client_at_step(self) -> None:
        self._clients.kill_one_at_step()
