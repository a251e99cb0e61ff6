"""Breaks rules of the product one by one, and shows which tests find the break.

`python -m tests.campaigns.mutations` runs the breaks of `rules.toml`, `--sample N` some of them at random, `--random N`
draws new ones. Each break is made in a copy of the tree, never in the work tree. With `--gate` the whole gate runs with
up to GROUP breaks that the quick tests miss, and each of them is tried with the tests that failed. The exit code is 1
if a break is missed.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path

from tests.campaigns.mutations.breaking import PRODUCT, Break, random_breaks

ROOT = Path(__file__).resolve().parents[3]
RULES = Path(__file__).with_name("rules.toml")
TIMEOUT_S = 3600
GROUP = 5
FAILURES_MAX = 40
"""Failed tests of a gate, after which it ends."""
GATE = ("tests", "-n", "4", "--dist", "loadscope", "--no-loadscope-reorder", f"--maxfail={FAILURES_MAX}")
QUICK_MODULES_MAX = 6
FOLDERS = (
    "sparklog/format",
    "sparklog/security",
    "sparklog/log",
    "sparklog/protocol",
    "sparklog/replication",
    "sparklog/metadata",
    "sparklog/lake",
    "sparklog/client",
    "sparklog/query",
    "sparklog/export",
    "sparklog/gateway",
    "sparklog/console",
    "sparklog/cli",
    "broker_daemon/sparklog_broker",
    "datasource/pyspark_sparklog",
)


def breaks() -> list[Break]:
    """Return the breaks of `rules.toml`."""
    rows = tomllib.loads(RULES.read_text(encoding="utf-8"))["break"]
    return [Break(row["file"], row["old"], row["new"], tuple(row["tests"]), row["rule"]) for row in rows]


def tests_of(file: str, *, quick: bool = False) -> tuple[str, ...]:
    """Return the paths of CONTRIBUTING's row for the folder of a file. If `quick`, the unit tests that import its
    module, first that of its name and those of its own folder; if there are none, the unit tests of the row."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (`[^|]+/`) \| `(tests/[^`|]+)` \|$", text)
    paths = {folder: tuple(tests.split()) for names, tests in rows for folder in re.findall(r"`([^`]+)`", names)}
    named = paths.get(
        max((folder for folder in paths if file.startswith(folder)), key=len, default=""), ("tests/unit",)
    )
    unit = tuple(path for path in named if path.startswith("tests/unit/"))
    return (_importing(file, unit)[:QUICK_MODULES_MAX] or unit or named) if quick else named


def _importing(file: str, first: tuple[str, ...]) -> tuple[str, ...]:
    module = file.removesuffix(".py").replace("/", ".").removeprefix("broker_daemon.").removeprefix("datasource.")
    package, _, name = module.rpartition(".")
    imports = re.compile(
        rf"(?m)^\s*(?:(?:from|import) {re.escape(module)}|from {re.escape(package)} import [^(\n]*\b{name})\b"
    )
    modules = [path for path in (ROOT / "tests/unit").rglob("test_*.py") if imports.search(path.read_text("utf-8"))]
    return tuple(
        sorted(
            (path.relative_to(ROOT).as_posix() for path in modules),
            key=lambda p: (not p.endswith(f"/test_{name}.py"), not p.startswith(first), p),
        )
    )


def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests.campaigns.mutations", description=__doc__)
    parser.add_argument("--sample", type=int, help="so many of the listed breaks, at random")
    parser.add_argument("--random", type=int, help="so many new breaks")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of --sample and --random")
    parser.add_argument("--folders", default=",".join(FOLDERS), help="of --random, with commas")
    parser.add_argument("--only", default="", help="listed breaks whose file or rule has this text")
    parser.add_argument("--tests", default="", help="these tests for each break; several with commas")
    parser.add_argument(
        "--quick", action="store_true", help="only the unit tests that import the broken module, if some do"
    )
    parser.add_argument(
        "--gate",
        action="store_true",
        help="first those of --quick, then the whole gate for what they miss",
    )
    parser.add_argument("--workers", type=int, default=2, help="breaks that are tried at the same time")
    parser.add_argument("--list", action="store_true", help="show the breaks, try none")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    if given.random:
        chosen = random_breaks(ROOT, given.seed, given.random, tuple(given.folders.split(",")))
    else:
        chosen = [b for b in breaks() if given.only in b.file or given.only in b.rule]
        if given.sample:
            chosen = random.Random(given.seed).sample(chosen, min(given.sample, len(chosen)))
    tests = tuple(filter(None, given.tests.split(",")))
    quick = given.quick or given.gate
    chosen = [b._replace(tests=tests or b.tests or tests_of(b.file, quick=quick)) for b in chosen]
    if given.list:
        for one in chosen:
            print(f"{_described(one)}\n  {' '.join(one.tests)}")
        return 0
    missed = _try_all(chosen, given.workers)
    if given.gate:
        missed = _try_gate(missed)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} breaks are noticed", flush=True)
    return 1 if missed else 0


