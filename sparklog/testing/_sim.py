"""Programs in a simulated cluster: real brokers on simulated machines, in virtual time, with faults of a seed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from sparklog.errors import SparklogError, UnknownTopicOrPartitionError
from sparklog.testing._broker import Duration, duration_ms
from sparklog.testing._sim_clients import SimClients, create_topic
from sparklog.testing._sim_cluster_client import ClusterClient
from sparklog.testing._sim_idle import IdleTime
from sparklog.testing._sim_loop import Simulation
from sparklog.testing._sim_machine import SimMachine
from sparklog.testing._sim_net import SimNet
from sparklog.testing._sim_node import Node
from sparklog.testing._sim_programs import Program, ProgramKilled
from sparklog.testing._sim_reader import SimReader
from sparklog.testing._sim_zookeeper import SimZooKeeper
from sparklog.types import TopicPartition

P = TypeVar("P")
App = Callable[[SimClients], Any]
FAULTS: Mapping[str, int] = {"kill": 4, "pause": 2, "reset": 2, "crash": 1, "cut": 1}
"""The faults that a seed chooses from, by name, and how often each strikes compared with the others."""
FAULT_EVERY_S = (0.2, 2.0)
FAULT_S = (0.2, 10.0)
PAUSE_S = (1.0, 30.0)
RESTART_S = 0.5
STEP_S = 0.1
FAILURES_MAX = 10
"""Number of equal ends after which a program is not started again while all is well: it fails, not the cluster."""
START_S = 60.0
RESET_SHARE = 0.5
SESSION_MS = 3_000
SMALL: Mapping[str, object] = {
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    "num.io.threads": 2,
}
"""Settings for quick starts, and for brokers without work that have few events in an hour."""
SMALL_CLUSTER: Mapping[str, object] = {
    **SMALL,
    "zookeeper.session.timeout.ms": SESSION_MS,
    "replica.lag.time.max.ms": 6_000,
    "replica.fetch.wait.max.ms": 2_500,
}
"""Settings for failovers within three seconds; real clusters take four times as long."""


class _Slot:
    """A program and its successive lives."""

    def __init__(self, app: App, number: int) -> None:
        self.app = app
        self.host = f"program-{number}"
        self.lives = 0
        self.life: Program | None = None
        self.client: ClusterClient | None = None
        """The client of the latest life."""
        self.starts_at_s = 0.0
        self.failures = 0
        """Number of lives, one after the other, that have ended with the same error since everything was healed."""
        self.failure = ""
        """Text of the latest error."""

    def run(self, clients: SimClients) -> Any:
        """Return the result of the program's function. Raises TypeError if the function has not run yet."""
        result = self.app(clients)
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(f"{self.app!r} is an async function or a generator: a program is a plain function")
        return result

    def fails(self, error: BaseException) -> bool:
        """Count the end of a life with an error. Returns True if the program fails again and again."""
        text = repr(error)
        self.failures = self.failures + 1 if text == self.failure else 1
        self.failure = text
        return self.failures >= FAILURES_MAX

    @property
    def is_done(self) -> bool:
        """True if the program has returned."""
        return self.life is not None and self.life.is_done and self.life.error is None

    @property
    def next_event_s(self) -> float:
        """Time of the next event of the program in s, or of its next start."""
        return self.starts_at_s if self.life is None else self.life.loop.next_event_s()


def _numbered(role: str, parts: Sequence[P], number: int) -> P:
    """Return the part with a number from 1. Raises ValueError."""
    if not parts:
        raise ValueError(f"{role} {number!r}: nothing runs: call sim.run(app, seed=…) first")
    if type(number) is not int or number not in range(1, len(parts) + 1):
        raise ValueError(f"{role} {number!r}: the numbers are 1 to {len(parts)}")
    return parts[number - 1]


