"""The split of the suite into `make test` and `make test-all` keeps a test of every kind and promise in the gate."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CAMPAIGNS = ROOT / "docs" / "internals" / "campaigns.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
LONG = {"nightly", "torture"}
KINDS = {"spark", "crash", "simulation"}


def marks(nodes: list[ast.expr]) -> set[str]:
    """Names of the `pytest.mark.NAME` expressions among `nodes`, and of those in a list; not of single parameters."""
    single = [part for node in nodes for part in (node.elts if isinstance(node, ast.List) else [node])]
    heads = [node.func if isinstance(node, ast.Call) else node for node in single]
    return {name for head in heads for name in re.findall(r"^pytest\.mark\.(\w+)$", ast.unparse(head))}


def functions(path: Path) -> dict[str, set[str]]:
    """The marks of each test function of a module, its module's included."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    module: set[str] = set()
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            module |= marks([node.value])
    if "spark" in path.relative_to(ROOT / "tests").parts:  # tests/spark/conftest.py marks its folder
        module |= {"spark"}
    return {
        node.name: module | marks(node.decorator_list)
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@functools.cache  # reading all modules takes a second, which each worker would spend at its collection
def marks_of_tests() -> dict[str, set[str]]:
    """The marks of each test of the suite."""
    return {
        f"{path.relative_to(ROOT)}::{name}": found
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name, found in functions(path).items()
    }


def gate() -> set[str]:
    """The tests that `make test` runs."""
    return {name for name, found in marks_of_tests().items() if not found & LONG}


def test_each_directory_has_a_test_of_each_kind_in_the_gate() -> None:
    kinds: dict[str, set[str]] = defaultdict(set)
    kept: dict[str, set[str]] = defaultdict(set)
    in_gate = gate()
    for name, found in marks_of_tests().items():
        folder = name.split("::")[0].rpartition("/")[0]
        kinds[folder] |= found & KINDS | {"any"}
        if name in in_gate:
            kept[folder] |= found & KINDS | {"any"}
    # notebooks run as programs, each with a JVM of its own; the torture campaigns have their short share elsewhere
    excused = {"tests/notebooks": {"spark", "crash"}, "tests/campaigns/torture": {"spark"}}
    missing = {folder: kinds[folder] - kept[folder] - excused.get(folder, set()) for folder in kinds}
    assert not {folder: lacking for folder, lacking in missing.items() if lacking}


def test_each_promise_names_a_test_of_the_gate() -> None:
    text = CAMPAIGNS.read_text(encoding="utf-8")
    promises = re.findall(r"(?m)^\| [^|`]+ \| `(tests/[^`]+::\w+)` \|$", text)
    assert len(promises) >= 25
    assert not set(promises) - gate()


def test_commands_of_contributing_exist() -> None:
    section = CONTRIBUTING.read_text(encoding="utf-8").partition("## Which tests to run")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| (`[^|]+) \| `([^`|]+)` \|$", section)
    assert len(rows) >= 15
    named = {path for changed, command in rows for path in [*re.findall(r"`([^`]+)`", changed), *command.split()]}
    missing = sorted(path for path in named if "/" in path and not (ROOT / path).exists())
    assert not missing
    folders = {path.relative_to(ROOT).as_posix() for path in (ROOT / "sparklog").iterdir() if path.is_dir()}
    folders = {folder for folder in folders if not folder.endswith("__pycache__")}
    changed = {path.rstrip("/") for row in rows for path in re.findall(r"`([^`]+)`", row[0])}
    assert not {folder for folder in folders if folder not in changed}
