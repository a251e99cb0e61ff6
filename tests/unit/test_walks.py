"""The walks through the code (docs/internals/life-of-a-batch.md) name modules and functions that exist, and few of
them."""

from __future__ import annotations

import ast
import re

import pytest

from tests.unit.walks import ROOT, WALKS, tables

MODULES_MAX = 10


def defined(tree: ast.Module) -> set[str]:
    """Functions as they are named in the tables: `function`, `Class.method`."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, functions)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, functions)}
    return names


def test_there_are_three_walks_of_few_modules() -> None:
    assert re.findall(r"(?m)^## (.*)$", WALKS) == ["A produced batch", "A fetch", "An offset commit"]
    assert len(tables(WALKS)) == 8
    for table in tables(WALKS):
        assert [number for number, _, _ in table] == list(range(1, len(table) + 1))
        assert len({module for _, module, _ in table}) == len(table) <= MODULES_MAX


@pytest.mark.parametrize(("module", "function"), sorted({row[1:] for table in tables(WALKS) for row in table}))
def test_what_a_walk_names_exists(module: str, function: str) -> None:
    assert function in defined(ast.parse((ROOT / module).read_text(encoding="utf-8")))


def test_no_row_is_overlooked() -> None:
    rows = [line for line in WALKS.splitlines() if re.match(r"\| \d", line)]
    assert len(rows) == sum(map(len, tables(WALKS)))
