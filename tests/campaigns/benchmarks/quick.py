"""`make bench-quick`: a few figures without peers, in at most three minutes, to notice a loss of speed.

Every figure is a ratio to a plain loop on the same machine at that moment (compressing the same values, sendfile over
loopback, calling a Python function), so that figures of different machines can be compared. It warns, it does not fail.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from rich.console import Console

from .context import ROOT, Context
from .payloads import read_payloads
from .results import Measurement
from .rows.consume import consume, consume_single, raw_sendfile
from .rows.produce import produce, send_single

COMMITTED = ROOT / "docs" / "benchmarks" / "quick.json"
REPEATS = 9
WARN_BELOW = 0.7
"""A figure below this share of the committed one gets a warning; runs differ by less on a quiet machine."""
_RAW_BYTES = 1_000_000_000
_COMPRESSED_BYTES = 200_000_000


class Figure(NamedTuple):
    """`measure` times `value_bytes` is in the unit of the calibration `base`: bytes/s of values, or calls/s."""

    name: str
    base: str
    value_bytes: int
    measure: Callable[[Context], Measurement]


_OURS = partial(partial, peer=False)
_LISTS: dict[str, Any] = {"value_bytes": 100}
_TABLES: dict[str, Any] = {"value_bytes": 1024, "columnar": True}
FIGURES = (
    Figure("produce 100 B, lists", "sendfile", 100, _OURS(produce, records=3_000_000, **_LISTS)),
    Figure("produce 1 KiB, tables", "sendfile", 1024, _OURS(produce, records=700_000, **_TABLES)),
    Figure("produce 100 B, zstd", "zstd", 100, _OURS(produce, records=2_000_000, compression="zstd", **_LISTS)),
    Figure("send() one by one", "call", 1, _OURS(send_single, records=300_000)),
    Figure("consume 100 B", "sendfile", 100, _OURS(consume, value_bytes=100, records=5_000_000, local_read="off")),
    Figure("consume 1 KiB", "sendfile", 1024, _OURS(consume, value_bytes=1024, records=700_000, local_read="off")),
    Figure("poll() one by one", "call", 1, _OURS(consume_single, records=500_000, filled=5_000_000)),
)


def zstd_bytes_per_s(values: bytes) -> float:
    """Bytes per second that Arrow's zstd compresses."""
    rounds = max(1, _COMPRESSED_BYTES // len(values))
    begun = time.perf_counter()
    for _ in range(rounds):
        pa.compress(values, codec="zstd")
    return rounds * len(values) / (time.perf_counter() - begun)


def calls_per_s() -> float:
    """Calls per second of a Python function with two arguments."""

    def call(topic: str, value: bytes) -> bytes:
        return value

    count, value = 1_000_000, b"x"
    begun = time.perf_counter()
    for _ in range(count):
        call("topic", value)
    return count / (time.perf_counter() - begun)


def compare(found: Mapping[str, float], committed: Mapping[str, float]) -> list[tuple[str, float, float | None, bool]]:
    """Per figure: name, ratio, share of the committed ratio (None: not committed), and True for a warning."""
    shares = {name: ratio / committed[name] if committed.get(name) else None for name, ratio in found.items()}
    return [(name, found[name], share, share is not None and share < WARN_BELOW) for name, share in shares.items()]


def measure(context: Context, progress: Callable[[str], None]) -> dict[str, float]:
    """Every figure's median ratio; calibration and figure take turns."""
    calibrations: dict[str, Callable[[], float]] = {
        "zstd": lambda: zstd_bytes_per_s(b"".join(read_payloads(context.payload(100)))),
        "call": calls_per_s,
        "sendfile": lambda: raw_sendfile(context, total_bytes=_RAW_BYTES).value * 1e6,
    }
    ratios: dict[str, list[float]] = {f.name: [] for f in FIGURES}
    for repeat in range(REPEATS + 1):
        for figure in FIGURES:
            progress(f"{figure.name}: {f'{repeat} of {REPEATS}' if repeat else 'warm-up'}")
            base = calibrations[figure.base]()
            value = figure.measure(context).value * figure.value_bytes
            if repeat:
                ratios[figure.name].append(value / base)
    return {name: statistics.median(values) for name, values in ratios.items()}


def read_committed(path: Path = COMMITTED) -> dict[str, float]:
    """The committed ratios by figure; empty without a file. Raises msgspec.MsgspecError for a damaged file."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, float]])["ratios"] if path.exists() else {}


def write_committed(ratios: Mapping[str, float], path: Path = COMMITTED) -> None:
    """Write the ratios to be committed."""
    rounded = {"ratios": {name: round(ratio, 4) for name, ratio in ratios.items()}}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(rounded), indent=1) + b"\n")


def run_quick(console: Console, *, update: bool) -> int:
    """Measure and print. Always 0: figures vary, and a person has to look."""
    begun = time.perf_counter()
    with Context() as context, console.status("") as status:
        found = measure(context, status.update)
    bases = {f.name: f.base for f in FIGURES}
    for name, ratio, share, warn in compare(found, read_committed()):
        beside = "new" if share is None else f"{share:.2f} of the committed figure"
        console.print(f"{name:24} {ratio:8.3f} of {bases[name]:9} {beside}{'   <-- WARNING: slower' if warn else ''}")
    console.print(f"{time.perf_counter() - begun:.0f} s")
    if update:
        write_committed(found)
        console.print(f"committed figures are in {COMMITTED.relative_to(ROOT)} now")
    return 0
