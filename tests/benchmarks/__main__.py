"""The command line: `python -m tests.benchmarks run | report | quick | list`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from . import campaign, report
from .context import ROOT, Context
from .machine import machine, versions
from .results import RowResult, read_rows
from .rows import ROWS, select

RESULTS = ROOT / ".benchmarks"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.benchmarks", description="Measures sparklog beside its peers.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure rows; results are kept one file per row")
    run.add_argument("--rows", default="", help="comma-separated names or beginnings of names (default: all)")
    run.add_argument("--pairs", type=int, default=campaign.PAIRS, help="measured pairs per row (default %(default)s)")
    run.add_argument("--scale", type=float, default=1.0, help="multiplies record counts; 0.01 tries the harness")
    run.add_argument("--scratch", type=Path, help="where data go (default: the temporary directory)")
    commands.add_parser("report", help="render the kept results into docs/benchmarks.md")
    quick = commands.add_parser("quick", help="a few figures without peers, compared with the committed ones")
    quick.add_argument("--update", action="store_true", help="make the figures of this run the committed ones")
    paths = commands.add_parser("fast-paths", help="what each fast path is worth, with it and without it in turn")
    paths.add_argument("names", nargs="*", help="default: all")
    paths.add_argument("--rounds", type=int, default=5, help="counted rounds (default %(default)s)")
    paths.add_argument("--scale", type=float, default=0.5, help="multiplies record counts (default %(default)s)")
    commands.add_parser("list", help="the rows")
    given = parser.parse_args(arguments)
    console = Console()
    if given.command == "run":
        try:
            return _run(given, console)
        except ValueError as e:
            print(f"error: {e}", file=sys.stderr)
            return 2
    if given.command == "report":
        return _report(console)
    if given.command == "quick":
        from .quick import run_quick

        return run_quick(console, update=given.update)
    if given.command == "fast-paths":
        from .fast_paths import run_fast_paths

        return run_fast_paths(console, given.names, rounds=given.rounds, scale=given.scale)
    for row in ROWS:
        console.print(f"{row.name:24} {row.title}, against {row.peer}", highlight=False)
    return 0


def results_directory(scale: float) -> Path:
    """Results of a scaled-down run are kept apart: they are no figures."""
    return RESULTS / ("rows" if scale == 1 else f"rows-scale-{scale:g}")


def _run(given: argparse.Namespace, console: Console) -> int:
    rows = select([name.strip() for name in given.rows.split(",") if name.strip()])
    if given.pairs < 1 or given.scale <= 0:
        raise ValueError("--pairs must be at least 1 and --scale positive")
    directory = results_directory(given.scale)
    signal.signal(signal.SIGTERM, _on_terminate)  # the servers are stopped, as after Ctrl-C
    with Context(given.scale, given.scratch) as context, console.status("") as status:
        counter = iter(range(1, 1_000_000))

        def progress(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)

        def done(result: RowResult) -> None:
            console.print(
                f"[{next(counter)}/{len(rows)}] {report.one_line(result)}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

        results = campaign.run_rows(
            rows,
            context,
            directory,
            pairs=given.pairs,
            progress=progress,
            done=done,
            machine=machine(),
            versions=versions(),
        )
    table = report.table(results)
    (directory / "table.md").write_text(table)
    print(f"\n{table}\nkept in {directory}; `make bench-report` renders them into docs/benchmarks.md")
    return 1 if any(r.failure for r in results) else 0


def _on_terminate(_: int, __: object) -> None:
    sys.exit(128 + signal.SIGTERM)


def _report(console: Console) -> int:
    try:
        rows = report.published(ROOT / "docs") | read_rows(results_directory(1.0))
    except ValueError as e:
        console.print(f"error: {e}", highlight=False)
        return 2
    if not rows:
        console.print("nothing measured yet: `make bench` first")
        return 2
    ordered = [rows[r.name] for r in ROWS if r.name in rows]
    path = report.write(ordered, ROOT / "docs")
    console.print(f"{len(ordered)} rows in {path}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
