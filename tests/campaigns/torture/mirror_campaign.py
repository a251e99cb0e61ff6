"""kill -9 of mirror workers, of the target's broker and of the source's nodes, under load; then both sides are equal.

    python -m tests.campaigns.torture.mirror_campaign [--kills 200] [--seed 1]

The seed decides the source: one node of Kafka, three nodes, or a sparklog broker. Two workers copy its topics. Plain
producers and transactions, of which a third is aborted, write meanwhile, and groups commit. A victim is killed at a
random moment, a worker also at a chosen step of its round, and started again; a worker or a node of three is stopped
for longer than its session. At the end the copy has each committed record once, at its offset, the same ends, and the
groups' offsets. The records are compared by `mirror verify`, and by readers that have no code of the mirror.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.net.cluster import cluster
from sparklog.environment.fault_points import VARIABLE
from sparklog.errors import InvalidConfigError, SparklogError
from sparklog.mirror.worker.verify import verify_mirror
from sparklog.mirror.worker.worker import MirrorWorker
from sparklog.types import TopicPartition
from tests.campaigns.torture.frame import Faults, run_from_command_line
from tests.campaigns.torture.mirror_load import GROUPS, PARTITIONS, TOPICS, TYPED, Load, create_topics, records_of
from tests.campaigns.torture.mirror_sources import Source, SparklogNode, open_source
from tests.campaigns.torture.processes import die_with_parent
from tests.support.mirror_steps import MIRROR_STEPS
from tests.support.ports import free_port
from tests.support.waiting import until

MIRROR = "copy"
START_S = 300.0
STILL_S = 12.0
"""Time for which a process is stopped: longer than the session of a worker, and of a node of Kafka."""
PATIENCE_S = 300.0
"""Longest wait for the copy: sessions expire, and nodes start, on a machine that is busy."""
ALL_CAUGHT_UP_EVERY = 6
"""Number of faults after which the copy has to reach the source's end."""
SETTINGS = {"mirror.worker.enable": False, "log.flush.interval.ms": 1_000}
FAULTS: Mapping[str, int] = {
    "kill worker": 5,
    "kill worker at a step": 3,
    "kill target": 2,
    "kill source": 2,
    "pause worker": 1,
    "pause source": 1,
}
FORMS = ("kafka", "kafka-3", "sparklog", "2.8.2", "3.9.1")
PAUSE_S = 3.0


@dataclass(frozen=True)
class Outcome:
    """The result of a campaign."""

    form: str
    records: int
    faults: Mapping[str, int]
    steps: Mapping[str, int]
    seconds: float

    @property
    def kills(self) -> int:
        return sum(n for kind, n in self.faults.items() if kind.startswith("kill"))


