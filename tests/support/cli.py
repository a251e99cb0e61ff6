"""The `sparklog` command, run in this process, and its output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    pass

COMMAND = [sys.executable, "-m", "sparklog.cli"]
Run = Callable[..., "Result"]


class Result(NamedTuple):
    """Result of a run of the command."""

    returncode: int
    stdout: str
    stderr: str


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("│")]
