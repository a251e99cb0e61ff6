"""Breaks rules of the product one by one, and shows which tests find the break.

`python -m tests.campaigns.mutations` runs the breaks of `rules.toml`, `--sample N` some of them at random, `--random N`
draws new ones. Each break is made in a copy of the tree, never in the work tree. The exit code is 1 if a break is
missed.
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
from collections.abc import Callable
from pathlib import Path

from tests.campaigns.mutations.breaking import PRODUCT, Break, random_breaks

ROOT = Path(__file__).resolve().parents[3]
RULES = Path(__file__).with_name("rules.toml")
TIMEOUT_S = 3600
GATE = ("tests", "-n", "4", "--dist", "loadscope", "--no-loadscope-reorder")
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
    module, those of its own folder first; if there are none, the unit tests of the row."""
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
    imports = re.compile(rf"(?m)^\s*(?:from|import) {re.escape(module)}\b")
    modules = [path for path in (ROOT / "tests/unit").rglob("test_*.py") if imports.search(path.read_text("utf-8"))]
    return tuple(
        sorted((path.relative_to(ROOT).as_posix() for path in modules), key=lambda p: (not p.startswith(first), p))
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
        help="first those of --quick, then those of the folder, then the whole gate for what they miss",
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
    chosen = [b._replace(tests=tests or b.tests or tests_of(b.file, quick=given.quick)) for b in chosen]
    if given.list:
        for one in chosen:
            print(f"{_described(one)}\n  {' '.join(one.tests)}")
        return 0
    missed = _try_all(chosen, given.workers, _stages if given.gate else lambda one: (one.tests,))
    print(f"{len(chosen) - missed} of {len(chosen)} breaks are noticed", flush=True)
    return 1 if missed else 0


def _stages(one: Break) -> tuple[tuple[str, ...], ...]:
    """Return the arguments of the runs that try a break, from the quickest to the whole gate."""
    return tests_of(one.file, quick=True), tests_of(one.file), GATE


def _try_all(chosen: list[Break], workers: int, stages: Callable[[Break], tuple[tuple[str, ...], ...]]) -> int:
    """Try the breaks in `workers` copies of the tree, each until a stage's tests notice it. Returns the number of
    breaks that no test notices."""
    waiting: queue.SimpleQueue[Break] = queue.SimpleQueue()
    for one in chosen:
        waiting.put(one)
    missed: list[Break] = []
    lock = threading.Lock()

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="mutations-") as directory:
            tree = _copy(Path(directory) / "tree")
            while not waiting.empty():
                try:
                    one = waiting.get_nowait()
                except queue.Empty:
                    return
                began_s = time.monotonic()
                for tests in stages(one):
                    noticed, by = _try(one, tests, tree)
                    if noticed:
                        break
                with lock:
                    if not noticed:
                        missed.append(one)
                    verdict = f"noticed by {by}" if noticed else f"MISSED by {by or ' '.join(tests)}"
                    print(f"{_described(one)}\n  {verdict} ({time.monotonic() - began_s:.0f} s)", flush=True)

    threads = [threading.Thread(target=work) for _ in range(max(1, min(workers, len(chosen))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(missed)


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


def _try(one: Break, tests: tuple[str, ...], tree: Path) -> tuple[bool, str]:
    """Return True and the first failed test if the tests notice a break. A timeout of the run is no notice: each test
    has one of its own."""
    path = tree / one.file
    source = path.read_text(encoding="utf-8")
    assert source.count(one.old) == 1, f"{one.file} has {source.count(one.old)} times: {one.old}"
    # processes that a test starts import the copy, too
    searched = os.pathsep.join(str(tree / folder) for folder in (".", "datasource", "broker_daemon"))
    environment = {**os.environ, "PYTHONPATH": searched, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    try:
        _write(path, source.replace(one.old, one.new))
        ran = _run([*command, *tests], tree, environment)
    finally:
        _write(path, source)
    if ran is None:
        return False, f"a run of {TIMEOUT_S} s without an end"
    if ran.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {ran.returncode}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    failed = re.findall(r"(?m)^(?:FAILED|ERROR) (\S+::\S+?)(?: - .*)?$", ran.stdout)
    if failed and (again := _run([*command, failed[0]], tree, environment)) is not None and again.returncode == 1:
        return False, f"{failed[0]}, which fails without the break, too"
    return ran.returncode != 0, failed[0] if failed else "an error" if ran.returncode else ""


def _write(path: Path, source: str) -> None:
    """Write a module, and remove its bytecode, which Python compares by the second of its source."""
    path.write_text(source, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def _run(command: list[str], tree: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str] | None:
    """Return the result of a command; None if it takes longer than TIMEOUT_S."""
    try:
        return subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None


def _described(one: Break) -> str:
    old, new = one.old.splitlines()[-1].strip(), (one.new.splitlines() or [""])[-1].strip()
    return f"{one.file}: {one.rule or 'a rule'}\n  - {old}\n  + {new}"


if __name__ == "__main__":
    assert all((ROOT / folder).is_dir() for folder in PRODUCT)
    sys.exit(main())
