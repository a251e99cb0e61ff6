"""Runs a target by hand, and replays its findings.

    python -m tests.campaigns.fuzz run TARGET [--seed N] [--count N | --seconds S] [--only K] [--compacted]
    python -m tests.campaigns.fuzz probe [--seconds S] [PEER ...]

TARGET is one that reads batches (decode, append, recovery, compaction, tiering, dump, verify, repair), `readers`,
`broker`, `clients`, `spark`, `schemas`, or `all`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.campaigns.fuzz import probe
from tests.campaigns.fuzz.broker_target import run_requests
from tests.campaigns.fuzz.campaign import BATCH_TARGETS, BatchTarget, Outcome, run_batches
from tests.campaigns.fuzz.cases import make_case
from tests.campaigns.fuzz.client_campaign import run_clients, run_spark
from tests.campaigns.fuzz.reader_campaign import run_readers
from tests.campaigns.fuzz.schema_campaign import run_schemas

OTHER_TARGETS = ("readers", "broker", "clients", "spark", "schemas")


def run_target(
    name: str, first_seed: int, work_dir: Path, *, count: int, seconds: float | None = None, compacted: bool = False
) -> Outcome:
    """One target over `count` seeds, or as long as there is time."""
    seeds: Iterator[int] = itertools.count(first_seed)
    if name == "readers":
        many = 1 << 30 if seconds is not None else count
        return run_readers(seeds, work_dir, count=many, seconds=seconds, compacted=compacted)
    if seconds is None:
        seeds = itertools.islice(seeds, count)
    if name == "broker":
        return run_requests(seeds, work_dir, seconds=seconds)
    if name == "clients":
        return run_clients(seeds, work_dir, seconds=seconds)
    if name == "schemas":
        return run_schemas(seeds, work_dir, seconds=seconds)
    if name == "spark":
        return run_spark(seeds, work_dir, seconds=seconds)
    with BatchTarget(name, work_dir) as target:
        return run_batches(target, seeds, seconds=seconds)


def _run(given: argparse.Namespace) -> int:
    targets = (*BATCH_TARGETS, *OTHER_TARGETS) if given.target == "all" else (given.target,)
    found = 0
    with tempfile.TemporaryDirectory(prefix="sparklog-fuzz-") as directory:
        for name in targets:
            work_dir = Path(directory) / name
            work_dir.mkdir()
            if given.only is not None:
                print(make_case(given.seed, (given.only,)).name)
                with BatchTarget(name, work_dir) as target:
                    finding = target.check(given.seed, (given.only,))
                print(finding or "as it should be")
                found += finding is not None
                continue
            outcome = run_target(
                name, given.seed, work_dir, count=given.count, seconds=given.seconds, compacted=given.compacted
            )
            print(f"{name}: {outcome}", flush=True)
            found += len(outcome.findings)
    return 1 if found else 0


def _probe(given: argparse.Namespace) -> int:
    return probe.run(given.seconds, given.peers)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.fuzz")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="run a target over seeds")
    run.add_argument("target", choices=[*BATCH_TARGETS, *OTHER_TARGETS, "all"])
    run.add_argument("--seed", type=int, default=0, help="the first")
    run.add_argument("--count", type=int, default=1, help="how many seeds")
    run.add_argument("--seconds", type=float, help="as many seeds as there is time for")
    run.add_argument("--only", type=int, help="one of a case's lies, by its number")
    run.add_argument("--compacted", action="store_true", help="readers: of compacted topics, beside the cleaner")
    run.set_defaults(function=_run)
    measured = commands.add_parser("probe", help="a tiny request's latency beside hostile peers")
    measured.add_argument("peers", nargs="*", help=", ".join(p.__name__ for p in probe.PEERS))
    measured.add_argument("--seconds", type=float, default=5.0, help="of each kind of peer")
    measured.set_defaults(function=_probe)
    given = parser.parse_args()
    return int(given.function(given))


if __name__ == "__main__":
    sys.exit(main())
