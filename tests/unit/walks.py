"""The walks of docs/internals/life-of-a-batch.md, as data."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WALKS = (ROOT / "docs" / "internals" / "life-of-a-batch.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| (\d+) \| `([^`]+)` \| `([^`]+)` \| (.+) \|$", re.MULTILINE)


def tables(text: str) -> list[list[tuple[int, str, str]]]:
    """(number, module, function) of each row, by table."""
    found: list[list[tuple[int, str, str]]] = []
    for number, module, function, _ in _ROW.findall(text):
        if number == "1":
            found.append([])
        found[-1].append((int(number), module, function))
    return found