def _try_all(chosen: list[Break], workers: int) -> list[Break]:
    """Try the breaks in `workers` copies of the tree, each with its tests. Returns those that no test notices."""
    waiting: queue.SimpleQueue[Break] = queue.SimpleQueue()
    for one in chosen:
        waiting.put(one)
    missed: list[Break] = []

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="mutations-") as directory:
            tree = _copy(Path(directory) / "tree")
            while True:
                try:
                    one = waiting.get_nowait()
                except queue.Empty:
                    return
                if not _is_noticed(one, one.tests, tree):
                    missed.append(one)

    threads = [threading.Thread(target=work) for _ in range(max(1, min(workers, len(chosen))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return missed


def _try_gate(chosen: list[Break]) -> list[Break]:
    """Try the breaks with the whole gate, GROUP of them in one run. Returns those that no test notices."""
    missed: list[Break] = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as directory:
        tree = _copy(Path(directory) / "tree")
        for start in range(0, len(chosen), GROUP):
            group = chosen[start : start + GROUP]
            while group:
                failed = _failed_tests(group, GATE, tree)
                flaky = _failed_tests([], failed, tree) if failed else ()
                tests = tuple(test for test in failed if test not in flaky)
                left = [one for one in group if not tests or not _is_noticed(one, tests, tree)]
                if len(left) == len(group) or len(failed) < FAILURES_MAX:
                    break
                group = left
            missed += left
    return missed


def _copy(tree: Path) -> Path:
    """Copy the files under version control, with their changes, and the new ones that are not ignored."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    (tree / ".venv").symlink_to(ROOT / ".venv")
    return tree


def _is_noticed(one: Break, tests: tuple[str, ...], tree: Path) -> bool:
    """Print whether one of the tests fails with a break, and not without it. Returns that."""
    began_s = time.monotonic()
    failed = _failed_tests([one], ("-x", *tests), tree)
    noticed = bool(failed) and not _failed_tests([], failed, tree)
    verdict = f"noticed by {failed[0]}" if noticed else f"MISSED by {' '.join(tests)}"
    note = ", which fails without the break, too" if failed and not noticed else ""
    print(f"{_described(one)}\n  {verdict}{note} ({time.monotonic() - began_s:.0f} s)", flush=True)
    return noticed


def _failed_tests(broken: list[Break], tests: tuple[str, ...], tree: Path) -> tuple[str, ...]:
    """Return the tests that fail with some breaks; the arguments if the run ends in an error without one. A timeout of
    the run is no failure: each test has one of its own. Raises RuntimeError if pytest cannot run the tests."""
    paths = {one.file: (tree / one.file).read_text(encoding="utf-8") for one in broken}
    # processes that a test starts import the copy, too
    searched = os.pathsep.join(str(tree / folder) for folder in (".", "datasource", "broker_daemon"))
    environment = {**os.environ, "PYTHONPATH": searched, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    try:
        for one in broken:
            source = (tree / one.file).read_text(encoding="utf-8")
            assert source.count(one.old) == 1, f"{one.file} has {source.count(one.old)} times: {one.old}"
            _write(tree / one.file, source.replace(one.old, one.new))
        ran = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return ()
    finally:
        for file, source in paths.items():
            _write(tree / file, source)
    if ran.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {ran.returncode}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    failed = tuple(re.findall(r"(?m)^(?:FAILED|ERROR|SUBFAILED.*?) (\S+\.py(?:::\S+?)?)(?: - .*)?$", ran.stdout))
    return failed or (tests if ran.returncode else ())


def _write(path: Path, source: str) -> None:
    """Write a module, and remove its bytecode, which Python compares by the second of its source."""
    path.write_text(source, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def _described(one: Break) -> str:
    old, new = one.old.splitlines()[-1].strip(), (one.new.splitlines() or [""])[-1].strip()
    return f"{one.file}: {one.rule or 'a rule'}\n  - {old}\n  + {new}"


if __name__ == "__main__":
    assert all((ROOT / folder).is_dir() for folder in PRODUCT)
    sys.exit(main())
