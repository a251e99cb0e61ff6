"""No class of the product overrides a private method of another one, unless it is abstract: it would depend on the
inside of the other. Parts are handed in instead."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("sparklog", "broker_daemon/sparklog_broker", "datasource/pyspark_sparklog")
KNOWN = {"BatchFuture", "RecordFuture", "RemoteLogSegment", "TlsConnection", "TlsOutQueue", "TransactionShard"}
"""Classes that still do. The list may only get shorter."""


def _methods(node: ast.ClassDef) -> dict[str, bool]:
    """Private methods by name, and True if they are abstract."""
    found = {}
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name[0] == "_" and part.name[1] != "_":
            found[part.name] = any("abstract" in ast.unparse(decorator) for decorator in part.decorator_list)
    return found


def test_no_class_overrides_private_methods_of_another() -> None:
    classes: dict[str, list[ast.ClassDef]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    classes.setdefault(node.name, []).append(node)
    overriding = {
        node.name
        for nodes in classes.values()
        for node in nodes
        for base in node.bases
        for parent in classes.get(ast.unparse(base).partition("[")[0].rpartition(".")[2], [])
        if parent is not node
        for name, is_abstract in _methods(parent).items()
        if name in _methods(node) and not is_abstract
    }
    assert overriding == KNOWN
