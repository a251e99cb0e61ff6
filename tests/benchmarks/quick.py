"""`make bench-quick`: has something become slower? A few figures without peers, in at most three minutes.

Every figure is a ratio to what the same machine does in a plain loop at that moment (copying memory, sendfile over
loopback, calling a Python function), so that figures of different machines can be compared. It warns, it does not fail.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console

from .context import ROOT, Context
from .rows.consume import consume, raw_sendfile
from .rows.produce import send_batch, send_single

COMMITTED = ROOT / "docs" / "benchmarks" / "quick.json"
REPEATS = 3
WARN_BELOW = 0.7
"""A figure below this share of the committed one is pointed out; runs differ by less on a quiet machine."""
_RAW_BYTES = 1_000_000_000
_COPY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Figure:
    """`measure` in the unit of calibration `base`: bytes/s of values, or calls/s."""

    name: str
    base: str
    measure: Callable[[Context], float]


class Committed(msgspec.Struct, forbid_unknown_fields=True):
    """The file: ratios by figure."""

    ratios: dict[str, float]


FIGURES = (
    Figure("produce 100 B, lists", "sendfile", lambda c: 100 * send_batch(c, value_bytes=100, records=3_000_000).value),
    Figure(
        "produce 1 KiB, tables",
        "sendfile",
        lambda c: 1024 * send_batch(c, value_bytes=1024, records=700_000, columnar=True).value,
    ),
    Figure(
        "produce 100 B, zstd",
        "memcpy",
        lambda c: 100 * send_batch(c, value_bytes=100, records=2_000_000, compression="zstd").value,
    ),
    Figure("send() one by one", "call", lambda c: send_single(c, records=300_000).value),
    Figure(
        "consume 100 B",
        "sendfile",
        lambda c: 100 * consume(c, value_bytes=100, records=5_000_000, local_read="off").value,
    ),
    Figure(
        "consume 1 KiB",
        "sendfile",
        lambda c: 1024 * consume(c, value_bytes=1024, records=700_000, local_read="off").value,
    ),
    Figure(
        "poll() one by one",
        "call",
        lambda c: consume(c, value_bytes=100, records=500_000, program="sparklog_poll", filled=5_000_000).value,
    ),
)


def memcpy_bytes_per_s() -> float:
    source, target = np.ones(_COPY_BYTES, np.uint8), np.empty(_COPY_BYTES, np.uint8)
    np.copyto(target, source)
    begun = time.perf_counter()
    for _ in range(10):
        np.copyto(target, source)
    return 10 * _COPY_BYTES / (time.perf_counter() - begun)


def calls_per_s() -> float:
    def call(topic: str, value: bytes) -> bytes:
        return value

    count, value = 1_000_000, b"x"
    begun = time.perf_counter()
    for _ in range(count):
        call("topic", value)
    return count / (time.perf_counter() - begun)


def compare(found: Mapping[str, float], committed: Mapping[str, float]) -> list[tuple[str, float, float | None, bool]]:
    """Per figure: name, ratio, share of the committed ratio (None: it has none), whether that calls for a warning."""
    rows = []
    for name, ratio in found.items():
        before = committed.get(name)
        share = ratio / before if before else None
        rows.append((name, ratio, share, share is not None and share < WARN_BELOW))
    return rows


def measure(context: Context, progress: Callable[[str], None]) -> dict[str, float]:
    """Every figure's median ratio; calibration and figure take turns."""
    calibrations: dict[str, Callable[[], float]] = {
        "memcpy": memcpy_bytes_per_s,
        "call": calls_per_s,
        "sendfile": lambda: raw_sendfile(context, total_bytes=_RAW_BYTES).value * 1e6,
    }
    ratios: dict[str, list[float]] = {f.name: [] for f in FIGURES}
    for repeat in range(REPEATS + 1):
        for figure in FIGURES:
            progress(f"{figure.name}: {'warm-up' if repeat == 0 else f'{repeat} of {REPEATS}'}")
            base = calibrations[figure.base]()
            value = figure.measure(context)
            if repeat:
                ratios[figure.name].append(value / base)
    return {name: statistics.median(values) for name, values in ratios.items()}


def read_committed(path: Path = COMMITTED) -> dict[str, float]:
    """The committed ratios; none when the file is not there yet. Raises msgspec.MsgspecError for a damaged one."""
    return msgspec.json.decode(path.read_bytes(), type=Committed).ratios if path.exists() else {}


def write_committed(ratios: Mapping[str, float], path: Path = COMMITTED) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rounded = Committed({name: round(ratio, 4) for name, ratio in ratios.items()})
    path.write_bytes(msgspec.json.format(msgspec.json.encode(rounded), indent=1) + b"\n")


def run_quick(console: Console, *, update: bool) -> int:
    """The command. Always 0: figures vary, a person has to look."""
    committed = read_committed()
    begun = time.perf_counter()
    with Context() as context, console.status("") as status:
        found = measure(context, status.update)
    bases = {f.name: f.base for f in FIGURES}
    for name, ratio, share, warn in compare(found, committed):
        beside = "new" if share is None else f"{share:.2f} of the committed figure"
        mark = "   <-- WARNING: slower" if warn else ""
        line = f"{name:24} {ratio:8.3f} of {bases[name]:9} {beside}{mark}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"{time.perf_counter() - begun:.0f} s", highlight=False)
    if update:
        write_committed(found)
        console.print(f"committed figures are in {COMMITTED.relative_to(ROOT)} now", highlight=False)
    return 0
