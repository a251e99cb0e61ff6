"""The walks of docs/internals/life-of-a-batch.md, as data."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "internals" / "life-of-a-batch.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| (\d+) \| `([^`]+)` \| `([^`]+)` \| (.+) \|$", re.MULTILINE)


class Row(NamedTuple):
    number: int
    module: str
    function: str


def walks() -> dict[str, list[list[Row]]]:
    """Tables by heading; a heading without any is left out."""
    found: dict[str, list[list[Row]]] = {}
    for section in re.split(r"(?m)^## ", PAGE)[1:]:
        heading, _, text = section.partition("\n")
        for number, module, function, _ in _ROW.findall(text):
            tables = found.setdefault(heading, [])
            if number == "1":
                tables.append([])
            tables[-1].append(Row(int(number), module, function))
    return found


def rows() -> list[Row]:
    return [row for tables in walks().values() for table in tables for row in table]


def modules_of(heading: str) -> dict[str, str]:
    """Return the modules that the tables of a heading name, by path, with their names for `Returns`."""
    return {row.module: row.module for table in walks()[heading] for row in table}


class Returns:
    """The stays of a reader in modules: the one definition of returns, for every walk.

    The reader enters each function at its first call, and goes back to the caller at its end. Properties and
    constructors are not entered. A return is a stay in a module that the reader has left before.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        """`modules`: the modules to count, by path in the repository. The value is the module's name for the count: a
        model and the module in whose place it stands have one name."""
        self._modules = modules
        self._entered: set[str] = set()
        self.stays: list[str] = []

    @property
    def count(self) -> int:
        return len(self.stays) - len(set(self.stays))

    def on_call(self, frame: FrameType, event: str, _: Any) -> None:
        """Enter a called function; for `sys.setprofile`."""
        module = self._module_of(frame) if event == "call" else None
        function = f"{module} {frame.f_code.co_qualname}"
        if module is None or function in self._entered:
            return
        self._entered.add(function)
        caller = frame.f_back
        while caller is not None and self._module_of(caller) is None:
            caller = caller.f_back
        for stay in (module if caller is None else self._module_of(caller), module):
            if stay is not None and self.stays[-1:] != [stay]:
                self.stays.append(stay)

    def _module_of(self, frame: FrameType) -> str | None:
        path = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        return self._modules.get(path) if path in self._modules and is_followed(frame) else None


@contextmanager
def returns_in(modules: Mapping[str, str]) -> Iterator[Returns]:
    """Count the returns of the calls inside the context, on this thread."""
    returns = Returns(modules)
    sys.setprofile(returns.on_call)
    try:
        yield returns
    finally:
        sys.setprofile(None)


def count_returns(run: Callable[[], object], modules: Mapping[str, str]) -> int:
    """Run a program, and return the number of its returns."""
    with returns_in(modules) as returns:
        run()
    return returns.count


def is_followed(frame: FrameType) -> bool:
    """Return True for a function or method, False for a property, a constructor and an inner function."""
    owner: Any = sys.modules[frame.f_globals["__name__"]]
    *classes, name = frame.f_code.co_qualname.split(".")
    if name == "__init__" or "<locals>" in classes or name.startswith("<"):
        return False
    for part in classes:
        owner = getattr(owner, part)
    return not isinstance(inspect.getattr_static(owner, name, None), property)
