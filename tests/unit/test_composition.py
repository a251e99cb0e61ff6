"""A class uses another one through its public members: no class overrides private methods of another class.

An implementation of an abstract private method is no override.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("sparklog", "datasource", "broker_daemon")
EXCEPTIONS: dict[str, str] = {}

Classes = dict[str, list[ast.ClassDef]]
Method = ast.FunctionDef | ast.AsyncFunctionDef


def product_classes() -> Classes:
    texts = (path.read_text(encoding="utf-8") for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py")))
    return classes_of(*texts)


def classes_of(*texts: str) -> Classes:
    found: Classes = {}
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def name_of(node: ast.expr) -> str:
    """The last part of `module.Class[T]`: Class."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_abstract(method: Method) -> bool:
    last = method.body[-1]
    raised = last.exc if isinstance(last, ast.Raise) else None
    return "abstractmethod" in map(name_of, method.decorator_list) or (
        raised is not None and name_of(raised) == "NotImplementedError"
    )


def private_methods(node: ast.ClassDef) -> dict[str, Method]:
    methods = (m for m in node.body if isinstance(m, Method))
    return {m.name: m for m in methods if m.name.startswith("_") and not m.name.endswith("__")}


def ancestors(node: ast.ClassDef, classes: Classes, seen: frozenset[str] = frozenset()) -> Iterator[ast.ClassDef]:
    for name in {name_of(base) for base in node.bases} - seen:
        for base in classes.get(name, ()):
            yield base
            yield from ancestors(base, classes, seen | {name})


def overrides(classes: Classes) -> dict[str, list[str]]:
    """The private methods of other classes that each class overrides, as `Base._method`."""
    found: dict[str, list[str]] = {}
    for node in (node for same_name in classes.values() for node in same_name):
        own = private_methods(node)
        for base in ancestors(node, classes):
            theirs = private_methods(base)
            names = [f"{base.name}.{name}" for name in own.keys() & theirs.keys() if not is_abstract(theirs[name])]
            if names:
                found.setdefault(node.name, []).extend(sorted(names))
    return found


def test_no_class_overrides_private_methods_of_another() -> None:
    found = overrides(product_classes())
    assert {name: methods for name, methods in found.items() if name not in EXCEPTIONS} == {}


def test_every_exception_is_a_class() -> None:
    assert EXCEPTIONS.keys() <= product_classes().keys()


def test_an_override_is_detected_through_other_classes_and_an_implementation_is_none() -> None:
    classes = classes_of(
        "class A:\n  def _f(self): return 1\n  @abstractmethod\n  def _g(self): ...\n  def __len__(self): return 0\n"
        "  def _h(self):\n    raise NotImplementedError",
        "class B(a.A): ...\nclass C(B[int]):\n  async def _f(self): ...\n  def _g(self): ...\n  def _h(self): ...\n"
        "  def __len__(self): return 1",
    )
    assert overrides(classes) == {"C": ["A._f"]}
