"""The size of the house: lines by folder, the long files, functions and classes, and identifiers that need decoding.

`make size` prints it. `tests/unit/test_proportions.py` holds the limits.
"""

from __future__ import annotations

import ast
import functools
import gc
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("sparklog", "broker_daemon", "datasource")
CAMPAIGNS = ("tests/campaigns/",)
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80
CLASS_METHODS_MAX = 40
VAGUE_WORDS = frozenset(
    [
        "what",
        "who",
        "nobody",
        "nothing",
        "found",
        "known",
        "wanted",
        "given",
        "left",
        "made",
        "there",
        "asked",
        "told",
        "came",
        "whoever",
        "whatever",
    ]
)
"""Words that stand in the place of a noun or verb. An identifier with one of them has to be decoded."""
SIDES = re.compile(r"left_(outer|join|side|over)|_left_outer")
"""Names in which "left" is the opposite of "right"."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Item(NamedTuple):
    """A file, function or class with its size."""

    place: str
    """`path`, or `path::name`."""
    size: int


def product_files() -> list[Path]:
    """Return the modules of the product."""
    return [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]


def files_of_tests() -> list[Path]:
    """Return the modules of the tests without the campaigns."""
    paths = sorted((ROOT / "tests").rglob("*.py"))
    return [path for path in paths if not name_of(path).startswith(CAMPAIGNS)]


def campaign_files() -> list[Path]:
    """Return the modules of campaigns, fuzz and benchmarks."""
    return [path for path in sorted((ROOT / "tests").rglob("*.py")) if name_of(path).startswith(CAMPAIGNS)]


def name_of(path: Path) -> str:
    """Return the path in the repository."""
    return path.relative_to(ROOT).as_posix()


def lines_of(paths: list[Path]) -> int:
    """Return the number of lines of all files together."""
    return sum(len(path.read_bytes().splitlines()) for path in paths)


def long_files(paths: list[Path]) -> list[Item]:
    """Return the files with more than FILE_LINES_MAX lines."""
    sizes = [Item(name_of(path), lines_of([path])) for path in paths]
    return [item for item in sizes if item.size > FILE_LINES_MAX]


def long_functions(path: Path) -> Iterator[Item]:
    """Yield the functions with more than FUNCTION_LINES_MAX lines, docstring included."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, Function):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES_MAX:
                yield Item(f"{name_of(path)}::{node.name}", size)


def large_classes(path: Path) -> Iterator[Item]:
    """Yield the classes with more than CLASS_METHODS_MAX methods."""
    for node in _classes(path):
        size = sum(isinstance(part, Function) for part in node.body)
        if size > CLASS_METHODS_MAX:
            yield Item(f"{name_of(path)}::{node.name}", size)


def late_attributes(path: Path) -> Iterator[Item]:
    """Yield the attributes that a class sets first outside of `__init__`, with the line of the first assignment."""
    for node in _classes(path):
        early = set(_all_declared(path, node))
        for method in (part for part in node.body if isinstance(part, Function) and part.name != "__init__"):
            for name, line in _assigned(method):
                if name not in early:
                    early.add(name)
                    yield Item(f"{name_of(path)}::{node.name}.{name}", line)


def _all_declared(path: Path, node: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that the class and its base classes in the product declare or set in `__init__`."""
    yield from _declared(node)
    for base in (part.id for part in node.bases if isinstance(part, ast.Name)):
        for origin in (path, *_origins_of(path, base)):
            for other in _classes(origin):
                if other.name == base:
                    yield from _all_declared(origin, other)


def _origins_of(path: Path, name: str) -> Iterator[Path]:
    """Yield the product's module from which the module at `path` imports `name`."""
    for node in _imports(path):
        if any(alias.name == name for alias in node.names):
            module = (node.module or "").replace(".", "/") + ".py"
            roots = (ROOT, *(ROOT / folder for folder in PRODUCT))
            yield from (root / module for root in roots if (root / module).exists())


@functools.cache
def _classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(_tree(path)) if isinstance(node, ast.ClassDef)]


@functools.cache
def _imports(path: Path) -> list[ast.ImportFrom]:
    return [node for node in ast.walk(_tree(path)) if isinstance(node, ast.ImportFrom)]


