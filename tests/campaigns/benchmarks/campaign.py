"""Runs rows: a discarded warm-up of both sides, then pairs in turn, the side that begins alternating."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.kafka import KAFKA_VERSION

from .context import Context
from .results import Measurement, RowResult, write_row
from .rows import Row

PAIRS = 5


def run_row(
    row: Row,
    context: Context,
    pairs: int,
    progress: Callable[[str], None],
    machine: Mapping[str, str],
    versions: Mapping[str, str],
) -> RowResult:
    """Measure a row. A failure is in the result, with the pairs before it; it does not end the campaign."""
    sides: list[tuple[list[Measurement], Callable[[Context], Measurement], str]]
    sides = [([], row.sparklog, "sparklog"), ([], row.other, row.peer)]
    failure = None
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        for pair in range(pairs + 1):
            # the side that begins must not matter
            for kept, measure, label in sides if pair % 2 == 0 else sides[::-1]:
                progress(f"{row.name}: {f'pair {pair} of {pairs}' if pair else 'warm-up'}, {label}")
                found = measure(context)
                if pair:
                    kept.append(found)
    except Exception as e:  # noqa: BLE001
        failure = _reason(e)
    try:
        context.end_row()
    except Exception as e:  # noqa: BLE001
        failure = failure or f"while releasing its resources: {_reason(e)}"
    return RowResult(
        row.name, row.title, row.peer, row.unit, row.goal, context.scale, dict(row.settings), dict(machine),
        dict(versions), at, sides[0][0], sides[1][0], failure,
    )  # fmt: skip


def _reason(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def run_rows(
    rows: Sequence[Row],
    context: Context,
    directory: Path,
    pairs: int,
    progress: Callable[[str], None],
    machine: Mapping[str, str],
    versions: Mapping[str, str],
) -> Iterator[RowResult]:
    """Measure rows one after the other, and write each result to `directory` before the next row begins."""
    for row in rows:
        result = run_row(row, context, pairs, progress, machine, versions)
        write_row(result, directory)
        yield result


_PACKAGES = ("sparklog", "pyarrow", "numpy", "pyspark", "confluent-kafka", "hdrhistogram", "crc32c")


def machine() -> dict[str, str]:
    """Processor, cores, memory, kernel."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"(?m)^model name\s*: (.*)$", info.read_text() if info.exists() else "")
    return {
        "processor": model[1] if model else platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Python, packages, Java, Kafka, and the commit that was measured."""
    found = {"python": platform.python_version(), "kafka": KAFKA_VERSION}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    java = _output(["java", "-version"])
    found["java"] = java.splitlines()[0] if java else "not installed"
    commit = _output(["git", "rev-parse", "--short", "HEAD"]).strip()
    changed = _output(["git", "status", "--porcelain", "--untracked-files=no"]).strip()
    found["commit"] = (commit or "unknown") + (" with changes" if changed else "")
    return found


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout or done.stderr  # java writes its version to stderr
