"""A campaign: clients at work, one fault after another, healing, a final reading, a verdict.

The next fault comes when every client has got something done since the last one: so no fault hits an idle system, and a
system that a fault has stuck is found.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sparklog
from sparklog.testing import faults
from tests.checker.analysis import Verdict, analyse
from tests.checker.history import Operation, read_history
from tests.torture import shared
from tests.torture.client import Assignment, partition_of
from tests.torture.processes import Broker, CampaignError, Client

PROGRESS_S = 120.0
LOOK_S = 0.01
REPLACED = frozenset({"transactional", "pipeline", "member", "shared"})
"""Roles whose next life fences the one before."""
STILL_S = (0.05, 1.5)


@dataclass(frozen=True)
class Plan:
    """What is to be done. `clients`: how many of each role; `faults`: how often each kind is drawn; `broker_steps` and
    `client_steps` (by role): fault points (sparklog.testing.faults) at which a process dies by itself; `without`:
    safeguards of the broker that are off (unsafe_broker.py)."""

    seed: int
    kills: int
    clients: Mapping[str, int]
    faults: Mapping[str, int] = field(
        default_factory=lambda: {"kill broker": 4, "kill client": 4, "pause broker": 1, "pause client": 1}
    )
    partitions: int = 3
    broker_settings: Mapping[str, object] = field(default_factory=dict)
    without: str | None = None
    client_settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    broker_steps: Sequence[str] = ()
    client_steps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    still_s: tuple[float, float] = STILL_S


@dataclass(frozen=True)
class Outcome:
    """What was done, and what the checker says. `steps`: fault points at which a process has really died."""

    verdict: Verdict
    faults: Mapping[str, int]
    steps: Mapping[str, int]
    lives: Mapping[str, int]
    seconds: float

    @property
    def kills(self) -> int:
        return kills_of(self.faults)

    def __str__(self) -> str:
        faults = ", ".join(f"{n} x {name}" for name, n in sorted(self.faults.items()))
        if self.steps:
            faults += "; died at: " + ", ".join(f"{name} {n}" for name, n in sorted(self.steps.items()))
        lives = ", ".join(f"{n} {name}" for name, n in sorted(self.lives.items()))
        return f"{faults}; lives: {lives}; {self.seconds:.0f} s"


def kills_of(faults: Mapping[str, int]) -> int:
    """How many of the faults have killed a process."""
    return sum(n for kind, n in faults.items() if kind.startswith("kill"))


class Campaign:
    """Everything that runs, and the faults that happen to it."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._rng = random.Random(f"nemesis/{plan.seed}")
        self._numbers = itertools.count()
        self._broker = Broker(directory, plan.broker_settings, plan.without)
        self._clients: list[Client] = []
        self._faults: Counter[str] = Counter()
        self._steps: Counter[str] = Counter()
        self._inputs = [f"in-{i}" for i in range(plan.partitions)]
        self._outputs = [f"out-{i}" for i in range(plan.partitions)]
        self.histories = directory / "histories"
        self.histories.mkdir()

    def run(self) -> Outcome:
        """Raises CampaignError, also when nothing goes on any more."""
        begun = time.monotonic()
        self._broker.start()
        try:
            with sparklog.Admin(self._broker.bootstrap_servers) as admin:
                for topic in ("in", "out"):
                    admin.create_topic(topic, partitions=self._plan.partitions)
            for role, count in self._plan.clients.items():
                for _ in range(count):
                    self._clients.append(self._client(role))
            while kills_of(self._faults) < self._plan.kills:
                self._wait_for_progress()
                self._fault()
            self._wait_for_progress()
            for client in self._clients:
                client.end_zombies()
                client.finish()
            self._read_everything()
            self._broker.stop()
        finally:
            for client in self._clients:
                client.kill()
                client.end_zombies()
            if self._broker.running:
                self._broker.kill()
        lives = Counter({"broker": self._broker.lives})
        for path in self.histories.glob("*.jsonl"):
            lives[path.stem.partition("-")[2]] += 1
        return Outcome(analyse(self._operations()), self._faults, self._steps, lives, time.monotonic() - begun)

    def _client(self, role: str, until: Mapping[str, int] | None = None) -> Client:
        told = Assignment(
            role=role,
            slot=len(self._clients),
            number=0,
            seed=self._plan.seed,
            bootstrap_servers=self._broker.bootstrap_servers,
            history="",
            inputs=self._inputs,
            outputs=self._outputs,
            settings=dict(self._plan.client_settings.get(role, {})),
            until=None if until is None else dict(until),
        )
        return Client(told, self.histories, self._numbers)

    # -- faults

    def _fault(self) -> None:
        kinds = self._plan.faults
        kind = self._rng.choices(list(kinds), list(kinds.values()))[0]
        time.sleep(self._rng.random() * 0.05)  # anywhere in what they are doing
        getattr(self, "_" + kind.replace(" ", "_"))()
        self._faults[kind] += 1

    def _kill_broker(self) -> None:
        self._broker.kill()
        self._broker.start()

    def _kill_client(self) -> None:
        client = self._rng.choice(self._clients)
        client.kill()
        client.start()

    def _pause_broker(self) -> None:
        self._broker.signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(*self._plan.still_s))
        self._broker.signal(signal.SIGCONT)

    def _pause_client(self) -> None:
        client = self._rng.choice(self._clients)
        client.signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(*self._plan.still_s))
        client.signal(signal.SIGCONT)

    def _zombie_client(self) -> None:
        """A client sleeps while its next life goes on; then it wakes up."""
        client = self._rng.choice([c for c in self._clients if c.role in REPLACED])
        client.sleep_and_begin_anew()
        self._wait_for_progress()
        client.wake()

    def _kill_broker_at_step(self) -> None:
        """The broker is started again so that it dies where the step is, and then once more."""
        step = self._rng.choice(self._plan.broker_steps)
        self._broker.kill()
        self._broker.start(self._arm(step))
        self._wait_for_the_step(step, lambda: not self._broker.running)
        self._broker.kill()
        self._broker.start()

    def _kill_client_at_step(self) -> None:
        client = self._rng.choice([c for c in self._clients if c.role in self._plan.client_steps])
        step = self._rng.choice(self._plan.client_steps[client.role])
        client.kill()
        client.start(self._arm(step))
        self._wait_for_the_step(step, lambda: not client.running)
        client.kill()
        client.start()

    def _arm(self, step: str) -> dict[str, str]:
        return {faults.VARIABLE: f"{step}:{self._rng.randint(1, 20)}:kill"}

    def _wait_for_the_step(self, step: str, is_dead: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PROGRESS_S
        while not is_dead():
            if time.monotonic() > deadline:
                raise CampaignError(f"the step {step} is never reached")
            time.sleep(LOOK_S)
        self._steps[step] += 1

    def _wait_for_progress(self) -> None:
        """Until every client has completed something."""
        deadline = time.monotonic() + PROGRESS_S
        for client in self._clients:
            client.completed()
        waiting = list(self._clients)
        while waiting:
            if not self._broker.running:
                raise CampaignError(f"the broker has ended by itself: {self._broker.log()}")
            for client in self._clients:
                client.check()
            waiting = [c for c in waiting if not c.completed()]
            if time.monotonic() > deadline:
                stuck = ", ".join(c.history.stem for c in waiting)
                raise CampaignError(f"no progress for {PROGRESS_S:.0f} s: {stuck}; broker: {self._broker.log()}")
            if waiting:
                time.sleep(LOOK_S)

    # -- the end

    def _operations(self) -> list[Operation]:
        found = read_history(self.histories.glob("*.jsonl"))
        for client in self._clients:
            if client.role == "shared":
                found += shared.operations(self.histories, client.slot, self._inputs)
        return found

    def _read_everything(self) -> None:
        if "pipeline" in self._plan.clients:
            self._client("drain", self._ends(self._inputs)).wait()
        self._client("last", self._ends([*self._inputs, *self._outputs])).wait()

    def _ends(self, partitions: Sequence[str]) -> dict[str, int]:
        """The high watermarks: who reads up to them has waited for every transaction below."""
        with sparklog.Admin(self._broker.bootstrap_servers) as admin:
            found = admin.list_offsets({partition_of(name): "latest" for name in partitions})
        return {str(tp): at.offset for tp, at in found.items()}