def _checked_apps(app: App | Sequence[App]) -> list[App]:
    """Return the programs. Raises TypeError."""
    apps = [app] if callable(app) or not isinstance(app, Sequence) else list(app)
    wrong = [one for one in apps if not callable(one)] if apps else [app]
    if wrong:
        raise TypeError(f"app = {wrong[0]!r}: a function of the clients is needed, or a list of functions")
    return apps


def _checked_weights(faults: Any) -> dict[str, int]:
    """Return the named faults with their frequencies. Raises ValueError."""
    names = [faults] if isinstance(faults, str) else list(faults) if isinstance(faults, Iterable) else [faults]
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        raise ValueError(f"faults = {faults!r}: a list of {', '.join(FAULTS)} is needed, or () for none")
    return {name: FAULTS[name] for name in names}


def _checked_numbers(brokers: Any, topics: Any) -> None:
    """Raise ValueError for a wrong number of brokers, and for wrong topics."""
    if not isinstance(topics, Mapping) or not all(isinstance(name, str) for name in topics):
        raise ValueError(f"topics = {topics!r}: a dict with the number of partitions of each topic is needed")
    for name, number in {"brokers": brokers, **{f"topics[{topic!r}]": n for topic, n in topics.items()}}.items():
        if type(number) is not int or number < 1:
            raise ValueError(f"{name} = {number!r}: a number from 1 is needed")


