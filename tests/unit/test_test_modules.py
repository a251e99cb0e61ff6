"""Common code of tests lives in modules of its own: no test imports from a test module."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def imported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return found


def test_no_test_imports_from_a_test_module() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in files if p.name.startswith("test_")}
    assert len(modules) > 100
    guilty = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in imported(ast.parse(path.read_text(encoding="utf-8"))) & modules
    ]
    assert not guilty, "\n".join(guilty)
