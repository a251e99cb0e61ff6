"""A campaign: clients at work, one fault after another, healing, a final reading, a verdict.

The next fault comes when every client has got something done since the last one: so no fault hits an idle system, and a
system that a fault has stuck is found.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sparklog
from tests.campaigns.checker.analysis import Verdict, analyse
from tests.campaigns.torture.processes import Broker, CampaignError
from tests.campaigns.torture.workforce import STILL_S, TOPICS, Work, Workforce, arm, wait_until


@dataclass(frozen=True)
class Plan:
    """A campaign's work. `clients`: the number of each role; `faults`: the weight of each kind; `broker_steps` and
    `client_steps` (by role): fault points (sparklog.environment.fault_points) at which a process ends itself;
    `without`: safeguards of the broker that are off (unsafe_broker.py)."""

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

    @property
    def work(self) -> Work:
        return Work(self.clients, self.partitions, self.client_settings, self.client_steps, self.still_s)


@dataclass(frozen=True)
class Outcome:
    """Actions, and the checker's verdict. `steps`: fault points at which a process has really died."""

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
    """Return the number of faults that have killed a process."""
    return sum(n for kind, n in faults.items() if kind.startswith("kill"))


class Campaign:
    """Everything that runs, and the faults that happen to it."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan = plan
        self._rng = random.Random(f"nemesis/{plan.seed}")
        self._broker = Broker(directory, plan.broker_settings, plan.without)
        self._clients = Workforce(plan.work, plan.seed, self._rng, directory)
        self._faults: Counter[str] = Counter()
        self._steps: Counter[str] = Counter()

    def run(self) -> Outcome:
        """Raises CampaignError, also when nothing goes on any more."""
        begun = time.monotonic()
        self._broker.start()
        try:
            with sparklog.Admin(self._broker.bootstrap_servers) as admin:
                for topic in TOPICS:
                    admin.create_topic(topic, partitions=self._plan.partitions)
            self._clients.start(self._broker.bootstrap_servers)
            while kills_of(self._faults) < self._plan.kills:
                self._wait_for_progress()
                self._fault()
            self._wait_for_progress()
            self._clients.finish()
            self._clients.read_everything()
            self._broker.stop()
        finally:
            self._clients.kill_all()
            if self._broker.running:
                self._broker.kill()
        lives = Counter({"broker": self._broker.lives}) + self._clients.lives()
        verdict = analyse(self._clients.operations())
        return Outcome(verdict, self._faults, self._steps + self._clients.steps, lives, time.monotonic() - begun)

    def _wait_for_progress(self) -> None:
        try:
            self._clients.wait_for_progress(self._look)
        except CampaignError as e:
            raise CampaignError(f"{e}; broker: {self._broker.log()}") from e

    def _look(self) -> None:
        if not self._broker.running:
            raise CampaignError("the broker has ended by itself")

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

    def _pause_broker(self) -> None:
        self._broker.signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(*self._plan.still_s))
        self._broker.signal(signal.SIGCONT)

    def _kill_broker_at_step(self) -> None:
        """The broker is started again so that it dies where the step is, and then once more."""
        step = self._rng.choice(self._plan.broker_steps)
        self._broker.kill()
        self._broker.start(arm(step, self._rng))
        wait_until(lambda: not self._broker.running, f"the step {step} is never reached")
        self._steps[step] += 1
        self._broker.kill()
        self._broker.start()

    def _kill_client(self) -> None:
        self._clients.kill_one()

    def _pause_client(self) -> None:
        self._clients.pause_one()

    def _zombie_client(self) -> None:
        self._clients.replace_one(self._look)

    def _kill_client_at_step(self) -> None:
        self._clients.kill_one_at_step()
