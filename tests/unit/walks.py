"""The walks of docs/internals/life-of-a-batch.md, as data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

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
