"""The walks of docs/internals/life-of-a-batch.md, as data."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
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


def count_returns(run: Callable[[], object], modules: Mapping[str, str]) -> int:
    """Run a program, and count how often a reader comes back to a module after leaving it.

    The reader enters each function at its first call, and goes back to the caller at its end. Properties and
    constructors are not entered.

    Args:
        run: The program.
        modules: The modules to count, by path in the repository. The value is the module's name for the count: a
            model and the module in whose place it stands have one name.
    """
    stays: list[str] = []
    entered: set[str] = set()

    def module_of(frame: FrameType) -> str | None:
        path = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        return modules.get(path) if path in modules and is_followed(frame) else None

    def on_call(frame: FrameType, event: str, _: Any) -> None:
        module = module_of(frame) if event == "call" else None
        function = f"{module} {frame.f_code.co_qualname}"
        if module is None or function in entered:
            return
        entered.add(function)
        caller = frame.f_back
        while caller is not None and module_of(caller) is None:
            caller = caller.f_back
        for stay in (module if caller is None else module_of(caller), module):
            if stay is not None and stays[-1:] != [stay]:
                stays.append(stay)

    sys.setprofile(on_call)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(stays) - len(set(stays))


def is_followed(frame: FrameType) -> bool:
    """Return True for a function or method, False for a property, a constructor and an inner function."""
    owner: Any = sys.modules[frame.f_globals["__name__"]]
    *classes, name = frame.f_code.co_qualname.split(".")
    if name == "__init__" or "<locals>" in classes or name.startswith("<"):
        return False
    for part in classes:
        owner = getattr(owner, part)
    return not isinstance(inspect.getattr_static(owner, name, None), property)
