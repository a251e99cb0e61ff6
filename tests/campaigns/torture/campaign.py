"""A campaign against one broker: clients at work, one fault after another, healing, a final reading, a verdict."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaigns.torture.frame import Faults, Outcome, create_topics, judged
from tests.campaigns.torture.processes import Broker, CampaignError
from tests.campaigns.torture.workforce import STILL_S, Work, Workforce, arm, wait_until


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


class Campaign:
    """Everything that runs, and the faults that happen to it."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan = plan
        self._rng = random.Random(f"nemesis/{plan.seed}")
        self._broker = Broker(directory, plan.broker_settings, plan.without)
        self._clients = Workforce(plan.work, plan.seed, self._rng, directory)
        self._faults = Faults(self, plan.faults, self._rng)

    def run(self) -> Outcome:
        """Raises CampaignError, also when nothing goes on any more."""
        self._broker.start()
        try:
            create_topics(self._broker.bootstrap_servers, self._plan.partitions)
            self._clients.start(self._broker.bootstrap_servers)
            self._faults.work(self._wait_for_progress, lambda: self._faults.kills >= self._plan.kills)
            self._clients.finish()
            self._clients.read_everything()
            self._broker.stop()
        except CampaignError as e:
            raise CampaignError(f"{e}; broker: {self._broker.log()}") from e
        finally:
            self._clients.kill_all()
            if self._broker.running:
                self._broker.kill()
        return self._faults.outcome_of(self._clients, {"broker": self._broker.lives})

    def _wait_for_progress(self) -> None:
        self._clients.wait_for_progress(self._look)

    def _look(self) -> None:
        if not self._broker.running:
            raise CampaignError("the broker has ended by itself")

    # -- faults

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
        self._faults.steps[step] += 1
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


def run(plan: Plan, directory: Path) -> Outcome:
    """Run a campaign and judge it."""
    return judged(Campaign(plan, directory).run(), plan.seed, plan.kills)
