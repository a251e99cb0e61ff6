"""The sink pipeline under faults: after any kill, the output is the input, each record once, in order per key.

Rounds: some input is written, a fault happens, and the next round begins when the pipeline has committed a batch since.
At the end all input is copied, and input and output are read and compared; a reader that has followed the output all
the time must have seen nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

import sparklog
from sparklog.client.producer.partitioner import partition_for_key
from sparklog.environment import fault_points as faults
from sparklog.errors import SparklogError
from tests.campaigns.checker.analysis import Verdict, analyse
from tests.campaigns.checker.history import UNKNOWN_OFFSET, Kind, Operation, Sent, read_history
from tests.campaigns.checker.history import Outcome as Ended
from tests.campaigns.torture.client import Assignment, partition_of
from tests.campaigns.torture.frame import Faults, Outcome, judged
from tests.campaigns.torture.processes import Broker, CampaignError, Client
from tests.campaigns.torture.spark_driver import Pipeline
from tests.campaigns.torture.spark_process import Driver, send_signal

PARTITIONS = 3
KEYS = 12
RECORDS_PER_ROUND = 300
RECORDS_PER_BATCH = 90
PROGRESS_S = 180.0
LOOK_S = 0.02
STILL_S = (0.05, 3.0)
MICRO_BATCH_S = 0.6
"""Usual duration of a micro-batch: a fault comes anywhere in one."""
COMMIT_STEP, ABORT_STEP = "sink.before-commit", "sink.before-abort"


@dataclass(frozen=True)
class SinkPlan:
    """`faults`: the weight of each kind; `sink_steps`, `broker_steps`: fault points
    (sparklog.environment.fault_points)."""

    seed: int
    kills: int
    faults: Mapping[str, int]
    sink_steps: Sequence[str] = ()
    broker_steps: Sequence[str] = ()
    sink: Mapping[str, str] = field(default_factory=dict)
    broker_settings: Mapping[str, object] = field(default_factory=dict)
    without: str | None = None


@dataclass(frozen=True)
class Copied:
    """Input and output, each the values per key in the order of the log."""

    given: Mapping[bytes, Sequence[int]]
    output: Mapping[bytes, Sequence[int]]

    def differences(self) -> list[str]:
        """Return the differences: count, sum, set, order per key."""
        given = [v for values in self.given.values() for v in values]
        output = [v for values in self.output.values() for v in values]
        found = []
        if len(given) != len(output):
            found.append(f"{len(given)} records in, {len(output)} out")
        if sum(given) != sum(output):
            found.append(f"the sum was {sum(given)}, is {sum(output)}")
        for what, values in (("lost", set(given) - set(output)), ("invented", set(output) - set(given))):
            if values:
                found.append(f"{len(values)} {what}, such as {min(values)}")
        again = [v for v, n in Counter(output).items() if n > 1]
        if again:
            found.append(f"{len(again)} more than once, such as {min(again)}")
        wrong = [key for key in self.given if list(self.given[key]) != list(self.output.get(key, ()))]
        if wrong:
            found.append(f"{len(wrong)} of {len(self.given)} keys are not as they were given, such as {wrong[0]!r}")
        return found


class SinkOutcome(NamedTuple):
    """Actions and results."""

    outcome: Outcome
    copied: Copied
    batches: int
    """Number of micro-batches."""
    records: int

    def __str__(self) -> str:
        return f"{self.outcome}; {self.batches} batches, {self.records} records"


def judged_copy(result: SinkOutcome, plan: SinkPlan) -> SinkOutcome:
    """Return the result. Fails if the output is not the input, or if little was done."""
    print(result)
    assert not result.copied.differences(), result.copied.differences()
    judged(result.outcome, plan.seed, plan.kills)
    return result


class SinkCampaign:
    """Everything that runs, and the faults that happen to it."""

    _topic_settings: Mapping[str, object] = {}

    def __init__(self, plan: SinkPlan, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._rng = random.Random(f"sink/{plan.seed}")
        self._broker = self._new_broker()
        self._checkpoint = directory / "checkpoint"
        self._faults = Faults(self, plan.faults, self._rng, MICRO_BATCH_S)
        self._numbers = itertools.count()
        self._values = itertools.count(1)
        self._marks = itertools.count()
        self._drivers: list[Driver] = []
        self._producer: sparklog.Producer | None = None
        self._histories = directory / "histories"
        self._histories.mkdir()

    def _new_broker(self) -> Broker:
        return Broker(self._directory, self._plan.broker_settings, self._plan.without)

    def run(self) -> SinkOutcome:
        """Raises CampaignError, also when nothing goes on any more."""
        self._broker.start()
        servers = self._broker.bootstrap_servers
        pipeline = Pipeline(servers, "in", "out", str(self._checkpoint), RECORDS_PER_BATCH, dict(self._plan.sink))
        self._pipeline = pipeline
        self._driver = self._new_driver()
        observer: Client | None = None
        try:
            with sparklog.Admin(servers) as admin:
                for topic in ("in", "out"):
                    admin.create_topic(topic, partitions=PARTITIONS, configs=self._topic_settings)
            self._producer = sparklog.Producer(servers, acks="all")
            observer = self._client("assigned")
            self._driver.start()
            self._feed()
            self._wait_for_batches(1)
            while self._faults.kills < self._plan.kills:
                self._round()
            self._producer.close()
            self._driver.finish()
            observer.finish()
            copied = self._compare(servers)
            verdict = self._verdict(copied)
            self._broker.stop()
        finally:
            if self._producer is not None:
                with contextlib.suppress(SparklogError):
                    self._producer.close(0)
            for driver in self._drivers:
                driver.kill_everything()
            if observer is not None:
                observer.kill()
            if self._broker.running:
                self._broker.kill()
        lives = {"driver": sum(driver.lives for driver in self._drivers), "broker": self._broker.lives}
        outcome = self._faults.outcome(verdict, lives)
        return SinkOutcome(outcome, copied, self._batches(), sum(map(len, copied.given.values())))

    def _client(self, role: str, until: Mapping[str, int] | None = None) -> Client:
        told = Assignment(
            role=role,
            slot=0,
            number=0,
            seed=self._plan.seed,
            bootstrap_servers=self._broker.bootstrap_servers,
            history="",
            inputs=(),
            outputs=[f"out-{i}" for i in range(PARTITIONS)],
            settings={},
            until=None if until is None else dict(until),
        )
        return Client(told, self._histories, self._numbers)

    def _new_driver(self) -> Driver:
        self._drivers.append(Driver(self._pipeline, self._directory / "driver.log"))
        return self._drivers[-1]

    # -- rounds

    def _round(self) -> None:
        self._feed()
        before = self._batches()
        self._faults.inject_one()
        self._wait_for_batches(before + 2)  # the one that was under way may have been through

    def _feed(self) -> None:
        """Send more input, acknowledged before anything else happens, because the input itself is not under test. The
        broker may die during it."""
        assert self._producer is not None
        sent = [
            self._producer.send("in", value=str(value).encode(), key=b"k%d" % (value % KEYS))
            for value in itertools.islice(self._values, RECORDS_PER_ROUND)
        ]
        while not all(future.done() for future in sent):
            self._revive()
            time.sleep(LOOK_S)
        for future in sent:
            future.result()

    def _batches(self) -> int:
        """The number of micro-batches that Spark has noted as done."""
        try:
            numbers = [int(p.name) for p in (self._checkpoint / "commits").iterdir() if p.name.isdecimal()]
        except FileNotFoundError:
            return 0
        return max(numbers, default=-1) + 1

    def _wait_for_batches(self, count: int) -> None:
        deadline = time.monotonic() + PROGRESS_S
        while self._batches() < count:
            self._revive()
            if time.monotonic() > deadline:
                raise CampaignError(
                    f"no progress for {PROGRESS_S:.0f} s at batch {self._batches()}: {self._driver.tail()}\n"
                    f"broker: {self._broker.log()}"
                )
            time.sleep(LOOK_S)

    def _revive(self) -> None:
        if self._driver.ended:
            self._driver.start()
        if not self._broker.running:
            self._broker.start()

    # -- faults

    def _kill_driver(self) -> None:
        self._driver.kill()
        self._driver.start()

    def _kill_worker(self) -> None:
        workers = self._wait_for_workers()
        while not send_signal(self._rng.choice(workers), signal.SIGKILL):
            workers = self._wait_for_workers()

    def _kill_broker(self) -> None:
        self._broker.kill()
        self._broker.start()

    def _pause_driver(self) -> None:
        jvm = self._driver.jvm()
        if jvm is not None:
            self._pause(jvm)

    def _pause_worker(self) -> None:
        self._pause(self._rng.choice(self._wait_for_workers()))

    def _pause_broker(self) -> None:
        self._broker.signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(*STILL_S))
        self._broker.signal(signal.SIGCONT)

    def _pause(self, process: psutil.Process) -> None:
        if send_signal(process, signal.SIGSTOP):
            time.sleep(self._rng.uniform(*STILL_S))
            send_signal(process, signal.SIGCONT)

    def _zombie_worker(self) -> None:
        """A worker sleeps while its driver dies and the next one goes on; then it wakes up."""
        worker = self._rng.choice(self._wait_for_workers())
        send_signal(worker, signal.SIGSTOP)
        self._kill_driver()
        self._go_on_and_wake(worker)

    def _zombie_driver(self) -> None:
        """The same with a whole JVM: for a moment there are two drivers of one query."""
        jvm = self._driver.jvm()
        if jvm is None:
            return
        send_signal(jvm, signal.SIGSTOP)
        old, self._driver = self._driver, self._new_driver()
        self._driver.start()
        self._go_on_and_wake(jvm)
        time.sleep(self._rng.uniform(*STILL_S))
        old.kill_everything()

    def _go_on_and_wake(self, sleeper: psutil.Process) -> None:
        self._feed()
        self._wait_for_batches(self._batches() + 2)
        self._feed()
        send_signal(sleeper, signal.SIGCONT)

    def _wait_for_workers(self) -> list[psutil.Process]:
        deadline = time.monotonic() + PROGRESS_S
        while not (workers := self._driver.workers()):
            self._revive()
            if time.monotonic() > deadline:
                raise CampaignError(f"the driver has no workers: {self._driver.tail()}")
            time.sleep(LOOK_S)
        return workers

    def _kill_at_sink_step(self) -> None:
        """A new life of the driver, of which the process that comes to the step dies there."""
        step = self._rng.choice(self._plan.sink_steps)
        self._driver.kill()
        mark = self._mark()
        self._driver.start(self._environment_of(step, mark))
        self._wait_for_mark(step, mark)

    def _kill_at_broker_step(self) -> None:
        step = self._rng.choice(self._plan.broker_steps)
        self._broker.kill()
        mark = self._mark()
        self._broker.start(self._environment_of(step, mark))
        life = self._broker.lives
        self._wait_for_mark(step, mark)
        self._broker.wait_for_end_of(life)  # it leaves its mark before it dies
        self._revive()

    def _mark(self) -> str:
        return str(self._directory / f"mark-{next(self._marks)}")

    def _environment_of(self, step: str, mark: str) -> dict[str, str]:
        fault = f"{step}:{self._rng.randint(1, 3)}:kill"
        if step == ABORT_STEP:
            fault = f"{COMMIT_STEP}:raise,{step}:kill"  # nothing is aborted but after a failure
        return {faults.VARIABLE: fault, faults.VARIABLE_MARK: mark}

    def _wait_for_mark(self, step: str, mark: str) -> None:
        deadline = time.monotonic() + PROGRESS_S
        while not Path(f"{mark}.{step}").exists():
            self._revive()
            if time.monotonic() > deadline:
                raise CampaignError(f"the step {step} is never reached: {self._driver.tail()}")
            if self._batches_left() < 2:
                self._feed()
            time.sleep(LOOK_S)
        self._faults.steps[step] += 1

    def _batches_left(self) -> int:
        """About how many micro-batches of input there are."""
        fed = next(self._values)
        self._values = itertools.count(fed)
        return fed // RECORDS_PER_BATCH - self._batches()

    # -- the end

    def _compare(self, servers: str) -> Copied:
        return Copied(*(_per_key(servers, topic) for topic in ("in", "out")))

    def _verdict(self, copied: Copied) -> Verdict:
        """The checker's: each key is a process that has sent its values in their order."""
        with sparklog.Admin(self._broker.bootstrap_servers) as admin:
            names = [f"out-{i}" for i in range(PARTITIONS)]
            found = admin.list_offsets({partition_of(name): "latest" for name in names})
        self._client("last", {str(tp): at.offset for tp, at in found.items()}).wait()
        sent = [
            Operation(key.decode(), 1, Kind.SEND, Ended.OK, steps=(_sent(key, values),))
            for key, values in copied.given.items()
        ]
        return analyse([*sent, *read_history(self._histories.glob("*.jsonl"))])


def _sent(key: bytes, values: Sequence[int]) -> Sent:
    partition = f"out-{partition_for_key(key, PARTITIONS)}"
    return Sent(partition, values, [UNKNOWN_OFFSET] * len(values), [-1] * len(values))


def _per_key(servers: str, topic: str) -> dict[bytes, list[int]]:
    """A topic's values per key in the order of its log."""
    rows = sparklog.read_table(servers, topic, include_metadata=True).sort_by(
        [("_partition", "ascending"), ("_offset", "ascending")]
    )
    found: dict[bytes, list[int]] = {}
    for key, value in zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True):
        found.setdefault(key, []).append(int(value))
    return found
