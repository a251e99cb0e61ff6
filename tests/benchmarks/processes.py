"""Processes that are measured: what they cost in processor time and memory."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_POLL_S = 0.01
_WORDS_KEPT = 2000


class MeasurementError(Exception):
    """A measurement that could not be made; the message says why."""


@dataclass(frozen=True)
class Usage:
    """Processor time of a process and its descendants, and their resident memory."""

    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True)
class Finished:
    """A process that ended well. `cpu_s` covers its whole life, also the start of its interpreter or JVM."""

    stdout: str
    stderr: str
    cpu_s: float
    peak_rss_bytes: int


def usage(pid: int) -> Usage:
    """What process `pid` and its descendants have used so far. Raises MeasurementError when it is gone."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess as e:
        raise MeasurementError(f"process {pid} ended while it was measured") from e
    cpu_s, rss_bytes = 0.0, 0
    for process in tree:
        try:
            times, memory = process.cpu_times(), process.memory_info()
        except psutil.NoSuchProcess:
            continue  # a worker that ended between the two calls
        # children_*: descendants that ended and were waited for, so nobody is counted twice
        cpu_s += times.user + times.system + times.children_user + times.children_system
        rss_bytes += memory.rss
    return Usage(cpu_s, rss_bytes)


def total_usage(pids: Sequence[int]) -> Usage:
    """Of several processes. Raises MeasurementError when one is gone."""
    found = [usage(pid) for pid in pids]
    return Usage(sum(u.cpu_s for u in found), sum(u.rss_bytes for u in found))


def run(command: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Finished:
    """Runs `command` to its end. Raises MeasurementError with its last words when it fails or takes too long."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env)
        deadline = time.monotonic() + timeout_s
        try:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            while not pid and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
        stdout, stderr = (_read(f) for f in (out, err))
    name = Path(command[0]).name
    if not pid:
        raise MeasurementError(f"{name} was not done after {timeout_s:.0f} s: {stderr[-_WORDS_KEPT:]}")
    if process.returncode:
        raise MeasurementError(
            f"{name} ended with {process.returncode}: {(stdout[-_WORDS_KEPT:] + stderr[-_WORDS_KEPT:]).strip()}"
        )
    return Finished(stdout, stderr, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def _read(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    return str(file.read().decode(errors="replace"))  # type: ignore[attr-defined]


def directory_bytes(directory: Path, pattern: str) -> int:
    """Size of the files under `directory` whose name matches `pattern`; files that are deleted meanwhile count 0."""
    total = 0
    for path in directory.rglob(pattern):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