def _declared(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id
        elif isinstance(part, ast.Assign):
            yield from (target.id for target in part.targets if isinstance(target, ast.Name))
        elif isinstance(part, Function) and part.name == "__init__":
            yield from (name for name, _ in _assigned(part))
        elif isinstance(part, Function) and any(ast.unparse(d).endswith(".setter") for d in part.decorator_list):
            yield part.name


def _assigned(method: Function) -> Iterator[tuple[str, int]]:
    """Yield the attributes of the object that the method assigns, with their lines."""
    if not method.args.args or any(ast.unparse(decorator) == "staticmethod" for decorator in method.decorator_list):
        return
    me = method.args.args[0].arg
    attributes = [node for node in ast.walk(method) if isinstance(node, ast.Attribute)]
    for node in attributes:
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == me:
            yield node.attr, node.lineno


def vague_identifiers(path: Path) -> Counter[str]:
    """Return how often a module binds or defines each identifier that contains a word of VAGUE_WORDS: functions,
    classes, parameters, variables and attributes."""
    found: Counter[str] = Counter()
    for node in ast.walk(_tree(path)):
        if isinstance(node, Function | ast.ClassDef):
            found[node.name] += 1
        elif isinstance(node, ast.arg):
            found[node.arg] += 1
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found[node.attr] += 1
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found[node.name] += 1
    return Counter({name: count for name, count in found.items() if is_vague(name)})


def is_vague(identifier: str) -> bool:
    """Return True if the identifier has a word of VAGUE_WORDS."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", SIDES.sub("", identifier))
    return any(word.lower() in VAGUE_WORDS for word in words)


def _tree(path: Path) -> ast.Module:
    """Return a module's tree. Those of the product, which all counts read, are kept."""
    return _parsed(path) if path.is_relative_to(ROOT / "tests") else _kept_tree(path)


@functools.cache
def _kept_tree(path: Path) -> ast.Module:
    return _parsed(path)


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@contextmanager
def kept_trees() -> Iterator[None]:
    """Keep the trees of the product's modules during the block, and start no garbage collection, which would walk over
    millions of nodes."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for cache in (_kept_tree, _classes, _imports):
            cache.cache_clear()
        if is_collecting:
            gc.enable()


def code_lines(path: Path) -> int:
    """Return the number of lines that have code: without comments, docstrings and empty lines."""
    text = path.read_text(encoding="utf-8")
    docs = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    ignored = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in ignored:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docs)


def main() -> int:
    """Print the counts."""
    with kept_trees():
        return _print_counts()


def _print_counts() -> int:
    product, tests, campaigns = product_files(), files_of_tests(), campaign_files()
    print(f"product lines        {lines_of(product):>8}   of code {sum(map(code_lines, product))}")
    for name, count in sorted(_by_part(product).items(), key=lambda entry: -entry[1]):
        print(f"  {name:<28} {count:>6}")
    print(f"test lines           {lines_of(tests):>8}   of code {sum(map(code_lines, tests))}")
    print(f"campaign lines       {lines_of(campaigns):>8}")
    for title, items in (
        (f"files > {FILE_LINES_MAX} lines", long_files(product)),
        (f"functions > {FUNCTION_LINES_MAX} lines", [item for path in product for item in long_functions(path)]),
        (f"classes > {CLASS_METHODS_MAX} methods", [item for path in product for item in large_classes(path)]),
        ("attributes first set outside __init__", [item for path in product for item in late_attributes(path)]),
        (f"files of tests > {FILE_LINES_MAX} lines", long_files(tests)),
    ):
        print(f"{title}: {len(items)}")
        for item in sorted(items, key=lambda item: -item.size):
            print(f"  {item.size:>6} {item.place}")
    vague = sum((vague_identifiers(path) for path in product), Counter[str]())
    print(f"identifiers with words that need decoding: {sum(vague.values())}")
    print("  " + ", ".join(f"{name} {count}" for name, count in vague.most_common(40)))
    names = [n for path in [*tests, *campaigns] for n in vague_identifiers(path).elements() if n.startswith("test_")]
    print(f"names of tests with such words: {len(names)}")
    return 0


def _by_part(paths: list[Path]) -> Counter[str]:
    parts: Counter[str] = Counter()
    for path in paths:
        place = path.relative_to(ROOT).parts
        depth = 2 if place[0] == "sparklog" else 1
        parts["/".join(place[:depth])] += lines_of([path])
    return parts


if __name__ == "__main__":
    sys.exit(main())
