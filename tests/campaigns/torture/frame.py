"""The frame of all campaigns of kills: faults by a seed, the work between them, the outcome, its verdict, and the
command line.

A campaign has the system under test and a method for each kind of fault: `_kill_broker` for "kill broker". The method
returns False if the fault did not happen.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import sparklog
from tests.campaigns.checker.analysis import Anomaly, Verdict, analyse
from tests.campaigns.checker.report import report
from tests.campaigns.torture.workforce import TOPICS, Workforce

PAUSE_S = 0.05
"""Longest pause before a fault, in s: it comes anywhere in the clients' work."""


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
        faults = _counts(self.faults)
        if self.steps:
            faults += f"; died at: {_counts(self.steps)}"
        return f"{faults}; lives: {_counts(self.lives)}; {self.seconds:.0f} s"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} x {name}" for name, n in sorted(counts.items()))


def kills_of(faults: Mapping[str, int]) -> int:
    """Return the number of faults that have killed a process."""
    return sum(n for kind, n in faults.items() if kind.startswith("kill"))


class Faults:
    """Draws the faults of a campaign by their weights, lets `campaign` inject them, and counts them."""

    def __init__(
        self, campaign: object, weights: Mapping[str, int], rng: random.Random, pause_s: float = PAUSE_S
    ) -> None:
        self._campaign = campaign
        self._weights = weights
        self._rng = rng
        self._pause_s = pause_s
        self._began_s = time.monotonic()
        self.done: Counter[str] = Counter()
        self.steps: Counter[str] = Counter()
        """Fault points at which a process of the system has died."""

    @property
    def kills(self) -> int:
        return kills_of(self.done)

    def inject_one(self) -> None:
        """Inject the next fault. Raises CampaignError."""
        (kind,) = self._rng.choices(list(self._weights), list(self._weights.values()))
        time.sleep(self._rng.random() * self._pause_s)
        began_s = time.monotonic()
        if getattr(self._campaign, "_" + kind.replace(" ", "_"))() is not False:
            self.done[kind] += 1
        print(f"{time.monotonic_ns()} {kind}: {time.monotonic() - began_s:.1f} s", flush=True)

    def work(self, wait_for_progress: Callable[[], None], is_enough: Callable[[], bool]) -> None:
        """Inject faults until it is enough. The next one comes when every client has made progress since the last
        one: no fault hits an idle system, and a system that does not recover is noticed. Raises CampaignError."""
        wait_for_progress()
        while not is_enough():
            self.inject_one()
            wait_for_progress()

    def outcome(self, verdict: Verdict, lives: Mapping[str, int]) -> Outcome:
        """Return the outcome. `lives`: of the processes, by kind."""
        return Outcome(verdict, self.done, self.steps, lives, time.monotonic() - self._began_s)

    def outcome_of(self, clients: Workforce, lives: Mapping[str, int] | None = None) -> Outcome:
        """Return the outcome, after all clients have ended. `lives`: of the processes of the system."""
        self.steps += clients.steps
        return self.outcome(analyse(clients.operations()), Counter(lives or {}) + clients.lives())


def create_topics(bootstrap_servers: str, partitions: int, **more: object) -> None:
    """Create the topics of all clients; `more`: arguments of Admin.create_topic."""
    with sparklog.Admin(bootstrap_servers) as admin:
        for topic in TOPICS:
            admin.create_topic(topic, partitions=partitions, **more)  # type: ignore[arg-type]


def judged(outcome: Outcome, seed: int, kills: int = 0, allowed: Collection[Anomaly] = ()) -> Outcome:
    """Return the outcome. Fails if there are anomalies but those allowed, or if little was done."""
    verdict = outcome.verdict
    print(f"seed {seed}: {outcome}\n{report(verdict, allowed)}")
    assert not verdict.beyond(allowed), report(verdict, allowed)
    assert outcome.kills >= kills
    assert verdict.acknowledged > kills
    return outcome


def run_from_command_line(run: Callable[[Path, int, int], object], description: str, kills: int) -> None:
    """Run a campaign with the options of the command line, and print its outcome. The exit status is 1 after an error.

    Args:
        run: Runs a campaign in a directory, with a number of kills and a seed.
        description: The module's docstring.
        kills: Default number of kills.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--directory", type=Path, help="of data and histories (default: a temporary one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparklog-campaign-") as temporary:
        print(run(arguments.directory or Path(temporary), arguments.kills, arguments.seed))
