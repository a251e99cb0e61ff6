"""Runs seeds against targets, and reports the findings for a repetition."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.campaigns.fuzz.cases import Case, make_case, shrunk
from tests.campaigns.fuzz.child import Answer, Child
from tests.campaigns.fuzz.oracle import judge

LOG_TARGETS = ("decode", "append", "recovery", "compaction", "tiering")
TOOL_TARGETS = ("dump", "verify", "repair")
BATCH_TARGETS = LOG_TARGETS + TOOL_TARGETS
FINDINGS_MAX = 10
"""After so many different ones a campaign ends."""


class Finding(NamedTuple):
    """A case that failed, as small as it could be made."""

    target: str
    name: str
    problem: str
    command: str

    def __str__(self) -> str:
        return f"{self.target}: {self.name}\n    {self.problem}\n    again: {self.command}"


class Outcome(NamedTuple):
    """Result of a campaign."""

    cases: int
    seconds: float
    refused: int
    read: int
    findings: list[Finding]

    def __str__(self) -> str:
        rate = self.cases / self.seconds if self.seconds else 0.0
        head = f"{self.cases} cases in {self.seconds:.1f} s ({rate:.0f}/s), {self.refused} refused, {self.read} read"
        return "\n".join([head, *map(str, self.findings)])


class BatchTarget:
    """One target with its child."""

    def __init__(self, name: str, work_dir: Path) -> None:
        module = "log_targets" if name in LOG_TARGETS else "tool_targets"
        self.name = name
        self._child = Child(f"tests.campaigns.fuzz.{module}:{name}", work_dir)
        self.outcomes: Counter[str] = Counter()

    def ask(self, case: Case) -> Answer:
        """Return the target's answer to one case."""
        data = case.data if self.name == "append" else case.stamped()
        return self._child.call(case.form.schema_id, data, case.seed % 2 == 0)

    def problem(self, case: Case) -> str:
        """Runs one case; "" if all is as it should be."""
        answer = self.ask(case)
        if answer.kind == "value":
            self.outcomes["refused" if answer.value.refused else "read"] += 1
        return judge(self.name, case, answer)

    def check(self, seed: int, only: tuple[int, ...] | None = None) -> Finding | None:
        """Run a seed; returns the finding, shrunk."""
        case = make_case(seed, only)
        problem = self.problem(case)
        if not problem:
            return None
        smaller, which = shrunk(case, lambda c: bool(self.problem(c)))
        if which is not None:
            problem = self.problem(smaller) or problem
        some = which if which is not None else only
        command = f"python -m tests.campaigns.fuzz run {self.name} --seed {seed}" + (
            f" --only {some[0]}" if some else ""
        )
        return Finding(self.name, smaller.name, problem, command)

    def close(self) -> None:
        self._child.stop()

    def __enter__(self) -> BatchTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_batches(target: BatchTarget, seeds: Iterable[int], *, seconds: float | None = None) -> Outcome:
    """Runs a target over `seeds`, or as long as there is time; ends after FINDINGS_MAX findings."""
    target.outcomes.clear()
    started = time.monotonic()
    findings: list[Finding] = []
    cases = 0
    for seed in seeds:
        cases += 1
        finding = target.check(seed)
        if finding is not None:
            findings.append(finding)
        late = seconds is not None and time.monotonic() - started > seconds
        if late or len(findings) >= FINDINGS_MAX:
            break
    return Outcome(cases, time.monotonic() - started, target.outcomes["refused"], target.outcomes["read"], findings)
