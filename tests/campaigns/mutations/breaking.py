"""Random breaks of the product's rules: boundaries, refusals and conditions, each by one small change of the source."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PRODUCT = ("sparklog", "broker_daemon/sparklog_broker", "datasource/pyspark_sparklog")
BOUNDARIES = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


class Break(NamedTuple):
    """One change of a product file."""

    file: str
    old: str
    """Text that occurs once in the file."""
    new: str
    """Text in its place."""
    tests: tuple[str, ...]
    """Paths of the tests that find the change; empty for those of the file's folder."""
    rule: str = ""
    """The rule in words."""


def random_breaks(root: Path, seed: int, count: int, folders: tuple[str, ...]) -> list[Break]:
    """Return `count` breaks in files of `folders`, with equal chances for each folder, then for each file and place."""
    rng = random.Random(seed)
    by_folder = {
        folder: [path for path in sorted((root / folder).rglob("*.py")) if "testing" not in path.parts]
        for folder in folders
    }
    found: list[Break] = []
    while len(found) < count:
        path = rng.choice(by_folder[folders[len(found) % len(folders)]])
        source = path.read_text(encoding="utf-8")
        places = list(_places(source))
        if places:
            old, new = rng.choice(places)
            found.append(Break(path.relative_to(root).as_posix(), old, new, ()))
    return found


def _places(source: str) -> Iterator[tuple[str, str]]:
    """Yield old and new text of each possible break. The old text is made of whole lines, and occurs once."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in BOUNDARIES:
            left, right = node.left, node.comparators[0]
            if left.end_lineno == right.lineno:
                kind = type(node.ops[0])
                yield from _edit(lines, right.lineno, _end(left), right.col_offset, SIGNS[kind], BOUNDARIES[kind])
        elif isinstance(node, ast.If) and _refuses(node.body) and node.test.lineno == node.test.end_lineno:
            test = ast.get_source_segment(source, node.test) or ""
            yield from _edit(lines, node.test.lineno, node.test.col_offset, _end(node.test), test, "False")
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) and node.lineno == node.end_lineno:
            start, end = _end(node.values[-2]), _end(node.values[-1])
            text = lines[node.lineno - 1].encode()[start:end].decode()
            if text.count("(") == text.count(")"):
                yield from _edit(lines, node.lineno, start, end, text, "")


def _end(node: ast.expr) -> int:
    assert node.end_col_offset is not None
    return node.end_col_offset


def _refuses(body: list[ast.stmt]) -> bool:
    last = body[-1]
    is_false = isinstance(last, ast.Return) and isinstance(last.value, ast.Constant) and last.value.value is False
    return len(body) == 1 and (isinstance(last, ast.Raise) or is_false)


def _edit(lines: list[str], line: int, start: int, end: int, old: str, new: str) -> Iterator[tuple[str, str]]:
    """Yield the edit of one line, with as many lines before it as make the old text unique."""
    text = lines[line - 1].encode()
    if text.lstrip().startswith(b"assert "):
        return
    changed = (text[:start] + text[start:end].replace(old.encode(), new.encode(), 1) + text[end:]).decode()
    whole = "".join(lines)
    for first in range(line - 1, max(-1, line - 6), -1):
        before = "".join(lines[first : line - 1])
        if whole.count(before + text.decode()) == 1:
            yield before + text.decode(), before + changed
            return
