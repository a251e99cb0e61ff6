"""What each fast path is worth: `python -m tests.benchmarks fast-paths`, the figures behind
docs/internals/fast-paths.md.

Both sides are the same checkout. On the side "without" a fast path is switched off from outside, in the broker's
process and in the clients' (`switches`), so the product has no switch for it. Sides take turns, and change the order
each round.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from . import switches
from .context import Context
from .results import Measurement
from .rows.consume import consume
from .rows.latency import end_to_end, round_trips
from .rows.produce import send_batch, send_single

WORTH = 1.15
"""A fast path stays if it is worth that much on one of its figures."""


@dataclass(frozen=True)
class Figure:
    """What one run says, larger or smaller being better."""

    name: str
    larger_is_better: bool
    of: Callable[[Measurement], float]


@dataclass(frozen=True)
class Load:
    """A measurement, and the figures it gives."""

    name: str
    measure: Callable[[Context], Measurement]
    figures: tuple[Figure, ...]


def _extra(key: str) -> Callable[[Measurement], float]:
    return lambda m: float(m.extra[key])


_CPU = Figure("processor time, s", False, lambda m: (m.client_cpu_s or 0) + (m.server_cpu_s or 0))
ROUND_TRIP = Load(
    "one record after the other",
    partial(round_trips, peer=False),
    (Figure("mean, ms", False, lambda m: m.value), Figure("p99, ms", False, _extra("p99_ms")), _CPU),
)
SEND_1K = Load(
    "1,000 records a second",
    partial(end_to_end, rate=1_000, peer=False),
    (Figure("p50, ms", False, _extra("p50_ms")), Figure("p99, ms", False, _extra("p99_ms")), _CPU),
)
PRODUCE_100B = Load(
    "send_batch, 100 B",
    partial(send_batch, value_bytes=100, records=6_000_000),
    (
        Figure("records/s", True, lambda m: m.value),
        Figure("bytes/record", False, lambda m: float(m.bytes_per_record or 0)),
        _CPU,
    ),
)
CONSUME_100B = Load(
    "poll_batches, 100 B",
    partial(consume, value_bytes=100, records=10_000_000, local_read="off"),
    (Figure("records/s", True, lambda m: m.value), _CPU),
)
SEND_SINGLE = Load(
    "send(), 100 B, linger.ms=5", partial(send_single, records=400_000), (Figure("records/s", True, lambda m: m.value),)
)

LOADS: dict[str, tuple[Load, ...]] = {
    "fetch-turn": (ROUND_TRIP, SEND_1K),
    "small-batches": (ROUND_TRIP, SEND_1K),
    "packed-batches": (PRODUCE_100B, CONSUME_100B),
    "inline-appends": (ROUND_TRIP, SEND_1K),
}
"""By the fast path's name, which is that of its switch."""


@contextlib.contextmanager
def _without(name: str | None, directory: Path) -> Iterator[None]:
    """Processes that are started inside have the fast path off; None: they are as they are."""
    if name is None:
        yield
        return
    before = dict(os.environ)
    os.environ |= switches.environment(name, directory)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


@dataclass(frozen=True)
class Outcome:
    """Medians of a figure. `worth`: how many times better it is with the fast path, by the median of the rounds'
    ratios."""

    path: str
    load: str
    figure: str
    with_it: float
    without: float
    ratios: tuple[float, ...]

    @property
    def worth(self) -> float:
        return statistics.median(self.ratios)


def compare(path: str, load: Load, pairs: Sequence[tuple[Measurement, Measurement]]) -> list[Outcome]:
    """Of pairs (with, without)."""
    outcomes = []
    for figure in load.figures:
        found = [(figure.of(a), figure.of(b)) for a, b in pairs]
        ratios = tuple(a / b if figure.larger_is_better else b / a for a, b in found)
        with_it, without = (statistics.median(side) for side in zip(*found, strict=True))
        outcomes.append(Outcome(path, load.name, figure.name, with_it, without, ratios))
    return outcomes


def measure(path: str, rounds: int, scale: float, progress: Callable[[str], None]) -> Iterator[list[Outcome]]:
    """The outcomes load by load; each side has a broker of its own, and one round more than is counted, to warm up."""
    with contextlib.ExitStack() as stack:
        sides: dict[str | None, Context] = {side: stack.enter_context(Context(scale)) for side in (None, path)}
        for load in LOADS[path]:
            pairs = []
            for i in range(rounds + 1):
                order: tuple[str | None, ...] = (None, path) if i % 2 else (path, None)
                found: dict[str | None, Measurement] = {}
                for side in order:
                    progress(f"{path}, {load.name}: {f'round {i}' if i else 'warm-up'}, {side or 'as it is'}")
                    with _without(side, sides[side].scratch):
                        found[side] = load.measure(sides[side])
                if i:
                    pairs.append((found[None], found[path]))
            yield compare(path, load, pairs)


def run_fast_paths(console: Console, names: Sequence[str], *, rounds: int, scale: float) -> int:
    """The command. Raises ValueError for a name that there is not."""
    unknown = [name for name in names if name not in LOADS]
    if unknown:
        raise ValueError(f"there is no fast path {unknown[0]!r}; there are {', '.join(LOADS)}")

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(f"{'fast path':16} {'load':28} {'figure':18} {'with':>12} {'without':>12}  worth  rounds")
    for path in names or LOADS:
        with console.status("") as status:
            for outcomes in measure(path, rounds, scale, status.update):
                for o in outcomes:
                    turns = " ".join(f"{ratio:.2f}" for ratio in o.ratios)
                    mark = "  *" if o.worth >= WORTH else ""
                    say(
                        f"{o.path:16} {o.load:28} {o.figure:18} {o.with_it:12,.3f} {o.without:12,.3f}  "
                        f"{o.worth:5.2f}  {turns}{mark}"
                    )
    return 0
