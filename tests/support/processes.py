"""Measured processes: their processor time and memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

_WORDS_KEPT = 2000


class MeasurementError(Exception):
    """A measurement that could not be made; the message says why."""


class Usage(NamedTuple):
    """Processor time of a process and its descendants, and their resident memory."""

    cpu_s: float
    rss_bytes: int


class Finished(NamedTuple):
    """A process that ended well. `cpu_s` covers its whole life, also the start of its interpreter or JVM."""

    stdout: str
    cpu_s: float
    peak_rss_bytes: int


def usage(*pids: int) -> Usage:
    """The usage of processes and their descendants. Raises MeasurementError if one has ended."""
    cpu_s, rss_bytes = 0.0, 0
    for pid in pids:
        try:
            root = psutil.Process(pid)
            tree = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess as e:
            raise MeasurementError(f"process {pid} ended while it was measured") from e
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):  # a worker that ended between the two calls
                times, memory = process.cpu_times(), process.memory_info()
                # children_*: descendants that ended and were waited for, so that none is counted twice
                cpu_s += times.user + times.system + times.children_user + times.children_system
                rss_bytes += memory.rss
    return Usage(cpu_s, rss_bytes)


def peak_memory_bytes(pid: int | str = "self") -> int:
    """Return the largest resident memory of a process so far. `ru_maxrss` of a child begins with its parent's memory,
    this begins with its own program."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


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
        out.seek(0)
        err.seek(0)
        stdout, stderr = (f.read().decode(errors="replace") for f in (out, err))
    name, words = Path(command[0]).name, (stdout[-_WORDS_KEPT:] + stderr[-_WORDS_KEPT:]).strip()
    if late.is_set():
        raise MeasurementError(f"{name} was not done after {timeout_s:.0f} s: {words}")
    if process.returncode:
        raise MeasurementError(f"{name} ended with {process.returncode}: {words}")
    return Finished(stdout, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def directory_bytes(directory: Path, pattern: str) -> int:
    """Size of the files under `directory` whose name matches `pattern`; files that are deleted meanwhile count 0."""
    total = 0
    for path in directory.rglob(pattern):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
