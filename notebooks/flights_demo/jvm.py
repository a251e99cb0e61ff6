"""Starting and stopping Spark's JVM so that nothing is left behind, whatever happens meanwhile.

PySpark starts its JVM inside `launch_gateway` and keeps the process to itself until the JVM answers. A demo that can
be interrupted at any moment, and that gives up on an unreachable package repository, needs it earlier: it is recorded
the moment it is started. The JVM runs in a session of its own, so that Ctrl-C in the terminal reaches this program
only, and everything Spark starts can be found again by that session.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

JAVA_VERSION_MIN = 17
STOP_TIMEOUT_S = 5.0
_KILLED_TIMEOUT_S = 2.0


class JavaMissingError(Exception):
    """No usable Java; the message says how to get one."""


class JvmStartError(Exception):
    """The JVM ended, or was ended by the time limit, before it was ready. `timed_out` tells which."""

    def __init__(self, message: str, *, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


def require_java() -> str:
    """The path of the `java` that Spark will use. Raises JavaMissingError."""
    hint = (
        f"Spark needs Java {JAVA_VERSION_MIN} or later: apt install openjdk-17-jre-headless, or brew install openjdk@17"
    )
    home = os.environ.get("JAVA_HOME")
    if home:
        java = shutil.which("java", path=str(Path(home) / "bin"))
        if java is None:
            raise JavaMissingError(f"JAVA_HOME is {home}, but there is no bin/java in it. {hint}")
    else:
        java = shutil.which("java")
        if java is None:
            raise JavaMissingError(f"no java on the PATH, and JAVA_HOME is not set. {hint}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as e:
        raise JavaMissingError(f"{java} does not run ({e}). {hint}") from e
    found = java_major(answer.stderr + answer.stdout)
    if found is not None and found < JAVA_VERSION_MIN:
        raise JavaMissingError(f"{java} is Java {found}. {hint}")
    return java


def java_major(version_text: str) -> int | None:
    """The major version in the output of `java -version` (8 for "1.8.0_292"), None when it cannot be told."""
    _, quote, rest = version_text.partition('version "')
    numbers = rest.partition('"')[0].replace("-", ".").split(".")
    if not quote or not numbers[0].isdigit():
        return None
    if numbers[0] == "1" and len(numbers) > 1 and numbers[1].isdigit():
        return int(numbers[1])
    return int(numbers[0])


class Jvm:
    """One JVM with a Py4J gateway. `start` blocks; `stop` may be called from another thread at any time, also during
    `start`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._timed_out = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, conf: Any, *, timeout_s: float) -> Any:
        """Starts the JVM with a SparkConf and gives its gateway. Raises JvmStartError."""
        from pyspark import java_gateway
        from pyspark.errors import PySparkRuntimeError

        launch: Any = java_gateway.launch_gateway

        limit = threading.Timer(timeout_s, self._give_up)
        limit.daemon = True
        limit.start()
        try:
            with self.log.open("ab") as log, self._recorded(java_gateway):
                options = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
                return launch(conf, options)
        except (PySparkRuntimeError, OSError) as e:
            reason = f"not ready after {timeout_s:.0f} s" if self._timed_out else "it ended at once"
            raise JvmStartError(f"Spark's JVM: {reason} (log: {self.log})", timed_out=self._timed_out) from e
        finally:
            limit.cancel()

    @contextlib.contextmanager
    def _recorded(self, java_gateway: Any) -> Iterator[None]:
        def popen(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
            process: subprocess.Popen[bytes] = subprocess.Popen(*args, **kwargs)
            self._process = process
            if self._stopped.is_set():
                process.kill()
            return process

        with mock.patch.object(java_gateway, "Popen", popen):
            yield

    def _give_up(self) -> None:
        self._timed_out = True
        if self._process is not None:
            _kill_session(self._process.pid)

    def stop(self) -> None:
        """Ends the JVM and every process it started: first politely, after STOP_TIMEOUT_S by force. Idempotent."""
        self._stopped.set()
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        # Spark's Python workers end by themselves when the JVM is gone; the slow ones are helped
        deadline = time.monotonic() + _KILLED_TIMEOUT_S
        while session_members(process.pid):
            if time.monotonic() > deadline:
                _kill_session(process.pid)
                break
            time.sleep(0.05)


def session_members(session: int) -> list[int]:
    """The live processes (no zombies) of a session, by /proc or `ps`. Process ids, sorted."""
    proc = Path("/proc")
    if not (proc / "self" / "stat").exists():
        command = ["ps", "-A", "-o", "pid=,sess=,stat="]
        rows = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        fields = [row.split() for row in rows]
        return sorted(int(f[0]) for f in fields if len(f) == 3 and f[1] == str(session) and f[2][0] != "Z")
    members = []
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # ended meanwhile
                # the command's name is in brackets and may itself hold blanks and brackets
                state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if its_session == str(session) and state not in "ZX":
                    members.append(int(entry.name))
    return sorted(members)


def _kill_session(session: int) -> None:
    for pid in {session, *session_members(session)}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