class MirrorCampaign:
    """Everything that runs, and the faults that happen to it."""

    def __init__(self, form: str, kills: int, seed: int, directory: Path) -> None:
        self._form = form
        self._kills = kills
        self._rng = random.Random(f"mirror/{form}/{seed}")
        self._directory = directory
        faults = FAULTS if form == "kafka-3" else {kind: n for kind, n in FAULTS.items() if kind != "pause source"}
        self._faults = Faults(self, faults, self._rng, PAUSE_S)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._wakes: list[threading.Timer] = []
        self._turn = 0
        self._address = f"127.0.0.1:{free_port()}"

    def run(self) -> Outcome:
        """Run the campaign, and compare both sides. Raises AssertionError."""
        began_s = time.monotonic()
        with ExitStack() as stack:
            self._source: Source = stack.enter_context(open_source(self._form, self._directory))
            self._target = self._start_target()
            stack.callback(lambda: self._target.stop())
            create_topics(self._source)
            until(self._has_mirror, "the source's nodes show its topics", within_s=PATIENCE_S)
            load = Load(self._source)
            stack.callback(self._end_workers)
            self._workers = [self._worker(number) for number in range(2)]
            try:
                self._faults.work(partial(self._wait_for_progress, load), lambda: self._faults.kills >= self._kills)
            finally:
                for wake in self._wakes:
                    wake.join()
                self._source.heal()
                load.stop()
            self._end_workers()
            self._copy_the_rest()
            count = self._compare(load)
        return Outcome(self._form, count, self._faults.done, self._faults.steps, time.monotonic() - began_s)

    def _has_mirror(self) -> bool:
        """Create the mirror, unless the node that answers does not know the new topics yet."""
        with sparklog.Admin(self._address) as admin:
            try:
                admin.create_mirror(MIRROR, source=self._source.url, topics="m-.*", groups="g-.*")
            except InvalidConfigError as e:
                if "no topic" in str(e):
                    return False
                raise
        return True

    # -- progress

    def _wait_for_progress(self, load: Load) -> None:
        self._turn += 1
        before = load.written
        until(lambda: load.written > before, "the load goes on", within_s=PATIENCE_S)
        if self._turn % ALL_CAUGHT_UP_EVERY == 0:
            ends = self._source.stable_ends()
            until(lambda: self._has_reached(ends), "the copy goes on", within_s=PATIENCE_S, passing=(SparklogError,))
        self._start_dead_workers()

    def _has_reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        self._start_dead_workers()
        here = self._ends(list(ends))
        return all(here[tp] >= end for tp, end in ends.items())

    def _ends(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        with sparklog.Admin(self._address) as admin:
            paused = {
                t.topic: t.reason for m in admin.describe_mirrors(asks_source=False) for t in m.topics if t.reason
            }
            assert not paused, f"topics are paused: {paused}"
            return {tp: one.offset for tp, one in admin.list_offsets(dict.fromkeys(tps, "latest")).items()}

    # -- processes

    def _start_target(self) -> LocalBroker:
        return sparklog.start_local(
            self._directory / "target", listen=self._address, settings=SETTINGS, timeout_s=START_S
        )

    def _worker(self, number: int, fault: str = "") -> subprocess.Popen[bytes]:
        environment = {k: v for k, v in os.environ.items() if k != VARIABLE} | ({VARIABLE: fault} if fault else {})
        command = [sys.executable, "-m", "sparklog.cli", "mirror", "run", "--bootstrap-servers", self._address]
        with (self._directory / f"worker{number}.log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, preexec_fn=die_with_parent)

    def _start_dead_workers(self) -> None:
        for number, one in enumerate(self._workers):
            code = one.poll()
            if code is not None:
                assert code == -signal.SIGKILL, f"worker {number} ended with {code}: see {self._directory}"
                self._faults.steps["mirror"] += 1
                self._workers[number] = self._worker(number)

    def _end_workers(self) -> None:
        for one in self._workers:
            one.kill()
            one.wait()
        self._workers = []

    # -- faults

    def _kill_worker(self) -> None:
        self._replace_worker("")

    def _kill_worker_at_a_step(self) -> None:
        self._replace_worker(f"{self._rng.choice(MIRROR_STEPS)}:{self._rng.randrange(1, 5)}:kill")

    def _replace_worker(self, fault: str) -> None:
        number = self._rng.randrange(len(self._workers))
        self._workers[number].kill()
        self._workers[number].wait()
        self._workers[number] = self._worker(number, fault)

    def _kill_target(self) -> None:
        self._target.kill()
        self._target = self._start_target()

    def _kill_source(self) -> bool:
        return self._source.kill_one(self._rng)

    def _pause_worker(self) -> None:
        self._pause(self._rng.choice(self._workers))

    def _pause_source(self) -> bool:
        victim = self._source.pausable(self._rng)
        if victim is not None:
            self._pause(victim)
        return victim is not None

    def _pause(self, process: subprocess.Popen[bytes]) -> None:
        """Stop a process, which goes on later, while other faults happen."""
        process.send_signal(signal.SIGSTOP)
        wake = threading.Timer(STILL_S, process.send_signal, (signal.SIGCONT,))
        wake.start()
        self._wakes.append(wake)

    # -- the end

    def _copy_the_rest(self) -> None:
        errors: dict[str, str] = {}
        for _ in range(3):  # an answer that is lost is no failure of the copy
            worker = MirrorWorker(self._address)
            try:
                errors = worker.run_once([MIRROR])
            finally:
                worker.close()
            if not errors:
                return
        raise AssertionError(f"the last copy: {errors}")

    def _compare(self, load: Load) -> int:
        """Compare both sides, and return the number of records. Raises AssertionError."""
        ends = self._source.stable_ends()
        assert self._ends(list(ends)) == ends
        report = verify_mirror(cluster(self._address), MIRROR)
        assert report.differences == 0, report.problems
        assert report.records > 0
        for name, topic in TOPICS.items():
            for p in range(PARTITIONS):
                here = records_of(self._address, name, p)
                there = self._source.records(name, p)
                if topic.is_compacted:  # each side removes records at its own times
                    both = here.keys() & there.keys()
                    here, there = ({o: side[o] for o in both} for side in (here, there))
                assert here.keys() == there.keys(), (name, p, sorted(here.keys() ^ there.keys())[:5])
                different = [o for o in there if here[o] != there[o]]
                assert not different, (name, p, [(there[o], here[o]) for o in different[:3]])
        if isinstance(self._source, SparklogNode):
            assert _rows(self._address) == _rows(self._source.address)
        with sparklog.Admin(self._address) as admin:
            for group in GROUPS:
                found = {tp: one.offset for tp, one in admin.list_group_offsets(group).items()}
                assert found == load.committed[group], group
        return report.records


def _rows(address: str) -> list[str]:
    table = sparklog.read_table(address, TYPED, include_metadata=True)
    return [repr(row) for row in table.sort_by([("_partition", "ascending"), ("_offset", "ascending")]).to_pylist()]


def run(directory: Path, kills: int, seed: int) -> Outcome:
    """Run a campaign; the form of its source is that of the seed.

    Args:
        directory: An empty directory.
        kills: Number of processes to kill.
        seed: Seed of all choices.

    Returns:
        The size of the work.

    Raises:
        AssertionError: The copy differs from its source, or does not go on.
    """
    form = FORMS[seed % len(FORMS)]
    outcome = MirrorCampaign(form, kills, seed, directory).run()
    print(f"seed {seed}: {outcome}")
    return outcome


if __name__ == "__main__":
    run_from_command_line(run, __doc__, kills=200)
