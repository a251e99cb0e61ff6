"""The clients of a campaign: at work, killed, paused, replaced, waited for, and in the end a reader of everything."""

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
from sparklog.environment import fault_points as faults
from tests.campaigns.checker.history import Operation, read_history
from tests.campaigns.torture import shared
from tests.campaigns.torture.client import Assignment, partition_of
from tests.campaigns.torture.processes import CampaignError, Client

PROGRESS_S = 300.0
"""Far more than anything takes, also on a machine that has ten other things to do."""
LONG_S = 10.0
LOOK_S = 0.01
REPLACED = frozenset({"transactional", "pipeline", "member", "shared"})
"""Roles whose next life fences the one before."""
STILL_S = (0.05, 1.5)
TOPICS = ("in", "out")
"""The topics that all clients write to, and the topics of pipelines."""


@dataclass(frozen=True)
class Work:
    """`clients`: how many of each role; `partitions` of each topic; `settings` and `steps` (fault points at which a
    client dies by itself) by role; `still_s`: how long a paused one sleeps; `readers`: roles that read everything in
    the end."""

    clients: Mapping[str, int]
    partitions: int = 3
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    steps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    still_s: tuple[float, float] = STILL_S
    readers: Sequence[str] = ("last",)


class Workforce:
    """The clients that `work` asks for, each with many lives. `steps` counts where one has really died."""

    def __init__(self, work: Work, seed: int, rng: random.Random, directory: Path) -> None:
        self._work = work
        self._seed = seed
        self._rng = rng
        self._numbers = itertools.count()
        self._clients: list[Client] = []
        self._servers = ""
        self._inputs = [f"{TOPICS[0]}-{i}" for i in range(work.partitions)]
        self._outputs = [f"{TOPICS[1]}-{i}" for i in range(work.partitions)]
        self.steps: Counter[str] = Counter()
        self.histories = directory / "histories"
        self.histories.mkdir()

    def start(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        for role, count in self._work.clients.items():
            for _ in range(count):
                self._clients.append(self._client(role))

    def _client(self, role: str, until: Mapping[str, int] | None = None) -> Client:
        told = Assignment(
            role=role,
            slot=len(self._clients),
            number=0,
            seed=self._seed,
            bootstrap_servers=self._servers,
            history="",
            inputs=self._inputs,
            outputs=self._outputs,
            settings=dict(self._work.settings.get(role, {})),
            until=None if until is None else dict(until),
        )
        return Client(told, self.histories, self._numbers)

    # -- faults

    def kill_one(self) -> None:
        client = self._rng.choice(self._clients)
        client.kill()
        client.start()

    def pause_one(self) -> None:
        client = self._rng.choice(self._clients)
        client.signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(*self._work.still_s))
        client.signal(signal.SIGCONT)

    def replace_one(self, look: Callable[[], None]) -> None:
        """A client sleeps while its next life goes on; then it wakes up."""
        client = self._rng.choice([c for c in self._clients if c.role in REPLACED])
        client.sleep_and_begin_anew()
        self.wait_for_progress(look)
        client.wake()

    def kill_one_at_step(self) -> None:
        client = self._rng.choice([c for c in self._clients if c.role in self._work.steps])
        step = self._rng.choice(self._work.steps[client.role])
        # former lives that woke up again may have all partitions of the group: then it would never come to the step
        for other in self._clients:
            if other.role == client.role:
                other.end_zombies()
        client.kill()
        client.start(arm(step, self._rng))
        wait_until(lambda: not client.running, f"the step {step} is never reached")
        self.steps[step] += 1
        client.kill()
        client.start()

    # -- progress

    def wait_for_progress(self, look: Callable[[], None]) -> None:
        """Wait until every client has completed something; `look` is called meanwhile, and raises faults. Raises
        CampaignError, also when there is no progress."""
        begun = time.monotonic()
        deadline = begun + PROGRESS_S
        for client in self._clients:
            client.completed()
        waiting = last = list(self._clients)
        while waiting:
            last = waiting
            look()
            for client in self._clients:
                client.check()
            waiting = [c for c in waiting if not c.completed()]
            if time.monotonic() > deadline:
                stuck = ", ".join(c.history.stem for c in waiting)
                raise CampaignError(f"no progress for {PROGRESS_S:.0f} s: {stuck}")
            if waiting:
                time.sleep(LOOK_S)
        if (seconds := time.monotonic() - begun) > LONG_S:
            names = ", ".join(client.history.stem for client in last)
            print(f"{time.monotonic_ns()} waited {seconds:.0f} s for {names}", flush=True)

    # -- the end

    def finish(self) -> None:
        """Ends all in order."""
        for client in self._clients:
            client.end_zombies()
            client.finish()

    def read_everything(self) -> None:
        if "pipeline" in self._work.clients:
            self._client("drain", self._ends(self._inputs)).wait()
        for reader in self._work.readers:
            self._client(reader, self._ends([*self._inputs, *self._outputs])).wait()

    def _ends(self, partitions: Sequence[str]) -> dict[str, int]:
        """Return the high watermarks: a reader up to them has waited for every transaction below."""
        with sparklog.Admin(self._servers) as admin:
            found = admin.list_offsets({partition_of(name): "latest" for name in partitions})
        return {str(tp): at.offset for tp, at in found.items()}

    def operations(self) -> list[Operation]:
        found = read_history(self.histories.glob("*.jsonl"))
        for client in self._clients:
            if client.role == "shared":
                found += shared.operations(self.histories, client.slot, self._inputs)
        return found

    def lives(self) -> Counter[str]:
        return Counter(path.stem.partition("-")[2] for path in self.histories.glob("*.jsonl"))

    def kill_all(self) -> None:
        for client in self._clients:
            client.kill()
            client.end_zombies()


def arm(step: str, rng: random.Random) -> dict[str, str]:
    """The environment of a process that is to die at the step."""
    return {faults.VARIABLE: f"{step}:{rng.randint(1, 20)}:kill"}


def wait_until(condition: Callable[[], bool], otherwise: str, seconds: float = PROGRESS_S) -> None:
    """Raises CampaignError with `otherwise`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise CampaignError(otherwise)
        time.sleep(LOOK_S)
