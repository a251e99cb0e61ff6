"""Measured processes: their processor time and memory."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

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
    """The usage of a process and its descendants. Raises MeasurementError after its end."""
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
        # children_*: descendants that ended and were waited for, so that none is counted twice
        cpu_s += times.user + times.system + times.children_user + times.children_system
        rss_bytes += memory.rss
    return Usage(cpu_s, rss_bytes)


def total_usage(pids: Sequence[int]) -> Usage:
    """The usage of several processes. Raises MeasurementError after the end of one."""
    found = [usage(pid) for pid in pids]
    return Usage(sum(u.cpu_s for u in found), sum(u.rss_bytes for u in found))


def run(command: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Finished:
    """Run `command` to its end. Raises MeasurementError with its last output if it fails or takes too long."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env)
        late = threading.Event()
        timer = threading.Timer(timeout_s, lambda: (late.set(), process.kill()))
        timer.start()
        try:
            _, status, used = os.wait4(process.pid, 0)  # the usage of this one child
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            timer.cancel()
            if process.returncode is None:
                process.kill()
                process.wait()
        stdout, stderr = (_read(f) for f in (out, err))
    name, words = Path(command[0]).name, (stdout[-_WORDS_KEPT:] + stderr[-_WORDS_KEPT:]).strip()
    if late.is_set():
        raise MeasurementError(f"{name} was not done after {timeout_s:.0f} s: {words}")
    if process.returncode:
        raise MeasurementError(f"{name} ended with {process.returncode}: {words}")
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
