"""The worth of each fast path (`python -m tests.campaigns.benchmarks fast-paths`), for docs/internals/fast-paths.md.

Both sides are the same checkout. On the side "without", `switches` takes a path out of the broker's process and out of
the clients', so that the product has no switch for it. Sides take turns, and change the order each round.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple
from unittest import mock

from rich.console import Console

from . import campaign, switches
from .context import Context
from .results import Measurement
from .rows import Row
from .rows.consume import consume
from .rows.latency import end_to_end, round_trips
from .rows.produce import produce

WORTH = 1.15
"""A fast path stays if one of its figures is that much better with it."""


class Figure(NamedTuple):
    """A figure of a run; larger or smaller is better."""

    name: str
    larger_is_better: bool
    of: Callable[[Measurement], float]


class Load(NamedTuple):
    """A measurement and its figures."""

    name: str
    measure: Callable[[Context], Measurement]
    figures: tuple[Figure, ...]


_CPU = Figure("processor time, s", False, lambda m: (m.client_cpu_s or 0) + (m.server_cpu_s or 0))
_RATE = Figure("records/s", True, lambda m: m.value)
_SIZE = Figure("bytes/record", False, lambda m: m.bytes_per_record or 0)
_MEAN = Figure("mean, ms", False, lambda m: m.value)
_P50 = Figure("p50, ms", False, lambda m: float(m.extra["p50_ms"]))
_P99 = Figure("p99, ms", False, lambda m: float(m.extra["p99_ms"]))
_OURS = partial(partial, peer=False)
ROUND_TRIP = Load("one record after the other", _OURS(round_trips), (_MEAN, _P99, _CPU))
SEND_1K = Load("1,000 records a second", _OURS(end_to_end, rate=1_000), (_P50, _P99, _CPU))
PRODUCE_100B = Load("send_batch, 100 B", _OURS(produce, value_bytes=100, records=6_000_000), (_RATE, _SIZE, _CPU))
CONSUME_100B = Load(
    "poll_batches, 100 B", _OURS(consume, value_bytes=100, records=10_000_000, local_read="off"), (_RATE, _CPU)
)
LOADS: dict[str, tuple[Load, ...]] = {
    "fetch-turn": (ROUND_TRIP, SEND_1K),
    "small-batches": (ROUND_TRIP, SEND_1K),
    "packed-batches": (PRODUCE_100B, CONSUME_100B),
    "inline-appends": (ROUND_TRIP, SEND_1K),
}
"""By the fast path's name, which is that of its switch."""


def ratios(figure: Figure, pairs: Sequence[tuple[Measurement, Measurement]]) -> list[float]:
    """The factor by which a figure is better with the fast path, for each pair (with, without)."""
    found = [(figure.of(a), figure.of(b)) for a, b in pairs]
    return [a / b if figure.larger_is_better else b / a for a, b in found]


def measure(
    path: str, load: Load, sides: tuple[Context, Context], rounds: int, progress: Callable[[str], None]
) -> list[tuple[Measurement, Measurement]]:
    """Pairs (with, without). Each side has a broker of its own."""

    def with_path(_: Context) -> Measurement:
        return load.measure(sides[0])

    def without(_: Context) -> Measurement:
        with mock.patch.dict(os.environ, switches.environment(path, sides[1].scratch)):
            return load.measure(sides[1])

    row = Row(f"{path}, {load.name}", "", "without it", "", None, with_path, without)
    found = campaign.run_row(row, sides[0], rounds, progress, {}, {})
    if found.failure:
        raise ValueError(f"{row.name}: {found.failure}")
    return list(zip(found.sparklog, found.other, strict=True))


def run_fast_paths(console: Console, names: Sequence[str], *, rounds: int, scale: float) -> int:
    """Print the worth of fast paths. Raises ValueError for an unknown name and for a failed measurement."""
    unknown = [name for name in names if name not in LOADS]
    if unknown:
        raise ValueError(f"unknown fast path {unknown[0]!r}: choose from {', '.join(LOADS)}")
    console.print(f"{'fast path':16} {'load':28} {'figure':18} {'with':>12} {'without':>12}  worth  rounds")
    for path in names or LOADS:
        with Context(scale) as one, Context(scale) as other, console.status("") as status:
            for load in LOADS[path]:
                pairs = measure(path, load, (one, other), rounds, status.update)
                for figure in load.figures:
                    turns = ratios(figure, pairs)
                    worth = statistics.median(turns)
                    a, b = (statistics.median(map(figure.of, side)) for side in zip(*pairs, strict=True))
                    console.print(
                        f"{path:16} {load.name:28} {figure.name:18} {a:12,.3f} {b:12,.3f}  {worth:5.2f}  "
                        f"{' '.join(f'{ratio:.2f}' for ratio in turns)}{'  *' if worth >= WORTH else ''}"
                    )
    return 0
