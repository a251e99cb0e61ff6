"""Readers of a broker with planted partitions, each in a process of its own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import decode_header
from tests.campaigns.fuzz.campaign import FINDINGS_MAX, Finding, Outcome
from tests.campaigns.fuzz.cases import Case, make_case
from tests.campaigns.fuzz.child import Child
from tests.campaigns.fuzz.oracle import judge
from tests.campaigns.fuzz.planted_broker import PlantedBroker

READERS = ("consumer_socket", "consumer_files", "table")
CASES_PER_BROKER = 60


def behind_of(case: Case) -> int | None:
    """Return the offset for reading after the hostile batch; None when its header cannot be read."""
    try:
        return decode_header(case.stamped()).next_offset
    except CorruptBatchError:
        return None


def plantable(seeds: Iterator[int]) -> Iterator[Case]:
    """The cases whose header can be read. A start finds the others, and some of these: their partitions are offline."""
    return (c for c in map(make_case, seeds) if behind_of(c) is not None)


def run_readers(
    seeds: Iterator[int], work_dir: Path, *, count: int, seconds: float | None = None, compacted: bool = False
) -> Outcome:
    """Lets every reader read `count` cases, or as many as there is time for."""
    started = time.monotonic()
    findings: list[Finding] = []
    outcomes: Counter[str] = Counter()
    cases = 0
    children = {name: Child(f"tests.campaigns.fuzz.reader_targets:{name}", work_dir) for name in READERS}
    found = plantable(seeds)
    try:
        for number in range(1 << 30):
            late = seconds is not None and time.monotonic() - started > seconds
            left = count - cases
            if late or left <= 0 or len(findings) >= FINDINGS_MAX:
                break
            batch = list(islice(found, min(CASES_PER_BROKER, left)))
            cases += len(batch)
            directory = work_dir / f"planted-{number}"
            directory.mkdir()
            findings += _read_all(batch, directory, children, outcomes, compacted=compacted)
    finally:
        for child in children.values():
            child.stop()
    return Outcome(cases, time.monotonic() - started, outcomes["refused"], outcomes["read"], findings)


def _read_all(
    cases: list[Case], directory: Path, children: dict[str, Child], outcomes: Counter[str], *, compacted: bool
) -> list[Finding]:
    findings: list[Finding] = []
    planted = PlantedBroker(directory, cases, compacted=compacted)
    option = " --compacted" if compacted else ""
    try:
        for case in cases:
            topic, partition = planted.place_of(case)
            command = f"python -m tests.campaigns.fuzz run readers --seed {case.seed}{option}"
            reason = planted.offline.get((topic, partition))
            if reason is not None:  # readers wait for a leader
                outcomes["refused"] += 1
                if problem := planted.problem() or ("" if reason else "offline without a reason"):
                    findings.append(Finding("start", case.name, problem, command))
                continue
            for name, child in children.items():
                answer = child.call(planted.broker.address, topic, partition, case.form.schema_id, behind_of(case))
                if answer.kind == "value":
                    outcomes["refused" if answer.value.refused else "read"] += 1
                problem = planted.problem() or judge("compaction" if compacted else "reader", case, answer)
                if problem:
                    findings.append(Finding(name, case.name, problem, command))
                if len(findings) >= FINDINGS_MAX or planted.broker.process.poll() is not None:
                    return findings
    finally:
        planted.stop()
    return findings
