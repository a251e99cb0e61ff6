"""No module imports, at any distance, a module that imports it; imports for type checkers and inside functions count.
The documents show the layers as import-linter has them."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.support.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "sparklog", ROOT / "datasource" / "pyspark_sparklog", ROOT / "broker_daemon" / "sparklog_broker")


def sources() -> dict[str, str]:
    """The text of each module by its name."""
    found = {}
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return found


def named(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Modules that are imported, each with a name in it that may be a module, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, "relative imports are not read here"
            yield from ((node.module, alias.name) for alias in node.names)


def circle(modules: Mapping[str, str]) -> list[str]:
    """The modules of one circle, the first one again at the end; empty: there is none."""
    imported: dict[str, set[str]] = {}
    for module, text in modules.items():
        targets = (f"{m}.{name}" if f"{m}.{name}" in modules else m for m, name in named(ast.parse(text)))
        imported[module] = {target for target in targets if target in modules and target != module}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as e:
        found: list[str] = e.args[1]
        return found
    return []


def test_imports_have_no_circle() -> None:
    found = sources()
    assert {"sparklog.version", "sparklog_broker.broker", "pyspark_sparklog.source.reader"} <= found.keys()
    assert circle(found) == []


@for_each(
    "back",
    [
        "import a.b",
        "from a import b",
        "from a.b import Thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.b import Thing",
        "def late() -> None:\n    from a.b import Thing",
    ],
)
def test_a_circle_is_detected(back: str) -> None:
    modules = {"a": "", "a.b": "from a.c import Other", "a.c": "from a import d", "a.d": back}
    assert set(circle(modules)) == {"a.b", "a.c", "a.d"}
    assert circle(modules | {"a.d": "import a.e"}) == []


CONTRACTS = {
    contract["name"]: contract["layers"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    if contract["type"] == "layers"
}
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")


def lowest_first(contract: str) -> list[set[str]]:
    """The layers of a contract, without the names of the packages they are in."""
    layers = [layer.split(" | ") for layer in CONTRACTS[contract]]
    return [{name.removeprefix("sparklog.").rpartition(".")[2] for name in layer} for layer in reversed(layers)]


def shown(text: str) -> list[list[set[str]]]:
    """Each indented block of names with `<` between them."""
    blocks = re.findall(r"(?m)(?:^    .*<.*\n)+", text)
    return [[set(re.findall(r"\w+", layer)) for layer in block.split("<")] for block in blocks]


def test_the_documents_show_all_layers() -> None:
    assert shown(CONTRIBUTING) == [lowest_first("one direction"), lowest_first("inside the broker")]
    assert shown(ARCHITECTURE) == [lowest_first("one direction")]


SMALL = {"types", "histogram", "java_patterns", "serialization", "spark", "version"}
"""Parts as small as their names."""


def test_the_page_on_the_architecture_has_a_row_for_each_part() -> None:
    cells = re.findall(r"(?m)^\| (`.*?`) \|", ARCHITECTURE)
    named = {name.strip("`/").rpartition("/")[2].removesuffix(".py") for cell in cells for name in cell.split(", ")}
    parts = set().union(*lowest_first("one direction"), *lowest_first("inside the broker"))
    assert parts - named == SMALL