class Sim:
    """A simulated cluster with programs. The fixture `sim` returns one, and closes it at the end of the test."""

    def __init__(self) -> None:
        """Prepare a simulation; `run` starts the cluster."""
        self.events: list[str] = []
        """The faults, and the ends of programs, in order, each with its virtual time."""
        self._simulation: Simulation | None = None
        self._nodes: list[Node] = []
        self._slots: list[_Slot] = []
        self._net: SimNet | None = None
        self._idle: IdleTime | None = None
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._is_healed = False
        """True if no fault is in effect, and none can begin but by a call."""

    # -- runs

    def run(
        self,
        app: App | Sequence[App],
        *,
        seed: int = 0,
        brokers: int = 3,
        topics: Mapping[str, int] | None = None,
        faults: Iterable[str] = FAULTS,
        seconds: float = 30.0,
        until: Callable[[], Any] | None = None,
        within: Duration = "2 minutes",
    ) -> Sim:
        """Start a cluster and programs, let faults strike for a time, heal everything, and wait for the programs' ends.

        A program that is killed, or ends with a SparklogError, starts again, as a supervisor would do it. Objects that
        lives share, such as a list of a test, are the world outside: they keep their content. Programs may still run
        on return; then `results` has None for them.

        Args:
            app: The program, a function of `SimClients`, or several programs. A program is no async function.
            seed: Determines everything: faults, delays, and the order of events.
            brokers: Number of brokers; 1 is fastest.
            topics: Topics to create, with their number of partitions. None: programs send to no topic, or create it.
            faults: Names of the faults that may strike, of `FAULTS`. Empty: none.
            seconds: Virtual time of the faults.
            until: A condition that ends the wait for the programs. None: all programs have returned.
            within: The longest wait in virtual time, after everything is healed.

        Returns:
            This object.

        Raises:
            ValueError: A fault has no such name, a number of brokers or partitions is below 1, the seed is no whole
                number, or a time is negative.
            TypeError: A program or `until` is no function, or a program is an async one.
            SparklogError: A program ends with this error again and again, though everything is healed.
            AssertionError: `until` is still false after `within`, or a program has raised it.
            Exception: Another error of a program.
        """
        self.close()
        apps = _checked_apps(app)
        if type(seed) is not int:
            raise ValueError(f"seed = {seed!r}: a whole number is needed, so that the run can be repeated")
        faults_s, within_s = duration_ms(seconds) / 1000, duration_ms(within) / 1000
        weights = _checked_weights(faults)
        _checked_numbers(brokers, topics or {})
        if until is not None and not callable(until):
            raise TypeError(f"until = {until!r}: a function is needed, such as lambda: len(served) == 10")
        self._begin(seed, brokers, topics or {})
        self._slots = [_Slot(one, number) for number, one in enumerate(apps, 1)]
        for slot in self._slots:
            self._start(slot)
        self._strike(weights, faults_s)
        self.heal()
        end_s = self.now_s + within_s
        while not self._is_over(until) and self.now_s < end_s:
            self._pass(end_s)
        if until is not None and not until():
            raise AssertionError(f"seed {seed}: the condition is still false {within} after everything was healed")
        return self

    def advance(self, duration: Duration) -> Sim:
        """Let virtual time pass.

        Args:
            duration: A text such as "1 hour", a timedelta, or seconds.

        Returns:
            This object.

        Raises:
            Exception: The error of a program.
        """
        end_s = self.now_s + duration_ms(duration) / 1000
        while self.now_s < end_s:
            self._pass(end_s)
        return self

    def crash(self, broker: int) -> Sim:
        """Kill a broker. It stays away until `heal`.

        Args:
            broker: Its number, from 1.

        Returns:
            This object.

        Raises:
            ValueError: No broker has the number.
        """
        node = _numbered("broker", self._nodes, broker)
        if node.is_alive:
            self._note(f"broker {broker} crashes")
            node.kill()
            self._is_healed = False
        return self

    def cut(self, one: int | str, other: int | str) -> Sim:
        """Cut the network between two hosts, until `heal`.

        Args:
            one: The number of a broker, or the name of a program, such as "program-1".
            other: The same.

        Returns:
            This object.

        Raises:
            ValueError: No broker has the number, no program the name, or both are the same host.
        """
        pair = self._host(one), self._host(other)
        if pair[0] == pair[1]:
            raise ValueError(f"cut({one!r}, {other!r}): two different hosts are needed")
        self._note(f"{one} and {other} are cut off from one another")
        self._network.cut(*pair)
        self._network.cut(*reversed(pair))
        self._is_healed = False
        return self

    def heal(self) -> Sim:
        """Join the network again, and start the brokers that have crashed.

        Returns:
            This object.

        Raises:
            RuntimeError: Nothing runs.
        """
        self._network.heal()
        self._later.clear()
        for slot in self._slots:
            slot.failures = 0
            if slot.life is not None:
                slot.life.loop.is_paused = False
        for node in self._nodes:
            if not node.is_alive:
                node.start()
        self._note("everything is healed")
        self._is_healed = True
        return self

    def kill(self, program: int = 1) -> Sim:
        """Kill a program. It starts again after half a second.

        Args:
            program: Its number, from 1.

        Returns:
            This object.

        Raises:
            ValueError: No program has the number.
        """
        self._kill(_numbered("program", self._slots, program))
        return self

    def close(self) -> None:
        """End all processes."""
        for slot in self._slots:
            if slot.life is not None:
                slot.life.kill()
        if self._simulation is not None:
            self._simulation.close()
        self._simulation, self._net, self._nodes, self._slots, self._later, self.events = None, None, [], [], [], []
        self._is_healed = False

    # -- results

    @property
    def now_s(self) -> float:
        """Virtual time since the start of the simulation, in s."""
        return self._world.now_s

    @property
    def trace(self) -> str:
        """A hash of everything that has happened: runs of one seed have equal traces."""
        return self._world.trace_hash

    @property
    def results(self) -> list[Any]:
        """The results of the programs; None for one that has not returned."""
        return [slot.life.result if slot.life is not None and slot.is_done else None for slot in self._slots]

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """Return the committed records of a topic, partition after partition.

        Args:
            topic: The topic's name.

        Returns:
            Dicts with `partition`, `offset`, `key` and `value`.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
        """

        def read(clients: SimClients) -> list[dict[str, Any]]:
            reader: Any = SimReader(clients.client, committed=True)
            count = clients.program.wait(clients.count_partitions(topic))
            if not count:
                raise UnknownTopicOrPartitionError(f"topic {topic!r} does not exist")
            reader.assign({TopicPartition(topic, number): 0 for number in range(count)})
            found_rows: list[dict[str, Any]] = []
            end_s = self.now_s + START_S
            while True:
                try:
                    polled = clients.program.wait(reader.poll())
                except SparklogError as e:  # brokers that have just been healed are on their way back
                    if not e.retriable or self.now_s > end_s:
                        raise
                    clients.sleep(STEP_S)
                    continue
                if not polled:
                    break
                found_rows += [{"partition": tp.partition, **row._asdict()} for tp, of in polled.items() for row in of]
            return sorted(found_rows, key=lambda row: (row["partition"], row["offset"]))

        rows: list[dict[str, Any]] = self._complete(read)
        return rows

    # -- the cluster

    @property
    def _world(self) -> Simulation:
        if self._simulation is None:
            raise RuntimeError("nothing runs: call sim.run(app, seed=…) first")
        return self._simulation

    @property
    def _network(self) -> SimNet:
        if self._net is None:
            raise RuntimeError("nothing runs: call sim.run(app, seed=…) first")
        return self._net

    def _begin(self, seed: int, brokers: int, topics: Mapping[str, int]) -> None:
        self._simulation = simulation = Simulation(seed)
        self._net = SimNet(simulation)
        zookeeper = None
        if brokers > 1:
            loop = simulation.loop("zookeeper")
            zookeeper = SimZooKeeper(simulation.rng.getrandbits(32), session_timeout_ms=SESSION_MS, loop=loop)
        settings = SMALL_CLUSTER if brokers > 1 else SMALL
        self._nodes = [
            Node(
                number, f"broker-{number}", SimMachine(simulation, f"machine-{number}"), self._net, zookeeper, settings
            )
            for number in range(1, brokers + 1)
        ]
        for node in self._nodes:
            node.start()
        self._idle = IdleTime(simulation, self._nodes)
        if not simulation.run(lambda: all(n.has_joined for n in self._nodes), limit_s=START_S):
            raise RuntimeError("the simulated brokers have not started")

        def create(clients: SimClients) -> None:
            for name, partitions in topics.items():
                clients.program.wait(create_topic(clients.client, name, partitions, min(3, brokers)))

        self._complete(create)

    def _complete(self, app: App) -> Any:
        """Run a program of the kit's own to its end. Raises its error."""
        slot = _Slot(app, 0)
        self._start(slot)
        life = slot.life
        assert life is not None
        while not life.is_done:
            self._world.run(lambda: life.is_done, limit_s=self.now_s + START_S)
        life.kill()
        if life.error is not None:
            raise life.error
        return life.result

    def _start(self, slot: _Slot) -> None:
        slot.lives += 1
        hosts = [node.host for node in self._nodes]

        def run(program: Program) -> Any:
            slot.client = ClusterClient(program.loop, self._network, slot.host, hosts)
            return slot.run(SimClients(program, slot.client))

        slot.life = Program(self._world, self._network, slot.host, run)

    def _host(self, name: int | str) -> str:
        """Return the name of a host. Raises ValueError."""
        if isinstance(name, int):
            return _numbered("broker", self._nodes, name).host
        hosts = [*(node.host for node in self._nodes), *(slot.host for slot in self._slots)]
        if name not in hosts:
            raise ValueError(f"host {name!r}: the hosts are {', '.join(hosts)}")
        return name

    def _note(self, event: str) -> None:
        self._idle_time.disturb()
        self._world.note(event)
        self.events.append(f"{self.now_s:9.3f} s  {event}")

    # -- time

    def _is_over(self, until: Callable[[], Any] | None) -> bool:
        return all(slot.is_done for slot in self._slots) or (until is not None and bool(until()))

    @property
    def _idle_time(self) -> IdleTime:
        assert self._idle is not None
        return self._idle

    def _pass(self, end_s: float) -> None:
        """Let a moment pass, or a longer idle time, until `end_s` at the latest. Starts programs again that have ended.
        Raises the error of a program."""
        later_s = self._later[0][0] if self._later else end_s
        idle_until_s = min(end_s, later_s, *(slot.next_event_s for slot in self._slots))
        if idle_until_s - self.now_s > STEP_S and self._is_idle():
            self._idle_time.rest(idle_until_s)
        else:
            self._world.run_for(min(STEP_S, end_s - self.now_s))
        self._restart_programs()
        while self._later and self._later[0][0] <= self.now_s:
            self._later.pop(0)[1]()

    def _is_idle(self) -> bool:
        clients = [slot.client for slot in self._slots if slot.life is not None and slot.client is not None]
        requests = sum(client.requests_begun for client in clients)
        return requests == sum(client.requests_ended for client in clients) and self._idle_time.is_idle(requests)

    def _restart_programs(self) -> None:
        """Start programs again that have ended with an error of sparklog. Raises another error of a program."""
        for slot in self._slots:
            life = slot.life
            if life is None:
                if self.now_s >= slot.starts_at_s:
                    self._start(slot)
            elif life.is_done and life.error is not None:
                if not isinstance(life.error, SparklogError | ProgramKilled):
                    raise life.error
                self._note(f"{slot.host} has ended: {life.error!r}")
                if slot.fails(life.error) and self._is_healed:
                    life.error.add_note(f"{slot.host} has ended {slot.failures} times with this error")
                    raise life.error
                self._end_life(slot)

    def _end_life(self, slot: _Slot) -> None:
        if slot.life is not None:
            slot.life.kill()
            slot.life, slot.starts_at_s = None, self.now_s + RESTART_S

    def _kill(self, slot: _Slot) -> None:
        if not slot.is_done and slot.life is not None:
            self._note(f"{slot.host} is killed")
            self._end_life(slot)

    # -- faults

    def _strike(self, faults: Mapping[str, int], seconds: float) -> None:
        """Let faults strike for a time, one after the other."""
        rng, end_s = self._world.rng, self.now_s + seconds
        while self.now_s < end_s and not all(slot.is_done for slot in self._slots):
            due_s = min(end_s, self.now_s + rng.uniform(*FAULT_EVERY_S))
            while self.now_s < due_s:
                self._pass(due_s)
            if faults:
                (fault,) = rng.choices(list(faults), list(faults.values()))
                getattr(self, f"_{fault}_some")()

    def _soon(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((self.now_s + seconds, action))
        self._later.sort(key=lambda item: item[0])

    def _crash_some(self) -> None:
        rng = self._world.rng
        node = rng.choice(self._nodes)
        if all(n.is_alive and n.has_joined for n in self._nodes):
            self.crash(node.id)
            self._soon(rng.uniform(*FAULT_S), partial(self._start_node, node))

    @staticmethod
    def _start_node(node: Node) -> None:
        if not node.is_alive:
            node.start()

    def _cut_some(self) -> None:
        rng = self._world.rng
        hosts = [*(n.host for n in self._nodes), *(s.host for s in self._slots)]
        one, other = rng.sample(hosts, 2)
        self.cut(one, other)
        self._soon(rng.uniform(*FAULT_S), partial(self._network.heal_links, [(one, other), (other, one)]))

    def _reset_some(self) -> None:
        self._note("connections are reset")
        self._network.reset_some(RESET_SHARE)

    def _kill_some(self) -> None:
        self._kill(self._world.rng.choice(self._slots))

    def _pause_some(self) -> None:
        rng = self._world.rng
        slot, seconds = rng.choice(self._slots), rng.uniform(*PAUSE_S)
        life = slot.life
        if life is None or life.is_done or life.loop.is_paused:
            return
        self._note(f"{slot.host} stands still for {seconds:.1f} s")
        life.loop.is_paused = True
        self._soon(seconds, partial(setattr, life.loop, "is_paused", False))
