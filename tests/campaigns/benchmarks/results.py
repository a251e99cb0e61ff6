"""Measurements, their statistics, and the JSON files that keep them.

Each row has a file, written when the row is done: a campaign that is interrupted loses one row, and rows can be
measured one by one. An unknown or missing field of a file is an error.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run of one side. `value` is in the row's unit; the other fields are None where they were not measured.

    `client_cpu_s` is the client process from start to end, `server_cpu_s` the server's share meanwhile;
    `*_rss_bytes` resident memory (client: its peak). `extra` holds the other figures of the run, units in the names.
    """

    value: float
    client_cpu_s: float | None = None
    server_cpu_s: float | None = None
    client_rss_bytes: int | None = None
    server_rss_bytes: int | None = None
    bytes_per_record: float | None = None
    load_before: float | None = None
    extra: dict[str, float] = {}


class Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bound of the ratio sparklog / peer of the medians."""

    ratio: float
    at_least: bool

    def met(self, ratio: float) -> bool:
        return ratio >= self.ratio if self.at_least else ratio <= self.ratio

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.ratio:g}x"


class RowResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row as measured: all pairs in the order they ran (the warm-up is not among them), or why it failed."""

    name: str
    title: str
    peer: str
    unit: str
    goal: Goal | None
    scale: float
    settings: dict[str, str]
    machine: dict[str, str]
    versions: dict[str, str]
    measured_at: str
    sparklog: list[Measurement]
    other: list[Measurement]
    failure: str | None = None

    @property
    def ratio(self) -> float | None:
        """Ratio of the medians; None when the row failed or the peer's median is 0."""
        if self.failure or not self.sparklog or not self.other:
            return None
        ours, peer = (statistics.median(m.value for m in side) for side in (self.sparklog, self.other))
        return ours / peer if peer else None

    @property
    def goal_met(self) -> bool | None:
        """None: there is no goal, or no ratio to compare with it."""
        return None if self.goal is None or self.ratio is None else self.goal.met(self.ratio)


def is_rate(unit: str) -> bool:
    """True if more is better: of rates, not of times, sizes and costs."""
    return unit.split(" ")[0].endswith("/s")


def summarize(values: Iterable[float]) -> tuple[float, float, float]:
    """Minimum, median and maximum. Raises ValueError without values, or if one of them is not finite."""
    found = list(values)
    if not found:
        raise ValueError("nothing was measured")
    if not all(math.isfinite(v) for v in found):
        raise ValueError(f"not all of {found} are finite")
    return min(found), statistics.median(found), max(found)


def median_field(measurements: Sequence[Measurement], field: str) -> float | None:
    """Median of a field over the runs that have it; None when none has."""
    values = [v for m in measurements if (v := getattr(m, field)) is not None]
    return statistics.median(values) if values else None


def write_row(result: RowResult, directory: Path) -> Path:
    """Writes `<directory>/<name>.json` in one step."""
    if not re.fullmatch(r"[a-z0-9-]+", result.name):
        raise ValueError(f"{result.name!r} cannot be a row's name: small letters, digits and - only")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{result.name}.json"
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    partial.rename(path)
    return path


def read_rows(directory: Path) -> dict[str, RowResult]:
    """Every row kept in `directory`. Raises ValueError naming the file that is not one."""
    found: dict[str, RowResult] = {}
    for path in sorted(directory.glob("*.json")):
        try:
            row = msgspec.json.decode(path.read_bytes(), type=RowResult)
        except msgspec.MsgspecError as e:
            raise ValueError(f"{path} is not a result of this harness ({e}): measure the row anew") from e
        found[row.name] = row
    return found
