"""One client as a process: executes the tasks of tests/campaigns/checker/generate.py and writes down its observations.

    python -m tests.campaigns.torture.client '<Assignment as JSON>'

It ends in order when its standard input is closed (its parent has gone or wants it to), and can be killed at any time.
An error that ends its life in earnest is no failure: it exits with LIFE_ENDED and another life takes its place.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sparklog.errors import SparklogError
from sparklog.types import TopicPartition
from tests.campaigns.checker.history import Recorder

LIFE_ENDED = 75
PAUSE_S = 0.01


Intent = TypeVar("Intent")


@dataclass(frozen=True)
class Assignment:
    """A client's task: `number` is unique among all lives, `slot` is the same in all lives of one client; `until`:
    offsets at which a reader is done."""

    role: str
    slot: int
    number: int
    seed: int
    bootstrap_servers: str
    history: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    settings: dict[str, Any]
    until: dict[str, int] | None = None

    @property
    def name(self) -> str:
        return f"{self.role}{self.number}"


class Life:
    """Common parts of every role: the history, the stop signal, and a pause between two actions."""

    def __init__(self, assignment: Assignment, history: Recorder) -> None:
        self.told = assignment
        self.history = history
        self.rng = random.Random(f"pause/{assignment.seed}/{assignment.number}")
        self._stopping = threading.Event()
        threading.Thread(target=self._wait_for_the_end, daemon=True).start()

    def _wait_for_the_end(self) -> None:
        while os.read(0, 1):  # not sys.stdin: a thread inside it would keep the interpreter from ending
            pass
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def note(self, text: str) -> None:
        """For people; a campaign shows it when something is wrong."""
        print(f"{time.monotonic_ns()} {self.told.name}: {text}", file=sys.stderr, flush=True)

    def while_wanted(self, intents: Iterator[Intent]) -> Iterator[Intent]:
        """Yield the intents until the stop, with pauses: the subject of the test is order, not speed."""
        for intent in intents:
            if self.stopping:
                return
            yield intent
            time.sleep(self.rng.expovariate(1 / PAUSE_S))


def partition_of(name: str) -> TopicPartition:
    """The partition that a history calls `topic-0`."""
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def main() -> int:
    told = Assignment(**json.loads(sys.argv[1]))
    roles = importlib.import_module(
        "tests.campaigns.torture." + ("kafka_roles" if told.role.startswith("kafka") else "roles")
    )
    role: Callable[[Life], None] = getattr(roles, told.role)
    group, reads_committed = roles.GROUPS.get(told.role, ""), told.role != "uncommitted"
    with Path(told.history).open("xb", buffering=0) as file:
        life = Life(told, Recorder(file, told.name, group=group, reads_committed=reads_committed))
        try:
            role(life)
        except SparklogError as e:
            life.note(f"this life ends: {e!r}")
            traceback.print_exc()
            return LIFE_ENDED
    return 0


def as_argument(assignment: Assignment) -> str:
    return json.dumps(dataclasses.asdict(assignment))


if __name__ == "__main__":
    sys.exit(main())
