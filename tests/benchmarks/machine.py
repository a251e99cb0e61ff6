"""Where and with what was measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

import psutil

from .kafka import KAFKA_VERSION, TOKEN_JAR_VARIABLE

_PACKAGES = ("sparklog", "pyarrow", "numpy", "pyspark", "confluent-kafka", "hdrhistogram", "crc32c")


def machine() -> dict[str, str]:
    """Processor, cores, memory, kernel."""
    model = re.search(r"(?m)^model name\s*: (.*)$", _text(Path("/proc/cpuinfo")))
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
    if os.environ.get(TOKEN_JAR_VARIABLE):  # the peer is not quite what Maven Central has: say so beside its figures
        found["spark-token-provider-kafka"] = f"not Maven Central's but {Path(os.environ[TOKEN_JAR_VARIABLE]).name}"
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + (done.stderr if command[0] == "java" else "") if done.returncode == 0 else ""
