"""The machine and the versions of a measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

import psutil

from .kafka import KAFKA_VERSION

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
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + (done.stderr if command[0] == "java" else "") if done.returncode == 0 else ""
