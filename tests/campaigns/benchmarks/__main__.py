"""The command line: `python -m tests.campaigns.benchmarks run | report | quick | fast-paths | list`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from . import campaign, report
from .context import ROOT, Context
from .fast_paths import run_fast_paths
from .quick import run_quick
from .results import read_rows
from .rows import ROWS, select

RESULTS = ROOT / "build" / "benchmarks"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="tests.campaigns.benchmarks", description="Measures sparklog beside its peers."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help=f"measure rows; {RESULTS.relative_to(ROOT)} gets a file for each")
    run.add_argument("--rows", default="", help="comma-separated names or beginnings of names (default: all)")
    run.add_argument("--pairs", type=int, default=campaign.PAIRS, help="measured pairs per row (default %(default)s)")
    run.add_argument("--scale", type=float, default=1.0, help="multiplies record counts; 0.01 tries the harness")
    run.add_argument("--scratch", type=Path, help="directory of the data (default: the temporary directory)")
    commands.add_parser("report", help="put the results into the table of docs/benchmarks.md")
    quick = commands.add_parser("quick", help="a few figures without peers, compared with the committed ones")
    quick.add_argument("--update", action="store_true", help="make the figures of this run the committed ones")
    paths = commands.add_parser("fast-paths", help="the worth of each fast path, with it and without it in turn")
    paths.add_argument("names", nargs="*", help="default: all")
    paths.add_argument("--rounds", type=int, default=5, help="counted rounds (default %(default)s)")
    paths.add_argument("--scale", type=float, default=0.5, help="multiplies record counts (default %(default)s)")
    commands.add_parser("list", help="the rows with the settings of both sides")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    try:
        if given.command == "run":
            return _run(given, console)
        if given.command == "report":
            return _report(console)
        if given.command == "quick":
            return run_quick(console, update=given.update)
        if given.command == "fast-paths":
            return run_fast_paths(console, given.names, rounds=given.rounds, scale=given.scale)
    except ValueError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    for row in ROWS:
        console.print(f"{row.name:24} {row.title}, against {row.peer}")
        for side, text in row.settings.items():
            console.print(f"{'':24}   {side}: {text}")
    return 0


def results_directory(scale: float) -> Path:
    """The directory of the results. Those of a scaled-down run are kept apart: they are not figures."""
    return RESULTS / ("rows" if scale == 1 else f"rows-scale-{scale:g}")


def _run(given: argparse.Namespace, console: Console) -> int:
    rows = select([name.strip() for name in given.rows.split(",") if name.strip()])
    if given.pairs < 1 or given.scale <= 0:
        raise ValueError(f"--pairs {given.pairs} --scale {given.scale}: at least 1 pair and a positive scale")
    directory = results_directory(given.scale)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stops the servers, as Ctrl-C does
    results = []
    with Context(given.scale, given.scratch) as context, console.status("") as status:

        def progress(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                console.print(f"  {text}")

        found = campaign.run_rows(
            rows, context, directory, given.pairs, progress, campaign.machine(), campaign.versions()
        )
        for number, result in enumerate(found, 1):
            results.append(result)
            console.print(f"[{number}/{len(rows)}] {report.one_line(result)}")
    print(f"\n{report.table(results)}\nkept in {directory}; `make bench-report` puts them into docs/benchmarks.md")
    return 1 if any(r.failure for r in results) else 0


def _report(console: Console) -> int:
    directory = results_directory(1.0)
    rows = read_rows(directory)
    if not rows:
        raise ValueError(f"{directory} has no results: run `make bench` first")
    path = report.write(rows, [row.name for row in ROWS], ROOT / "docs")
    console.print(f"{len(rows)} rows of {directory} are in {path} now, measured on")
    for described in {str(r.machine | r.versions) for r in rows.values()}:
        console.print(f"  {described}")
    console.print("note that in docs/benchmarks/how-we-measure.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
