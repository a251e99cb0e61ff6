"""Finds limits of real time in tests: waits, options and comparisons that fail a test which is merely slow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LIMIT_S_MIN = 30.0
"""Smallest limit in s that a loaded machine does not exceed."""
WAITS = {
    "result": 0,
    "exception": 0,
    "wait": 0,
    "join": 0,
    "settimeout": 0,
    "timeout": 0,
    "wait_for": 1,
    "acquire": 1,
    "select": 3,
}
"""Methods that wait, with the position of their limit in s."""
OPTIONS = {"timeout", "timeout_s", "within_s", "wait_s", "limit_s", "patience_s", "deadline_s"}
"""Names of arguments and constants that are limits in s."""
CLIENT_OPTIONS = {
    "timeout_ms",
    "request_timeout_ms",
    "default_api_timeout_ms",
    "delivery_timeout_ms",
    "max_block_ms",
    "consumer_timeout_ms",
}
"""Options of clients in ms, after which their calls fail."""
POLLS = {"poll", "poll_batches", "getmany"}
"""Calls that return without an error at the end of their time."""
CLOCKS = {"monotonic", "perf_counter", "time", "monotonic_ns", "perf_counter_ns", "time_ns"}


class Limit(NamedTuple):
    """A limit of real time below LIMIT_S_MIN."""

    function: str
    """Name of the function or class at the top of the module; "" for the module itself."""
    line: int
    text: str
    """The expression."""
    value: ast.expr
    """The limit's expression."""


class _Finder(ast.NodeVisitor):
    def __init__(self, tree: ast.Module) -> None:
        self.limits: list[Limit] = []
        self._function = ""
        self._constants = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant)
        }
        self._times = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and _reads_clock(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def _note(self, node: ast.AST, value: ast.expr, limit_min: float = LIMIT_S_MIN) -> None:
        number = self._constants.get(value.id, value) if isinstance(value, ast.Name) else value
        if not isinstance(number, ast.Constant) or isinstance(number.value, bool):
            return
        if isinstance(number.value, int | float) and 0 < number.value < limit_min:
            line = node.lineno  # type: ignore[attr-defined]
            self.limits.append(Limit(self._function, line, ast.unparse(node), value))

    def visit_Module(self, node: ast.Module) -> None:
        for part in node.body:
            self._function = getattr(part, "name", "")
            self.visit(part)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        position = WAITS.get(name)
        if position is not None and len(node.args) > position and isinstance(node.func, ast.Attribute):
            self._note(node, node.args[position])
        for keyword in node.keywords:
            if keyword.arg in OPTIONS:
                self._note(node, keyword.value)
            if keyword.arg in CLIENT_OPTIONS and name not in POLLS:
                self._note(node, keyword.value, 1000 * LIMIT_S_MIN)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            left, right = node.left, node.comparators[0]
            if isinstance(node.ops[0], ast.Gt | ast.GtE):
                left, right = right, left
            if isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE) and self._is_time(left):
                self._note(node, right)
        self.generic_visit(node)

    def _is_time(self, node: ast.expr) -> bool:
        return _reads_clock(node) or any(isinstance(n, ast.Name) and n.id in self._times for n in ast.walk(node))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add) and isinstance(node.left, ast.Call) and _reads_clock(node.left):  # a deadline
            self._note(node, node.right)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        pairs = [
            *zip(reversed(arguments.args), reversed(arguments.defaults), strict=False),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            if argument.arg in OPTIONS and default is not None:
                self._note(default, default)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """Pass over `while time.monotonic() - began_s < 6`: a duration, which nothing has to keep to."""
        for part in [*node.body, *node.orelse]:
            self.visit(part)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Pass over `not event.wait(0.1)`: a pause, or the statement that the event does not come."""
        if not isinstance(node.op, ast.Not):
            self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        """Pass over blocks that expect the limit to be exceeded."""
        text = " ".join(ast.unparse(item.context_expr) for item in node.items)
        if "raises" not in text or "Timeout" not in text:
            self.generic_visit(node)


def _reads_clock(node: ast.expr) -> bool:
    return any(
        isinstance(part, ast.Call) and ast.unparse(part.func) in {f"time.{clock}" for clock in CLOCKS}
        for part in ast.walk(node)
    )


def limits_in(source: str) -> list[Limit]:
    """Return the limits of real time below LIMIT_S_MIN in a module."""
    tree = ast.parse(source)
    finder = _Finder(tree)
    finder.visit(tree)
    return finder.limits


def limits_of_tests(root: Path, left_out: tuple[str, ...]) -> Iterator[tuple[str, Limit]]:
    """Yield the path and the limits of each module of tests, without the folders `left_out`."""
    for path in sorted((root / "tests").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(left_out):
            yield from ((name, limit) for limit in limits_in(path.read_text(encoding="utf-8")))
